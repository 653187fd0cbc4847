"""Options of normalisation and subwords: how a line becomes ids."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from phraseloom.config import Config


def _file_name(name: str) -> str:
    if not name or "\0" in name or "\n" in name:
        raise ValueError("a file name is not empty and holds no NUL or line end")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _tag_name(name: str) -> str:
    if name in ("<pad>", "<unk>", "<s>") or re.fullmatch(r"<0x[0-9A-F]{2}>", name):
        raise ValueError(f"{name} is a special token or the piece of a byte; choose another tag")
    return name


# A token before the source that names a language, a domain …; see `ParallelFiles.tag`.
TAG_PATTERN = r"^<[A-Za-z0-9_.:-]{1,40}>$"
TagName = Annotated[str, Field(pattern=TAG_PATTERN), AfterValidator(_tag_name)]


# Lines with more subwords are cropped unless the recipe or an option allows more (docs/decoding.md, "Long lines").
LINE_TOKENS = 1024


class TextConfig(Config):
    """Normalisation and tokenisation; undone after translation, except for `lowercase` and what `normalize` changed.

    `truecase`: the first word of a sentence gets the case that it has elsewhere in the training text (`text/truecase.py`).
    """

    normalize: Literal["none", "moses"] = "none"
    tokenize: Literal["none", "moses", "jieba"] = "none"
    lowercase: bool = False
    truecase: bool = False

    @model_validator(mode="after")
    def _truecase_fits(self) -> TextConfig:
        if self.truecase and self.tokenize == "none":
            raise ValueError("truecase looks at words, so it needs tokenize: moses")
        if self.truecase and self.lowercase:
            raise ValueError("truecase and lowercase: one of them")
        return self


class SentencepieceConfig(Config):
    """sentencepiece subwords; `byte_fallback` spells unknown characters as bytes, so that nothing is unknown."""

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


def _of_one_side(value: Any) -> Any:
    if isinstance(value, dict) and value.get("joint"):
        raise ValueError("joint: true has no meaning here: these are the subwords of the source alone")
    return {"joint": False, **value} if isinstance(value, dict) else value


SourceSubwords = Annotated[
    Annotated[SentencepieceConfig | SubwordNmtConfig, Field(discriminator="kind")], BeforeValidator(_of_one_side)
]


class RandomVectors(Config):
    """Random unit vectors of width `random`, drawn with `seed`: a control for vectors that were learned from text."""

    random: int = Field(ge=2, le=2**16)
    seed: int = Field(1, ge=0, le=2**32 - 1)


class VectorTraining(Config):
    """How `prepare` learns vectors with `data.target_phrases`: on the training text, with its phrases joined and as it is.

    `text`: more text of the target language, plain, looked up under the data root. The other keys are options of `embeddings
    train`.
    """

    text: list[FileName] = Field([])
    width: int = Field(300, ge=1, le=65536)
    epochs: int = Field(20, ge=1)
    min_count: int = Field(2, ge=1)
    sample: float = Field(0.001, ge=0.0, le=1.0)
    seed: int = Field(1, ge=0, le=2**32 - 2)


class TrainedVectors(Config):
    """Vectors that `prepare` learns itself, see `DataConfig.target_phrases`."""

    train: VectorTraining


def _kind_of_vectors(value: Any) -> str:
    if isinstance(value, TrainedVectors) or (isinstance(value, dict) and "train" in value):
        return "train"
    return "random" if isinstance(value, dict | RandomVectors) else "file"


VectorsConfig = Annotated[
    Annotated[FileName, Tag("file")]
    | Annotated[RandomVectors, Tag("random")]
    | Annotated[TrainedVectors, Tag("train")],
    Discriminator(_kind_of_vectors),
]


class WordsConfig(Config):
    """Whole words: the `size` most frequent words of a side (`source_size` for the source, if given), `min_frequency` or more.

    `joined`: the target text comes from `phrases segment`, tokenised and with phrases joined by `_`, and is used unchanged.
    `phrases`: the number of the most frequent joined phrases in the target vocabulary; other phrases are split into words.
    `vectors`: a `.vec` file (plain, .gz or .xz), looked up under the data root; the target vocabulary has only tokens with a
    vector. Or {random: WIDTH}, or with `data.target_phrases` {train: {}}. The SHA-256 is checked if given. `center`: subtract
    the mean of the vectors. `whiten`: also give their principal components the same variance. `dimensions`: keep only this
    many components. `random_share`: mix each vector with a random direction of its own, drawn with `random_seed`
    (`text/word_vectors.py`). `source`: use subwords for the source and words for the target.
    """

    kind: Literal["words"] = "words"
    size: int = Field(50_000, ge=1, le=1_000_000)
    source: SourceSubwords | None = None
    source_size: int | None = Field(None, ge=1, le=1_000_000)
    min_frequency: int = Field(1, ge=1)
    phrases: int = Field(0, ge=0, le=1_000_000)
    joined: bool = False
    vectors: VectorsConfig | None = None
    vectors_sha256: Sha256 | None = None
    center: bool = False
    whiten: bool = False
    dimensions: int | None = Field(None, ge=1, le=2**16)
    random_share: float = Field(0.0, ge=0.0, lt=1.0)
    random_seed: int = Field(1, ge=0, le=2**32 - 1)
    joint: bool = False
    sample_lines: int = Field(1_000_000, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> WordsConfig:
        if self.phrases and not self.joined:
            raise ValueError("phrases needs joined: true, and target text in which phrases segment has joined phrases")
        transforms = ("center", "whiten", "dimensions", "random_share", "vectors_sha256")
        of_file = [name for name in transforms if getattr(self, name)]
        if of_file and self.vectors is None:
            raise ValueError(f"{of_file[0]} is given, but no vectors")
        if of_file and isinstance(self.vectors, RandomVectors):
            raise ValueError(f"{of_file[0]} is for vectors of a file; random ones do not need it")
        if self.random_seed != 1 and not self.random_share:
            raise ValueError("random_seed draws the directions of random_share, which is 0")
        if self.dimensions is not None and not (self.center or self.whiten):
            raise ValueError("dimensions keeps principal components; it needs center: true or whiten: true")
        trained = getattr(self.vectors, "train", None)
        if trained is not None and (self.dimensions or 0) > trained.width:
            raise ValueError(f"dimensions: {self.dimensions} is more than vectors.train.width: {trained.width}")
        if self.source is not None and self.source_size is not None:
            raise ValueError("source_size is a number of words, and source makes subwords: it has a size of its own")
        of_one_side = {
            "source": self.source,
            "source_size": self.source_size,
            "joined": self.joined,
            "vectors": self.vectors,
        }
        if self.joint and (names := [name for name, value in of_one_side.items() if value]):
            raise ValueError(f"{names[0]} is of one side, so it needs joint: false")
        return self

    def of_source(self) -> SentencepieceConfig | SubwordNmtConfig | WordsConfig:
        """The options of the source alone, without phrases and vectors."""
        return self.source or WordsConfig(
            size=self.source_size or self.size, min_frequency=self.min_frequency, sample_lines=self.sample_lines
        )


SubwordsConfig = Annotated[SentencepieceConfig | SubwordNmtConfig | WordsConfig, Field(discriminator="kind")]
