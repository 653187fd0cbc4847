"""Which source tokens form which phrase, in the forms that the layers need (P001 §3.1).

A phrase is a span of tokens; the phrases of a sentence follow each other and cover all its real tokens. Everything is computed
from `sizes_BP`, the number of tokens in each phrase (0 after the last phrase of a sentence).

Sums over the tokens of a phrase are products with the membership (B, P, S); only a maximum gathers (B, P, longest, D). The cost
does not depend on the lengths of the phrases: none is padded to the longest.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from phraseloom.layers.attention.masks import Visibility


class SegmentCounts(NamedTuple):
    """What the host has to know of the phrases of a batch: the tokens of the longest phrase, the tokens in phrases of the
    sentence that has the fewest, and the phrases of the sentence that has the fewest."""

    longest: int
    tokens: int
    phrases: int


class PhraseSegments:
    """The phrases of a batch of sentences of `length` tokens, padding included. `counts`: if the host knows them already."""

    def __init__(self, sizes_BP: Tensor, length: int, counts: SegmentCounts | None = None) -> None:
        self.sizes_BP, self.length = sizes_BP, length
        self._known = counts
        self._member: Tensor | None = None

    @cached_property
    def counts(self) -> SegmentCounts:
        """The counts; where the host does not know them, it waits for the device once."""
        if self._known is not None:
            return self._known
        counts = (self.sizes_BP.max(), self.ends[:, -1].min(), (self.sizes_BP > 0).sum(1).min())
        return SegmentCounts(*torch.stack(counts).tolist())

    @cached_property
    def ends(self) -> Tensor:
        """The position after the last token of each phrase, (B, P)."""
        return self.sizes_BP.cumsum(1)

    @cached_property
    def padding(self) -> Tensor | None:
        """Tokens outside every phrase, (B, S); None if there are none."""
        if self.counts.tokens >= self.length:
            return None
        return torch.arange(self.length, device=self.sizes_BP.device)[None] >= self.ends[:, -1:]

    @cached_property
    def outside(self) -> Tensor:
        """True if a token is outside the phrase, (B, P, S)."""
        token = torch.arange(self.length, device=self.sizes_BP.device)
        ends = self.ends[..., None]
        return (token >= ends) | (token < ends - self.sizes_BP[..., None])

    @cached_property
    def visibility(self) -> Visibility:
        """The mask of the phrases: those that do not exist are hidden."""
        phrases = self.sizes_BP.shape[1]
        lengths_B = None if self.counts.phrases == phrases else (self.sizes_BP > 0).sum(1)
        return Visibility(key_length=phrases, lengths_B=lengths_B, device=self.sizes_BP.device)

    def spans(self, row: int) -> list[tuple[int, int]]:
        """The phrases of one sentence as half-open spans of tokens."""
        sizes = [size for size in self.sizes_BP[row].tolist() if size]
        return [(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]

    def without_padding(self, x_BSD: Tensor) -> Tensor:
        """`x_BSD` with zeros at tokens outside every phrase, so that their values (even NaN) have no effect."""
        return x_BSD if self.padding is None else x_BSD.masked_fill(self.padding[..., None], 0.0)

    def member(self, like: Tensor) -> Tensor:
        """1 if a token is in the phrase, else 0, (B, P, S), in the type of `like`."""
        if self._member is None or self._member.dtype != like.dtype:
            self._member = (~self.outside).to(like.dtype)
        return self._member

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """The token at each place of each phrase, and True if there is none, (B, P, M); M is the longest phrase."""
        place = torch.arange(max(self.counts.longest, 1), device=self.sizes_BP.device)
        none = place >= self.sizes_BP[..., None]
        token = (self.ends - self.sizes_BP)[..., None] + place
        return token.clamp_(max=self.length - 1), none

    def largest(self, x_BSD: Tensor) -> Tensor:
        """The element-wise maximum over the tokens of each phrase, (B, P, D); 0 for a phrase that does not exist."""
        token, none = self._places
        batch, phrases, longest = token.shape
        first = torch.arange(batch, device=token.device)[:, None, None] * self.length
        places = x_BSD.flatten(0, 1).index_select(0, (token + first).flatten()).view(batch, phrases, longest, -1)
        none = none[..., None]
        largest = places.masked_fill(none, float("-inf")).amax(2)
        return largest.masked_fill(none[:, :, 0], 0.0)

    def mean(self, x_BSD: Tensor) -> Tensor:
        """The mean over the tokens of each phrase, (B, P, D); 0 for a phrase that does not exist."""
        sizes = self.sizes_BP.clamp(min=1)[..., None].to(x_BSD.dtype)
        return (self.member(x_BSD) @ x_BSD) / sizes

    def to_tokens(self, y_BPD: Tensor) -> Tensor:
        """For each token the value of its phrase in `y_BPD`, (B, S, D); 0 for a token outside every phrase."""
        return self.member(y_BPD).transpose(1, 2) @ y_BPD


class TensorSegmenter:
    """Phrases of n tokens, n = max(min(max_tokens, ⌈tokens / min_chunks⌉), floor); the last one may be shorter.

    With basis `sentence`, `tokens` counts the tokens of the sentence, so that every batch cuts a sentence in the same way; with
    basis `batch` it is the padded length (the released code, for comparison). Source: P001 §3.1. `random_start` (ours): in
    training, the first phrase of a sentence has 1 to n tokens, drawn each time it is read.
    """

    def __init__(
        self,
        *,
        max_tokens: int = 8,
        min_chunks: int = 6,
        floor: int = 3,
        basis: Literal["sentence", "batch"] = "sentence",
        random_start: bool = False,
    ) -> None:
        self.max_tokens, self.min_chunks, self.floor, self.basis = max_tokens, min_chunks, floor, basis
        self.random_start = random_start

    def __call__(self, lengths_B: Tensor, length: int, *, training: bool = False) -> PhraseSegments:
        """Real lengths (including EOS) and the padded length → the phrases. Waits for the lengths, and for nothing else."""
        tokens_B = lengths_B if self.basis == "sentence" else torch.full_like(lengths_B, length)
        size_B = (-(-tokens_B // self.min_chunks)).clamp(max=self.max_tokens).clamp(min=self.floor)
        first_B = size_B
        if training and self.random_start:
            first_B = 1 + torch.randint(1 << 30, size_B.shape).to(size_B.device) % size_B
        lengths, cut, first = torch.stack((lengths_B, size_B, first_B)).tolist()
        rest = [max(0, tokens - start) for tokens, start in zip(lengths, first, strict=True)]
        phrases = [(tokens > 0) - (-others // n) for tokens, others, n in zip(lengths, rest, cut, strict=True)]
        longest = max(map(max, map(min, lengths, first), map(min, rest, cut)), default=0)
        ends_BP = torch.arange(max(phrases, default=0), device=lengths_B.device) * size_B[:, None] + first_B[:, None]
        ends_BP = torch.minimum(ends_BP, lengths_B[:, None])
        sizes_BP = ends_BP.diff(dim=1, prepend=torch.zeros_like(ends_BP[:, :1]))
        return PhraseSegments(
            sizes_BP, length, SegmentCounts(longest, min(lengths, default=0), min(phrases, default=0))
        )
