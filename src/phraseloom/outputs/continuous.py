"""Continuous output: a vector ê is predicted, and the word is the one whose fixed unit vector is nearest (Kumar and Tsvetkov
2019; P003; spec §4).

    ê = W h + b                              or, with a hidden layer, W₂ relu(W₁ h + b₁) + b₂
    loss                                     between ê and the vector of the gold word (`losses/vmf.py`): no sum over words
    p(w | h) = exp(s(w)) / Σ_v exp(s(v))     s(w) = ê·e_w

p is the von Mises-Fisher density of ê at the vectors of the table, normalised over the table: log C_m(κ) is the same for all
words and cancels. Its largest is the word of greatest cosine, so greedy search is that of the paper; as a distribution over
words it lets beam search, scores and perplexities mean what they mean for a softmax.

**Words and phrases** (`WordOrPhraseOutput`): one table of words, then phrases. With a gate λ_word (`layers/fertility.py`),
which comes as one more column of h, λ of w is λ_word for a word and 1 - λ_word for a phrase, and

    mixture   s(w) = log λ + ê·e_w                                (log λ plus the log density)
    density   s(w) = λ · (log C_m(κ) + ê·e_w)                     as the paper has it
    released  s(w) = λ · (log C_m(log(1+κ)) + ê·e_w)              as the published program has it

At m = 300 log C is near 427, so the last two are a switch at λ = ½ rather than a mixture (spec §4.9).

The best words are found without a tensor of hypotheses × words where that would be large: the table is read in chunks that keep
their best words and their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.packed import Packed
from phraseloom.layers.table import TargetTable
from phraseloom.losses.vmf import Distance, concentration, max_margin_loss, vmf_loss
from phraseloom.losses.vmf_normalizer import Approximation, log_normalizer
from phraseloom.outputs.softmax import LossSums
from phraseloom.outputs.topk import best_columns

NEVER = float("-inf")
CHUNK_ELEMENTS = 2**24
COLUMNS = 64  # products of whole blocks of columns are faster

GateScore = Literal["mixture", "density", "released"]


class ContinuousOutput(nn.Module):
    """Hidden vectors (…, D) → vectors of the table's width m, and the words near them.

    `loss`: a kind of `losses/vmf.py`, or max_margin; the lambdas and `approximation` are its. `forbidden`: ids that are never
    an output.
    """

    def __init__(
        self,
        table: TargetTable,
        *,
        width: int,
        loss: Distance | Literal["max_margin"] = "vmf_released",
        lambda1: float = 0.02,
        lambda2: float = 0.1,
        lambda_released: float = 0.2,
        approximation: Approximation = "exact",
        hidden_layer: bool = False,
        forbidden: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.table, self.width, self.forbidden = table, width, forbidden
        self.kind = loss
        self.lambdas = {"lambda1": lambda1, "lambda2": lambda2, "lambda_released": lambda_released}
        self.approximation: Approximation = approximation
        first = nn.Linear(width, table.width)
        self.project = nn.Sequential(first, nn.ReLU(), nn.Linear(table.width, table.width)) if hidden_layer else first
        self._packed: Packed | None = None

    def pack(self) -> None:
        """Lay out the table for inference (`layers/packed.py`)."""
        self._packed = Packed(self.table.rows_VM, None)

    def predict(self, hidden_ND: Tensor) -> Tensor:
        """ê of each row, (N, m)."""
        predicted: Tensor = self.project(hidden_ND[..., : self.width])
        return predicted

    def losses(self, hidden_ND: Tensor, gold_N: Tensor) -> Tensor:
        """The training loss of each row, (N,)."""
        predicted_NM, rows_VM = self.predict(hidden_ND), self.table.rows_VM
        if self.kind == "max_margin":
            return max_margin_loss(predicted_NM, gold_N, rows_VM)
        gold_NM = F.embedding(gold_N, rows_VM)
        return vmf_loss(predicted_NM, gold_NM, kind=self.kind, approximation=self.approximation, **self.lambdas)

    def loss(self, hidden_ND: Tensor, gold_N: Tensor) -> LossSums:
        """Sums of the training loss over N real target tokens.

        `nll` is NaN in training, which has no need of it: it costs as much as a softmax. In evaluation it is that of p.
        """
        objective = self.losses(hidden_ND, gold_N).sum()
        if self.training:
            return LossSums(objective, objective.new_full((), float("nan")), len(gold_N))
        return LossSums(objective, -self.gold_log_probs(hidden_ND, gold_N).sum(), len(gold_N))

    def log_probs(self, hidden_RD: Tensor) -> Tensor:
        """log p of every token, (R, V)."""
        return self._all_scores(hidden_RD).log_softmax(-1)

    def candidates(self, hidden_RD: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` best tokens of each row and their log p, (R, count) each, best first; ties go to the lower id."""
        if len(self.table) <= self._chunk(len(hidden_RD)):
            return best_columns(self.log_probs(hidden_RD), count)
        best: Tensor | None = None
        ids: Tensor | None = None
        total: Tensor | None = None
        for first, scores_RC in self._chunks(hidden_RD):
            top, columns = best_columns(scores_RC, count)
            sums = scores_RC.logsumexp(-1)
            if best is None or ids is None or total is None:
                best, ids, total = top, columns + first, sums
                continue
            both, order = torch.sort(torch.cat([best, top], 1), dim=1, descending=True, stable=True)
            ids = torch.cat([ids, columns + first], 1).gather(1, order)[:, :count]
            best, total = both[:, :count], torch.logaddexp(total, sums)
        assert best is not None and ids is not None and total is not None
        return best - total[:, None], ids

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor) -> Tensor:
        """log p of the gold token of each row, (N,), without a tensor of N × V."""
        if not len(gold_N):
            return hidden_ND.new_zeros(0)
        rows = max(1, CHUNK_ELEMENTS // max(1, len(self.table)))
        parts = [
            self._all_scores(h).log_softmax(-1).gather(1, g[:, None])[:, 0]
            for h, g in zip(hidden_ND.split(rows), gold_N.split(rows), strict=True)
        ]
        return torch.cat(parts)

    @staticmethod
    def _chunk(rows: int) -> int:
        """How many rows of the table are compared with `rows` predictions at a time."""
        size = max(1, CHUNK_ELEMENTS // max(1, rows))
        return size // COLUMNS * COLUMNS if size >= COLUMNS else size

    def _all_scores(self, hidden_RD: Tensor) -> Tensor:
        return self._scores(hidden_RD, self._products(self.predict(hidden_RD)), 0)

    def _chunks(self, hidden_RD: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Scores (R, C) of the table's rows, chunk by chunk, each with its first row."""
        size, predicted_RM = self._chunk(len(hidden_RD)), self.predict(hidden_RD)
        for first in range(0, len(self.table), size):
            products = F.linear(predicted_RM, self.table.rows_VM[first : first + size])
            yield first, self._scores(hidden_RD, products, first)

    def _products(self, predicted_RM: Tensor) -> Tensor:
        if self._packed is not None and self._packed.fits(predicted_RM, self.table.rows_VM):
            return self._packed(predicted_RM)
        return F.linear(predicted_RM, self.table.rows_VM)

    def _scores(self, hidden_RD: Tensor, products_RC: Tensor, first: int) -> Tensor:
        """s of the rows `first` … of the table, given ê·e of these."""
        return self._without_forbidden(products_RC, first)

    def _without_forbidden(self, scores_RC: Tensor, first: int) -> Tensor:
        """`scores_RC` of the tokens `first` …, with the forbidden ones made impossible, in place."""
        for token in self.forbidden:
            if first <= token < first + scores_RC.shape[1]:
                scores_RC[:, token - first] = NEVER
        return scores_RC


class WordOrPhraseOutput(ContinuousOutput):
    """The same over words and phrases, with the gate λ_word in column D of h where there is one; `score` as above."""

    def __init__(self, table: TargetTable, *, score: GateScore = "mixture", **rest: object) -> None:
        super().__init__(table, **rest)  # type: ignore[arg-type]
        self.score = score

    def _scores(self, hidden_RD: Tensor, products_RC: Tensor, first: int) -> Tensor:
        if hidden_RD.shape[-1] > self.width:
            gate_R = hidden_RD[:, self.width].to(products_RC.dtype).clamp(0.0, 1.0)
            bound = min(max(self.table.first_phrase - first, 0), products_RC.shape[1])
            parts = ((products_RC[:, :bound], gate_R), (products_RC[:, bound:], 1 - gate_R))
            if self.score == "mixture":
                for part_RC, share_R in parts:
                    part_RC += share_R.clamp(min=torch.finfo(share_R.dtype).tiny).log()[:, None]
            else:
                constant_R1 = self._constant(hidden_RD)[:, None]
                gated = [share_R[:, None] * (constant_R1 + part_RC) for part_RC, share_R in parts]
                products_RC = torch.cat(gated, 1)
        return self._without_forbidden(products_RC, first)

    def _constant(self, hidden_RD: Tensor) -> Tensor:
        """log C of each row, (R,), as the score has it."""
        kappa = concentration(self.predict(hidden_RD))
        if self.score == "released":
            kappa = torch.log1p(kappa)
        return log_normalizer(kappa, self.table.width, approximation=self.approximation)
