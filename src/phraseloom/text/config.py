"""What is done to a line before it becomes ids: options of normalisation and subwords."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from phraseloom.config import Config


class TextConfig(Config):
    """Normalisation and tokenisation; undone after translation, except for `lowercase` and what `normalize` changed."""

    normalize: Literal["none", "moses"] = "none"
    tokenize: Literal["none", "moses", "jieba"] = "none"
    lowercase: bool = False


class SentencepieceConfig(Config):
    """sentencepiece subwords; `byte_fallback` spells characters outside the vocabulary as bytes: nothing is unknown."""

    kind: Literal["sentencepiece"] = "sentencepiece"
    model: Literal["bpe", "unigram"] = "bpe"
    size: int = Field(8000, ge=8, le=1_000_000)
    joint: bool = True
    sample_lines: int = Field(1_000_000, ge=1)
    byte_fallback: bool = True


class SubwordNmtConfig(Config):
    """subword-nmt BPE with `@@ ` (Sennrich et al. 2016), learned with `merges` merge operations."""

    kind: Literal["subword_nmt"] = "subword_nmt"
    merges: int = Field(8000, ge=0, le=1_000_000)
    joint: bool = True
    sample_lines: int = Field(1_000_000, ge=1)
    min_frequency: int = Field(2, ge=1)


SubwordsConfig = Annotated[SentencepieceConfig | SubwordNmtConfig, Field(discriminator="kind")]
