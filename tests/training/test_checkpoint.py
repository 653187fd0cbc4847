"""C7: rotation against a model of what has to be there, over random sequences of saves, crashes and restarts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from phraseloom import files
from phraseloom.training.checkpoint import list_checkpoints, rotate, save_checkpoint, set_link, step_name
from phraseloom.training.state import Progress


def plain(folder: Path) -> None:
    files.atomic_write_bytes(folder / "model.safetensors", b"weights")


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about power, and this makes it fast."""
    monkeypatch.setattr(files.disk, "fsync", lambda handle: None, raising=False)
    monkeypatch.setattr(files.disk, "fsync_folder", lambda path: None, raising=False)


@pytest.mark.parametrize("seed", range(12))
def test_rotation_keeps_what_the_model_keeps(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    keep, every = dice.choice([1, 2, 3]), dice.choice([2, 5])
    state, kept = Progress(), set()
    for _ in range(40):
        what = dice.random()
        if what < 0.75:  # go on, save
            state.update += dice.choice([1, every - state.update % every])
            if state.update % every == 0 and dice.random() < 0.4:
                state.best_update = state.update
            save_checkpoint(tmp_path, state, {}, plain)
            for name, update in (("last", state.update), ("best", state.best_update)):
                set_link(tmp_path, name, update)
            rotate(tmp_path, state, keep_last=keep, regular_every=every, warn=pytest.fail)
            regular = sorted(u for u in kept | {state.update} if u % every == 0)[-keep:]
            kept = {u for u in kept | {state.update} if u in {*regular, state.best_update, state.update}}
        elif kept:  # restart from the newest
            state.update = max(kept)
            (tmp_path / "checkpoints" / ".saving").mkdir(exist_ok=True)
            if dice.random() < 0.5:
                (tmp_path / "checkpoints" / ".old").mkdir(exist_ok=True)
        assert {u for u, _ in list_checkpoints(tmp_path)} == kept
        assert all(files.verify_manifest(p) for _, p in list_checkpoints(tmp_path))
        if kept:
            assert (tmp_path / "last").resolve().name == step_name(max(kept))
        if state.best_update is not None:
            assert (tmp_path / "best").resolve().name == step_name(state.best_update)


def test_an_interruption_takes_no_regular_checkpoints_place(tmp_path: Path) -> None:
    state = Progress()
    for update in (10, 20, 23, 27, 30, 31):
        state.update = update
        save_checkpoint(tmp_path, state, {}, plain)
        rotate(tmp_path, state, keep_last=2, regular_every=10, warn=pytest.fail)
    assert [u for u, _ in list_checkpoints(tmp_path)] == [20, 30, 31]


def test_the_multiples_of_another_checkpoint_every_stay_until_there_are_new_ones(tmp_path: Path) -> None:
    state, left = Progress(), []
    for update, every in ((10, 10), (20, 10), (30, 10), (33, 1000), (36, 12), (48, 12), (49, 12), (60, 12)):
        state.update = update
        state.validated = update if update % every == 0 else state.validated  # saved at a signal: not validated
        save_checkpoint(tmp_path, state, {}, plain)
        rotate(tmp_path, state, keep_last=2, regular_every=every, warn=pytest.fail)
        left.append([u for u, _ in list_checkpoints(tmp_path)])
    assert left[2:] == [[20, 30], [20, 30, 33], [30, 36], [36, 48], [36, 48, 49], [48, 60]]


def test_names_that_are_no_checkpoints_are_left_alone(tmp_path: Path) -> None:
    for name in ("step_", "step_x", "step_٣", "other", ".saving"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_00000001").write_bytes(b"a file")
    assert list_checkpoints(tmp_path) == []


def test_link_to_nothing_is_not_made(tmp_path: Path) -> None:
    set_link(tmp_path, "best", 5)
    set_link(tmp_path, "best", None)
    assert not (tmp_path / "best").is_symlink()
