"""Results of other verbs: each form is known by its keys, and what is not whole is refused with its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import CorruptError, DataError
from phraseloom.report.parts import KINDS, read_part

SHARE = {"value": 0.5, "interval": [0.4, 0.6]}
SETTING = {"layer": 1, "head": None, "method": "union", "aer": 0.3, "precision": 0.6, "recall": 0.7, "sentences": 9}
MEAN = {"steps": 1.5, "sentences": 1.4}
READING = {"layers": [MEAN, MEAN], "whole": MEAN, "uniform": MEAN, "heads": []}
CLASS = {"total": 5, "predicted": 4, "right": 3, "precision": 0.75, "recall": 0.6, "f1": 0.66}
JUDGED = {"system": "m", "correct": 3, "accuracy": 0.75, "interval": [0.3, 0.9], "indistinguishable": 0}
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
                    "orders": [{"order": 2, "covered": {"share": SHARE, "chance": 0.2}, "lift": SHARE}],
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
}


def write(path: Path, value: Any) -> Path:
    path.write_bytes(json.dumps(value).encode())
    return path


def test_every_kind_has_an_example() -> None:
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_form_is_known(kind: str, tmp_path: Path) -> None:
    part = read_part("m", write(tmp_path / "r.json", EXAMPLES[kind]))
    assert (part["kind"], part["name"], part["origin"]) == (kind, "m", "r.json")
    assert [system["name"] for system in part["systems"]] == ["m"]
    json.dumps(part, allow_nan=False)


def test_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    def of(kind: str) -> Any:
        return read_part("m", write(tmp_path / "r.json", EXAMPLES[kind]))

    assert of("scores")["systems"][0]["scores"]["BLEU"]["value"] == 30.0
    assert of("entropy")["systems"][0]["tokens"] == {"layers": [1.5, 1.5], "whole": 1.5, "uniform": 1.5}
    assert of("alignment")["systems"][0]["settings"][0]["aer"] == 0.3
    assert of("contrastive")["groups"][0]["systems"][0]["low"] == 0.3
    assert of("fertility")["systems"][0]["classes"]["1"]["f1"] == 0.66
    assert of("coverage")["systems"][0]["rows"][0]["lift"] == 0.5


def damaged(value: Any) -> list[Any]:
    """The value with each of its inner keys gone, once each."""
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


@pytest.mark.parametrize("value", [[], {}, {"systems": []}, 3, {"sentences": 1, "systems": 4}])
def test_what_no_verb_wrote(value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the JSON of a verb"):
        read_part("m", write(tmp_path / "r.json", value))
    (tmp_path / "r.json").write_bytes(b"{")
    with pytest.raises(CorruptError):
        read_part("m", tmp_path / "r.json")
