"""C1–C7: whatever fails while a checkpoint is written, a whole one is there, equal to the old or the new one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import disk as faults
import pytest
import toy
from tests.helpers import HANGS

from phraseloom import files
from phraseloom.errors import FileProblem
from phraseloom.training import checkpoint, loop
from phraseloom.training.state import Progress

NEXT = {"max_updates": 11, "checkpoint_every": 1, "keep_last": 1}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with checkpoints of updates 5 and 10."""
    toy.finish(tmp_path / "run", toy.config(max_updates=10))
    return tmp_path / "run"


def states(run: Path) -> tuple[int, list[str]]:
    """The update of the newest whole checkpoint, and the warnings on the way to it."""
    warnings: list[str] = []
    found = checkpoint.newest_whole(run, warnings.append)
    assert found is not None, warnings
    return found[1].update, warnings


def save_next(run: Path) -> None:
    """Open the run, do an update, save, delete the checkpoint before: the operations that are broken."""
    job = toy.make(run, toy.config(**NEXT))
    try:
        loop.train(job)
    finally:
        assert job.log is not None
        job.log.close()


def each_operation(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, for_good: bool) -> int:
    """SQLite's loop: break operation 1, 2, … of a save until it comes through untouched; how many there were."""
    for at in range(1, 500):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy, symlinks=True)
        broken = faults.FaultyDisk(kind, at, for_good=for_good)
        with monkeypatch.context() as patch:
            patch.setattr(files, "disk", broken)
            try:
                save_next(copy)
            except FileProblem as error:
                assert at <= broken.count, error
        assert not (copy / "checkpoints" / ".saving").exists()
        update, _ = states(copy)
        assert update in (10, 11), (kind, at)
        if broken.count < at:
            return at - 1
        if at % 4 == 0:
            save_next(copy)
            assert states(copy) == (11, []), (kind, at)
    raise AssertionError("more operations than expected")


FAST = [("EIO", False), ("half", False)]
LONG = [("ENOSPC", True), ("EIO", True), ("ENOSPC", False), ("EDQUOT", True), ("EDQUOT", False), ("half", True)]


@pytest.mark.parametrize(("kind", "for_good"), [*FAST, *(pytest.param(*c, marks=pytest.mark.full) for c in LONG)])
def test_fault_at_every_operation(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, for_good: bool
) -> None:
    assert each_operation(run, tmp_path, monkeypatch, kind, for_good) > 15


def test_full_disk_is_said_in_words(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = toy.make(run, toy.config(max_updates=12))
    assert job.log is not None
    for at in range(1, 40):
        monkeypatch.setattr(files, "disk", faults.FaultyDisk("ENOSPC", at))
        try:
            checkpoint.save_checkpoint(run, job.state, job.optimizer.tensors(), job.write_model)
        except FileProblem as error:
            assert "the disk is full" in str(error)
            continue
        finally:
            monkeypatch.undo()
        break
    job.log.close()
    assert at > 10


def test_killed_at_every_operation(run: Path, tmp_path: Path) -> None:
    """Real ends of real processes: a child is forked for each operation (in a program of its own, with one thread)."""
    program = Path(__file__).with_name("kill_operations.py")
    done = subprocess.run(
        [sys.executable, program, run, tmp_path / "copy"], capture_output=True, text=True, timeout=HANGS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) > 15


def test_power_loss(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: every state that the disk may be in after a crash, at each operation of a save with rotation."""
    recorder = faults.RecordingDisk(run)
    monkeypatch.setattr(files, "disk", recorder)
    job = toy.make(run, toy.config(**NEXT))
    recorder.operations.clear()
    names, content = faults.read_tree(run)
    loop.train(job)
    assert job.log is not None
    job.log.close()
    monkeypatch.undo()
    state = tmp_path / "state"

    def build(now: faults.Names, data: dict[int, bytes]) -> None:
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        faults.build_tree(state, now, data)

    count, reached = 0, set()
    for crash, description in faults.power_loss_states(names, content, recorder.operations, build):
        found = checkpoint.newest_whole(state, lambda _: None)
        assert found is not None, description
        assert found[1].update in (10, 11), description
        if crash == len(recorder.operations):
            assert found[1].update == 11, description
        reached.add(found[1].update)
        count += 1
    assert reached == {10, 11}
    assert count > 200


def corrupt(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "bit":
        data[len(data) // 2] ^= 4
    elif how == "short":
        del data[-3:]
    elif how == "empty":
        data.clear()
    elif how == "longer":
        data += b"\0"
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["bit", "short", "empty", "longer", "gone"])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "config.json"]
)
def test_corrupt_checkpoint_is_named_and_the_one_before_is_used(run: Path, name: str, how: str) -> None:
    path = run / "checkpoints" / "step_00000010" / name
    path.unlink() if how == "gone" else corrupt(path, how)
    update, warnings = states(run)
    assert update == 5
    assert "step_00000010" in warnings[0] and "refused" in warnings[0]


def test_files_of_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    """C11: weights of another run under our manifest, and a checkpoint under another number."""
    toy.finish(tmp_path / "other", toy.config(max_updates=10, seed=2))
    ours, theirs = (r / "checkpoints" / "step_00000010" for r in (run, tmp_path / "other"))
    shutil.copy(theirs / "model.safetensors", ours / "model.safetensors")
    assert states(run)[0] == 5
    shutil.copytree(run / "checkpoints" / "step_00000005", run / "checkpoints" / "step_00000099")
    update, warnings = states(run)
    assert update == 5 and any("not of 99" in w for w in warnings)


def folder_without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def no_optimizer_named(folder: Path) -> None:
    files.write_manifest(folder, ["model.safetensors", "state.json"])


@pytest.mark.parametrize("damage", [folder_without_manifest, empty_folder, no_optimizer_named])
def test_partial_folder_is_not_a_checkpoint(run: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(run / "checkpoints" / "step_00000010", run / "checkpoints" / "step_00000011")
    damage(run / "checkpoints" / "step_00000011")
    assert states(run)[0] == 10


def test_all_corrupt_is_an_error_and_not_a_fresh_start(run: Path) -> None:
    for path in run.glob("checkpoints/*/model.safetensors"):
        corrupt(path, "bit")
    with pytest.raises(FileProblem, match="no whole checkpoint is left"):
        toy.make(run, toy.config())


def test_too_little_space_is_said_before_the_first_update(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run needs none."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))  # type: ignore[attr-defined]
    with pytest.raises(FileProblem, match=r"3 checkpoints need 3,1\d\d,\d\d\d bytes, 1,000 are free"):
        toy.finish(tmp_path / "new")
    toy.finish(run, toy.config(max_updates=10))


def test_failed_delete_is_reported_and_the_run_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    for name in ("remove_tree", "unlink"):
        monkeypatch.setattr(files.disk, name, fail)
    checkpoint.rotate(run, Progress(update=10, best_update=10), keep_last=1, regular_every=100, warn=said.append)
    assert said and "Input/output error" in said[0]
    assert states(run)[0] == 10
