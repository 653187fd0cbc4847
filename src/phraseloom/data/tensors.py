"""Batches as tensors: right-padded ids with EOS, lengths, and the shifted decoder input."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phraseloom.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class Batch:
    """One micro-batch. All ids are int64; positions after a sequence hold PAD.

    `source_BS` has source ids + EOS, `target_in_BT` BOS + target ids, `target_out_BT` target ids + EOS; both lengths include
    EOS. `phrase_sizes_BP` has the source tokens of each phrase (including EOS), padded with 0; None without phrases.
    `links_BTS` is 1 where a target token and a source token are linked, else 0 (float32); None without links.
    """

    source_BS: Tensor
    source_lengths_B: Tensor
    target_in_BT: Tensor
    target_out_BT: Tensor
    target_lengths_B: Tensor
    phrase_sizes_BP: Tensor | None = None
    links_BTS: Tensor | None = None

    @property
    def target_tokens(self) -> int:
        """The number of target tokens, including EOS."""
        return int(self.target_lengths_B.sum())

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {n: v if v is None else v.to(device, non_blocking=True) for n, v in values.items()}
        return Batch(**moved)


def make_batch(sources: list[Any], targets: list[Any], phrases: list[list[int]] | None = None) -> Batch:
    """A batch from lists of id sequences without BOS or EOS.

    `phrases` has the source tokens of each phrase, including EOS; they sum to the source ids + 1.
    """
    source, source_lengths = _pad(sources)
    target, target_lengths = _pad(targets)
    sizes = None if phrases is None else _pad(phrases)[0]
    return from_padded(source, source_lengths, target, target_lengths, sizes)


def from_padded(
    source: np.ndarray,
    source_lengths: np.ndarray,
    target: np.ndarray,
    target_lengths: np.ndarray,
    phrase_sizes: np.ndarray | None = None,
    links: np.ndarray | None = None,
) -> Batch:
    """A batch from padded int64 arrays (B, S), (B, T) and lengths, all without BOS and EOS; `phrase_sizes` (B, P), `links`
    (B, T, S)."""
    target_out = with_eos(target, target_lengths)
    target_in = np.concatenate([np.full((len(target_out), 1), BOS, np.int64), target_out[:, :-1]], axis=1)
    target_in[target_in == EOS] = PAD
    return Batch(
        torch.from_numpy(with_eos(source, source_lengths)),
        torch.from_numpy(source_lengths.astype(np.int64) + 1),
        torch.from_numpy(target_in),
        torch.from_numpy(target_out),
        torch.from_numpy(target_lengths.astype(np.int64) + 1),
        None if phrase_sizes is None else torch.from_numpy(phrase_sizes),
        None if links is None else torch.from_numpy(np.pad(links, ((0, 0), (0, 1), (0, 1)))),
    )


def with_eos(padded: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The rows with EOS after their last id, one column wider."""
    result = np.concatenate([padded, np.full((len(padded), 1), PAD, np.int64)], axis=1)
    result[np.arange(len(lengths)), lengths] = EOS
    return result


def _pad(sequences: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(s) for s in sequences], np.int64)
    result = np.full((len(sequences), int(lengths.max(initial=0))), PAD, np.int64)
    for row, sequence in zip(result, sequences, strict=True):
        row[: len(sequence)] = sequence
    return result, lengths
