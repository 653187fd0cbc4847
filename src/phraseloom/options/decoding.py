"""How a model translates: beam, length penalty, length bounds, batches, workers. Declared without torch.

Each field is declared here once: as a key of `generation_config.json` in a model folder, a key of the `decoding:` part of
a recipe, a keyword of `Translator.translate`, and an option of the command line with this description and these bounds
(`cli/options.py`). `docs/commands.md` and the HTTP interface read them too.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, model_validator

from phraseloom.config import Config, or_short
from phraseloom.options.text import LINE_TOKENS, TagName


class WuPenaltyConfig(Config):
    """Wu et al. (2016): log P / ((5 + |Y|) / 6)^alpha."""

    kind: Literal["wu"] = "wu"
    alpha: float = Field(0.6, ge=0.0, le=10.0, description="Exponent of the length penalty.")


class SockeyePenaltyConfig(Config):
    """Sockeye: log P / ((beta + |Y|) / (beta + 1))^alpha; alpha 1, beta 0 is the mean log-probability of a token."""

    kind: Literal["sockeye"] = "sockeye"
    alpha: float = Field(1.0, ge=0.0, le=10.0, description="Exponent of the length penalty.")
    beta: float = Field(0.0, ge=0.0, le=1000.0, description="Constant of Sockeye's length penalty.")


class NoPenaltyConfig(Config):
    """The plain log-probability."""

    kind: Literal["none"] = "none"


AlignmentMethod = Literal[
    "target-to-source",
    "source-to-target",
    "intersection",
    "union",
    "grow-diag",
    "grow-diag-final",
    "grow-diag-final-and",
]

UnknownMethod = Literal["forbid", "keep", "replace"]
LongLines = Literal["crop", "split"]
StopRule = Literal["finished", "exact", "transformers"]
Kernels = Literal["auto", "eager", "native"]
Precision = Literal["fp32", "bf16", "fp16", "int8"]
EnsembleMean = Literal["probabilities", "log_probabilities"]
MbrMetric = Literal["chrf", "bleu"]

PenaltyConfig = Annotated[WuPenaltyConfig | SockeyePenaltyConfig | NoPenaltyConfig, Field(discriminator="kind")]


AutoBatch = Literal["auto"] | Annotated[int, Field(ge=1, le=100_000)]
Workers = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=1024)],
    Field(description="Number of parallel threads, or auto: one per core, 1 on a GPU."),
]
BatchTokens = Annotated[int, Field(ge=1, description="Most tokens of a batch, padding included.")]
Window = Annotated[
    int, Field(ge=1, le=10_000_000, description="Largest number of lines to read, sort by length and process together.")
]
MAX_BEAM = 1000

Temperature = Annotated[
    float,
    Field(gt=0.0, le=1000.0, description="Softmax temperature. Below 1: less random; above 1: more random."),
]
TopK = Annotated[Annotated[int, Field(ge=1)] | None, Field(description="Sample from the k best tokens only.")]
TopP = Annotated[
    Annotated[float, Field(gt=0.0, le=1.0)] | None,
    Field(description="Nucleus sampling: sample from the smallest set of tokens with this total probability."),
]
Seed = Annotated[int, Field(ge=0, lt=2**63, description="Random seed.")]


class LengthConfig(Config):
    """A number of target tokens as a function of the source: floor(factor · source tokens + constant), without EOS."""

    factor: float = Field(0.0, ge=0.0, le=100.0)
    constant: int = Field(0, ge=0, le=100_000)

    def of(self, source_tokens: int) -> int:
        """The bound for a source of `source_tokens` subwords (EOS not counted)."""
        return math.floor(round(self.factor * source_tokens, 9)) + self.constant  # 1.15 · 100 is 114.99… in binary

    def always_above(self, other: LengthConfig) -> bool:
        """Whether this bound is above `other` for every source of at least one token."""
        return self.factor >= other.factor and self.of(1) > other.of(1)

    def __str__(self) -> str:
        return f"{self.factor:g},{self.constant}"


class NamedFile(Config):
    """The name of a file without its folder, and the SHA-256 of its bytes."""

    name: str
    sha256: str


class AlignmentSelection(Config):
    """The data on which `align --select` chose layer, head and method, and their alignment error rate on it."""

    aer: float
    sentences: int
    source: NamedFile
    target: NamedFile
    gold: NamedFile


def _mean_is_none(value: Any) -> Any:
    return None if value == "mean" else value


AUTO = "auto"  # of `lexicon`


class DecodingConfig(Config):
    """Options of search and of the translator; the description of each field says what it does.

    Where the bounds of length cross, `max_length` holds. A batch holds fewer than `batch_sentences` sentences if they have
    more than `batch_tokens` source tokens. Each of the `workers` uses one core; 1 lets torch use several cores.
    `alignment_layer` None is the last layer but one (or the only one), `alignment_head` None is the mean of all heads.
    `unknown`: keep writes U+2047, replace takes a source word (`decoding/parts.py`). `lexicon`: in a recipe with
    `data.target_phrases`, auto is the one that `prepare` makes. `phrase_odds` and `gate_weight` have no
    effect on a model without a gate (`docs/continuous_output.md`). `docs/alignment.md` and
    `docs/decoding.md` explain the methods of alignment, the stopping rules, sampling and minimum Bayes risk.
    """

    beam: int = Field(5, ge=1, le=MAX_BEAM, description="Beam size; 1 is greedy search.")
    n_best: int = Field(
        1, ge=1, le=MAX_BEAM, description="Translations per line; at most the beam size, or the samples of mbr."
    )
    sample: bool = Field(False, description="Sample translations, n_best per line, instead of searching for the best.")
    temperature: Temperature = 1.0
    top_k: TopK = None
    top_p: TopP = None
    seed: Seed = 1
    mbr: int = Field(
        0,
        ge=0,
        le=MAX_BEAM,
        description="Minimum Bayes risk: draw this many samples per line and choose the one most similar to all; 0: off.",
    )
    mbr_metric: MbrMetric = Field("chrf", description="Similarity for mbr: sentence chrF or sentence BLEU.")
    no_repeat_ngram_size: int = Field(
        0, ge=0, le=1000, description="Never write an n-gram of this many subwords twice in an output; 0: off."
    )
    ensemble_mean: EnsembleMean = Field(
        "probabilities", description="What an ensemble averages: the probabilities of its models, or their logarithms."
    )
    length_penalty: PenaltyConfig = Field(WuPenaltyConfig(), description="Length penalty: wu, sockeye or none.")
    stop: StopRule = Field(
        "finished",
        description="Stopping rule. finished: when as many hypotheses as the beam size have finished; exact: when no better "
        "one is possible; transformers: as in generate of that library.",
    )
    max_length: LengthConfig = Field(
        LengthConfig(factor=2.0, constant=20),
        description="Most subwords of the output: FACTOR x source subwords + CONSTANT.",
    )
    min_length: LengthConfig = Field(
        LengthConfig(factor=0.0, constant=1),
        description="Fewest subwords of the output: FACTOR x source subwords + CONSTANT.",
    )
    batch_sentences: AutoBatch = Field("auto", description="Sentences per batch.")
    batch_tokens: BatchTokens = 8192
    workers: Workers = "auto"
    kernels: Kernels = Field(
        "auto",
        description="What computes the search. auto: the compiled library where it is built and can run the model; native: "
        "require it; eager: torch.",
    )
    precision: Precision = Field(
        "fp32",
        description="Arithmetic of the products of a search. bf16 and fp16 are for GPUs, int8 for CPUs; log-probabilities "
        "stay fp32.",
    )
    max_input_tokens: int = Field(
        LINE_TOKENS, ge=1, le=1_000_000, description="Most subwords of a line. Longer lines are cropped (or split)."
    )
    long_lines: LongLines = Field("crop", description="What to do with longer lines.")
    alignment_layer: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Decoder layer whose attention gives the alignment, from 1."
    )
    alignment_head: Annotated[
        Annotated[int, Field(ge=1)] | Literal["max"] | None, pydantic.BeforeValidator(_mean_is_none)
    ] = Field(
        None,
        description="Head of that layer, from 1, or mean or max of all heads.",
        json_schema_extra=or_short({"const": "mean"}),
    )
    alignment_method: AlignmentMethod = Field("target-to-source", description="How links are made from attention.")
    alignment_selection: AlignmentSelection | None = Field(
        None, description="Written by align --select: how it chose layer, head and method."
    )
    unknown: UnknownMethod = Field(
        "forbid",
        description="Unknown words in the output: forbid them, keep them, or replace them by the source word with the most "
        "attention.",
    )
    lexicon: str | None = Field(None, description="Lexicon (written by align lexicon) for unknown: replace.")
    split_sentences: bool = Field(
        False, description="Translate each sentence of a line on its own, and keep the white space between them."
    )
    tags: list[TagName] = Field([], description="Tag of a model with tags, such as <2de>; repeat for several.")
    word_bonus: float = Field(
        0.0,
        ge=-100.0,
        le=100.0,
        description="Bonus per subword, added to the log-probability (segmental models, NPMT).",
    )
    phrase_odds: float = Field(
        1.0,
        ge=1e-6,
        le=1e6,
        description="Multiply the odds that a source word becomes a phrase (models with a fertility module). Below 1: fewer "
        "phrases.",
    )
    gate_weight: float = Field(
        1.0,
        ge=0.0,
        le=100.0,
        description="Raise these odds to this power. With phrase_odds 1 / (the odds of a phrase in the text), a weight near 0 "
        "leaves the gate no influence.",
    )
    window: Window = 2000

    @property
    def samples(self) -> int:
        """The number of samples per line; 0 for a search."""
        return self.mbr or (self.n_best if self.sample else 0)

    @property
    def sentences_together(self) -> int:
        """`batch_sentences` as a number; measured on CPUs, see docs/decoding.md."""
        if self.batch_sentences != "auto":
            return self.batch_sentences
        return max(1, min(128, 320 // self.samples)) if self.samples else max(16, min(128, 320 // self.beam))

    @property
    def max_target_tokens(self) -> int:
        """The most subwords of a given target: the longest output for the longest source."""
        return max(self.max_input_tokens, self.max_length.of(self.max_input_tokens))

    def check_lengths(self) -> None:
        """ValueError if no output can be within both bounds of length."""
        low, high = self.min_length, self.max_length
        if low.always_above(high):
            raise ValueError(f"min_length {low} is above max_length {high} for every source: no output is within both")

    @model_validator(mode="after")
    def _list_fits_beam(self) -> DecodingConfig:
        if self.mbr and self.n_best > self.mbr:
            raise ValueError(f"n_best {self.n_best} is larger than mbr {self.mbr}; set mbr to {self.n_best} or more")
        if self.precision in ("bf16", "fp16") and self.kernels == "native":
            raise ValueError(f"precision {self.precision} is for torch, and kernels is native; set kernels to auto")
        if self.precision == "int8" and self.kernels == "eager":
            raise ValueError("precision int8 is for the compiled library, and kernels is eager; set kernels to auto")
        if not self.samples and self.n_best > self.beam:
            raise ValueError(f"n_best {self.n_best} is larger than beam {self.beam}; set beam to {self.n_best}")
        return self


class GenerationConfig(Config):
    """How a language model continues a prompt and scores lines. Search is greedy unless `sample`.

    With `top_k` and `top_p` null, tokens are drawn from the whole vocabulary. A draw depends on the seed, the line number
    and the sample number only, not on the other lines.
    """

    sample: bool = Field(False, description="Sample tokens, or always take the best.")
    temperature: Temperature = 1.0
    top_k: TopK = None
    top_p: TopP = None
    seed: Seed = 1
    samples: int = Field(1, ge=1, le=10_000, description="Continuations per prompt.")
    max_tokens: int = Field(100, ge=1, le=1_000_000, description="Most subwords of a continuation.")
    batch_sentences: AutoBatch = Field("auto", description="Continuations per batch.")
    batch_tokens: BatchTokens = 8192
    workers: Workers = "auto"
    max_input_tokens: int = Field(
        LINE_TOKENS, ge=1, le=1_000_000, description="Most subwords of a prompt. Longer prompts lose their beginning."
    )
    window: Window = 2000

    @property
    def sentences_together(self) -> int:
        """`batch_sentences` as a number."""
        return 64 if self.batch_sentences == "auto" else self.batch_sentences

    @model_validator(mode="after")
    def _several_are_drawn(self) -> GenerationConfig:
        if self.samples > 1 and not self.sample:
            raise ValueError("samples above 1 need sample: greedy search has one continuation")
        return self
