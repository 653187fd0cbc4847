"""The index of a dataset folder, `index.json`: what is in it, where it came from, and what was left out.

It holds no time and no absolute path, so the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from phraseloom.config import Config, Whole
from phraseloom.errors import CorruptError
from phraseloom.files import read_json
from phraseloom.reading import MIB, inside
from phraseloom.text.config import LINE_TOKENS

FORMAT = 1
INDEX = "index.json"
INDEX_MAX_BYTES = 8 * MIB
SPLITS = ("train", "valid", "test")

# Why a training pair is left out, in the order in which it is asked.
REASONS = {
    "empty": "the line is blank",
    "empty_both": "both sides are blank",
    "empty_source": "the source is blank",
    "empty_target": "the target is blank",
    "too_long": "a side has more than max_tokens subwords",
    "too_short": "a side has fewer than min_tokens subwords",
    "ratio": "one side is more than max_ratio times the other",
    "duplicate": "the same pair came before",
}
# The same where there is text without a source.
TEXT_REASONS = REASONS | {
    "too_long": "it has more than max_tokens subwords",
    "too_short": "it has fewer than min_tokens subwords",
    "duplicate": "the same line came before",
}

Count = Annotated[int, Field(ge=0)]

# What only a dataset with source phrases, with word vocabularies, or with blank lines has: elsewhere these keys are not
# written, so that its bytes stay the same.
OF_PHRASES = {"phrases", "trees", "trees_sha256", "trees_report", "source_phrases", "no_tree", "segmenter_sha256"}
OF_WORDS = {
    "source_unknown",
    "target_unknown",
    "source_words",
    "target_words",
    "source",
    "target_vectors",
    "dimensions",
}
OF_BLANKS = {"blank", "long"}
OF_REUSED = {"reused", "new_pieces", "unknown_words"}


class Dropped(Config):
    """How many pairs one reason left out, and the first of them (file as in the recipe, line from 1)."""

    pairs: Count
    first_file: str
    first_line: Count


class NoTree(Config):
    """How many lines have no parse tree although they have text, and the first of them (file as in the recipe, line from 1)."""

    lines: Count
    first_file: str
    first_line: Count


class FileInfo(Config):
    """One parallel pair of files as it was read: hashes, lines, and what the reader met on each side.

    Of text without a source, everything about the source is empty. `trees…`: the same of the parse trees of the source.
    """

    source: str
    target: str
    source_sha256: str
    target_sha256: str
    lines: Count
    source_report: dict[str, Any]
    target_report: dict[str, Any]
    trees: str | None = None
    trees_sha256: str | None = None
    trees_report: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """The file that places are given in: the source, where there is one."""
        return self.source or self.target


class ShardInfo(Config):
    """One shard: pairs, tokens of each side, phrases of the source (null: none are stored), SHA-256 of its files."""

    name: Annotated[str, Field(pattern=r"^(train|valid|test)/\d{5,9}$")]
    pairs: Count
    source_tokens: Count
    target_tokens: Count
    source_phrases: Count | None = None
    sha256: dict[str, str]


class SplitInfo(Config):
    """One of train, valid, test. `source_phrases` as in `ShardInfo`; `…_unknown`: of word vocabularies and
    of subwords learned elsewhere, the unknown tokens; `unknown_words`: some of the words that the latter cannot spell.

    `blank`: pairs of valid and test without tokens on a side; `long`: those with a side that validation crops. Both are kept.
    """

    read: Count
    pairs: Count
    source_tokens: Count
    target_tokens: Count
    source_phrases: Count | None = None
    source_unknown: Count | None = None
    target_unknown: Count | None = None
    unknown_words: list[str] | None = None
    dropped: dict[str, Dropped]
    files: list[FileInfo]
    shards: list[ShardInfo]
    text_sha256: dict[str, str] = Field({})
    no_tree: NoTree | None = None
    blank: Dropped | None = None
    long: Dropped | None = None


class WordInfo(Config):
    """What a vocabulary of words leaves unknown in the sample that it was learned from (`text/words.py`, `Coverage`)."""

    types: Count
    tokens: Count
    unknown_types: Count
    unknown_tokens: Count
    split_types: Count
    split_tokens: Count


class VectorInfo(Config):
    """Figures of the target vectors as they are used (`text/vector_check.py`), and what random ones reach; what is wrong."""

    mean_cosine: float | None
    nearest_cosine: float | None
    effective_rank: float
    share_of_64: float
    likeliest: float | None
    random_likeliest: float | None
    problems: list[str]


class SubwordInfo(Config):
    """How the subwords were learned: pairs of lines in the sample, size of each vocabulary, and of words what is unknown.

    `sample_pairs`: of the target, where the source has a number of its own. `reused`: they were learned elsewhere, but
    for `new_pieces` of all vocabularies together.
    """

    sample_pairs: Count
    source_vocabulary: Count
    target_vocabulary: Count
    source_words: WordInfo | None = None
    target_words: WordInfo | None = None
    target_vectors: VectorInfo | None = None
    reused: bool | None = None
    new_pieces: Count | None = None


class Index(Config):
    """The whole index."""

    format: Annotated[Literal[1], Whole]
    config: dict[str, Any]
    token_type: Literal["uint16", "uint32"]
    tokenizer_sha256: str
    segmenter_sha256: str | None = None
    subwords: SubwordInfo
    splits: dict[Literal["train", "valid", "test"], SplitInfo]

    @property
    def is_text(self) -> bool:
        """Whether this is text of one language, for language models; the source side is then empty."""
        return "language" in self.config

    @property
    def valid_tokens(self) -> int:
        """The most subwords of a side in validation, which crops longer lines."""
        return max(LINE_TOKENS, self.config.get("filter", {}).get("max_tokens", 0))

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why something is left out, in words."""
        return TEXT_REASONS if self.is_text else REASONS


def as_stored(value: Any) -> Any:
    """Plain data of an index or a data section, without what is null because there is no such thing in it."""
    if isinstance(value, dict):
        return {
            k: as_stored(v)
            for k, v in value.items()
            if v is not None or k not in OF_PHRASES | OF_WORDS | OF_BLANKS | OF_REUSED
        }
    return [as_stored(v) for v in value] if isinstance(value, list) else value


def read_index(folder: Path) -> Index:
    """The index of a dataset folder. Raises FileProblem, CorruptError."""
    path = inside(folder, INDEX, "dataset index")
    value = read_json(path, "dataset index", limit=INDEX_MAX_BYTES)
    if isinstance(value, dict) and isinstance(value.get("format"), int) and value["format"] > FORMAT:
        hint = "use a later phraseloom, or prepare the data again"
        raise CorruptError(f"dataset of format {value['format']}, this version reads {FORMAT}", file=path, hint=hint)
    try:
        return Index.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"not a dataset index: {place}: {first['msg']}", file=path) from error
