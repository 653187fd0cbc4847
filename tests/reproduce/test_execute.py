"""Steps run once, in order; failures stay where they are; a stopped table goes on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from phraseloom.errors import InterruptedRun
from phraseloom.files import write_manifest
from phraseloom.parent import PARENT
from phraseloom.reproduce.execute import Execution, duration
from phraseloom.reproduce.records import RECORD, outputs, read_record, source_commit
from phraseloom.reproduce.steps import Step, Steps, in_order

from .fakes import make_steps, one, program
from .test_steps import with_recipe, write_recipe

CHAIN: dict[str, Any] = {
    "data": {"each": "table", "run": ["write", "{here}/ref", "a b c d"]},
    "translate": {"run": ["copy"], "stdin": ["{data}/ref"], "stdout": "out.txt"},
}


def run(folder: Path, wanted: list[Step], jobs: int = 1) -> tuple[Execution, list[str]]:
    said: list[str] = []
    execution = Execution(in_order(wanted), jobs, said.append, program=program(folder))
    execution.run()
    return execution, said


def both(steps: Steps, name: str) -> list[Step]:
    return [one(steps, name, row) for row in ("base", "new")]


def test_steps_run_in_order_and_once(tmp_path: Path) -> None:
    step = one(make_steps(tmp_path, CHAIN), "translate")
    run(tmp_path, [step])
    assert step.stdout is not None
    assert step.stdout.read_text() == "a b c d\n"
    record = read_record(step)
    assert (record.state, record.content["exit"], record.content["argv"]) == ("done", 0, ["copy"])
    assert list(record.content["outputs"]) == ["out.txt"]
    assert len(record.content["outputs"]["out.txt"]["sha256"]) == 64
    before = step.stdout.stat().st_mtime_ns
    _, said = run(tmp_path, [step])
    assert said == ["2 of 2 steps are done already"]
    assert step.stdout.stat().st_mtime_ns == before


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    """With a mark if the source is changed; none for a package, also one installed below a checkout."""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    source = tmp_path / "src" / "phraseloom"
    source.mkdir(parents=True)
    (source / "__init__.py").touch()
    assert source_commit(tmp_path) is None
    git("init")
    assert source_commit(tmp_path) is None  # no commit yet
    git("add", "src")
    git("commit", "-m", "x")
    head = git("rev-parse", "HEAD")
    assert len(head) >= 40 and source_commit(tmp_path) == head
    (tmp_path / "notes.md").touch()
    assert source_commit(tmp_path) == head
    (source / "new.py").touch()
    assert source_commit(tmp_path) == head + "-dirty"
    installed = tmp_path / ".venv" / "lib" / "python3"
    (installed / "site-packages" / "phraseloom").mkdir(parents=True)
    assert source_commit(installed) is None


def test_a_step_has_its_commit_and_stays_done_under_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = one(make_steps(tmp_path, CHAIN), "translate")
    for commit in ("a" * 40, "b" * 40):
        monkeypatch.setattr("phraseloom.reproduce.records.source_commit", lambda commit=commit: commit)
        execution, _ = run(tmp_path, [step])
        assert execution.records[step.identity].state == "done"
        assert read_record(step).content["commit"] == "a" * 40


def test_an_output_that_is_gone_is_made_again(tmp_path: Path) -> None:
    step = one(make_steps(tmp_path, CHAIN), "translate")
    run(tmp_path, [step])
    assert step.stdout is not None
    step.stdout.write_text("cut")
    assert read_record(step).state == "stopped"
    run(tmp_path, [step])
    assert step.stdout.read_text() == "a b c d\n"


def test_inputs_are_unpacked_and_put_together(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "b").write_bytes(b"two\n")
    stdin = [str(tmp_path / "a.gz"), str(tmp_path / "b")]
    step = one(make_steps(tmp_path, {"join": {"run": ["copy"], "stdin": stdin, "stdout": "both"}}), "join")
    run(tmp_path, [step])
    assert (step.folder / "both").read_text() == "one\ntwo\n"
    assert sorted(p.name for p in step.folder.iterdir()) == ["both", "log.txt", "step.json"]


def test_texts_are_put_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "b").write_bytes(b"two\n")
    stdin = [str(tmp_path / "a.gz"), str(tmp_path / "b")]
    steps = make_steps(tmp_path, {"join": {"run": ["concatenate"], "stdin": stdin, "stdout": "both"}})
    step = one(steps, "join")
    execution, _ = run(tmp_path, [step])
    assert execution.records[step.identity].state == "done"
    assert (step.folder / "both").read_text() == "one\ntwo\n"
    (tmp_path / "b").unlink()
    (step.folder / "both").unlink()
    execution, _ = run(tmp_path, [step])
    assert "not found" in execution.records[step.identity].message


@pytest.mark.parametrize(("lines", "text"), [([], "one\ntwo\nthree"), (["2-"], "two\nthree")])
def test_lines_of_two_texts_are_never_one_line(tmp_path: Path, lines: list[str], text: str) -> None:
    """The first text ends without a line end, the last begins with a byte order mark, and one has nothing but such a mark."""
    for name, content in (("a", "\ufeffone"), ("empty", "\ufeff"), ("b", "\ufefftwo\nthree")):
        (tmp_path / name).write_text(content)
    stdin = [str(tmp_path / name) for name in ("a", "empty", "b")]
    steps = make_steps(tmp_path, {"join": {"run": ["concatenate", *lines], "stdin": stdin, "stdout": "both"}})
    run(tmp_path, [one(steps, "join")])
    assert (one(steps, "join").folder / "both").read_text() == text


@pytest.mark.parametrize(
    ("lines", "text"),
    [("1-2", "one\ntwo\n"), ("2-2", "two\n"), ("2-", "two\nthree\n"), ("3-9", "three\n"), ("1-", "one\ntwo\nthree\n")],
)
def test_lines_of_texts(tmp_path: Path, lines: str, text: str) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "b").write_bytes(b"two\nthree\n")
    stdin = [str(tmp_path / "a.gz"), str(tmp_path / "b")]
    steps = make_steps(tmp_path, {"part": {"run": ["concatenate", lines], "stdin": stdin, "stdout": "part"}})
    step = one(steps, "part")
    run(tmp_path, [step])
    assert (step.folder / "part").read_text() == text


@pytest.mark.parametrize("lines", ["0-2", "3-2", "2", "-2", "a-b", "4-9"])
def test_lines_that_are_none(tmp_path: Path, lines: str) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\nthree\n")
    stdin = [str(tmp_path / "a")]
    steps = make_steps(tmp_path, {"part": {"run": ["concatenate", lines], "stdin": stdin, "stdout": "part"}})
    step = one(steps, "part")
    execution, _ = run(tmp_path, [step])
    wanted = "the text has no line 4" if lines == "4-9" else f"concatenate {lines}: lines are FIRST-LAST"
    assert wanted in execution.records[step.identity].message


def test_a_failure_stops_only_what_needs_it(tmp_path: Path) -> None:
    steps = make_steps(tmp_path, {
        "work": {"run": ["fail", "row {row} is out of luck"], "rows": ["base"]},
        "after": {"run": ["translate", "{work}"], "rows": ["base"], "stdout": "x"},
        "fine": {"run": ["translate", "well"], "rows": ["new"], "stdout": "x"},
    })  # fmt: skip
    wanted = [one(steps, "after"), one(steps, "fine", "new")]
    execution, said = run(tmp_path, wanted)
    work, after, fine = (execution.records[s.identity] for s in (*wanted[0].needs, *wanted))
    assert (work.state, work.message, work.content["exit"]) == ("failed", "row base is out of luck", 1)
    assert (after.state, after.message) == ("new", "not run: work base seed 1 failed")
    assert fine.state == "done"
    assert any("FAILED" in line and "out of luck" in line for line in said)


def test_a_failed_step_is_tried_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    steps = make_steps(tmp_path, {"work": {"run": ["copy"], "stdin": [str(gate)], "stdout": "x"}})
    step = one(steps, "work")
    execution, _ = run(tmp_path, [step])
    assert "not found" in execution.records[step.identity].message
    gate.write_text("open")
    execution, _ = run(tmp_path, [step])
    record = execution.records[step.identity]
    assert (record.state, len(record.content["attempts"])) == ("done", 2)


def test_the_time_of_a_step_that_starts_anew_is_that_of_its_last_attempt(tmp_path: Path) -> None:
    step = one(make_steps(tmp_path, {"work": {"run": ["translate", "x"], "stdout": "x"}}), "work")
    run(tmp_path, [step])
    path = step.folder / RECORD
    content = json.loads(path.read_text())
    stopped = {**content["attempts"][0], "seconds": 500.0, "exit": 3}
    path.write_text(json.dumps({**content, "status": "stopped", "seconds": 500.0, "attempts": [stopped]}))
    run(tmp_path, [step])
    record = read_record(step)
    assert len(record.content["attempts"]) == 2 and 0 < record.seconds < 500


def test_tables_with_other_rows_share_a_step_that_one_of_them_ran_meanwhile(tmp_path: Path) -> None:
    """Both plans are older than the step, and its folder has another name in each."""
    work = {"work": {"run": ["translate", "x"], "rows": ["base"], "stdout": "x"}}
    after = {"after": {"run": ["copy"], "stdin": ["{work}/x"], "rows": ["base"], "stdout": "y"}}
    rows = {"rows": {"basis": {"label": "Basis"}}}
    first = one(make_steps(tmp_path, work), "work")
    renamed = {name: {**step, "rows": ["basis"]} for name, step in {**work, **after}.items()}
    second = one(make_steps(tmp_path, renamed, **rows), "after", "basis")
    assert first.identity == second.needs[0].identity and first.folder != second.needs[0].folder
    run(tmp_path, [first])
    _, said = run(tmp_path, [second])
    assert not any("work" in line for line in said), said
    assert (second.folder / "y").read_text() == "x\n" and len(read_record(first).content["attempts"]) == 1
    third = one(make_steps(tmp_path, renamed, **rows), "after", "basis")
    assert third.needs[0].folder == first.folder  # the folder, not the link to it


def test_of_two_folders_of_a_step_the_finished_one_counts(tmp_path: Path) -> None:
    work = {"work": {"run": ["translate", "x"], "stdout": "x"}}
    step = one(make_steps(tmp_path, work), "work")
    run(tmp_path, [step])
    other = step.folder.with_name(f"a-{step.folder.name}")  # sorted before it
    shutil.copytree(step.folder, other)
    content = json.loads((other / RECORD).read_text())
    (other / RECORD).write_text(json.dumps({**content, "status": "stopped"}))
    assert one(make_steps(tmp_path, work), "work").folder == step.folder


def test_a_program_that_fails_late_leaves_no_output(tmp_path: Path) -> None:
    step = one(make_steps(tmp_path, {"work": {"run": ["translate", "half", "then-fail"], "stdout": "x"}}), "work")
    execution, _ = run(tmp_path, [step])
    assert execution.records[step.identity].message == "lost the thread"
    assert not (step.folder / "x").exists()


def test_steps_run_side_by_side(tmp_path: Path) -> None:
    """Two trainings that each wait for the other can only both be done if both run at once."""
    wait = {"work": {"run": ["train", "-", "--run", "{here}/run", "wait=yes", "{row}"]}}
    steps = make_steps(tmp_path, wait)
    wanted = both(steps, "work")

    def free() -> None:
        for _ in range(500):
            if all((s.folder / "run" / "attempts").exists() for s in wanted):
                break
            time.sleep(0.02)
        for s in wanted:
            if (s.folder / "run").is_dir():
                (s.folder / "run" / "saved").write_text("go on")

    helper = threading.Thread(target=free)
    helper.start()
    execution, _ = run(tmp_path, wanted, jobs=2)
    helper.join()
    assert {r.state for r in execution.records.values()} == {"done"}
    argv = json.loads((wanted[0].folder / RECORD).read_text())["argv"]
    assert "training.processes=1" not in argv  # only what runs side by side is told so


def test_a_checkpoint_without_its_weights_is_made_again(tmp_path: Path) -> None:
    """Of checkpoints a record lists the manifest, which names the other files."""
    step = one(make_steps(tmp_path, CHAIN), "translate")
    run(tmp_path, [step])
    checkpoint = step.folder / "checkpoints" / "one"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"123")
    write_manifest(checkpoint, ["weights"])
    (step.folder / "best").symlink_to("checkpoints/one")
    record = json.loads((step.folder / "step.json").read_text())
    (step.folder / "step.json").write_text(json.dumps({**record, "outputs": outputs(step.folder)}))
    assert read_record(step).state == "done"
    (checkpoint / "weights").unlink()
    assert read_record(step).state == "stopped"


def test_a_signal_stops_politely_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other code it goes on too, and says so."""
    monkeypatch.setattr("phraseloom.reproduce.records.source_commit", lambda: "a" * 40)
    write_recipe(tmp_path)
    train = {"train": {"run": ["train", "{recipe}", "--run", "{here}/run", "wait=yes"]}}
    step = one(make_steps(tmp_path, train, **with_recipe()), "train")

    def stop() -> None:
        for _ in range(500):
            log = step.folder / "log.txt"
            if log.exists() and "ready" in log.read_text():
                break
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=stop)
    helper.start()
    with pytest.raises(InterruptedRun, match="to resume"):
        run(tmp_path, [step])
    helper.join()
    assert (step.folder / "run" / "saved").exists()
    assert read_record(step).state == "stopped"
    monkeypatch.setattr("phraseloom.reproduce.records.source_commit", lambda: "b" * 40 + "-dirty")
    execution, said = run(tmp_path, [step])  # it was saved, so it ends now
    assert any(
        f"resumes with the code of {'b' * 10} with changes; it was begun with {'a' * 10}" in line for line in said
    )
    assert (step.folder / "run" / "attempts").read_text() == "one\none\n"
    record = execution.records[step.identity]
    assert [a["exit"] for a in record.content["attempts"]] == [3, 0]
    assert record.commits == {"a" * 40, "b" * 40 + "-dirty"}


def test_a_training_that_was_killed_goes_on_and_others_begin_anew(tmp_path: Path) -> None:
    """What a killed program left: a record that says running."""
    write_recipe(tmp_path)
    steps = make_steps(
        tmp_path,
        {
            "train": {"run": ["train", "{recipe}", "--run", "{here}/run"]},
            "say": {"run": ["translate", "{train}"], "stdout": "x"},
        },
        **with_recipe(),
    )
    say = one(steps, "say")
    run(tmp_path, [say])
    for step in (say, *say.needs):
        path = step.folder / RECORD
        content = json.loads(path.read_text())
        killed = {**content["attempts"][0], "began": "2026-01-01T00:00:00+00:00", "seconds": None, "exit": None}
        path.write_text(json.dumps({**content, "status": "running", "seconds": 0, "attempts": [killed]}))
        (step.folder / "left").write_text("over")
        last = datetime(2026, 1, 1, 1, tzinfo=UTC).timestamp()  # an hour later
        os.utime(step.folder / "log.txt", (last, last))
    run(tmp_path, [say])
    train = read_record(say.needs[0])
    assert [a["exit"] for a in train.content["attempts"]] == [None, 0] and 3600 < train.seconds < 3700
    assert read_record(say).seconds == read_record(say).content["attempts"][-1]["seconds"] < 3600
    assert (say.needs[0].folder / "run" / "attempts").read_text() == "one\none\n"
    assert (say.needs[0].folder / "left").exists()
    assert not (say.folder / "left").exists()


@pytest.mark.parametrize(
    "damage", [b"{", b"[]", b'{"format": 1, "identity": "another", "status": "done", "outputs": {}}']
)
def test_a_record_that_is_not_ours_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    step = one(make_steps(tmp_path, CHAIN), "translate")
    step.folder.mkdir(parents=True)
    (step.folder / RECORD).write_bytes(damage)
    assert read_record(step).state == "new"


@pytest.mark.parametrize(
    ("key", "value"),
    [("seconds", None), ("seconds", "a"), ("seconds", float("inf")), ("machine", None), ("attempts", None), ("attempts", [1]),
     ("attempts", [{"seconds": "x"}]), ("attempts", [{"seconds": ""}]), ("inputs", 1), ("message", 7), ("seconds", 10**400),
     ("seconds", -1), ("seconds", True), ("outputs", {"out.txt": 7})],
)  # fmt: skip
def test_a_record_with_a_value_of_another_type_counts_as_none(tmp_path: Path, key: str, value: Any) -> None:
    step = one(make_steps(tmp_path, CHAIN), "translate")
    run(tmp_path, [step])
    content = json.loads((step.folder / RECORD).read_text())
    (step.folder / RECORD).write_text(json.dumps({**content, "status": "running"}))
    assert read_record(step).state == "stopped"
    (step.folder / RECORD).write_text(json.dumps({**content, "status": "running", key: value}))
    assert read_record(step).state == "new"
    execution, _ = run(tmp_path, [step])
    assert execution.records[step.identity].state == "done"


def test_a_log_from_the_future_gives_no_time(tmp_path: Path) -> None:
    """The clocks of two machines differ: a killed attempt did not last longer than until now."""
    write_recipe(tmp_path)
    steps = make_steps(tmp_path, {"train": {"run": ["train", "{recipe}", "--run", "{here}/run"]}}, **with_recipe())
    train = one(steps, "train")
    run(tmp_path, [train])
    path = train.folder / RECORD
    content = json.loads(path.read_text())
    killed = {**content["attempts"][0], "seconds": None, "exit": None}
    path.write_text(json.dumps({**content, "status": "running", "seconds": 0, "attempts": [killed]}))
    ahead = datetime.now(UTC).timestamp() + 30 * 86400
    os.utime(train.folder / "log.txt", (ahead, ahead))
    run(tmp_path, [train])
    assert read_record(train).seconds < 3600


def test_what_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    step = one(make_steps(tmp_path, CHAIN), "translate")
    execution = Execution(in_order([step]), program=["/no/such/program"], say=lambda _: None)
    execution.run()
    assert execution.records[step.needs[0].identity].state == "failed"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "3 s"), (90, "1.5 min"), (5400, "1.5 h"), (172800, "2.0 days"), (86400 * 1234, "1,234.0 days")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


ENGINE = """
import sys
from pathlib import Path
from phraseloom.reproduce.execute import Execution
from phraseloom.reproduce.steps import in_order
sys.path.insert(0, {tests!r})
from reproduce.fakes import make_steps, one
folder = Path({folder!r})
step = one(make_steps(folder, {{"wait": {{"run": ["wait"], "stdout": "out.txt"}}}}), "wait")
Execution(in_order([step]), 1, print, program=[sys.executable, {script!r}]).run()
"""
WAITS = """
import os, time
from pathlib import Path
from phraseloom.parent import PARENT, end_with_parent
end_with_parent()
assert PARENT not in os.environ
Path({file!r}).write_text(str(os.getpid()))
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_step_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """Otherwise the next command would run it a second time beside it."""
    file, script = tmp_path / "pid", tmp_path / "waits.py"
    script.write_text(WAITS.format(file=str(file)))
    tests = str(Path(__file__).parents[1])
    engine = ENGINE.format(tests=tests, folder=str(tmp_path), script=str(script))
    process = subprocess.Popen([sys.executable, "-c", engine], cwd=tests)
    try:
        until(lambda: file.exists() and file.read_text() != "")
        number = int(file.read_text())
        assert is_alive(number)
    finally:
        process.kill()
        process.wait()
    until(lambda: not is_alive(number))


def test_a_command_ends_if_its_parent_has_ended() -> None:
    command = [sys.executable, "-m", "phraseloom", "--version"]
    for parent, code in ((os.getpid(), 0), (1, 1)):
        done = subprocess.run(command, env=os.environ | {PARENT: str(parent)}, capture_output=True)
        assert (done.returncode, bool(done.stdout)) == (code, code == 0)


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(number: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
