"""Continuous output: predict a vector ê; the word is the one with the nearest fixed unit vector (Kumar and Tsvetkov 2019;
P003).

    ê = W h + b                              or, with a hidden layer, W₂ relu(W₁ h + b₁) + b₂
    loss                                     between ê and the vector of the gold word (`losses/vmf.py`): no sum over words
    p(w | h) = exp(s(w)) / Σ_v exp(s(v))     s(w) = ê·e_w

p is the von Mises-Fisher density of ê at the vectors of the table, normalised over the table: log C_m(κ) is equal for all
words and cancels. The most probable word has the largest cosine, so greedy search is that of the paper. Because p is a
distribution over words, beam search, scores and perplexities mean the same as with a softmax.

**Words and phrases** (`WordOrPhraseOutput`): one table of words, then phrases. With a gate (`layers/fertility.py`; `gate` of
the methods), λ of w is λ_word for a word and λ_phrase for a phrase, λ_word + λ_phrase = 1, and

    mixture   s(w) = log λ + ê·e_w                                (log λ plus the log density)
    density   s(w) = λ · (log C_m(κ) + ê·e_w)                     as the paper has it
    released  s(w) = λ · (log C_m(log(1+κ)) + ê·e_w)              as the published program has it

At m = 300 log C is near 427, so the last two act as a switch at λ = ½, not as a mixture. They are computed in float32 at least:
in bfloat16, 427 + ê·e would be equal for many words. A mixture adds log λ in float32 at least.

Search never holds a large tensor of hypotheses × words: it compares a chunk of hypotheses with the whole table at a time.
Each chunk costs one matrix product (the table is packed once), one pass in place for log p, and one pass for the largest
entry of each block of words (`outputs/topk.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.packed import Packed, linear
from phraseloom.layers.recurrent import under_autocast
from phraseloom.layers.table import TargetTable
from phraseloom.losses.vmf import MARGIN, Distance, Farthest, Rival, concentration, max_margin_loss, vmf_loss
from phraseloom.losses.vmf_normalizer import Approximation, log_normalizer
from phraseloom.outputs.softmax import LossSums
from phraseloom.outputs.topk import best_columns, log_softmax_

NEVER = float("-inf")
CHUNK_ELEMENTS = 2**25  # rows × tokens of one chunk of scores: 128 MiB of float32

GateScore = Literal["mixture", "density", "released"]


class ContinuousOutput(nn.Module):
    """Hidden vectors (…, D) → vectors of the table's width m, and the words near them.

    `loss`: a kind of `losses/vmf.py` with its lambdas and `approximation`, or max_margin; `margin_weight` times max_margin is
    added to it. `rival`: which word max_margin compares with. `rivals`: in training, it looks at this number of rows, drawn for
    each batch; None = at all. `frequent_rivals`: also at this number of first rows of the table, and at the tokens of the
    batch; "words": at all words, so that only phrases are drawn.
    `farthest`: another search for rivals among all rows, which training sets (`native/farthest.py`).
    `forbidden`: ids that are never an output. `gate` of the methods: λ_word and λ_phrase of each row, or None without a gate;
    only `WordOrPhraseOutput` uses it.
    """

    def __init__(
        self,
        table: TargetTable,
        *,
        width: int,
        loss: Distance | Literal["max_margin"] = "max_margin",
        lambda1: float = 0.02,
        lambda2: float = 0.1,
        lambda_released: float = 0.2,
        margin_weight: float = 0.0,
        margin: float = MARGIN,
        rival: Rival = "informative",
        rivals: int | None = None,
        frequent_rivals: int | Literal["words"] = 0,
        approximation: Approximation = "exact",
        hidden_layer: bool = False,
        forbidden: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.table, self.width, self.forbidden = table, width, forbidden
        self.kind = loss
        self.lambdas = {"lambda1": lambda1, "lambda2": lambda2, "lambda_released": lambda_released}
        self.margin_weight, self.margin = margin_weight, margin
        self.rivals, self.frequent_rivals = rivals, frequent_rivals
        self.rival: Rival = rival
        self.approximation: Approximation = approximation
        first = nn.Linear(width, table.width)
        self.project = nn.Sequential(first, nn.ReLU(), nn.Linear(table.width, table.width)) if hidden_layer else first
        self.farthest: Farthest | None = None
        self._packed: Packed | None = None

    def pack(self) -> None:
        """Lay out the table for inference (`layers/packed.py`)."""
        self._packed = Packed(self.table.rows_VM, None)

    def predict(self, hidden_ND: Tensor) -> Tensor:
        """ê of each row, (N, m)."""
        predicted: Tensor = self.project(hidden_ND)
        return predicted

    def losses(self, predicted_NM: Tensor, gold_N: Tensor) -> Tensor:
        """The training loss of each ê, (N,)."""
        if self.kind == "max_margin":
            return self._max_margin(predicted_NM, gold_N)
        gold_NM = F.embedding(gold_N, self.table.rows_VM)
        loss_N = vmf_loss(predicted_NM, gold_NM, kind=self.kind, approximation=self.approximation, **self.lambdas)
        if self.margin_weight:
            loss_N = loss_N + self.margin_weight * self._max_margin(predicted_NM, gold_N)
        return loss_N

    def _max_margin(self, predicted_NM: Tensor, gold_N: Tensor) -> Tensor:
        rows_VM, rivals_R = self.table.rows_VM, self._draw_rivals(gold_N)
        return max_margin_loss(
            predicted_NM,
            gold_N,
            rows_VM,
            margin=self.margin,
            rival=self.rival,
            rivals_R=rivals_R,
            farthest=self.farthest,
        )

    def _draw_rivals(self, gold_N: Tensor) -> Tensor | None:
        """The rows that can be rivals in this batch, ascending; None: all."""
        size, words, device = len(self.table), self.table.first_phrase, gold_N.device
        first, behind = (words, words) if self.frequent_rivals == "words" else (self.frequent_rivals, 0)
        if not self.training or self.rivals is None or self.rivals + first >= size:
            return None
        rivals_R = torch.randint(behind, size, (self.rivals,), device=device)
        if first:
            rivals_R = torch.cat([torch.arange(first, device=device), rivals_R, gold_N])
        return rivals_R.unique()

    def loss(self, hidden_ND: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> LossSums:
        """Sums of the training loss over N real target tokens.

        `nll` is NaN in training, because it costs as much as a softmax. In evaluation it is -log p, and the cosine loss is
        also there.
        """
        predicted_NM = self.predict(hidden_ND)
        objective = self.losses(predicted_NM, gold_N).sum()
        if self.training:
            return LossSums(objective, objective.new_full((), float("nan")), len(gold_N))
        cosine_loss_N = vmf_loss(predicted_NM, F.embedding(gold_N, self.table.rows_VM), kind="cosine")
        nll_N = -self.gold_log_probs(hidden_ND, gold_N, gate_N2)
        return LossSums(objective, nll_N.sum(), len(gold_N), cosine_loss_N.sum(dtype=torch.float64))

    def scores(self, hidden_RD: Tensor, gate_R2: Tensor | None = None) -> Tensor:
        """s of every token, (R, V)."""
        predicted_RM = self.predict(hidden_RD)
        if gate_R2 is None:
            scores_RV = self._products(predicted_RM)
        else:
            scores_RV = self._gated_scores(predicted_RM, gate_R2)
        for token in self.forbidden:
            scores_RV[:, token] = NEVER
        return scores_RV

    def log_probs(self, hidden_RD: Tensor, gate_R2: Tensor | None = None) -> Tensor:
        """log p of every token, (R, V)."""
        return log_softmax_(self.scores(hidden_RD, gate_R2))

    def candidates(self, hidden_RD: Tensor, count: int, gate_R2: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p and ids of the `count` best tokens of each row, (R, count) each, best first; ties go to the lower id."""
        parts = [best_columns(log_p_RV, count) for _, log_p_RV in self._chunks(hidden_RD, gate_R2)]
        best, ids = zip(*parts, strict=True)
        return torch.cat(best), torch.cat(ids)

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> Tensor:
        """log p of the gold token of each row, (N,), without a tensor of N × V."""
        parts = self._chunks(hidden_ND, gate_N2)
        return torch.cat([log_p_NV.gather(1, gold_N[rows, None])[:, 0] for rows, log_p_NV in parts])

    def _chunks(self, hidden_RD: Tensor, gate_R2: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        """log p of all rows, a chunk at a time; the chunks are of equal size, except the last one."""
        num = len(hidden_RD)
        most = max(1, CHUNK_ELEMENTS // max(1, len(self.table)))
        size = -(-num // max(1, -(-num // most)))
        for start in range(0, max(1, num), max(1, size)):
            rows = slice(start, start + size)
            yield rows, self.log_probs(hidden_RD[rows], None if gate_R2 is None else gate_R2[rows])

    def _products(self, predicted_RM: Tensor) -> Tensor:
        """ê·e of every token, (R, V)."""
        return linear(predicted_RM, self.table.rows_VM.to(predicted_RM.dtype), packed=self._packed)

    def _gated_scores(self, predicted_RM: Tensor, gate_R2: Tensor) -> Tensor:
        """s of every token, (R, V). Here words and phrases are alike, and the gate changes nothing."""
        return self._products(predicted_RM)


class WordOrPhraseOutput(ContinuousOutput):
    """Continuous output over words and phrases; `score` combines the gate with ê·e as above."""

    def __init__(self, table: TargetTable, *, score: GateScore = "mixture", **kwargs: object) -> None:
        super().__init__(table, **kwargs)  # type: ignore[arg-type]
        self.score = score

    def _gated_scores(self, predicted_RM: Tensor, gate_R2: Tensor) -> Tensor:
        exact = torch.promote_types(predicted_RM.dtype, torch.float32)
        gate_R2 = gate_R2.to(exact)
        if self.score == "mixture":
            scores_RV = self._products(predicted_RM).to(exact)
            added_R2 = gate_R2.clamp(min=torch.finfo(exact).tiny).log()
            for part_RC, added_R1 in self._parts(scores_RV, added_R2):
                part_RC.add_(added_R1)
            return scores_RV
        exact_RM = predicted_RM.to(exact)
        with torch.autocast(exact_RM.device.type, enabled=False) if under_autocast(exact_RM) else nullcontext():
            scores_RV, constant_R1 = self._products(exact_RM), self._constant(exact_RM)[:, None]
            for part_RC, lambda_R1 in self._parts(scores_RV, gate_R2):
                part_RC.add_(constant_R1).mul_(lambda_R1)
        return scores_RV

    def _parts(self, scores_RV: Tensor, values_R2: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The scores of the words with the first value of each row, and those of the phrases with the second."""
        return zip(scores_RV.tensor_split((self.table.first_phrase,), 1), values_R2.split(1, 1), strict=True)

    def _constant(self, predicted_RM: Tensor) -> Tensor:
        """log C of each row, (R,), as the score has it."""
        kappa_R = concentration(predicted_RM)
        if self.score == "released":
            kappa_R = torch.log1p(kappa_R)
        return log_normalizer(kappa_R, self.table.width, approximation=self.approximation)
