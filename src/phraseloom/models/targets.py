"""What an output makes of hidden states and a batch: the loss, or log p, of the real target tokens; shared by all models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phraseloom.data.tensors import Batch
from phraseloom.outputs.softmax import LossSums


def is_real(batch: Batch) -> Tensor:
    """Which target positions are not padding, (B, T)."""
    positions = torch.arange(batch.target_out_BT.shape[1], device=batch.target_lengths_B.device)
    return positions[None, :] < batch.target_lengths_B[:, None]


def real(hidden_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states (N, D) and gold ids (N,) of the real target positions."""
    real_BT = is_real(batch)
    if bool(real_BT.all()):
        return hidden_BTD.flatten(0, 1), batch.target_out_BT.flatten()
    return hidden_BTD[real_BT], batch.target_out_BT[real_BT]


def loss(output: Any, hidden_BTD: Tensor, batch: Batch) -> LossSums:
    """The sums of the training loss over the real target tokens."""
    sums: LossSums = output.loss(*real(hidden_BTD, batch))
    return sums


def log_probs(output: Any, hidden_BTD: Tensor, batch: Batch) -> Tensor:
    """log p of every target token, (B, T); zero beyond the length."""
    result_BT = hidden_BTD.new_zeros(batch.target_out_BT.shape)
    return result_BT.masked_scatter(is_real(batch), output.gold_log_probs(*real(hidden_BTD, batch)))
