"""Pictures of accuracy by distance: what they show, and what cannot be drawn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from phraseloom.analysis.contrastive import JudgedItem, contrastive_report
from phraseloom.analysis.contrastive_items import Item
from phraseloom.errors import DataError, UsageError

matplotlib = pytest.importorskip("matplotlib")
from phraseloom.report.charts.contrastive import draw
from phraseloom.results import ContrastiveGroup


def groups(
    categories: Iterable[str] = "a", systems: tuple[str, ...] = ("runs/one", "runs/two")
) -> list[ContrastiveGroup]:
    items = [Item("s", "c", "w", c, d) for c in categories for d in range(7) for _ in range(d + 11)]
    half = JudgedItem([n % 2 + 0.0 for n in range(len(items))], [0.5] * len(items), [False] * len(items), 0)
    return typed(contrastive_report(items, dict.fromkeys(systems, half), range(4)))


def typed(report: list[dict[str, Any]]) -> list[ContrastiveGroup]:
    return [ContrastiveGroup.model_validate(group) for group in report]


def words(path: Path) -> set[str]:
    """The texts of an SVG whose letters are shapes: matplotlib says each in a comment."""
    return set(re.findall(r"<!-- (.*?) -->", path.read_bytes().decode()))


def test_the_picture_names_systems_bins_and_counts(tmp_path: Path) -> None:
    shown = words(draw(groups(), tmp_path / "p.svg"))
    assert {"one", "two", "guessing", "distance (words)", "0", "3", "11", "12", "items"} <= shown
    assert any(word in shown for word in (">3", "&gt;3")) and "48" in shown
    assert not any("estimate" in word for word in shown)
    shown = words(draw(groups(systems=("a/run", "b/run")), tmp_path / "p.svg", estimate=True))
    assert {"a/run", "b/run", "position of the first changed word (estimate of the distance)"} <= shown
    for name, start in (("p.png", b"\x89PNG"), ("p.pdf", b"%PDF")):
        assert draw(groups("abc"), tmp_path / name).read_bytes().startswith(start)


def test_the_same_report_makes_the_same_bytes(tmp_path: Path) -> None:
    first, second = (draw(groups("ab"), tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


def test_names_are_not_mathematics(tmp_path: Path) -> None:
    assert draw(groups([r"$\nothing$"], systems=(r"$\nothing$", "_y")), tmp_path / "p.png").is_file()


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        draw(groups(), tmp_path / "p.jpg")
    with pytest.raises(UsageError, match="13 categories have distances"):
        draw(groups("abcdefghijklm"), tmp_path / "p.png")
    item = [Item("s", "c", "w")]
    with pytest.raises(DataError, match="no item has a distance"):
        draw(typed(contrastive_report(item, {"x": JudgedItem([1.0], [0.0], [False], 0)})), tmp_path / "p.png")
    assert not any(tmp_path.iterdir())
