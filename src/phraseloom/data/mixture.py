"""How many pairs of each corpus an epoch has, from weights and a temperature, and which ones.

With n_i pairs and weight w_i of corpus i (1 if none is given), and temperature τ (1 if none is given), an epoch has

    d_i = W · (w_i n_i)^(1/τ) / Σ_j (w_j n_j)^(1/τ)        W = Σ_j w_j n_j

pairs of corpus i, rounded, at least one. τ = 1 gives w_i n_i: weight 2 means that each pair occurs twice in an epoch. A large
τ makes all corpora equally frequent (Arivazhagan et al. 2019, §3).

Each corpus is an endless sequence of permutations of its pairs, and epoch e takes the elements e·d_i to (e+1)·d_i of it. So
all pairs of a corpus have occurred equally often, up to one, after every epoch, and the pairs of an epoch are a function of
(seed, epoch). With weights of 1 and without a temperature, an epoch has each pair once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phraseloom.data.batches import mix
from phraseloom.data.shards import INDEX, Index
from phraseloom.errors import CorruptError, plural

__all__ = ["Mixture", "draws", "mixture_of"]

MIXTURE_STREAM = 4


def draws(pairs: Sequence[int], weights: Sequence[float], temperature: float = 1.0) -> list[int]:
    """The pairs of each corpus in an epoch (see above); 0 for a corpus without pairs."""
    sizes = np.array(pairs, np.float64) * np.array(weights, np.float64)
    shares = (sizes / sizes.sum()) ** (1 / temperature)
    exact = sizes if temperature == 1 else sizes.sum() * shares / shares.sum()
    return [max(1, round(float(count))) if n else 0 for count, n in zip(exact, pairs, strict=True)]


class Mixture:
    """The pairs of every epoch; corpus i has the `pairs[i]` pairs after those of the corpora before it."""

    def __init__(self, names: Sequence[str], pairs: Sequence[int], drawn: Sequence[int], *, seed: int) -> None:
        self.names, self.pairs, self.drawn, self.seed = tuple(names), tuple(pairs), tuple(drawn), seed

    def __len__(self) -> int:
        return sum(self.drawn)

    def epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        """The pairs of an epoch, sorted by corpus."""
        parts, start = [np.empty(0, np.int64)], 0
        for number, (size, count) in enumerate(zip(self.pairs, self.drawn, strict=True)):
            position, end = epoch * count, (epoch + 1) * count
            while position < end:
                turn, first = divmod(position, size)
                last = min(size, first + end - position)
                parts.append(start + self._part(number, turn, first, last))
                position += last - first
            start += size
        return np.concatenate(parts)

    def _part(self, number: int, turn: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Elements `first` … `last`-1 of a permutation of a corpus; the whole of it in any order."""
        size = self.pairs[number]
        if last - first == size:
            return np.arange(size)
        order = np.random.default_rng(mix(self.seed, MIXTURE_STREAM, number, turn)).permutation(size)
        return order[first:last]

    def expected(self, lengths: npt.NDArray[np.int32]) -> int:
        """The sum of `lengths` (one per pair, plus one each) over an epoch, on average."""
        total, start = 0.0, 0
        for size, count in zip(self.pairs, self.drawn, strict=True):
            part = lengths[start : start + size]
            total += count / max(1, size) * (int(part.sum(dtype=np.int64)) + size)
            start += size
        return round(total)

    def description(self, unit: str = "pair") -> list[str]:
        """One line per corpus: its pairs, and how many an epoch has."""
        return [
            f"corpus {name}: {plural(size, unit)}, {count:,} in an epoch ({100 * count / len(self):.1f} %)"
            for name, size, count in zip(self.names, self.pairs, self.drawn, strict=True)
        ]


def mixture_of(index: Index, *, seed: int = 1, folder: Path | None = None) -> Mixture | None:
    """The mixture of the training data of a dataset; None if no weight and no temperature is given. Raises CorruptError."""
    entries, temperature = index.config.get("train", []), index.config.get("temperature")
    if temperature is None and not any(entry.get("weight") for entry in entries):
        return None
    files, train = index.splits["train"].files, index.splits["train"]
    pairs = [file.pairs or 0 for file in files]
    if sum(pairs) != train.pairs or len(entries) != len(files):
        where = None if folder is None else folder / INDEX
        raise CorruptError(f"the corpora of train do not add up to {plural(train.pairs, 'pair')}", file=where)
    weights = [entry.get("weight") or 1.0 for entry in entries]
    names = [Path(file.name).name for file in files]
    if len(set(names)) < len(names):
        names = [f"{name} → {Path(file.target).name}" for name, file in zip(names, files, strict=True)]
    return Mixture(names, pairs, draws(pairs, weights, temperature or 1.0), seed=seed)
