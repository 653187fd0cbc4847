"""Ensembles: several models with one vocabulary search together, and every step averages what they predict.

    probabilities        log p(y) = log (1/n Σ_m p_m(y))
    log_probabilities    log p(y) = 1/n Σ_m log p_m(y)        the geometric mean; not normalised, as in Marian

The mean is in float64. Architectures may differ: each model has its own memory and its own state. Alignments and the sources of
unknown words come from the first model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phraseloom.data.tensors import Batch
from phraseloom.errors import UsageError
from phraseloom.layers.fertility import AS_TRAINED, Tempering
from phraseloom.options.decoding import EnsembleMean
from phraseloom.outputs import ContinuousOutput, DecoderOutput
from phraseloom.outputs.topk import best_columns
from phraseloom.phrases.source import Segmenter
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.words import other_vectors


def average(log_probs: Sequence[Tensor], mean: EnsembleMean) -> Tensor:
    """The log-probabilities of the ensemble from those of its models, in float64."""
    stacked = torch.stack([part.double() for part in log_probs])
    if mean == "log_probabilities":
        return stacked.mean(0)
    return stacked.logsumexp(0) - math.log(len(log_probs))


class EnsembleOutput:
    """An `OutputScorer` whose hidden vector is the row of log-probabilities."""

    def log_probs(self, hidden_RV: Tensor, gate_R2: Tensor | None = None) -> Tensor:
        """log p of every token, (R, V)."""
        return hidden_RV

    def gold_log_probs(self, hidden_NV: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> Tensor:
        """log p of one token per row, (N,)."""
        return hidden_NV.gather(1, gold_N[:, None])[:, 0]

    def candidates(self, hidden_RV: Tensor, count: int, gate_R2: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p and ids of the best tokens of each row, (R, count) each, best first, ties by lower id."""
        return best_columns(hidden_RV, count)


class EnsembleMemory(NamedTuple):
    """The encoded source of each model."""

    parts: list[Any]

    @property
    def states_BSD(self) -> Tensor:  # noqa: N802
        """The states of the first model."""
        states: Tensor = self.parts[0].states_BSD
        return states

    def select(self, sentences: Tensor) -> EnsembleMemory:
        """These sentences only, in this order."""
        return EnsembleMemory([part.select(sentences) for part in self.parts])


class EnsembleState(NamedTuple):
    """The state of the search of each model; see `DecoderState`."""

    parts: list[Any]

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was."""
        for part in self.parts:
            part.reorder(rows_R)

    def expand(self, beam: int) -> None:
        """From one hypothesis a sentence to `beam` equal ones."""
        for part in self.parts:
            part.expand(beam)

    def keep(self, sentences_B: Tensor) -> None:
        """Keep these sentences only, in this order."""
        for part in self.parts:
            part.keep(sentences_B)


class Ensemble(nn.Module):
    """A `SearchModel` of several; `mean` is what it averages."""

    writes = "tokens"

    def __init__(self, models: Sequence[Any], mean: EnsembleMean = "probabilities") -> None:
        super().__init__()
        self.models: Sequence[Any] = nn.ModuleList(models)  # type: ignore[assignment]
        self.mean: EnsembleMean = mean
        self.output = EnsembleOutput()

    @property
    def decoder(self) -> Any:
        """The decoder of the first model, whose cross-attention aligns."""
        return self.models[0].decoder

    @property
    def needs_phrases(self) -> bool:
        """Whether a model reads phrases that the length of the source does not determine."""
        return any(getattr(model, "needs_phrases", False) for model in self.models)

    def encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        phrase_sizes_BP: Tensor | None = None,
        *,
        tempering: Tempering = AS_TRAINED,
    ) -> EnsembleMemory:
        """Source ids with EOS → the memory of each model; `tempering` is for the gate of each model that has one."""
        source = (source_BS, lengths_B, phrase_sizes_BP)
        return EnsembleMemory([model.encode(*source, tempering=tempering) for model in self.models])

    def decode(self, target_in_BT: Tensor, memory: EnsembleMemory, *, keep_weights: bool = False) -> DecoderOutput:
        """The decoder output of the first model."""
        output: DecoderOutput = self.models[0].decode(target_in_BT, memory.parts[0], keep_weights=keep_weights)
        return output

    def score(self, batch: Batch, *, tempering: Tempering = AS_TRAINED) -> Tensor:
        """log p of every target token, (B, T); zero beyond the length."""
        return average([model.score(batch, tempering=tempering) for model in self.models], self.mean)

    def start(self, memory: EnsembleMemory, *, beam: int, max_length: int) -> EnsembleState:
        """The state of each model before the first step."""
        pairs = zip(self.models, memory.parts, strict=True)
        return EnsembleState([model.start(part, beam=beam, max_length=max_length) for model, part in pairs])

    def step(self, tokens_R: Tensor, state: EnsembleState) -> DecoderOutput:
        """Feed one token to every row of every model; the `hidden` vectors are the averaged log-probabilities (R, V)."""
        rows = []
        for model, part in zip(self.models, state.parts, strict=True):
            decoded = model.step(tokens_R, part)
            rows.append(model.output.log_probs(decoded.hidden, decoded.gate))
        return DecoderOutput(average(rows, self.mean))


def averaged(model: Any, mean: EnsembleMean) -> Any:
    """`model` itself unless it is an ensemble; else this ensemble with another mean."""
    return model if not isinstance(model, Ensemble) or model.mean == mean else Ensemble(list(model.models), mean)


class Member(NamedTuple):
    """A model of an ensemble: its name in messages, the model, its tokenizer, its segmenter if it needs source phrases."""

    name: str
    model: Any
    tokenizer: Tokenizer
    segmenter: Segmenter | None


def build_ensemble(members: Sequence[Member]) -> tuple[Ensemble, Segmenter | None]:
    """The ensemble of these models, and its segmenter. Raises UsageError if two of them cannot write one output."""
    first = members[0]
    for member in members:
        if member.model.writes != "tokens":
            raise UsageError(f"{member.name} writes segments (NPMT), and an ensemble averages tokens")
        if problem := _difference(first, member):
            raise UsageError(f"{first.name} and {member.name} cannot form an ensemble: {problem}")
    segmenters = [member.segmenter for member in members if member.segmenter is not None]
    if len({segmenter.sha256 for segmenter in segmenters}) > 1:
        raise UsageError("the models of this ensemble take their source phrases from different segmenters")
    return Ensemble([member.model for member in members]), segmenters[0] if segmenters else None


def _difference(first: Member, other: Member) -> str:
    """What keeps two models from forming an ensemble; empty if nothing does."""
    ours, theirs = first.tokenizer, other.tokenizer
    for side in ("source", "target"):
        languages = [getattr(tokenizer, side).language for tokenizer in (ours, theirs)]
        if languages[0] != languages[1]:
            return f"their {side} languages are {languages[0]} and {languages[1]}"
    kinds = ["continuous" if isinstance(m.model.output, ContinuousOutput) else "softmax" for m in (first, other)]
    if kinds[0] != kinds[1]:
        return f"the output of one is {kinds[0]}, of the other {kinds[1]}"
    for side in ("source", "target"):
        vocabularies = [getattr(tokenizer, side).vocabulary for tokenizer in (ours, theirs)]
        if vocabularies[0] != vocabularies[1]:
            return f"their {side} vocabularies differ ({len(vocabularies[0])} and {len(vocabularies[1])} entries)"
    if ours.sha256 == theirs.sha256:
        return ""
    differ = other_vectors(ours.target.subwords, theirs.target.subwords)
    return "their target vectors differ" if differ else "their tokenizers cut text differently"
