"""The tables of scores and arrangements: what they name is there, nothing is forgotten, options are keywords of the classes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pydantic
import pytest

from phraseloom.layers import attention
from phraseloom.options import attention as config
from phraseloom.options.attention import ARRANGEMENTS, SCORES, AttentionConfig, AttentionsConfig, KindEntry

FOLDER = Path(attention.__file__).parent


def keywords(function: Any, leave_out: set[str]) -> dict[str, Any]:
    """The keywords of a function and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in leave_out}


def options(entry: KindEntry) -> dict[str, Any]:
    return {name: field.default for name, field in entry.options.model_fields.items() if name != "kind"}


def test_every_class_of_the_folder_is_in_a_table() -> None:
    found = set()
    for path in FOLDER.glob("*.py"):
        classes = re.findall(r"^class (\w+(?:Score|Arrangement))\(", path.read_bytes().decode(), re.MULTILINE)
        found |= {f"{path.stem}.{name}" for name in classes}
    assert found - {"score.AttentionScore"} == {entry.home for entry in (*SCORES.values(), *ARRANGEMENTS.values())}


@pytest.mark.parametrize("name", SCORES)
def test_options_of_a_score_are_its_keywords(name: str) -> None:
    taken = keywords(SCORES[name].load().__init__, {"width", "structure"})
    given = options(SCORES[name])
    assert given.keys() == taken.keys()
    assert not {key for key, value in given.items() if value not in (None, taken[key])}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_options_of_an_arrangement_are_keywords_of_its_structure(name: str) -> None:
    assert (
        options(ARRANGEMENTS[name]).keys()
        == keywords(ARRANGEMENTS[name].load().structure, {"heads", "reads_ahead"}).keys()
    )


@pytest.mark.parametrize("name", SCORES)
def test_flags_are_kept_when_a_recipe_is_read(name: str) -> None:
    entry = SCORES[name]
    if entry.ngrams:
        AttentionConfig.model_validate(f"{name} heterogeneous 1-2")
    else:
        with pytest.raises(pydantic.ValidationError, match=f"{name} scores know no n-grams"):
            AttentionConfig.model_validate(f"{name} heterogeneous 1-2")
        structure = ARRANGEMENTS["heterogeneous"].load().structure(heads=2, orders=[1, 2])
        with pytest.raises(ValueError, match="no n-grams"):
            entry.load()(width=8, structure=structure)
    if entry.distances:
        with pytest.raises(pydantic.ValidationError, match=f"{name} scores are for self-attention"):
            AttentionsConfig.model_validate({"cross": name})
    else:
        AttentionsConfig.model_validate({"cross": name})


def test_a_name_of_no_table_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(pydantic.ValidationError, match=", ".join(SCORES)):
        AttentionConfig.model_validate("tokens")


def test_what_is_stored_is_what_it_was() -> None:
    """The form in which runs and models keep an attention."""
    assert AttentionConfig().model_dump() == {
        "score": {"kind": "token"}, "arrangement": {"kind": "homogeneous", "split": None}
    }  # fmt: skip
    stored = {
        "score": {"kind": "queryk", "share_keys": False},
        "arrangement": {"kind": "interleaved", "orders": [1, 2]},
    }
    read = AttentionConfig.model_validate(stored)
    assert read.model_dump() == stored
    assert read == AttentionConfig.model_validate("queryk interleaved 1-2 keys-per-order")
    gated = AttentionConfig.model_validate("queryk interleaved 1-2 keys-per-order gated")
    assert gated.model_dump() == {**stored, "gated": True}
    assert AttentionConfig.model_validate(gated.model_dump()) == gated != read
    assert isinstance(read.score, config.QueryKOptions)
