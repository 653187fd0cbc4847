"""The measurement of `doctor`: which backend is faster, by a clock that the test holds."""

from __future__ import annotations

import itertools

import pytest

from phraseloom.cli import doctor
from phraseloom.layers.attention import backend as module
from phraseloom.layers.attention import crossover
from phraseloom.layers.attention.backend import FUSED_FROM


def test_the_ratio_is_that_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explicit attention takes 4, fused 2 below 16 tokens and 1 from there on; the first round does not count."""
    now, step = 0.0, itertools.count()
    real = module.is_fused

    def watched(backend: str, *args: object, length: int, **options: object) -> bool:
        nonlocal now
        number = next(step) % 6
        now += 100.0 if number < 2 else 4.0 if backend == "explicit" else 1.0 if length >= 16 else 2.0
        return real(backend, *args, length=length, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "is_fused", watched)
    ratios = crossover.measure_crossover([8, 16], width=8, heads=2, rounds=2, clock=lambda: now)
    assert ratios == {8: 0.5, 16: 0.25}


@pytest.mark.parametrize(("slow", "state"), [(0.9, "ok"), (1.2, "note")])
def test_doctor_says_where_fused_attention_is_slow(slow: float, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossover, "measure_crossover", lambda: {64: 1.3, 2 * FUSED_FROM: slow})
    finding = doctor.attention_backend()
    assert (finding.what, finding.state) == ("attention", state)
    assert f"64 tokens 1.30, {2 * FUSED_FROM} tokens {slow:.2f}" in finding.text
    assert f"fused from {FUSED_FROM} tokens on" in finding.text
