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

The best words are found without a tensor of hypotheses × words where that would be large: as many hypotheses at a time as
there is room for are compared with the whole table. Beside the matrix product, for which the table is laid out once, there is
one pass in place for log p and one for the largest entry of each block of words (`outputs/topk.py`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.packed import Packed, linear
from phraseloom.layers.table import TargetTable
from phraseloom.losses.vmf import Distance, concentration, max_margin_loss, vmf_loss
from phraseloom.losses.vmf_normalizer import Approximation, log_normalizer
from phraseloom.outputs.softmax import LossSums
from phraseloom.outputs.topk import best_columns, log_softmax_

NEVER = float("-inf")
CHUNK_ELEMENTS = 2**25  # rows × tokens whose scores are held at a time: 128 MiB of float32

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

    def losses(self, predicted_NM: Tensor, gold_N: Tensor) -> Tensor:
        """The training loss of each ê, (N,)."""
        if self.kind == "max_margin":
            return max_margin_loss(predicted_NM, gold_N, self.table.rows_VM)
        gold_NM = F.embedding(gold_N, self.table.rows_VM)
        return vmf_loss(predicted_NM, gold_NM, kind=self.kind, approximation=self.approximation, **self.lambdas)

    def loss(self, hidden_ND: Tensor, gold_N: Tensor) -> LossSums:
        """Sums of the training loss over N real target tokens.

        `nll` is NaN in training, which has no need of it: it costs as much as a softmax. In evaluation it is that of p, and
        there is the cosine loss.
        """
        predicted_NM = self.predict(hidden_ND)
        objective = self.losses(predicted_NM, gold_N).sum()
        if self.training:
            return LossSums(objective, objective.new_full((), float("nan")), len(gold_N))
        of_cosine_N = vmf_loss(predicted_NM, F.embedding(gold_N, self.table.rows_VM), kind="cosine")
        nll_N = -self.gold_log_probs(hidden_ND, gold_N)
        return LossSums(objective, nll_N.sum(), len(gold_N), of_cosine_N.sum(dtype=torch.float64))

    def scores(self, hidden_RD: Tensor) -> Tensor:
        """s of every token, (R, V)."""
        predicted_RM, rows_VM = self.predict(hidden_RD), self.table.rows_VM
        scores_RV = linear(predicted_RM, rows_VM, packed=self._packed)
        self._weigh_(scores_RV, hidden_RD, predicted_RM)
        for token in self.forbidden:
            scores_RV[:, token] = NEVER
        return scores_RV

    def log_probs(self, hidden_RD: Tensor) -> Tensor:
        """log p of every token, (R, V)."""
        return log_softmax_(self.scores(hidden_RD))

    def candidates(self, hidden_RD: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` best tokens of each row and their log p, (R, count) each, best first; ties go to the lower id."""
        parts = [best_columns(self.log_probs(h_RD), count) for h_RD in hidden_RD.split(self._rows(len(hidden_RD)))]
        best, ids = zip(*parts, strict=True)
        return torch.cat(best), torch.cat(ids)

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor) -> Tensor:
        """log p of the gold token of each row, (N,), without a tensor of N × V."""
        rows = self._rows(len(hidden_ND))
        parts = zip(hidden_ND.split(rows), gold_N.split(rows), strict=True)
        return torch.cat([self.log_probs(h_ND).gather(1, g_N[:, None])[:, 0] for h_ND, g_N in parts])

    def _rows(self, rows: int) -> int:
        """How many of `rows` predictions are compared with the table at a time: parts of one size, but for the last one."""
        most = max(1, CHUNK_ELEMENTS // max(1, len(self.table)))
        return -(-rows // max(1, -(-rows // most)))

    def _weigh_(self, products_RV: Tensor, hidden_RD: Tensor, predicted_RM: Tensor) -> None:
        """ê·e → s, in place: the same without a gate."""


class WordOrPhraseOutput(ContinuousOutput):
    """The same over words and phrases, with the gate λ_word in column D of h where there is one; `score` as above."""

    def __init__(self, table: TargetTable, *, score: GateScore = "mixture", **rest: object) -> None:
        super().__init__(table, **rest)  # type: ignore[arg-type]
        self.score = score

    def _weigh_(self, products_RV: Tensor, hidden_RD: Tensor, predicted_RM: Tensor) -> None:
        if hidden_RD.shape[-1] == self.width:
            return
        word_R1 = hidden_RD[:, self.width :].to(products_RV.dtype).clamp(0.0, 1.0)
        parts = zip(products_RV.tensor_split((self.table.first_phrase,), 1), (word_R1, 1 - word_R1), strict=True)
        if self.score == "mixture":
            for part_RC, share_R1 in parts:
                part_RC.add_(share_R1.clamp(min=torch.finfo(share_R1.dtype).tiny).log())
        else:
            constant_R1 = self._constant(predicted_RM)[:, None]
            for part_RC, share_R1 in parts:
                part_RC.add_(constant_R1).mul_(share_R1)

    def _constant(self, predicted_RM: Tensor) -> Tensor:
        """log C of each row, (R,), as the score has it."""
        kappa_R = concentration(predicted_RM)
        if self.score == "released":
            kappa_R = torch.log1p(kappa_R)
        return log_normalizer(kappa_R, self.table.width, approximation=self.approximation)
