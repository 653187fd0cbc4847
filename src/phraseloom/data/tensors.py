"""Batches as tensors: right-padded ids with EOS, lengths, and the shifted decoder input."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
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

    @cached_property
    def is_source_padded(self) -> bool:
        """Whether some source is shorter than another."""
        return not bool((self.source_lengths_B == self.source_BS.shape[1]).all())

    @cached_property
    def real_places(self) -> Tensor | None:
        """The places of the real target tokens among all B·T; None if nothing is padded."""
        positions = torch.arange(self.target_out_BT.shape[1], device=self.target_lengths_B.device)
        real_BT = positions[None, :] < self.target_lengths_B[:, None]
        return None if bool(real_BT.all()) else real_BT.flatten().nonzero()[:, 0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device.

        Sizes that depend on lengths are computed here, so that the device need not be asked for them later.
        """
        moved = Batch(**{f.name: _moved(getattr(self, f.name), device) for f in fields(self)})
        moved.__dict__["is_source_padded"] = self.is_source_padded
        moved.__dict__["real_places"] = _moved(self.real_places, device)
        return moved

    def as_padded(self) -> Batch:
        """The same batch with masks even if they hide nothing, so that a compiler makes one program, not two."""
        batch = Batch(**{f.name: getattr(self, f.name) for f in fields(self)})
        every = torch.arange(self.target_out_BT.numel(), device=self.target_out_BT.device)
        batch.__dict__["is_source_padded"] = True
        batch.__dict__["real_places"] = every if self.real_places is None else self.real_places
        return batch

    def pinned(self) -> Batch:
        """The same batch in memory from which a GPU can copy while it computes."""
        pinned = Batch(**{f.name: _pinned(getattr(self, f.name)) for f in fields(self)})
        pinned.__dict__["is_source_padded"] = self.is_source_padded
        pinned.__dict__["real_places"] = _pinned(self.real_places)
        return pinned


def _moved(tensor: Tensor | None, device: torch.device | str) -> Any:
    return None if tensor is None else tensor.to(device, non_blocking=True)


def _pinned(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.pin_memory()


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
