"""Pictures of a value by decoder layer: what is drawn where, in which forms, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import DataError, UsageError
from phraseloom.report.charts import layers, plots
from phraseloom.report.charts.layers import LayerSeries, draw
from phraseloom.report.charts.plots import can_draw

pytest.importorskip("matplotlib")

SYSTEMS = [
    LayerSeries("runs/base", [2.0, 1.3, 1.5], 1.7, 2.8),
    LayerSeries("runs/noenc", [2.5, 1.9], 2.1, 2.7),
    LayerSeries("runs/rnn", [1.1]),
]
WORDS = {"quantity": "entropy (nats)", "title": "Entropy by layer", "level": "uniform", "note": "1,000 sentences"}


def svg(systems: list[LayerSeries], folder: Path, **words: str) -> str:
    return draw(systems, folder / "picture.svg", **WORDS | words).read_bytes().decode()


def test_everything_that_the_picture_must_say(tmp_path: Path) -> None:
    text = svg(SYSTEMS, tmp_path)
    for said in (">base<", ">noenc<", ">rnn<", "decoder layer", ">1<", ">3<", ">all<", *WORDS.values()):
        assert said in text, said
    assert ">4<" not in text
    assert "runs/" not in text
    bare = svg([LayerSeries("a", [1.0, 2.0])], tmp_path)
    assert "all<" not in bare
    assert "uniform" not in bare


def test_values_stand_at_their_layers_and_the_whole_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[float], list[float], dict[str, Any]]] = []
    levels: list[float] = []
    from matplotlib.axes import Axes

    plot = Axes.plot

    def kept(self: Axes, x: Any, y: Any, **look: Any) -> Any:
        drawn.append((list(x), list(y), look))
        return plot(self, x, y, **look)

    monkeypatch.setattr(Axes, "plot", kept)
    monkeypatch.setattr(Axes, "axhline", lambda self, y, **look: levels.append(y))
    draw(SYSTEMS, tmp_path / "picture.png", **WORDS)
    assert levels == [2.8, 2.7]
    lines = [d for d in drawn if d[2]["ls"] != "none"]
    assert [y for _, y, _ in lines] == [list(s.layers) for s in SYSTEMS]
    for x, y, _ in lines:
        assert [round(place) for place in x] == list(range(1, len(y) + 1))
        assert max(abs(place - round(place)) for place in x) <= layers.SPREAD / 2
    assert len({x[0] for x, _, _ in lines}) == 3
    wholes = [d for d in drawn if d[2]["ls"] == "none"]
    assert [y for _, y, _ in wholes] == [[1.7], [2.1]]
    assert all(x[0] > 3 + layers.GAP for x, _, _ in wholes)
    assert len({(look["color"], look["marker"]) for _, _, look in lines}) == 3
    assert [look["color"] for _, _, look in wholes] == [look["color"] for _, _, look in lines[:2]]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("systems", [1, 7])
def test_forms_and_numbers_of_systems(tmp_path: Path, ending: str, systems: int) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    some = [LayerSeries(f"r/{n}", [n + 1.0, 2.0], n, n + 3) for n in range(systems)]
    path = draw(some, tmp_path / f"picture.{ending}", **WORDS)
    assert path.read_bytes().startswith(starts[ending])
    assert list(tmp_path.iterdir()) == [path]


def test_names_are_text_and_not_mathematics(tmp_path: Path) -> None:
    text = svg([LayerSeries("a/$_{$", [1.0]), LayerSeries("b/\x1b[31m$x^2$.0", [2.0])], tmp_path, quantity="$y$")
    assert "$x^2$.0" in text
    assert "$_{$" in text
    assert "$y$" in text
    assert "\x1b" not in text
    assert "a/r" in svg([LayerSeries("a/r", [1.0]), LayerSeries("b/r", [2.0])], tmp_path)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"not 'x\.jpeg'"):
        can_draw(tmp_path / "x.jpeg")
    with pytest.raises(DataError, match="no system has a layer"):
        svg([LayerSeries("a", [])], tmp_path)
    with pytest.raises(UsageError, match="8 systems"):
        svg(SYSTEMS[:1] * 8, tmp_path)
    with pytest.raises(UsageError, match="8 systems"):
        can_draw(tmp_path / "x.png", 8)
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="cannot be drawn"):
        can_draw(tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []
