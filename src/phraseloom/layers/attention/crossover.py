"""From which length on fused attention is faster than explicit attention on this machine: the measurement behind `FUSED_FROM`.

Both are timed in turns, forward and backward, on causal QueryK attention to tokens and bigrams with the same number of tokens
at every length; the least of the times of each counts, which other work on the machine disturbs least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from phraseloom.layers.attention import build_attention
from phraseloom.layers.attention.masks import Visibility

LENGTHS = (64, 128, 256, 512, 1024)


def measure_crossover(
    lengths: Sequence[int] = LENGTHS,
    *,
    width: int = 256,
    heads: int = 4,
    rounds: int = 3,
    clock: Callable[[], float] = time.process_time,
) -> dict[int, float]:
    """Time of fused attention / time of explicit attention by length. `clock`: by default processor time of the process."""
    ratios = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        block = build_attention(width=width, heads=heads, score="queryk", arrangement="heterogeneous", orders=[1, 2])
        for length in lengths:
            x = torch.randn(max(lengths) // length, length, width, requires_grad=True)
            visibility = Visibility(key_length=length, causal=True, query_length=length)
            times: dict[str, list[float]] = {"explicit": [], "fused": []}
            for _ in range(rounds + 1):
                for backend, seconds in times.items():
                    block.backend = backend
                    begin = clock()
                    block(x, None, visibility, need_weights=False)[0].sum().backward()
                    seconds.append(clock() - begin)
            ratios[length] = min(times["fused"][1:]) / max(min(times["explicit"][1:]), 1e-9)
    return ratios
