"""The file of a word alignment model: whole round trips, and refusals of what is damaged, foreign or of another format."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from phraseloom.align import aligner as model_file
from phraseloom.align.aligner import METADATA, Aligner, learn_aligner, load_aligner, save_aligner
from phraseloom.align.ibm import IBMSettings, read_bitext
from phraseloom.errors import CorruptError, FileProblem, ModelError

LINES = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch\u3000\u2028!", "a book \x1f\t\r !")] * 3


@pytest.fixture
def aligner() -> Aligner:
    return learn_aligner(read_bitext(LINES), IBMSettings())


@pytest.fixture
def path(aligner: Aligner, tmp_path: Path) -> Path:
    save_aligner(tmp_path / "model", aligner)
    return tmp_path / "model"


def parts(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with safetensors.safe_open(path, "np") as file:
        return json.loads(file.metadata()[METADATA]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write(path: Path, about: object, arrays: dict[str, np.ndarray], *, honest: bool = True) -> None:
    """A file with the checksum that its parts have."""
    if honest:
        assert isinstance(about, dict)
        about = {**about, "sha256": model_file._checksum(about, arrays)}
    path.write_bytes(safetensors.numpy.save(arrays, {METADATA: json.dumps(about)}))


@pytest.mark.parametrize("directions", [["forward"], ["backward"], ["forward", "backward"]])
@pytest.mark.parametrize(
    "settings", [IBMSettings(), IBMSettings("ibm1"), IBMSettings("ibm1", p_null=0.0, variational_bayes=False)]
)
def test_round_trip(settings: IBMSettings, directions: list[str], tmp_path: Path) -> None:
    before = learn_aligner(read_bitext(LINES, lowercase=True), settings, directions=directions, lowercase=True)
    save_aligner(tmp_path / "model", before, notes={"pairs": 9})
    after = load_aligner(tmp_path / "model")
    assert (after.source_words, after.target_words, after.lowercase) == (before.source_words, before.target_words, True)
    assert list(after.tables) == directions
    for name in directions:
        one, other = before.tables[name], after.tables[name]
        assert (one.tension, one.p_null) == (other.tension, other.p_null)
        for array in model_file.ARRAYS:
            assert np.array_equal(getattr(one, array), getattr(other, array))
            assert getattr(one, array).dtype == getattr(other, array).dtype
    assert after.align(LINES, weights=True) == before.align(LINES, weights=True)
    assert parts(tmp_path / "model")[0]["notes"] == {"pairs": 9}


def test_the_same_model_makes_the_same_bytes(aligner: Aligner, path: Path, tmp_path: Path) -> None:
    for _ in range(5):
        save_aligner(tmp_path / "again", learn_aligner(read_bitext(LINES), IBMSettings()))
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
    save_aligner(tmp_path / "loaded", load_aligner(path))
    assert (tmp_path / "loaded").read_bytes() == path.read_bytes()


def test_no_byte_can_change_unseen(aligner: Aligner, tmp_path: Path) -> None:
    path = tmp_path / "noted"
    save_aligner(path, aligner, notes={"pairs": 9})
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << random.Random(place).randrange(8)
        path.write_bytes(changed)
        with pytest.raises((CorruptError, ModelError)) as error:
            load_aligner(path)
        assert str(error.value).startswith(str(path))


def test_a_file_that_was_cut_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptError, match="not a whole safetensors file"):
            load_aligner(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(CorruptError):
        load_aligner(path)


def test_another_format_and_another_kind_are_named(path: Path, tmp_path: Path) -> None:
    about, arrays = parts(path)
    write(path, {**about, "format": 2}, arrays)
    with pytest.raises(ModelError, match="format 2, but this version reads format 1"):
        load_aligner(path)
    write(path, {**about, "kind": "something else"}, arrays)
    with pytest.raises(ModelError, match="not a word alignment model"):
        load_aligner(path)
    write(path, [], arrays, honest=False)
    with pytest.raises(ModelError, match="not a word alignment model"):
        load_aligner(path)
    path.write_bytes(safetensors.numpy.save(arrays))
    with pytest.raises(ModelError, match="not a word alignment model"):
        load_aligner(path)
    path.write_bytes(safetensors.numpy.save(arrays, {METADATA: "{"}))
    with pytest.raises(CorruptError):
        load_aligner(path)
    with pytest.raises(FileProblem, match="not found"):
        load_aligner(tmp_path / "none")
    with pytest.raises(FileProblem, match="folder"):
        load_aligner(tmp_path)


def changed(array: np.ndarray, place: int, value: float) -> np.ndarray:
    result = array.copy()
    result[place] = value
    return result


@pytest.mark.parametrize(
    "change",
    [
        lambda about, a: about["directions"]["forward"].pop("tension"),
        lambda about, a: about.update(directions={}),
        lambda about, a: about.update(directions=[]),
        lambda about, a: about["directions"].update(sideways=about["directions"]["forward"]),
        lambda about, a: about["directions"]["forward"].update(tension=-1.0),
        lambda about, a: about["directions"]["forward"].update(p_null=1.0),
        lambda about, a: about["directions"]["forward"].update(p_null="0"),
        lambda about, a: about.pop("lowercase"),
        lambda about, a: a.pop("forward.null"),
        lambda about, a: a.update({"forward.null": a["forward.null"][1:]}),
        lambda about, a: a.update({"forward.null": a["forward.null"].astype(np.float64)}),
        lambda about, a: a.update({"forward.source": a["forward.source"].reshape(1, -1)}),
        lambda about, a: a.update({"forward.source": a["forward.source"][:-1]}),
        lambda about, a: a.update({"forward.source": changed(a["forward.source"], -1, 99)}),
        lambda about, a: a.update({"forward.source": changed(a["forward.source"], 0, -1)}),
        lambda about, a: a.update({"forward.target": changed(a["forward.target"], -1, 99)}),
        lambda about, a: a.update({"forward.source": a["forward.source"][::-1]}),
        lambda about, a: a.update({"forward.probabilities": changed(a["forward.probabilities"], 0, np.nan)}),
        lambda about, a: a.update({"forward.probabilities": changed(a["forward.probabilities"], 0, 2)}),
        lambda about, a: a.update({"forward.null": changed(a["forward.null"], 0, 0)}),
        lambda about, a: a.update({"source_words": a["source_words"][::-1]}),
        lambda about, a: a.update({"source_words": np.frombuffer(b"a\na\nb\nc", np.uint8)}),
        lambda about, a: a.update({"source_words": np.frombuffer(b"a\n\nb\nc", np.uint8)}),
        lambda about, a: a.update({"target_words": np.frombuffer(b"\xff\n", np.uint8)}),
    ],
)
def test_parts_that_do_not_fit_are_refused(change: Any, path: Path) -> None:
    about, arrays = parts(path)
    change(about, arrays)
    write(path, about, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with pytest.raises(CorruptError, match="the parts of the model do not fit"):
        load_aligner(path)
