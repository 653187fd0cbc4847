"""Means and deviations over runs: of numbers, of JSON objects, of curves."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from phraseloom.report.run.runs import average, common_curve, interval_width, mean, spread, thin


def test_mean() -> None:
    values = [27.1, 27.9, 26.4]
    assert mean(values) == pytest.approx(statistics.mean(values))


def test_objects_are_averaged_number_by_number() -> None:
    a = {"name": "x", "layers": [1.0, 2.0], "own": True, "none": None}
    b = {"name": "y", "layers": [3.0, 2.0], "own": True, "none": 4}
    assert average([a, b]) == {"name": "x", "layers": [2.0, 2.0], "own": True, "none": None}
    assert spread([a, b])["layers"] == [pytest.approx(2**0.5), 0.0]


@pytest.mark.parametrize("other", [{"layers": [1.0]}, {"layers": [1.0, 2.0], "more": 1}, {}])
def test_other_shapes_have_no_mean(other: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="no mean"):
        average([{"layers": [1.0, 2.0]}, other])


def curve(points: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(points), float), np.array(list(points.values()))


def test_curves_meet_at_their_common_updates() -> None:
    found = common_curve([curve({10: 4.0, 20: 2.0, 30: 1.0}), curve({10: 6.0, 30: 3.0})])
    assert found.updates == [10, 30]
    assert found.values == [5.0, 2.0]
    assert found.deviation == [pytest.approx(2**0.5)] * 2
    assert common_curve([curve({1: 2.0}), (np.zeros(0), np.zeros(0))]).deviation is None
    assert common_curve([]).updates == []


def test_long_curves_become_means_of_intervals() -> None:
    updates = np.arange(1, 1001, dtype=float)
    width = interval_width(updates, points=100)
    places, values = thin((updates, updates), width)
    assert len(places) == 100
    assert places[0] == 10
    assert values[0] == pytest.approx(5.5)
    assert values.mean() == pytest.approx(updates.mean())
    few = updates[:50]
    assert thin((few, few), interval_width(few, points=100))[0].tolist() == few.tolist()


def test_what_is_left_is_in_the_last_interval() -> None:
    updates = np.arange(1, 8, dtype=float)
    places, values = thin((updates, updates), 3)
    assert (places.tolist(), values.tolist()) == ([3, 7], [2, 5.5])
