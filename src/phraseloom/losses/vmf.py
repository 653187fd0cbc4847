"""Losses between a predicted vector ê and the unit vector e of the gold word (Kumar and Tsvetkov 2019; P003).

κ = |ê|, C = C_m(κ) of `vmf_normalizer.py`; each row of a loss is one target position:

    vmf            -log C - ê·e                                          the von Mises-Fisher negative log-likelihood
    vmf_reg1       -log C + λ1 κ - ê·e
    vmf_reg2       -log C - λ2 ê·e
    vmf_reg1_reg2  -log C + λ1 κ - λ2 ê·e
    vmf_released   -log C + log(1+κ) (λ - cos(ê, e)),  λ = 0.2            the loss of both published programs
    cosine         1 - cos(ê, e)
    l2             |ê - e|²
    max_margin     max(0, γ + cos(ê, e_j) - cos(ê, e)),  γ = 0.3 (½ in Kumar and Tsvetkov),
                   j ≠ gold over the whole table:
                   informative  argmax_j cos(ê, e_j) - cos(e, e_j)    Kumar and Tsvetkov; Lazaridou et al. 2015
                   nearest      argmax_j cos(ê, e_j)                  the word that search would write instead
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from phraseloom.losses.vmf_normalizer import Approximation, log_normalizer

Distance = Literal["vmf", "vmf_reg1", "vmf_reg2", "vmf_reg1_reg2", "vmf_released", "cosine", "l2"]
Rival = Literal["informative", "nearest"]
# Directions (N, m) and a row of the table for each → the farthest other row in each direction, (N,).
Farthest = Callable[[Tensor, Tensor], Tensor]
MARGIN = 0.3
# Rows of the table in a block when the rival is looked for: as many as give this number of scores, but not fewer than BLOCK.
# A block of scores should stay in the cache of a CPU; a GPU, where this was not timed, should have few kernels to launch.
BLOCK, CPU_SCORES, GPU_SCORES = 1024, 2**21, 2**26


def concentration(predicted_ND: Tensor) -> Tensor:
    """κ = |ê| of each row, (N,); its gradient at ê = 0 is 0."""
    return torch.linalg.vector_norm(predicted_ND, dim=-1)


def cosine(predicted_ND: Tensor, unit_ND: Tensor) -> Tensor:
    """cos(ê, e) of each row, (N,), for unit vectors e; 0 where ê is 0."""
    return (F.normalize(predicted_ND, dim=-1, eps=torch.finfo(predicted_ND.dtype).tiny) * unit_ND).sum(-1)


def vmf_loss(
    predicted_ND: Tensor,
    unit_ND: Tensor,
    *,
    kind: Distance = "vmf_released",
    lambda1: float = 0.02,
    lambda2: float = 0.1,
    lambda_released: float = 0.2,
    approximation: Approximation = "exact",
) -> Tensor:
    """The loss of each row, (N,), for predicted vectors and gold unit vectors (N, m).

    Only the regularised kinds use `lambda1` and `lambda2`; the papers do not say which of the values 0.02 and 0.1 belongs to
    which. The arithmetic is at least float32, also under autocast.
    """
    predicted_ND, unit_ND = _wide(predicted_ND), _wide(unit_ND)
    if kind in ("cosine", "l2"):
        return _SIMPLE[kind](predicted_ND, unit_ND)
    kappa = concentration(predicted_ND)
    negative_log_c = -log_normalizer(kappa, predicted_ND.shape[-1], approximation=approximation)
    if kind == "vmf_released":
        return negative_log_c + torch.log1p(kappa) * (lambda_released - cosine(predicted_ND, unit_ND))
    product = (predicted_ND * unit_ND).sum(-1)
    if kind in ("vmf_reg2", "vmf_reg1_reg2"):
        product = lambda2 * product
    loss = negative_log_c - product
    return loss + lambda1 * kappa if kind in ("vmf_reg1", "vmf_reg1_reg2") else loss


_SIMPLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": lambda predicted, unit: 1 - cosine(predicted, unit),
    "l2": lambda predicted, unit: (predicted - unit).square().sum(-1),
}


def max_margin_loss(
    predicted_ND: Tensor,
    gold_N: Tensor,
    table_VD: Tensor,
    *,
    margin: float = MARGIN,
    rival: Rival = "informative",
    rivals_R: Tensor | None = None,
    farthest: Farthest | None = None,
) -> Tensor:
    """The hinge of each row, (N,), against one rival in the table of unit vectors, see the module; ties go to the lower row.

    `rivals_R`: the ids of the only rows that can be rivals, ascending, each once; None = all. The loss is 0 where this leaves
    none. The gold word is never its own rival; rows of zeros (padding) can be rivals, with a cosine of 0. No tensor of N × V
    exists. `farthest`: another search among all rows (`native/farthest.py`); None = by products in float32.
    """
    predicted_ND, table_VD = _wide(predicted_ND), _wide(table_VD)
    with torch.no_grad():
        towards_ND = F.normalize(predicted_ND, dim=-1, eps=torch.finfo(predicted_ND.dtype).tiny)
        if rival == "informative":
            towards_ND = towards_ND - table_VD[gold_N]
        if farthest is None or rivals_R is not None:
            rival_N = _farthest(towards_ND, gold_N, table_VD, rivals_R)
        else:
            rival_N = farthest(towards_ND, gold_N)
    against = cosine(predicted_ND, table_VD[rival_N]) - cosine(predicted_ND, table_VD[gold_N])
    return (margin + against).clamp(min=0.0).masked_fill(rival_N == gold_N, 0.0)


def _farthest(towards_ND: Tensor, gold_N: Tensor, table_VD: Tensor, ids_R: Tensor | None) -> Tensor:
    """The row of the table, of `ids_R` if given, that is farthest in the direction of each vector, but not its gold word, (N,).

    All vectors are compared with a block of the table at a time: the scores of one block stay in the cache.
    """
    place_N = gold_N if ids_R is None else torch.searchsorted(ids_R, gold_N)
    if ids_R is not None:
        place_N = torch.where(ids_R[place_N.clamp(max=len(ids_R) - 1)] == gold_N, place_N, -1)
    best_N, found_N = towards_ND.new_full((len(gold_N),), float("-inf")), gold_N
    number = len(table_VD) if ids_R is None else len(ids_R)
    scores = GPU_SCORES if towards_ND.is_cuda else CPU_SCORES
    size = max(BLOCK, scores // max(1, len(gold_N)))
    for first in range(0, number, size):
        ids = slice(first, first + size) if ids_R is None else ids_R[first : first + size]
        gaps = towards_ND @ table_VD[ids].t()
        local_N1 = (place_N[:, None] - first).clamp(0, gaps.shape[1] - 1)
        kept_N1 = gaps.gather(1, local_N1).masked_fill(local_N1 + first == place_N[:, None], float("-inf"))
        largest_N, column_N = gaps.scatter_(1, local_N1, kept_N1).max(1)
        id_N = column_N + first if ids_R is None else ids_R[first + column_N]
        found_N = torch.where(largest_N <= best_N, found_N, id_N)  # NaN has a rival, and stays NaN
        best_N = torch.maximum(best_N, largest_N)
    return found_N


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
