"""Charts as files: what they show, in which forms, and what is refused."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import DataError, UsageError
from phraseloom.report.charts import picture
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.charts.picture import can_draw, draw

pytest.importorskip("matplotlib")

PLACES = [(1.0, "1\n40 sentences"), (2.0, "2\n3 sentences"), (3.0, "all")]


def charts(systems: int = 2, **axes: Any) -> list[Chart]:
    """Two charts of the same systems; the second point of each has no interval."""
    series = [
        Series(f"system{n}", [(1, n + 1.0), (2, 2.0), (3, 1.5)], n, [(n + 0.5, n + 2.0), None, None], level=3.0 + n)
        for n in range(systems)
    ]
    marks = Axes("layer", "nats", places=PLACES, breaks=[2.5], levels="uniform", **axes)
    banded = [
        Series(f"system{n}", [(10.0, 5.0), (20.0, 4.0)], n, [(4.0, 6.0), (3.0, 5.0)], band=True) for n in range(systems)
    ]
    return [
        Chart("Entropy", series, marks),
        Chart("Curves", banded, Axes("updates", "perplexity", y_log=True, x_zero=True)),
    ]


def svg(charts: list[Chart], folder: Path, **options: Any) -> str:
    return draw(charts, folder / "picture.svg", **{"title": "Title", **options}).read_bytes().decode()


def test_everything_that_the_picture_must_say(tmp_path: Path) -> None:
    text = svg(charts(), tmp_path, note="1,000 sentences\nsecond line")
    for said in ("Title", ">system0<", ">system1<", "40 sentences", ">all<", "layer", "nats", "uniform", "second line"):
        assert said in text, said
    assert "Curves" not in text  # charts of one column share the title
    text = svg(charts(), tmp_path, columns=2)
    assert "Entropy" in text and "Curves" in text
    alone = svg([Chart("Another title", [Series("only", [(1, 2)])], Axes("x", "y"))], tmp_path)
    assert ">only<" not in alone  # no legend of one system
    assert "Another title" in alone


def test_points_intervals_and_levels_are_where_the_chart_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes as Panel

    lines, whiskers, levels, plot = [], [], [], Panel.plot

    def plotted(self: Panel, x: Any, y: Any, **look: Any) -> Any:
        lines.append((list(x), list(y), look))
        return plot(self, x, y, **look)

    monkeypatch.setattr(Panel, "plot", plotted)
    monkeypatch.setattr(Panel, "vlines", lambda self, x, low, high, **_: whiskers.append((x, low, high)))
    monkeypatch.setattr(Panel, "axhline", lambda self, y, **_: levels.append(y))
    draw(charts()[:1], tmp_path / "picture.png", title="t")
    assert whiskers == [(1, 0.5, 2.0), (1, 1.5, 3.0)]
    assert levels == [3.0, 4.0]
    marks = [(x, y, look) for x, y, look in lines if look.get("marker") and x]
    assert [(x[0], y[0]) for x, y, _ in marks] == [(1, 1.0), (2, 2.0), (3, 1.5), (1, 2.0), (2, 2.0), (3, 1.5)]
    assert [look["mfc"] == "white" for _, _, look in marks[:3]] == [False, True, True]
    assert len({(look["color"], look["marker"]) for _, _, look in marks}) == 2
    joined = [x for x, _, look in lines if not look.get("marker") and len(x) > 1]
    assert joined == [[1, 2], [1, 2]]  # not across the break


def test_every_place_has_its_label(tmp_path: Path) -> None:
    places = [(float(i), f"a long phenomenon {i}\n{1000 + i}") for i in range(12)]
    chart = Chart("t", [Series("a", [(at, at) for at, _ in places])], Axes("x", "y", places=places))
    text = svg([chart], tmp_path)
    assert all(f">{line}<" in text for _, label in places for line in label.split("\n"))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("systems", [1, 7])
def test_forms_and_numbers_of_systems(tmp_path: Path, ending: str, systems: int) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    path = draw(charts(systems), tmp_path / f"picture.{ending}", title="t", columns=2)
    assert path.read_bytes().startswith(starts[ending])
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_charts_make_the_same_bytes(tmp_path: Path, ending: str) -> None:
    first, second = (draw(charts(), tmp_path / f"{name}.{ending}", title="t").read_bytes() for name in "ab")
    assert first == second


def test_texts_are_neither_mathematics_nor_controls(tmp_path: Path) -> None:
    series = [Series(name, [(1, 1.0)], n) for n, name in enumerate(("a/$_{$", "b/\x1b[31m$x^2$.0"))]
    text = svg(
        [Chart("c", series, Axes("$x$", r"$\nothing$", level=(1.0, "$l$")))], tmp_path, title="$t_$", note="$n_$"
    )
    for said in ("$x^2$.0", "$_{$", "$x$", r"$\nothing$", "$l$", "$t_$", "$n_$"):
        assert said in text, said
    assert "\x1b" not in text


def test_a_name_may_begin_with_an_underscore(tmp_path: Path) -> None:
    series = [Series(name, [(1, 1.0)], n) for n, name in enumerate(("_base", "new"))]
    text = svg([Chart("c", series, Axes("x", "y"))], tmp_path)
    assert "_base<" in text and ">new<" in text


def test_characters_without_a_font_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    series = [Series(name, [(1, 1.0)], n) for n, name in enumerate(("\U00012000", "new"))]
    with caplog.at_level(logging.WARNING, "phraseloom"), warnings.catch_warnings():
        warnings.simplefilter("error")
        draw([Chart("c", series, Axes("x", "y"))], tmp_path / "x.png", title="t")
    assert "1 character is in no installed font" in caplog.text
    assert len(caplog.records) == 1


def test_other_fonts_are_taken_where_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "FONTS", ("cmsy10",))  # comes with matplotlib
    plain = svg([Chart("c", [Series("one", [(1, 1.0)], 0)], Axes("x", "y"))], tmp_path)
    other = svg([Chart("c日", [Series("one", [(1, 1.0)], 0)], Axes("x", "y"))], tmp_path)
    assert "cmsy10" not in plain and "cmsy10" in other


def test_long_titles_and_notes_are_wrapped(tmp_path: Path) -> None:
    text = svg(charts()[:1], tmp_path, title="word " * 40, note="note " * 90)
    assert max(line.count("word") for line in text.splitlines()) < 20
    assert max(line.count("note") for line in text.splitlines()) < 45


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"not 'x\.jpeg'"):
        draw(charts(), tmp_path / "x.jpeg", title="t")
    with pytest.raises(UsageError, match="8 systems"):
        can_draw(tmp_path / "x.png", 8)
    with pytest.raises(DataError, match="nothing to draw"):
        draw([Chart("c", [Series("a", [])], Axes("x", "y"))], tmp_path / "x.png", title="t")
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"phraseloom\[plot\]"):
        draw(charts(), tmp_path / "x.png", title="t")
    assert list(tmp_path.iterdir()) == []
