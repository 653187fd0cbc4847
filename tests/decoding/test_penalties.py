from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.config import validate
from phraseloom.decoding.penalties import PENALTIES, build_penalty
from phraseloom.errors import ConfigError
from phraseloom.options.decoding import DecodingConfig, SockeyePenaltyConfig

KINDS = [
    {"kind": "wu", "alpha": 0.6},
    {"kind": "wu", "alpha": 0.0},
    {"kind": "sockeye", "alpha": 1.0, "beta": 0.0},
    {"kind": "sockeye", "alpha": 0.7, "beta": 4.0},
    {"kind": "none"},
]


def build(kind):
    return build_penalty(validate(DecodingConfig, {"length_penalty": kind}).length_penalty)


def test_every_kind_is_in_the_table() -> None:
    assert {k["kind"] for k in KINDS} == set(PENALTIES)


def test_values() -> None:
    length = torch.tensor([1.0, 7.0], dtype=torch.float64)
    assert build(KINDS[0]).divisor(length).tolist() == pytest.approx([1.0, 2.0**0.6])
    assert build(KINDS[2]).divisor(length).tolist() == pytest.approx([1.0, 7.0])
    assert build(KINDS[3]).divisor(length).tolist() == pytest.approx([1.0, (11 / 5) ** 0.7])
    assert build(KINDS[4]).divisor(length).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_divisor_does_not_depend_on_the_others(kind) -> None:
    lengths = torch.arange(1, 200, dtype=torch.float64)
    alone = [float(build(kind).divisor(length)) for length in lengths]
    assert build(kind).divisor(lengths).tolist() == alone


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(log_prob=st.floats(-100, 0), length=st.integers(1, 200), more=st.integers(0, 200), loss=st.floats(0, 50))
def test_no_extension_beats_the_bound(kind, log_prob, length, more, loss) -> None:
    penalty = build(kind)
    now, later = (penalty.divisor(torch.tensor(float(n), dtype=torch.float64)) for n in (length, length + more))
    assert float(now) > 0
    assert (log_prob - loss) / float(now) <= log_prob / float(later)


def test_impossible_settings_are_refused() -> None:
    for kind in (
        {"kind": "wu", "alpha": -1},
        {"kind": "wu", "beta": 1},
        {"kind": "wü"},
        {"kind": "sockeye", "beta": -1},
    ):
        with pytest.raises(ConfigError):
            validate(DecodingConfig, {"length_penalty": kind})
    with pytest.raises(ConfigError, match="n_best 6 is larger than beam 5"):
        validate(DecodingConfig, {"n_best": 6})
    assert SockeyePenaltyConfig().alpha == 1.0


def test_sentences_together() -> None:
    together = [DecodingConfig(beam=b).sentences_together for b in (1, 2, 5, 10, 50)]
    assert together == [128, 128, 64, 32, 16]
    assert DecodingConfig(batch_sentences=7).sentences_together == 7
