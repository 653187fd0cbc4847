"""Whatever fails while the settings of a model folder are rewritten, the folder is whole, with the old or the new ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import disk as faults
import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom import files
from phraseloom.errors import CorruptError, FileProblem
from phraseloom.files import FolderLock, read_json, verify_manifest
from phraseloom.models.build import build_model
from phraseloom.models.store import GENERATION, change_generation, save_model
from phraseloom.options.model import ModelConfig

OLD, NEW = {"n_best": 2, "beam": 2}, {"beam": 7, "alignment_layer": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer(folder / "text")
    keys = {"width": 8, "heads": 2, "ffn_width": 8, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
    config = ModelConfig.model_validate(keys)
    torch.manual_seed(1)
    size = len(tokenizer.source.vocabulary)
    save_model(folder / "m", build_model(config, size, size), config, tokenizer, generation=OLD)
    return folder / "m"


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    shutil.copytree(model, tmp_path / "m")
    return tmp_path / "m"


def settings(folder: Path) -> dict[str, int]:
    """The settings of a folder that is whole."""
    assert GENERATION in verify_manifest(folder)
    found: dict[str, int] = read_json(folder / GENERATION)
    return found


def test_only_the_settings_and_their_entry_change(folder: Path) -> None:
    before = read_json(folder / "manifest.json")["files"]
    names = {p.relative_to(folder) for p in folder.rglob("*")}
    assert change_generation(folder, {"alignment_layer": 1, "beam": 7}) == folder
    assert settings(folder) == {**OLD, **NEW}
    after = read_json(folder / "manifest.json")["files"]
    assert list(after) == list(before)
    assert {name for name in after if after[name] != before[name]} == {GENERATION}
    assert set(after[GENERATION]) == {"bytes", "sha256"}
    assert {p.relative_to(folder) for p in folder.rglob("*")} - names <= {Path(".lock")}


@pytest.mark.parametrize(("kind", "for_good"), [("EIO", False), ("ENOSPC", True), ("half", False)])
def test_fault_at_every_operation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, for_good: bool
) -> None:
    seen = []
    for at in range(1, 100):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        broken = faults.FaultyDisk(kind, at, for_good=for_good)
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", broken)
            try:
                change_generation(copy, NEW)
            except (FileProblem, OSError):
                assert at <= broken.count
        seen.append(settings(copy)["beam"])
        if broken.count < at:
            break
        change_generation(copy, {"beam": 3})
        assert settings(copy)["beam"] == 3
        assert "next" not in read_json(copy / "manifest.json")["files"][GENERATION]
    assert seen == sorted(seen)
    assert set(seen) == {2, 7}
    assert len(seen) > 15


def test_power_loss(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, content = faults.read_tree(folder)
    recorder = faults.RecordingDisk(folder)
    monkeypatch.setattr(files, "disk", recorder)
    change_generation(folder, NEW)
    monkeypatch.undo()
    state = tmp_path / "state"

    def build(now: faults.Names, data: dict[int, bytes]) -> None:
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        faults.build_tree(state, now, data)

    reached, count = set(), 0
    for crash, description in faults.power_loss_states(names, content, recorder.operations, build):
        found = settings(state)["beam"]
        assert found in (2, 7), description
        if crash == len(recorder.operations):
            assert found == 7, description
        reached.add(found)
        count += 1
    assert reached == {2, 7}
    assert count > 30


def test_another_content_than_the_two_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the first and the last step too."""
    monkeypatch.setattr(files, "disk", faults.FaultyDisk("EIO", 9))
    with pytest.raises(FileProblem):
        change_generation(folder, NEW)
    monkeypatch.undo()
    assert "next" in read_json(folder / "manifest.json")["files"][GENERATION]
    assert settings(folder) == OLD
    (folder / GENERATION).write_bytes(b'{"beam": 4}\n')
    with pytest.raises(CorruptError, match="generation_config"):
        verify_manifest(folder)
    with pytest.raises(CorruptError, match="generation_config"):
        change_generation(folder, NEW)


def test_two_at_once_are_refused(folder: Path) -> None:
    with FolderLock(folder), pytest.raises(FileProblem, match="in use"):
        change_generation(folder, NEW)
    assert settings(folder) == OLD
