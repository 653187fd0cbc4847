"""Charts: every number is where it belongs, inside the picture, and texts cannot end an element."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.report.charts import svg
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.charts.svg import number, scale_of


def tree(html: str) -> ElementTree.Element:
    """The figure, which must be well-formed."""
    return ElementTree.fromstring(html)


def lines(series: list[Series], **axes: Any) -> str:
    return svg.lines(Chart("t", series, Axes("x", "y", **axes)))


def circles(html: str) -> list[tuple[float, float]]:
    marks = [e for e in tree(html).iter("circle") if e.get("class") == "mark" and e.find("title") is not None]
    return [(float(e.get("cx", "")), float(e.get("cy", ""))) for e in marks]


FINITE = st.floats(-1e9, 1e9, allow_nan=False, width=32)


@given(st.lists(FINITE, min_size=1, max_size=20), st.booleans())
def test_a_scale_holds_its_values_and_has_round_ticks(values: list[float], zero: bool) -> None:
    scale = scale_of(values, 10, 110, zero=zero)
    assert all(10 - 1e-6 <= scale(v) <= 110 + 1e-6 for v in values)
    ticks = scale.ticks()
    assert len(ticks) <= 6
    assert ticks == sorted(set(ticks))
    assert all(scale.low - 1e-6 * abs(scale.low) <= t <= scale.high + 1e-6 * abs(scale.high) for t in ticks)


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20))
def test_a_logarithmic_scale(values: list[float]) -> None:
    scale = scale_of(values, 0, 100, log=True)
    assert all(-1e-6 <= scale(v) <= 100 + 1e-6 for v in values)
    assert scale(math.sqrt(scale.low * scale.high)) == pytest.approx(50)
    assert 1 <= len(scale.ticks()) <= 6


def test_ticks_of_known_scales() -> None:
    assert scale_of([0, 2000], 0, 1, pad=0).ticks() == [0, 500, 1000, 1500, 2000]
    assert scale_of([7, 72], 0, 1, log=True, pad=0).ticks() == [7, 10, 20, 30, 50, 70]
    assert [number(v) for v in (0.002, 15, 1500, 20000, 1.5e6, -2)] == [
        "0.002",
        "15",
        "1,500",
        "20k",
        "1.5M",
        "\u22122",
    ]


def test_points_are_where_the_axes_say() -> None:
    html = lines([Series("a", [(0, 0), (10, 5), (20, 10)])])
    (x0, y0), (x1, y1), (x2, y2) = circles(html)
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert x0 < x2
    assert y0 > y2
    ticks = {e.text: float(e.get("y", "")) - 4 for e in tree(html).iter("text") if e.get("class") == "end"}
    assert ticks["10"] == pytest.approx(y2, abs=0.1)


def test_whiskers_and_bands_reach_their_ends() -> None:
    html = lines([Series("a", [(1, 5), (2, 6)], intervals=[(4, 7), None])], places=[(1, "1"), (2, "2")])
    assert len([e for e in tree(html).iter("line") if e.get("class") == "whisker"]) == 1
    assert html.count('class="hollow"') == 1
    html = lines([Series("a", [(1, 5), (2, 6)], intervals=[(4, 7), (5, 8)], band=True)])
    (band,) = (e for e in tree(html).iter("path") if e.get("class") == "band")
    assert len(re.findall(r"[ML]", band.get("d", ""))) == 4


def test_every_number_stands_in_a_title() -> None:
    titles = [e.text for e in tree(lines([Series("a", [(1, 5.123)], intervals=[(4, 7)])])).iter("title")]
    assert titles == ["a, 1: 5.12 (4.00 … 7.00)"]
    html = svg.dots("t", [svg.Dot("b", 2, 1, 3)], x="BLEU", zero=True)
    assert [e.text for e in tree(html).iter("title")] == ["b: 2.00 (1.00 … 3.00)"]


def test_bars_add_up_and_say_their_shares() -> None:
    html = svg.bars("t", [svg.Bar("layer 1", [25, 75])], ["tokens", "phrases"])
    widths = [float(e.get("width", "")) for e in tree(html).iter("rect")]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert {"25.0", "75.0"} <= {e.text for e in tree(html).iter("text")}
    assert [e.text for e in tree(html).iter("title")] == ["layer 1: tokens 25.0 %", "layer 1: phrases 75.0 %"]


def test_more_series_than_colours_still_look_different() -> None:
    looks = {re.sub(r"^.*?<svg|</svg>.*$", "", svg.key("x", n)) for n in range(14)}
    assert len(looks) == 14


def test_texts_are_escaped() -> None:
    bad = '</title><script>alert(1)</script>"&'
    series = [Series(bad, [(1, 2)], style=n, level=1.0) for n in range(2)]
    for html in (
        svg.lines(Chart(bad, series, Axes(bad, bad, places=[(1, bad)], level=(2, bad), levels=bad))),
        svg.dots(bad, [svg.Dot(bad, 1)], x=bad),
        svg.bars(bad, [svg.Bar(bad, [100])], [bad]),
    ):
        assert "<script" not in html
        assert tree(html).find("figcaption").text == bad  # type: ignore[union-attr]


def test_nothing_to_draw() -> None:
    assert lines([Series("a", [])]) == ""
    assert svg.dots("t", [], x="x") == ""
    assert svg.bars("t", [], []) == ""


def test_many_places_take_the_whole_width() -> None:
    places = [(float(i), str(i)) for i in range(17)]
    series = [Series(str(n), [(p, 1.0) for p, _ in places], style=n) for n in range(3)]
    assert 'class="chart wide"' in lines(series, places=places)
    assert 'class="chart"' in lines(series[:1], places=places)


def test_a_series_of_one_point_has_a_mark() -> None:
    """Also where marks are not asked for: there is no line that would show it."""
    alone = lines([Series("a", [(1.0, 2.0)], marked=False)])
    several = lines([Series("a", [(1.0, 2.0), (2.0, 2.0)], marked=False)])
    assert (alone.count('class="mark"'), several.count('class="mark"')) == (1, 0)


def test_no_line_crosses_a_break() -> None:
    series = [Series("a", [(1, 1), (2, 2), (4, 3), (5, 4)], level=2.5)]
    html = lines(series, places=[(float(n), str(n)) for n in range(1, 6)], breaks=[3.0], levels="uniform")
    paths = [e.get("d", "") for e in tree(html).iter("path") if e.get("class") == "line"]
    assert [len(re.findall(r"[ML]", path)) for path in paths] == [2, 2]
    assert "uniform" in {e.text for e in tree(html).iter("text")}
    heights = {e.get("y1") for e in tree(html).iter("line") if e.get("class") == "line"}
    assert len(heights) == 1


def test_a_label_of_two_lines_makes_room_for_the_second() -> None:
    plain, two = (lines([Series("a", [(1, 1)])], places=[(1.0, label)]) for label in ("short", "short\n40 sentences"))
    assert "40 sentences" in {e.text for e in tree(two).iter("text")}
    heights = [int(re.findall(r'viewBox="0 0 \d+ (\d+)"', html)[0]) for html in (plain, two)]
    assert heights[0] < heights[1]


def test_every_place_has_its_label() -> None:
    """Twelve phenomena in two lines each: the chart is wide, and labels that are too long for a row are slanted."""
    for names, slanted in (([f"group {i}" for i in range(12)], 0), ([f"a long phenomenon {i}" for i in range(12)], 12)):
        places = [(float(i), f"{name}\n{1000 + i:,}") for i, name in enumerate(names)]
        html = lines([Series("a", [(float(i), i) for i in range(12)])], places=places)
        texts = [e.text for e in tree(html).iter("text")]
        assert set(texts) >= {line for _, label in places for line in label.split("\n")}
        assert html.count("rotate(-45)") == slanted and 'class="chart wide"' in html


def test_slanted_labels_are_inside_and_do_not_touch() -> None:
    for count in (12, 70):
        labels = [f"{i} " + "x" * 50 for i in range(count)]
        html = lines([Series("a", [(0.0, 1.0)])], places=[(float(i), f"{text}\n9") for i, text in enumerate(labels)])
        shifts = [(float(a), float(b)) for a, b in re.findall(r"translate\((\S+) (\S+)\) rotate\(-45\)", html)]
        assert len(shifts) == count
        shown = [e.text or "" for e in tree(html).iter("text") if (e.text or "").endswith("…")]
        assert len(shown) == count and {len(text) for text in shown} == {svg.LONGEST}
        assert all(b[0] - a[0] >= 2 * 13 * math.sqrt(2) for a, b in pairwise(shifts))
        reach = svg.LETTER * svg.LONGEST * math.sqrt(0.5)
        height = int(re.findall(r'viewBox="0 0 \d+ (\d+)"', html)[0])
        assert shifts[0][0] - reach >= -10 and shifts[0][1] + reach <= height - 16


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((30.01, 30.04), ["30.01", "30.02", "30.03", "30.04"]),
        ((130.01, 130.04), ["130.01", "130.02", "130.03", "130.04"]),
        ((30.0, 30.02), ["30", "30.005", "30.01", "30.015", "30.02"]),
        ((1000.1, 1000.4), ["1,000.1", "1,000.2", "1,000.3", "1,000.4"]),
        ((20000.1, 20000.2), [f"20.000{n}k" for n in ("1", "12", "14", "16", "18", "2")]),
    ],
)
def test_ticks_of_narrow_ranges_have_labels_of_their_own(
    log: bool, values: tuple[float, float], labels: list[str]
) -> None:
    html = lines([Series("a", [(1, v) for v in values])], y_log=log)
    assert [e.text for e in tree(html).iter("text") if e.get("class") == "end"] == labels


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [(30.0, 1e300), (1.7e308, 1e-300), (1.7e308, 1.7e308), (-1.7e308, 1.7e308)])
def test_huge_values_are_drawn(log: bool, values: tuple[float, float]) -> None:
    html = lines([Series("a", list(enumerate(values)))], y_log=log, x_log=log)
    heights = [y for _, y in circles(html)]
    assert all(svg.TOP <= y <= svg.HEIGHT - svg.BOTTOM for y in heights)
    assert values[0] == values[1] or (heights[0] < heights[1]) == (values[0] > values[1])


@given(st.floats(1e-3, 1e6), st.floats(0, 1e-6), st.booleans())
def test_no_two_ticks_have_one_label(low: float, width: float, log: bool) -> None:
    scale = scale_of([low, low * (1 + width)], 0, 100, log=log)
    labels = [label for _, label in svg._labelled(scale.ticks())]
    assert labels and len(set(labels)) == len(labels)
