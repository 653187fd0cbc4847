"""Numbers of two sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phraseloom.metrics.ratio import Form, Ratio


@pytest.mark.parametrize(
    ("form", "sums", "value"),
    [
        ("ratio", (3, 4), 75),
        ("complement", (3, 4), 25),
        ("exp", (3, 4), 100 * math.exp(0.75)),
        ("ratio", (0, 0), 0),
        ("complement", (0, 0), 0),
        ("exp", (0, 0), 100),
    ],
)
def test_forms(form: Form, sums: tuple[float, float], value: float) -> None:
    assert Ratio(form, 100).value(np.array(sums, dtype=np.float64)) == pytest.approx(value)
