"""Pictures of BLEU by source length: what is drawn, for how many systems, and what is refused before the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phraseloom.errors import DataError, UsageError
from phraseloom.metrics.bleu import make_scorer
from phraseloom.report.charts import lengths, plots
from phraseloom.report.evaluation import ByLength, evaluate
from phraseloom.results import LengthScores

pytest.importorskip("matplotlib")


def part(systems: int = 3, bootstrap: int = 20, *, long: int = 2) -> LengthScores:
    """40 short sentences, 40 longer ones and `long` with more tokens, each system with more errors than the one before."""
    rng = np.random.default_rng(1)
    words = [5] * 40 + [20] * 40 + [40] * long
    references = [" ".join(rng.choice(list("abcdefgh"), n)) for n in words]
    texts = {
        f"out/system{i}.de": [
            " ".join("x" if rng.random() < 0.1 * (i + 1) else w for w in r.split()) for r in references
        ]
        for i in range(systems)
    }
    by = ByLength(references, [15, 30, 45], "13a")
    report = evaluate(
        {name: [lines] for name, lines in texts.items()},
        [references],
        [make_scorer("bleu")],
        by_length=by,
        bootstrap=bootstrap,
    )
    assert report.by_length is not None
    return report.by_length


def svg(part: LengthScores, folder: Path) -> str:
    return lengths.draw(part, folder / "picture.svg").read_bytes().decode()


def test_everything_that_the_picture_must_say(tmp_path: Path) -> None:
    found = part()
    text = svg(found, tmp_path)
    signature = found.signature
    for said in (
        "≤15", "40 sentences", "31–45", "2 sentences", "system0", "system2", "difference to system0", signature,
        "source tokens before subwords", "20 resamples", "hollow: fewer than 30",
    ):  # fmt: skip
        assert said in text, said
    assert ">45" not in text.replace("&gt;", ">")  # holds no sentence
    assert "out/system" not in text


def test_without_resamples_there_are_no_whiskers_and_no_differences(tmp_path: Path) -> None:
    text = svg(part(bootstrap=0), tmp_path)
    assert "difference" not in text
    assert "resamples" not in text
    assert "LineCollection" not in text
    assert text.count("LineCollection") < svg(part(), tmp_path).count("LineCollection")


def test_whiskers_stand_where_the_resamples_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, drawn = part(systems=2), []
    from matplotlib.axes import Axes

    def vlines(self: Axes, x: float, low: float, high: float, **_: Any) -> None:
        drawn.append((low, high))

    monkeypatch.setattr(Axes, "vlines", vlines)
    lengths.draw(found, tmp_path / "picture.png")
    tested = [s.groups[i].bootstrap for s in found.systems for i in range(2)]
    expected = [(t.low, t.high) for t in tested if t] + [(t.difference_low, t.difference_high) for t in tested[2:] if t]
    assert sorted(drawn) == sorted(expected)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("systems", [1, 7])
def test_forms_and_numbers_of_systems(tmp_path: Path, ending: str, systems: int) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    path = lengths.draw(part(systems, bootstrap=2), tmp_path / f"picture.{ending}")
    assert path.read_bytes().startswith(starts[ending])
    assert list(tmp_path.iterdir()) == [path]


def test_names_are_text_and_not_mathematics(tmp_path: Path) -> None:
    found = part(2)
    names = ("a/$_{$.de", "b/\x1b[31m$x^2$.de")
    systems = [s.model_copy(update={"name": name}) for s, name in zip(found.systems, names, strict=True)]
    text = svg(found.model_copy(update={"systems": systems}), tmp_path)
    assert "$x^2$" in text
    assert "$_{$" in text
    assert "\x1b" not in text


def test_short_names() -> None:
    assert lengths.short_names(["o/base.de", "o/new.1.de"]) == ["base", "new.1"]
    assert lengths.short_names(["o/test.de", "o/test.en"]) == ["test.de", "test.en"]
    assert lengths.short_names(["a/test.de", "b/test.de"]) == ["a/test.de", "b/test.de"]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = part(2, bootstrap=0)
    with pytest.raises(UsageError, match=r"not 'x\.jpeg'"):
        plots.can_draw(tmp_path / "x.jpeg")
    groups = [group.model_copy(update={"score": None}) for group in found.systems[0].groups]
    empty = [system.model_copy(update={"groups": groups}) for system in found.systems]
    with pytest.raises(DataError, match="no group"):
        lengths.draw(found.model_copy(update={"systems": empty}), tmp_path / "x.png")
    with pytest.raises(UsageError, match="8 systems"):
        lengths.draw(found.model_copy(update={"systems": found.systems * 4}), tmp_path / "x.png")
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"phraseloom\[plot\]|cannot be drawn"):
        plots.can_draw(tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []
