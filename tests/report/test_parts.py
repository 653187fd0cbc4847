"""Parts of a report from the files of other commands; damaged files are refused with their name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

from phraseloom import results
from phraseloom.errors import DataError
from phraseloom.report.run.measured import layer_parts
from phraseloom.report.run.page import alignment_section
from phraseloom.report.run.parts import ORDER, LayerEntropies, Part, SizeCount, SystemNeighbours, read_part
from phraseloom.report.run.report import coverage_section

SHARE = {"value": 0.5, "interval": [0.4, 0.6]}
SETTING = {"layer": 1, "head": None, "method": "union", "aer": 0.3, "precision": 0.6, "recall": 0.7, "sentences": 9}
MEAN = {"steps": 1.5, "sentences": 1.4}
READING = {"layers": [MEAN, MEAN], "whole": MEAN, "uniform": MEAN, "heads": []}
CLASS = {"total": 5, "predicted": 4, "right": 3, "precision": 0.75, "recall": 0.6, "f1": 0.66}
JUDGED = {"system": "m", "correct": 3, "accuracy": 0.75, "interval": [0.3, 0.9], "indistinguishable": 0}
KNOWN = {
    "phrases": 4,
    "longer_than_a_segment": 0,
    "segment": 0.5,
    "inside": 0.25,
    "split": 0.25,
    "interval": [0.15, 0.85],
    "chance": 0.125,
    "posterior": 0.4,
    "from_its_source": 1.0,
}
TWO_MODELS: dict[str, Any] = {
    "side": "target",
    "text": "t",
    "models": ["m", "n"],
    "neighbours": 2,
    "candidates": 50,
    "zero": 0,
    "overlap": 0.5,
    "chance": 0.04,
    "pairs": 1,
    "pearson": 0.9,
    "spearman": None,
    "tokens": [
        {"piece": "a", "count": 7, "shared": 1, "neighbours": [[["b", 0.75], ["c", 0.5]], [["b", 0.5], ["d", 0.25]]]},
        {"piece": "b", "count": 6, "shared": 1, "neighbours": [[["a", 0.25], ["c", 0.5]], [["a", 0.5], ["d", 0.75]]]},
    ],
}
LAYER = {
    "layer": 1,
    "mass": {"token-to-token": 60.0},
    "joint": {"token-to-token": 60.0},
    "activation": {},
    "orders": {},
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "scores": {
        "sentences": 9,
        "references": 1,
        "systems": [{"name": "m", "scores": [{"name": "BLEU", "value": 30.0, "signature": "s", "detail": ""}]}],
    },
    "contrastive": {
        "items": 4,
        "distance": "given",
        "groups": [{"category": None, "distance": None, "items": 4, "systems": [JUDGED]}],
    },
    "alignment": {"source": "s", "target": "t", "gold": "g", "systems": [{"model": "m", "settings": [SETTING]}]},
    "links": {
        "gold": "g",
        "systems": [{"name": "m", "aer": 0.3, "precision": 0.6, "recall": 0.7, "f1": 0.65, "sentences": 9}],
    },
    "entropy": {
        "unit": "nats",
        "systems": [{"model": "m", "steps": 9, "sentences": 2, "own": True, "tokens": READING, "slots": None}],
    },
    "activation": {"tau": 0.1, "mean_heads": False, "sentences": 2, "uses": {"cross": [LAYER]}},
    "fertility": {
        "sentences": 2,
        "tokens": 5,
        "accuracy": 0.6,
        "loss": 0.4,
        "classes": {"1": CLASS},
        "gate": {"word": CLASS},
        "confusion": [[3]],
    },
    "coverage": {
        "phrases": 3,
        "sentences": 2,
        "left_out": {},
        "uses": {
            "cross": [
                {
                    "layer": 1,
                    "slots": [1, 2],
                    "orders": [
                        {
                            "order": 2,
                            "mass": SHARE,
                            **{
                                key: {"share": 0.1, "chance": 0.2} for key in ("exact", "inside", "crossing", "outside")
                            },
                            "covered": {"share": SHARE, "chance": 0.2},
                            "lift": SHARE,
                        }
                    ],
                    "strongest": {},
                }
            ]
        },
    },
    "phenomena": {
        "world": "w",
        "split": "test",
        "sentences": 2,
        "phenomena": [{"phenomenon": "idiom", "instances": 4, "systems": [JUDGED]}],
    },
    "segments": {
        "lengths": {"0": 2, "1": 5, "7": 1},
        "left_out": {"blank": 1, "too_long": 0, "impossible": 1},
        "phrases": {"": KNOWN, "idiom": {**KNOWN, "segment": None, "from_its_source": None}},
        "sentences": [{"source": ["a"], "target": ["b"], "segments": [], "log_prob": -1.0}, None],
    },
    "source_phrases": {
        "sentences": [
            [
                {"pieces": ["a", "b"], "weights": [[0.25, 0.75], None]},
                {"pieces": ["c", "d"], "weights": [[0.85, 0.15], None]},
                {"pieces": ["</s>"], "weights": [[1.0], None]},
            ],
            [],
        ],
        "shares": [[0.25, 0.5], [0.75, 0.5]],
        "cropped": 0,
    },
    "neighbours": {
        "side": "source",
        "text": None,
        "models": ["m"],
        "neighbours": 2,
        "candidates": 50,
        "zero": 0,
        "tokens": [{"piece": "a", "count": 7, "neighbours": [[["b", 0.75], ["c", 0.5]]]}],
    },
}


def write(path: Path, value: Any) -> Path:
    path.write_bytes(json.dumps(value).encode())
    return path


def test_every_kind_has_an_example() -> None:
    assert set(EXAMPLES) == set(ORDER)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_form_is_known(kind: str, tmp_path: Path) -> None:
    part = read_part("m", write(tmp_path / "r.json", EXAMPLES[kind]))
    assert (part.kind, part.name, part.origin) == (kind, "m", "r.json")
    assert [system.name for system in part.systems] == ["m"]
    json.dumps(part.model_dump(), allow_nan=False)


def test_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    def of(kind: str) -> Any:
        return read_part("m", write(tmp_path / "r.json", EXAMPLES[kind]))

    assert of("scores").systems[0].scores["BLEU"].value == 30.0
    assert of("entropy").systems[0].tokens == LayerEntropies(layers=[1.5, 1.5], whole=1.5, uniform=1.5)
    assert of("alignment").systems[0].settings[0].aer == 0.3
    assert of("contrastive").groups[0].systems[0].low == 0.3
    assert of("fertility").systems[0].classes["1"].f1 == 0.66
    assert of("coverage").systems[0].rows[0].lift == 0.5
    segments = of("segments")
    assert (segments.sentences, segments.left_out, segments.forced) == (1, 2, True)
    assert segments.systems[0].lengths[2] == SizeCount(size=7, count=1)
    assert segments.systems[0].phrases[1].segment is None
    phrases = of("source_phrases").systems[0]
    assert phrases.sizes == [SizeCount(size=1, count=1), SizeCount(size=2, count=2)]
    (level,) = phrases.levels
    assert (level.level, level.phrases, level.greatest, level.even) == (0, 2, pytest.approx(0.8), 0.5)
    assert of("neighbours").systems == [SystemNeighbours(name="m", cosines=[0.75, 0.5])]
    two: Any = read_part("x", write(tmp_path / "two.json", TWO_MODELS))
    assert [system.cosines for system in two.systems] == [[0.5, 0.5], [0.5, 0.5]]
    assert two.agreement.overlap == 0.5 and two.agreement.spearman is None


def test_segments_of_own_translations(tmp_path: Path) -> None:
    """They have lengths and nothing else."""
    value = {"lengths": {"1": 5}, "sentences": [None]}
    part: Any = read_part("m", write(tmp_path / "r.json", value))
    assert (part.forced, part.left_out, part.systems[0].phrases) == (False, 0, [])


def test_a_mean_over_runs_is_read_as_it_was_written() -> None:
    made, lacks = layer_parts({"alignment": {"m": [{"model": "x", "settings": [SETTING]}] * 2}}, "gold", 9)
    (system,) = made[0].systems
    assert not lacks
    assert (system.name, system.runs) == ("m", 2)
    assert system.deviation.settings[0].aer == 0.0
    text = json.dumps([one.model_dump(exclude_unset=True) for one in made])
    assert pydantic.TypeAdapter(list[Part]).validate_json(text) == made


def test_runs_of_two_shapes_have_no_mean() -> None:
    """The system is left out of the part, with the reason; the others stay."""
    one, two = ({"model": "x", "settings": [SETTING] * layers} for layers in (1, 2))
    made, (lack,) = layer_parts({"alignment": {"mixed": [one, two], "m": [one]}}, "gold", 9)
    assert [system.name for system in made[0].systems] == ["m"]
    assert (lack.system, lack.what) == ("mixed", "alignment error rate") and "differ in layers" in lack.why
    assert layer_parts({"alignment": {"mixed": [one, two]}}, "gold", 9)[0] == []


def test_coverage_of_orders_together(tmp_path: Path) -> None:
    value = json.loads(json.dumps(EXAMPLES["coverage"]).replace('"order": 2', '"order": "2\u20133"'))
    part: Any = read_part("m", write(tmp_path / "r.json", value))
    assert [row.order for row in part.systems[0].rows].count("2–3") == 1
    assert "2–3" in coverage_section(part, {"m": 0}, 1)


def test_the_best_head_is_a_head() -> None:
    """Not `max`, the largest weight over heads, which can have a lower rate, and is that of the only head."""
    heads: list[tuple[Any, float]] = [(None, 0.5), ("max", 0.1), (1, 0.4), (2, 0.3)]
    for shown, number in ((heads, "2"), (heads[:3], None)):
        settings = [{**SETTING, "head": head, "aer": aer} for head, aer in shown]
        made, _ = layer_parts({"alignment": {"m": [{"model": "x", "settings": settings}]}}, "gold", 9)
        page = alignment_section(made[0], {"m": 0}, 1)
        assert ("best head" in page) == (number is not None) and "max" not in page
        assert number is None or f">{number}<" in page


def test_pairs_above_the_limits_of_a_model_are_told(tmp_path: Path) -> None:
    """Their gold links count as missed: of two runs of one model, and of a file of `analyse alignment`."""
    run = {"model": "x", "settings": [SETTING], "cropped": 3}
    (measured,), _ = layer_parts({"alignment": {"m": [run, run], "whole": [{**run, "cropped": 0}]}}, "gold", 9)
    added = read_part("m", write(tmp_path / "r.json", {**EXAMPLES["alignment"], "cropped": {"m": 3}}))
    for part in (measured, added):
        page = alignment_section(part, {"m": 0, "whole": 1}, 1)
        assert "3 pairs are longer than the limits of m: gold links there count as missed." in page
        assert "the limits of whole" not in page


def damaged(value: Any) -> list[Any]:
    """The value with each of its inner keys missing, once each."""
    found = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [{**value, key: broken} for broken in damaged(inner)]
    elif isinstance(value, list) and value:
        found += [[broken, *value[1:]] for broken in damaged(value[0])] + [[]]
    else:
        found.append({"other": []})
    return found


@pytest.mark.parametrize("kind", EXAMPLES)
def test_what_is_not_whole_is_refused_or_read(kind: str, tmp_path: Path) -> None:
    for broken in damaged(EXAMPLES[kind]):
        path = write(tmp_path / "r.json", broken)
        try:
            read_part("m", path)
        except DataError as error:
            assert error.file == path


def test_results_that_a_report_does_not_show(tmp_path: Path) -> None:
    value = {"kind": "nearest", "file": "v", "count": 1, "phrases_only": False, "neighbours": {"a": [["b", 0.5]]}}
    path = write(tmp_path / "r.json", value)
    with pytest.raises(DataError, match="a report does not show what embeddings nearest writes") as error:
        read_part("m", path)
    assert error.value.file == path


def test_lists_of_different_lengths_are_refused(tmp_path: Path) -> None:
    tokens = [{**TWO_MODELS["tokens"][0], "neighbours": [[["b", 0.75]], []]}, TWO_MODELS["tokens"][1]]
    with pytest.raises(DataError, match="not a complete result of analyse neighbours"):
        read_part("x", write(tmp_path / "r.json", {**TWO_MODELS, "tokens": tokens}))


def test_every_verb_that_writes_json_is_shown_or_named() -> None:
    """By docs/commands.md, which is made of the commands themselves."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_bytes().decode()
    sections = dict(re.findall(r"(?ms)^## phraseloom ([a-z ]+)\n(.*?)(?=^## |\Z)", text))
    writing = {name for name, about in sections.items() if re.search(r"(?m)^\| `--json\b|^\| `.*--output.*json", about)}
    known = {cls.command.partition(" --")[0] for cls in results.CLASSES} | {row[0] for row in results.NOT_RESULTS}
    assert len(writing) > 15
    assert writing <= known, writing - known
