"""The `data` section of a recipe: the files, and how they become a dataset.

`DataConfig` is for translation: two languages, pairs of files. `TextDataConfig` is for a language model: one language, single
files; the source side of its dataset is empty. Both have `files(split)`, `source_language` and `target_language`, and each
entry has `sides`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from phraseloom.config import Config, or_short
from phraseloom.options.languages import is_chinese
from phraseloom.options.text import (
    LINE_TOKENS,
    TAG_PATTERN,
    FileName,
    SentencepieceConfig,
    Sha256,
    SubwordsConfig,
    TagName,
    TextConfig,
    TrainedVectors,
    WordsConfig,
)

Language = Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$")]
Sides = dict[str, tuple[str, str | None]]
Tags = Annotated[
    list[TagName],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(json_schema_extra=or_short({"type": "string", "pattern": TAG_PATTERN})),
]
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)]


def _check_new_pieces(config: Any) -> None:
    if config.new_pieces and config.tokenizer is None:
        raise ValueError("new_pieces are added to the subwords of data.tokenizer, and there is none")


def _refuse(value: Any, keys: tuple[str, ...], why: str) -> Any:
    """`value`. Raises ValueError if it has one of `keys`, which belong to the other task."""
    if isinstance(value, dict) and any(key in value for key in keys):
        raise ValueError(why)
    return value


class ParallelFiles(Config):
    """Two files whose lines correspond (plain, .gz or .xz), looked up under the data root. The SHA-256 is checked if given.

    `trees`: the parse trees of the source, one bracketed tree per line, if `data.phrases` needs them. `weight`: how often
    each training pair occurs in an epoch, on average; null = 1 (`data/mixture.py`). `tag`: a token
    such as <2de>, or several, before every source sentence; it is in the vocabulary and never split. `links`: word
    links of the training pairs, one line of Pharaoh text each, for `training.guided_alignment`.
    """

    source: FileName
    target: FileName
    source_sha256: Sha256 | None = None
    target_sha256: Sha256 | None = None
    trees: FileName | None = None
    trees_sha256: Sha256 | None = None
    weight: Weight | None = None
    tag: Tags | None = None
    links: FileName | None = None
    links_sha256: Sha256 | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_a_pair(cls, value: Any) -> Any:
        why = "a translation is trained on {source: FILE, target: FILE}; {text: FILE} is for task: language_model"
        return _refuse(value, ("text", "text_sha256"), why)

    @model_validator(mode="after")
    def _has_trees_where_it_says_so(self) -> ParallelFiles:
        if self.trees is None and self.trees_sha256 is not None:
            raise ValueError("trees_sha256 is given, but no trees")
        if self.links is None and self.links_sha256 is not None:
            raise ValueError("links_sha256 is given, but no links")
        return self

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags before every source sentence."""
        return tuple(self.tag or ())

    @property
    def sides(self) -> Sides:
        """File name and expected SHA-256 of each side."""
        return {"source": (self.source, self.source_sha256), "target": (self.target, self.target_sha256)}

    @property
    def all_files(self) -> Sides:
        """The sides, and the trees of the source under `trees` and the word links under `links`, if there are any."""
        more: Sides = {} if self.trees is None else {"trees": (self.trees, self.trees_sha256)}
        return self.sides | more | ({} if self.links is None else {"links": (self.links, self.links_sha256)})


class TextFile(Config):
    """One file of lines (plain, .gz or .xz), looked up under the data root; SHA-256 checked if given. `weight`: see
    `ParallelFiles`."""

    text: FileName
    text_sha256: Sha256 | None = None
    weight: Weight | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        why = "a language model is trained on {text: FILE}; {source: FILE, target: FILE} is for task: translation"
        return _refuse(value, ("source", "target", "source_sha256", "target_sha256"), why)

    @property
    def tags(self) -> tuple[str, ...]:
        """No tags: there is no source."""
        return ()

    @property
    def sides(self) -> Sides:
        """File name and expected SHA-256: text is a target without a source."""
        return {"target": (self.text, self.text_sha256)}

    @property
    def all_files(self) -> Sides:
        """The sides: text has no trees."""
        return self.sides


AnyFiles = ParallelFiles | TextFile


def _check_training_keys(config: Any) -> None:
    """Raise ValueError for a key of `train` in an entry of `valid` or `test`."""
    for split in ("valid", "test"):
        for number, files in enumerate(config.files(split)):
            if files.weight is not None:
                raise ValueError(
                    f"{split}.{number}.weight: every line of {split} counts once; weights are for data.train"
                )
            if "links" in files.all_files:
                raise ValueError(f"{split}.{number}.links: only training uses links; they are for data.train")


def _check_held_out(config: Any) -> None:
    """Raise ValueError if `filter.decontaminate` has nothing to compare with."""
    if config.filter.decontaminate is not None and not config.valid and not config.test:
        raise ValueError("filter.decontaminate compares with the lines of valid and test, and there are none")


class FilterConfig(Config):
    """Filters of training pairs. Lengths are in subwords; the pairs left out are counted and reported.

    `max_ratio`: longer side over shorter side; null = no limit. `decontaminate`: leave out pairs with a side of at least this
    many words that is a line of valid or test (`text/held_out.py`); null = keep them.
    """

    min_tokens: int = Field(1, ge=1)
    max_tokens: int = Field(256, ge=1)
    max_ratio: float | None = Field(9.0, ge=1.0)
    deduplicate: bool = False
    decontaminate: Annotated[int, Field(ge=1)] | None = None


class TextFilterConfig(Config):
    """Filters of training lines. Lengths are in subwords; the lines left out are counted and reported. `decontaminate`: see
    `FilterConfig`."""

    min_tokens: int = Field(1, ge=1)
    max_tokens: int = Field(256, ge=1)
    deduplicate: bool = False
    decontaminate: Annotated[int, Field(ge=1)] | None = None

    @property
    def max_ratio(self) -> None:
        """None: there is only one side."""
        return None


class PhraseFilterConfig(Config):
    """Which candidates are phrases (`phrases/filter.py`): options of `phrases filter`; null = what its preset says."""

    min_count: int = Field(2, ge=1, description="Drop rarer candidates.")
    max_words: int = Field(4, ge=0, description="Drop longer candidates. 0: no limit.")
    characters: Literal["no-punctuation", "letters", "any"] | None = Field(
        None, description="Characters allowed in words. Default: no-punctuation; with --preset released: letters."
    )
    repetition: bool = Field(False, description="Allow a repeated word.")
    stop_words: FileName | None = Field(
        None, description="en, de, fr, released, none, or a file with one word per line. Default: the preset's list."
    )
    stop_rule: Literal["only", "any"] | None = Field(
        None, description="Drop phrases made only of stop-words, or phrases with any. Default: the preset's rule."
    )
    min_pmi: float | None = Field(
        None, allow_inf_nan=False, description="Keep phrases with a PMI (in bits) above this. Default: 0."
    )


class TargetPhrasesConfig(PhraseFilterConfig):
    """How `prepare` finds the phrases of the target in plain text, joins them, and learns vectors (docs/continuous_output.md).

    `aligner`: a file of `align train`; null: one is trained on the training text. `filter`: the preset of `phrases filter`,
    without parts of speech, for which there are no tags. `stop_words`: a name, or a file under the data root; null: with
    `filter: paper`, the list of the target language, if there is one. `rule`: the
    option of `phrases segment`.
    """

    aligner: FileName | None = None
    filter: Literal["paper", "released"] = "paper"
    rule: Literal["released", "aligned"] = "aligned"

    @model_validator(mode="before")
    @classmethod
    def _aligner_is_a_file(cls, value: Any) -> Any:
        if isinstance(value, dict) and ("align" in value or value.get("aligner") == "auto"):
            raise ValueError(
                "to train an aligner on the training text, leave aligner out; aligner: FILE is a file of align train"
            )
        return value


class TreeSegmenterConfig(Config):
    """Phrases of parse trees by Algorithm 1 of the ACL 2020 paper, of at most n subwords.

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


class DataConfig(Config):
    """Files, text options, subwords, filters and source phrases of one dataset.

    `prepare` writes to `folder`. `phrases`: how to cut source sentences into phrases, which the dataset stores; null = no
    phrases. `tokenizer`: a dataset, model or run folder whose text options, subwords and vocabularies replace `text` and
    `subwords` (null: learn them); `new_pieces`: the number of pieces to add to each of its vocabularies, by merges learned on
    the training text. `temperature`: above 1 makes small corpora of `train` more frequent and large ones less; null = 1
    (`data/mixture.py`). `target_phrases`: the target files are plain text, and `prepare` joins their phrases (null: with
    `subwords.joined` they are joined already). The output does not depend on `processes` and `folder`.
    """

    folder: FileName
    source_language: Language
    target_language: Language
    train: list[ParallelFiles] = Field(min_length=1)
    valid: list[ParallelFiles] = Field([])
    test: list[ParallelFiles] = Field([])
    text: TextConfig = TextConfig()
    subwords: SubwordsConfig = SentencepieceConfig()
    tokenizer: FileName | None = None
    new_pieces: int = Field(0, ge=0, le=1_000_000)
    temperature: Temperature | None = None
    filter: FilterConfig = FilterConfig()
    phrases: SegmenterConfig | None = None
    target_phrases: TargetPhrasesConfig | None = None
    processes: int = Field(2, ge=1, le=512)
    shard_pairs: int = Field(500_000, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _has_two_languages(cls, value: Any) -> Any:
        why = (
            "language is for task: language_model, and this is task: translation, which has source_language and "
            "target_language"
        )
        return _refuse(value, ("language",), why)

    @model_validator(mode="before")
    @classmethod
    def _found_phrases_are_joined(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("target_phrases") is None:
            return value
        subwords = value.get("subwords")
        if isinstance(subwords, dict) and subwords.get("kind") == "words" and "joined" not in subwords:
            return {**value, "subwords": {**subwords, "joined": True}}
        return value

    @model_validator(mode="after")
    def _found_phrases_have_a_place(self) -> DataConfig:
        subwords = self.subwords
        words = subwords if isinstance(subwords, WordsConfig) else None
        if self.target_phrases is None:
            if words is not None and isinstance(words.vectors, TrainedVectors):
                raise ValueError(
                    "subwords.vectors: {train: …} is for data.target_phrases; phraseloom embeddings train makes a file"
                )
            return self
        if words is None or not words.joined or "phrases" not in words.model_fields_set:
            raise ValueError(
                "target_phrases needs subwords: {kind: words, phrases: N}, N of the phrases in the vocabulary; 0 reads them "
                "as words"
            )
        if not isinstance(words.vectors, TrainedVectors):
            raise ValueError(
                "target_phrases learns vectors of its phrases: subwords.vectors: {train: {}}; to use a file of vectors, join "
                "the text by phraseloom phrases segment"
            )
        if self.text.tokenize == "none":
            raise ValueError("target_phrases are of words, so data.text needs tokenize: moses, or jieba")
        of_files = any(pair.weight is not None or pair.tag is not None or pair.links is not None for pair in self.train)
        if of_files or self.temperature is not None:
            raise ValueError(
                "target_phrases joins the files of a split to one, which has no weight, tag or links, and no temperature"
            )
        if self.tokenizer is not None:
            raise ValueError("target_phrases makes a vocabulary of its own, and data.tokenizer brings another one")
        leaves_out = self.filter.decontaminate is not None or self.filter.deduplicate
        if leaves_out and any(pair.trees is not None for pair in self.train):
            raise ValueError(
                "target_phrases with filter.decontaminate or filter.deduplicate leaves pairs out before trees are read: use "
                "phraseloom decontaminate before, or leave the trees out"
            )
        return self

    @model_validator(mode="after")
    def _new_pieces_have_old_ones(self) -> DataConfig:
        _check_new_pieces(self)
        _check_training_keys(self)
        _check_held_out(self)
        return self

    @model_validator(mode="after")
    def _tags_have_subwords(self) -> DataConfig:
        if not self.tags:
            return self
        subwords = self.subwords.of_source() if self.subwords.kind == "words" else self.subwords
        if subwords.kind == "words":
            raise ValueError("tags need subwords for the source: data.subwords.source: {kind: sentencepiece}")
        if self.phrases is not None:
            raise ValueError("tags and data.phrases exclude each other: a tag belongs to no phrase of the source")
        trained = {tag for files in self.train for tag in files.tags}
        for split in ("valid", "test"):
            for number, files in enumerate(self.files(split)):
                if unknown := [tag for tag in files.tags if tag not in trained]:
                    raise ValueError(f"{split}.{number}.tag: no corpus of data.train has the tag {unknown[0]}")
        return self

    @model_validator(mode="after")
    def _trees_are_where_they_are_used(self) -> DataConfig:
        needs_trees = self.phrases is not None and self.phrases.kind == "tree"
        for split in ("train", "valid", "test"):
            for number, files in enumerate(self.files(split)):
                has, key = "trees" in files.all_files, f"{split}.{number}.trees"
                if needs_trees and not has:
                    raise ValueError(
                        f"key {key} is missing: phrases: {{kind: tree}} needs the parse trees of {files.sides['source'][0]} "
                        "(phraseloom phrases parse makes some)"
                    )
                if has and not needs_trees:
                    why = "there is no data.phrases" if self.phrases is None else f"data.phrases is {self.phrases.kind}"
                    raise ValueError(f"{key} is given, but {why}; trees are for data.phrases: {{kind: tree}}")
        return self

    def files(self, split: str) -> Sequence[AnyFiles]:
        """The files of `train`, `valid` or `test`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag of the corpora, in their order."""
        splits = ("train", "valid", "test")
        return tuple(dict.fromkeys(tag for s in splits for files in self.files(s) for tag in files.tags))

    @property
    def name(self) -> str:
        """The last part of `folder`."""
        return PurePath(self.folder).name


class TextDataConfig(Config):
    """Files, text options, subwords and filters of a dataset of one language, for language models.

    `prepare` writes to `folder`. The output does not depend on `processes` and `folder`. `shard_pairs` counts lines.
    `temperature`: see `DataConfig`.
    """

    folder: FileName
    language: Language
    train: list[TextFile] = Field(min_length=1)
    valid: list[TextFile] = Field([])
    test: list[TextFile] = Field([])
    text: TextConfig = TextConfig()
    subwords: SubwordsConfig = SentencepieceConfig()
    tokenizer: FileName | None = None
    new_pieces: int = Field(0, ge=0, le=1_000_000)
    temperature: Temperature | None = None
    filter: TextFilterConfig = TextFilterConfig()
    processes: int = Field(2, ge=1, le=512)
    shard_pairs: int = Field(500_000, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _has_one_language(cls, value: Any) -> Any:
        why = (
            "source_language and target_language are for task: translation, and this is task: language_model, which has "
            "language"
        )
        return _refuse(value, ("source_language", "target_language"), why)

    @model_validator(mode="after")
    def _subwords_are_joint(self) -> TextDataConfig:
        if not self.subwords.joint:
            raise ValueError("subwords.joint: false has no meaning where there is one language")
        _check_new_pieces(self)
        _check_training_keys(self)
        _check_held_out(self)
        return self

    def files(self, split: str) -> Sequence[AnyFiles]:
        """The files of `train`, `valid` or `test`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    @property
    def name(self) -> str:
        """The last part of `folder`."""
        return PurePath(self.folder).name

    @property
    def source_language(self) -> str:
        """The one language."""
        return self.language

    @property
    def target_language(self) -> str:
        """The one language."""
        return self.language


AnyDataConfig = DataConfig | TextDataConfig
AnyFilter = FilterConfig | TextFilterConfig


def check_jieba(config: AnyDataConfig) -> None:
    """Raise ValueError for `tokenize: jieba` without Chinese text. Not part of the classes, so that old datasets open."""
    languages = dict.fromkeys((config.source_language, config.target_language))
    if config.text.tokenize == "jieba" and not any(map(is_chinese, languages)):
        raise ValueError(
            f"data.text.tokenize: jieba is for Chinese (zh), and the data are {' → '.join(languages)}: set it to moses"
        )


def valid_tokens(filters: FilterConfig | TextFilterConfig) -> int:
    """The most subwords of a side in validation; longer lines are cropped. At least as many as in training."""
    return max(LINE_TOKENS, filters.max_tokens)
