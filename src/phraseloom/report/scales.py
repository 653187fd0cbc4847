"""From numbers to places on a chart: linear and logarithmic axes with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """The values from `low` to `high` (low < high) on the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; a value outside is put on the border."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """At most `most` round values that are on the scale, in rising order."""
        return _log_ticks(self.low, self.high, most) if self.log else _ticks(self.low, self.high, most)


def scale_of(
    values: Iterable[float], start: float, end: float, *, log: bool = False, zero: bool = False, pad: float = 0.05
) -> Scale:
    """A scale that holds all finite values (on a logarithmic one, the positive ones) with some room; `zero`: and 0."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
    low, high = min(known), max(known)
    if log:
        room = max(pad, 0.02) * math.log(high / low) if high > low else math.log(1.2)
        return Scale(low / math.exp(room), high * math.exp(room), start, end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        half = abs(low) * 0.1 or 1.0
        return Scale(low - half, high + half, start, end)
    room = pad * (high - low)
    keep_low, keep_high = zero and low == 0, zero and high == 0
    return Scale(low if keep_low else low - room, high if keep_high else high + room, start, end)


def _ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (s * power for s in (*STEPS, 20.0, 50.0)):
        first = math.ceil(low / step - 1e-9)
        count = math.floor(high / step + 1e-9) - first + 1
        if count <= most:
            return [float(f"{(first + i) * step:.12g}") + 0.0 for i in range(count)]
    return [low]  # not reached: a step of 50 powers leaves one tick at most


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{d * 10.0**p:.12g}") for p in decades for d in digits if low <= d * 10.0**p <= high]
        if 2 <= len(found) <= most:
            return found
    some = [10.0**p for p in decades if low <= 10.0**p <= high]
    return some[:: -(-len(some) // most)] if len(some) > most else some or _ticks(low, high, most)


def number(value: float) -> str:
    """A tick as short text: 0.002, 15, 1,500, 20k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}".replace("-", "\u2212")
