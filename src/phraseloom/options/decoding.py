"""How a model translates: beam, length penalty, length bounds, batches, workers. Declared without torch.

These are the values of `generation_config.json` in a model folder and of the `decoding:` part of a recipe; every one of
them is also an option of `phraseloom translate` and a keyword of `Translator.translate`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from phraseloom.config import Config
from phraseloom.options.text import LINE_TOKENS


class WuPenaltyConfig(Config):
    """Wu et al. (2016): log P / ((5 + |Y|) / 6)^alpha."""

    kind: Literal["wu"] = "wu"
    alpha: float = Field(0.6, ge=0.0, le=10.0)


class SockeyePenaltyConfig(Config):
    """Sockeye: log P / ((beta + |Y|) / (beta + 1))^alpha; alpha 1, beta 0 is the mean log-probability of a token."""

    kind: Literal["sockeye"] = "sockeye"
    alpha: float = Field(1.0, ge=0.0, le=10.0)
    beta: float = Field(0.0, ge=0.0, le=1000.0)


class NoPenaltyConfig(Config):
    """The log-probability as it is."""

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

PenaltyConfig = Annotated[WuPenaltyConfig | SockeyePenaltyConfig | NoPenaltyConfig, Field(discriminator="kind")]


class LengthConfig(Config):
    """A number of target tokens as a function of the source: floor(factor · source tokens + constant), without EOS."""

    factor: float = Field(0.0, ge=0.0, le=100.0)
    constant: int = Field(0, ge=0, le=100_000)

    def of(self, source_tokens: int) -> int:
        """The bound for a source of so many subword tokens (EOS not counted)."""
        return int(self.factor * source_tokens + self.constant)

    def always_above(self, other: LengthConfig) -> bool:
        """Whether this bound is above `other` for a source of any length, from one token on."""
        return self.factor >= other.factor and self.of(1) > other.of(1)

    def __str__(self) -> str:
        return f"{self.factor:g},{self.constant}"


class NamedFile(Config):
    """The name of a file without its folder, and the SHA-256 of its bytes."""

    name: str
    sha256: str


class AlignmentSelection(Config):
    """On what layer, head and method of the alignment were chosen, and their alignment error rate there."""

    aer: float
    sentences: int
    source: NamedFile
    target: NamedFile
    gold: NamedFile


class DecodingConfig(Config):
    """Options of search and of the translator.

    `beam` 1 is greedy search. `n_best` ≤ `beam`. `stop`: a sentence is done when `beam` hypotheses have finished or nothing
    better can come (finished), only when nothing better can come (exact: the same or a better score, more steps), or as
    `generate` of the library transformers does it (transformers; `beam.py`), for the outputs that imported models had there.
    `max_length`, `min_length`: bounds on the output in subword tokens; where they cross, `max_length` holds.
    `batch_sentences` are translated together, `auto` is about 320 hypotheses; fewer where `batch_tokens` (padded source
    tokens) would be passed. `workers`: threads that translate batches side by side, each on one core; `auto` is one per
    core, 1 on a GPU; 1 leaves it to torch to use several cores. `max_input_tokens`: longer lines are cropped or split
    (`long_lines`). `alignment_layer`: decoder layer, from 1, whose cross-attention gives the alignments; None is the last but
    one (or the only one). `alignment_head`: its head, from 1; None is the mean of all, `max` the
    largest weight over all. `alignment_method`: how words are
    linked (docs/alignment.md). `alignment_selection`: written with these three by `phraseloom align MODEL --select auto`.
    `unknown`: the output never holds an unknown word (forbid), holds U+2047 for it (keep), or a word of the source instead,
    translated by `lexicon` where that has it (replace; `decoding/parts.py`). `lexicon`: a file of `align lexicon`; read
    with replace only.
    `word_bonus`: what each subword adds to the log-probability by which a segmental model ranks outputs; 0 for other models.
    `window` lines of a stream are sorted and translated together.
    """

    beam: int = Field(5, ge=1, le=1000)
    n_best: int = Field(1, ge=1, le=1000)
    length_penalty: PenaltyConfig = WuPenaltyConfig()
    stop: Literal["finished", "exact", "transformers"] = "finished"
    max_length: LengthConfig = LengthConfig(factor=2.0, constant=20)
    min_length: LengthConfig = LengthConfig(factor=0.0, constant=1)
    batch_sentences: Literal["auto"] | Annotated[int, Field(ge=1, le=100_000)] = "auto"
    batch_tokens: int = Field(8192, ge=1)
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    max_input_tokens: int = Field(LINE_TOKENS, ge=1, le=1_000_000)
    long_lines: Literal["crop", "split"] = "crop"
    alignment_layer: Annotated[int, Field(ge=1)] | None = None
    alignment_head: Annotated[int, Field(ge=1)] | Literal["max"] | None = None
    alignment_method: AlignmentMethod = "target-to-source"
    alignment_selection: AlignmentSelection | None = None
    unknown: UnknownMethod = "forbid"
    lexicon: str | None = None
    word_bonus: float = Field(0.0, ge=-100.0, le=100.0)
    window: int = Field(2000, ge=1, le=10_000_000)

    @property
    def sentences_together(self) -> int:
        """The number that `batch_sentences` means; measured on CPUs, see docs/decoding.md."""
        return max(16, min(128, 320 // self.beam)) if self.batch_sentences == "auto" else self.batch_sentences

    @property
    def max_target_tokens(self) -> int:
        """The most subwords of a given target: as many as the longest output for the longest source."""
        return max(self.max_input_tokens, self.max_length.of(self.max_input_tokens))

    def check_lengths(self) -> None:
        """ValueError where no output could be within both bounds of length."""
        low, high = self.min_length, self.max_length
        if low.always_above(high):
            raise ValueError(f"min_length {low} is above max_length {high} for every source: no output is within both")

    @model_validator(mode="after")
    def _lists_fit(self) -> DecodingConfig:
        if self.n_best > self.beam:
            raise ValueError(
                f"n_best {self.n_best} is larger than beam {self.beam}; a beam of {self.n_best} would find so many"
            )
        return self


class GenerationConfig(Config):
    """How a language model writes on from a prompt, and scores lines.

    Greedy unless `sample`; then tokens are drawn from the model's probabilities to the power 1 / `temperature`, of the
    `top_k` best ones and of the fewest that hold `top_p` of the mass (null: of all). `seed`: the same seed, line number
    and sample number give the same tokens, whatever stands around the line. `samples` continuations a line, of at most
    `max_tokens` subwords. `max_input_tokens`: of longer prompts the beginning is left out. The rest as in
    `DecodingConfig`; `batch_tokens` counts padded tokens.
    """

    sample: bool = False
    temperature: float = Field(1.0, gt=0.0, le=1000.0)
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    seed: int = Field(1, ge=0, lt=2**63)
    samples: int = Field(1, ge=1, le=10_000)
    max_tokens: int = Field(100, ge=1, le=1_000_000)
    batch_sentences: Literal["auto"] | Annotated[int, Field(ge=1, le=100_000)] = "auto"
    batch_tokens: int = Field(8192, ge=1)
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    max_input_tokens: int = Field(LINE_TOKENS, ge=1, le=1_000_000)
    window: int = Field(2000, ge=1, le=10_000_000)

    @property
    def sentences_together(self) -> int:
        """The number that `batch_sentences` means."""
        return 64 if self.batch_sentences == "auto" else self.batch_sentences

    @model_validator(mode="after")
    def _several_are_drawn(self) -> GenerationConfig:
        if self.samples > 1 and not self.sample:
            raise ValueError("samples above 1 need sample: greedy search has one continuation")
        return self
