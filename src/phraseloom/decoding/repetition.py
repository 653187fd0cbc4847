"""No n-gram twice (`no_repeat_ngram_size`, as in fairseq and transformers): tokens that would repeat one are banned.

A token v is banned after y_1 … y_t if (y_{t-n+2}, …, y_t, v) is already among the n-grams of y. EOS is never banned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phraseloom.decoding.limits import NEVER


def repeated_tokens(written_RT: Tensor, size: int) -> Tensor:
    """The tokens that would repeat an n-gram of `size` tokens after each row, (R, J), padded with -1; J is 0 if `size` is 0."""
    rows, length = written_RT.shape
    if size == 0 or length < size:
        return written_RT.new_zeros((rows, 0))
    ngrams_RJN = written_RT.unfold(1, size, 1)
    last_R1N = written_RT[:, None, length - size + 1 :]
    equal_RJ = (ngrams_RJN[:, :, :-1] == last_R1N).all(-1)
    return torch.where(equal_RJ, ngrams_RJN[:, :, -1], -1)


def most_repeated(repeats_RJ: Tensor) -> int:
    """The most tokens that one row bans; an upper bound."""
    return int((repeats_RJ >= 0).sum(1).max()) if repeats_RJ.numel() else 0


def ban_repeats_(log_probs_RK: Tensor, ids_RK: Tensor, repeats_RJ: Tensor, end: int) -> None:
    """Set the log-probabilities of candidates that would repeat an n-gram to -inf, except EOS."""
    if repeats_RJ.numel():
        repeated_RK = (ids_RK[:, :, None] == repeats_RJ[:, None]).any(-1) & (ids_RK != end)
        log_probs_RK.masked_fill_(repeated_RK, NEVER)
