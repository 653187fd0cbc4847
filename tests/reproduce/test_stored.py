"""Every table of docs/results can be checked by anybody: its sentences are the file that it names, and give its numbers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from phraseloom.files import sha256_file
from phraseloom.reproduce.stored import recompute

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted((ROOT / "docs" / "results").glob("*/*/table.json"))
WITH_SENTENCES = [path for path in TABLES if json.loads(path.read_bytes())["sentences"] is not None]


def name(path: Path) -> str:
    return "/".join(path.parent.parts[-2:])


def same(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return bool(one == other)


@pytest.mark.parametrize("path", WITH_SENTENCES, ids=name)
def test_a_table_names_the_sentences_beside_it(path: Path) -> None:
    entry = json.loads(path.read_bytes())["sentences"]
    assert sha256_file(path.parent / entry["file"]) == entry["sha256"]


@pytest.mark.parametrize("path", WITH_SENTENCES, ids=name)
def test_a_table_recomputed_is_the_same(path: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(path.parent, tmp_path / "table")
    recompute(folder)
    before, after = (json.loads(p.read_bytes()) for p in (path, folder / "table.json"))
    for content in (before, after):
        del content["sentences"]["sha256"]  # another version of liblzma may pack the same text otherwise
    assert same(before, after)
    assert (folder / "table.md").read_bytes() == path.with_name("table.md").read_bytes()
