"""The `data.phrases` section of a recipe: where the phrases of the source sentences come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phraseloom.config import Config


class TreeSegmenterConfig(Config):
    """Phrases of parse trees by Algorithm 1 of the ACL 2020 paper, of at most n subwords (spec §3.1, §3.6).

    n = max(min(max_tokens, ceil(tokens / min_chunks)), floor), where tokens are the subwords of the source with its end.
    """

    kind: Literal["tree"] = "tree"
    max_tokens: int = Field(8, ge=1, le=60_000)
    min_chunks: int = Field(6, ge=1)
    floor: int = Field(3, ge=1)

    @model_validator(mode="after")
    def _floor_is_below(self) -> TreeSegmenterConfig:
        if self.floor > self.max_tokens:
            raise ValueError(f"floor is at most max_tokens ({self.max_tokens}), not {self.floor}")
        return self


class TableSegmenterConfig(Config):
    """Longest matches in a table of phrases (plain, .gz or .xz), looked up under the data root; checks the SHA-256 if given.

    One phrase per line, words separated by spaces; in a line with ` ||| ` or tabs, only the first column counts.
    """

    kind: Literal["table"] = "table"
    file: str = Field(min_length=1, pattern=r"^[^\x00\n]+$")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")


SegmenterConfig = Annotated[TreeSegmenterConfig | TableSegmenterConfig, Field(discriminator="kind")]
