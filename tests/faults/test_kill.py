"""R5, R6, R8: real signals to real processes; the bytes at the end are those of the run that nothing disturbed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import toy
from tests.helpers import HANGS

KILLER = Path(__file__).with_name("killer.py")
PROGRAM = Path(toy.__file__)
KEYS = {"max_updates": 45, "checkpoint_every": 7}


def kill(run: Path, kills: int, *names: str) -> dict[str, int]:
    command = [sys.executable, KILLER, run, json.dumps(KEYS), str(kills), "1", *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("counts ")[2].splitlines()[0])


def test_marathon_of_signals(tmp_path: Path) -> None:
    counts = kill(tmp_path / "run", 12, "SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1")
    # by name: killed, or a polite signal before its handler was there
    assert set(counts) <= {"0", "3", "SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1"}, counts
    assert counts["0"] >= 1 and counts.get("3", 0) >= 2 and counts["SIGKILL"] >= 2, counts


@pytest.mark.full
@pytest.mark.parametrize("names", [["SIGKILL"], ["SIGKILL", "SIGTERM", "SIGINT", "SIGUSR1"]], ids=["kill", "mixed"])
def test_long_marathon(tmp_path: Path, names: list[str]) -> None:
    kill(tmp_path / "run", 100, *names)


def start(run: Path, **keys: object) -> subprocess.Popen[str]:
    command = [sys.executable, PROGRAM, run, json.dumps(keys)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("running")
    return process


def test_second_run_on_a_folder_is_refused_and_the_first_saves_on_a_signal(tmp_path: Path) -> None:
    first = start(tmp_path / "run", max_updates=10**6, checkpoint_every=10**5, keep_last=1)
    with pytest.raises(toy.PhraseloomError, match=f"in use by process {first.pid} on "):
        toy.files.FolderLock(tmp_path / "run").__enter__()
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=HANGS)
    assert first.returncode == 3, err
    assert "InterruptedRun: stopped by SIGTERM after update" in err
    state = json.loads((tmp_path / "run" / "last" / "state.json").read_bytes())
    assert f"after update {state['update']}," in err


def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    """With a save that never ends, only the second signal can end it."""
    code = (
        "import sys,time; sys.path.insert(0, sys.argv[1]); import toy; from pathlib import Path\n"
        "def save(folder):\n"
        "    print('saving', flush=True)\n"
        "    while not stop.is_set: time.sleep(0.01)\n"
        f"    print('asked', flush=True); time.sleep({2 * HANGS})\n"
        "from phraseloom.training.guard import StopSignal\n"
        "with StopSignal() as stop:\n"
        "    job = toy.make(Path(sys.argv[2]), toy.config(), stop=stop)\n"
        "    job.write_model = save\n"
        "    toy.runs.train_or_skip(job)\n"
    )
    command = [sys.executable, "-c", code, str(PROGRAM.parent), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None and process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS) == 128 + signal.SIGINT
    process.stdout.close()
