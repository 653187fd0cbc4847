"""The `data` section of a recipe: which files, and how they become a dataset."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from pydantic import AfterValidator, Field

from phraseloom.config import Config
from phraseloom.text.config import SentencepieceConfig, SubwordsConfig, TextConfig


def _file_name(name: str) -> str:
    if not name or "\0" in name or "\n" in name:
        raise ValueError("a file name is not empty and holds no NUL or line end")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Language = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$")]


class ParallelFiles(Config):
    """Two files whose lines correspond (plain, .gz or .xz), looked up under the data root; SHA-256 checked if given."""

    source: FileName
    target: FileName
    source_sha256: Sha256 | None = None
    target_sha256: Sha256 | None = None


class FilterConfig(Config):
    """Which training pairs are left out. Lengths count subwords; everything left out is counted and reported.

    `max_ratio` is the longer side over the shorter one; null = no limit.
    """

    min_tokens: int = Field(1, ge=1)
    max_tokens: int = Field(256, ge=1)
    max_ratio: float | None = Field(9.0, ge=1.0)
    deduplicate: bool = False


class DataConfig(Config):
    """Files, text options, subwords and filters of one dataset.

    `folder` is written by `prepare`. `processes` and `folder` do not change what is written.
    """

    folder: FileName
    source_language: Language
    target_language: Language
    train: list[ParallelFiles] = Field(min_length=1)
    valid: list[ParallelFiles] = Field([])
    test: list[ParallelFiles] = Field([])
    text: TextConfig = TextConfig()
    subwords: SubwordsConfig = SentencepieceConfig()
    filter: FilterConfig = FilterConfig()
    processes: int = Field(2, ge=1, le=512)
    shard_pairs: int = Field(500_000, ge=1)

    def files(self, split: str) -> list[ParallelFiles]:
        """The files of `train`, `valid` or `test`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    @property
    def name(self) -> str:
        """The last part of `folder`."""
        return PurePath(self.folder).name
