"""Finding pairs that came before, by 128-bit hashes in sorted runs.

16 bytes a pair kept, three times that for a moment while runs merge.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.bytes_]


class SeenPairs:
    """The keys met so far. Runs double in size, so there are about log2(pairs / chunk) of them."""

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def new(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """For each key, whether it is met for the first time; the keys are remembered."""
        fresh = np.zeros(len(keys), dtype=bool)
        distinct, first = np.unique(keys, return_index=True)
        fresh[first] = True
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, distinct), len(run) - 1)
            fresh[first[run[place] == distinct]] = False
        added = np.sort(keys[fresh])
        if len(added):
            self._runs.append(added)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")
            self._runs.append(merged)
        return fresh

    def __len__(self) -> int:
        return sum(map(len, self._runs))
