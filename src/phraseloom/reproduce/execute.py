"""Run the steps of a table: each command in its own process, `jobs` at a time, none twice.

A lease on each step (`lease.py`) lets several commands share a folder: a step that another one runs is waited for. With `jobs`
above 1 and GPUs, each running step sees one of them.

A failed step stops only the steps that need it. A step that is done is repeated if one that it needs was repeated with another
result. A step that is not a training starts with an empty folder. A training resumes its run unless what it reads has changed:
then it starts again, and the old folder is renamed to `NAME.before`. On SIGINT or SIGTERM the running steps are stopped (a
training saves), and the same command resumes later. The command `concatenate` is built in: it concatenates its inputs, and with
`1-10000` or `10001-` passes only these lines of them on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from phraseloom import files
from phraseloom.errors import FileProblem, InterruptedRun, PhraseloomError, UsageError, escape_controls
from phraseloom.parent import PARENT
from phraseloom.replace import check_marked, move_own, remove_marked, remove_own
from phraseloom.reproduce.lease import StepLease
from phraseloom.reproduce.records import LOG, RECORD, Record, State, begin, commit_names, finish, read_record, unsettled
from phraseloom.reproduce.steps import DIGITS, Step, folders_of, noted
from phraseloom.text.lines import open_binary
from phraseloom.training.signals import StopSignal

PROGRAM = (sys.executable, "-m", "phraseloom")
CONCATENATE = "concatenate"
LINES = re.compile(r"([1-9]\d*)-([1-9]\d*)?")
STDIN, STDOUT = ".stdin.tmp", ".stdout.tmp"
BOM = "\ufeff".encode()
PAUSE = 0.05
PAUSE_FOR_OTHERS = 0.5
PROGRESS_SECONDS = 0.2
LOOK_SECONDS = 1.0  # between two looks at the leases
TAIL = 1 << 16
SHOWN = 100  # characters of a command line that are printed; the record has all
INTERRUPTED = 3
BEFORE = ".before"
VISIBLE = "CUDA_VISIBLE_DEVICES"
Say = Callable[[str], None]


@dataclass
class _Running:
    """A process, the record of its step, its start time, its number and name, and its open files."""

    process: subprocess.Popen[bytes]
    content: dict[str, Any]
    began: float
    name: str
    handles: list[IO[bytes]] = field(default_factory=list)
    device: str | None = None
    lease: StepLease | None = None


@dataclass
class Execution:
    """The steps of a table in an order in which they can run. `flop` by identity is written to the records.

    `jobs`: number of parallel steps, each with its share of the cores. `program`: the program that runs a command. `more`:
    steps that the caller does after these, which the numbers count. `progress(step, name, seconds, line)`: called while a step
    runs; `name` has its number, `line` is the last one of its log, and its standard output is in the file `STDOUT` of its
    folder. `ended(step, record)`: called for every step that is done already and every step that has ended; an error that it
    raises stops the run, and is the only message about a failed step. With `ended`, what is in the way of a step's folder
    stops the run too; without, that step failed.
    """

    steps: Sequence[Step]
    jobs: int = 1
    say: Say = print
    flop: Mapping[str, float] = field(default_factory=dict)
    program: Sequence[str] = PROGRAM
    devices: Sequence[str] = ()  # values of CUDA_VISIBLE_DEVICES that parallel steps share; none: as it is
    more: int = 0
    progress: Callable[[Step, str, float, str], None] | None = None
    ended: Callable[[Step, Record], None] | None = None
    records: dict[str, Record] = field(default_factory=dict)
    _started: int = 0
    _progressed: float = 0.0
    _looked: float = 0.0
    _leases: dict[str, StepLease] = field(default_factory=dict)
    _running: dict[str, _Running] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)  # identities that failed, or whose needs failed, in this run
    _unsettled: set[str] = field(default_factory=set)  # done, unless what they need has another result this time

    def run(self) -> dict[str, Record]:
        """Run the steps that are not done. Returns the record of every step by identity ("new": a step that it needs failed).

        Raises InterruptedRun after a signal, FileProblem if the folder is not writable.
        """
        self.records = {step.identity: read_record(step) for step in self.steps}
        self._unsettled = unsettled(self.steps, self.records)
        waiting = [step for step in self.steps if not self._is_done(step)]
        self._started = len(self.steps) - len(waiting)
        if self._started:
            self.say(f"{self._started} of {len(self.steps) + self.more} steps are done already")
        for step in self.steps:
            if self.ended is not None and self._is_done(step):
                self.ended(step, self.records[step.identity])
        with StopSignal(at_once=self._kill) as stop:
            try:
                while (waiting or self._running) and not stop.is_set:
                    waiting = self._start(waiting)
                    if waiting or self._running:
                        time.sleep(PAUSE if self._running else PAUSE_FOR_OTHERS)
                        waiting += self._collect()
            finally:
                self._stop()
        if stop.is_set:
            raise InterruptedRun(f"stopped by {stop.name}", hint="run the same command to resume")
        return self.records

    def _start(self, waiting: list[Step]) -> list[Step]:
        """Start the steps that can start now. Returns the steps that must wait; those that can never start are logged."""
        left = []
        for step in waiting:
            lost = next((need for need in step.needs if need.identity in self._lost), None)
            old = self.records[step.identity]
            if lost is not None and old.state != "done":
                self._lost.add(step.identity)
                state: State = "changed" if old.state == "changed" else "new"
                self.records[step.identity] = Record(state, {"message": f"not run: {lost.title} failed"}, old.changed)
                self.say(f"not run: {step.title}, which needs {lost.title}")
            elif lost is None and not all(self._is_done(need) for need in step.needs):
                left.append(step)
            elif old.state == "done" and (lost is not None or read_record(step).state == "done"):
                self._found_done(step)
            elif len(self._running) >= self.jobs or not self._launch(step):
                left.append(step)
        return left

    def _found_done(self, step: Step) -> None:
        self._unsettled.discard(step.identity)
        self._started += 1
        if self.ended is not None:
            self.ended(step, self.records[step.identity])

    def _need(self, step: Step) -> Record:
        return self.records[step.identity] if step.identity in self.records else read_record(step)

    def _is_done(self, step: Step) -> bool:
        """Whether a step is done. Other steps than `steps` count as done: the caller runs a step alone after its needs."""
        record = self.records.get(step.identity)
        return record is None or (
            record.state == "done" and step.identity not in self._running and step.identity not in self._unsettled
        )

    def _launch(self, step: Step) -> bool:
        """Start a step, unless another command has run it. False if another command is running it."""
        lease = self._leases.get(step.identity) or StepLease(lease_path(step))
        if not lease.take():
            if step.identity not in self._leases:
                self._leases[step.identity] = lease
                self.say(f"waiting for another command, which runs {step.title}")
            return False
        self._leases.pop(step.identity, None)
        try:
            _link_to_finished(step)
            self.records[step.identity] = read_record(step)  # another command may have run it since the plan
            if self.records[step.identity].state == "done":
                self._found_done(step)
            else:
                self._unsettled.discard(step.identity)
                self._launch_leased(step, lease)
        finally:
            if step.identity not in self._running:
                lease.release()
        return True

    def _launch_leased(self, step: Step, lease: StepLease) -> None:
        old = self.records[step.identity]
        try:
            check_folder(step, old)
        except FileProblem as error:  # something else is in the way of this step, and of no other
            if self.ended is not None:
                raise
            self._lost.add(step.identity)
            self.records[step.identity] = Record("failed", {"message": str(error)})
            self.say(f"    FAILED: {step.title}: {error}")
            return
        if not step.trains:
            remove_marked(step.folder, RECORD)
        elif old.state == "changed":
            _put_aside(step.folder)
        if old.state == "changed":
            old = Record("new", {})
        files.disk.mkdir(step.folder)
        began = datetime.now(UTC).isoformat(timespec="seconds")
        inputs = noted(step, [self._need(need).content.get("inputs", {}) for need in step.needs])
        content = begin(step, old, inputs=inputs, flop=self.flop.get(step.identity), began=began)
        self._started += 1
        name = f"[{self._started}/{len(self.steps) + self.more}] {step.title}"
        line = " ".join(step.argv)
        shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}…"
        self.say(f"{name}: phraseloom {shown}")
        if step.trains and old.content and old.commits - {content["commit"]}:
            now = commit_names(filter(None, [content["commit"]])) or "a package without a commit"
            self.say(f"    warning: it resumes with the code of {now}; it was begun with {commit_names(old.commits)}")
        running = _Running(None, content, time.monotonic(), name, lease=lease)  # type: ignore[arg-type]
        used = [other.device for other in self._running.values()]
        running.device = min(self.devices, key=used.count, default=None)
        try:
            if step.argv[0] == CONCATENATE and step.stdout is not None:
                _concatenate(step.stdin, step.folder / STDOUT, _line_range(step.argv[1:]))
                _settle(step)
                self._ended(step, content, 0, time.monotonic() - running.began, "")
                return
            self._spawn(step, running)
        except (OSError, PhraseloomError) as error:
            _close(running)
            problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._ended(step, content, 1, 0.0, problem)
            return
        self._running[step.identity] = running

    def _spawn(self, step: Step, running: _Running) -> None:
        log = files.disk.open(step.folder / LOG, "ab")
        running.handles.append(log)
        stdin: IO[bytes] | int = subprocess.DEVNULL
        if step.stdin:
            stdin = _joined(step.stdin, step.folder / STDIN).open("rb")
            running.handles.append(stdin)
        stdout: IO[bytes] = log
        if step.stdout is not None:
            stdout = files.disk.open(step.folder / STDOUT, "wb")
            running.handles.append(stdout)
        share = ["training.processes=1"] if self.jobs > 1 and step.trains else []
        running.process = subprocess.Popen(
            [*self.program, *step.argv, *share],
            stdin=stdin,
            stdout=stdout,
            stderr=log,
            env=self._environment()
            | {PARENT: str(os.getpid())}
            | ({} if running.device is None else {VISIBLE: running.device}),
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        if self.jobs == 1 or "OMP_NUM_THREADS" in os.environ:
            return dict(os.environ)
        return os.environ | {"OMP_NUM_THREADS": str(max(1, files.available_cores() // self.jobs))}

    def _collect(self) -> list[Step]:
        """Finish the steps whose processes have ended. Returns those that another command has taken over."""
        taken = []
        if look := time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
        for step in [s for s in self.steps if s.identity in self._running]:
            running = self._running[step.identity]
            code = running.process.poll()
            if (look or code is not None) and running.lease is not None and running.lease.is_lost():
                self._abandon(step)
                taken.append(step)
                continue
            if code is None:
                continue
            _close(running)
            seconds = time.monotonic() - running.began
            message = "" if code == 0 else _last_line(step.folder / LOG) or f"exit code {code}"
            if code == 0:
                _settle(step)
            del self._running[step.identity]
            try:
                self._ended(step, running.content, code, seconds, message)
            finally:
                _release(running)
        self._report_progress()
        return taken

    def _abandon(self, step: Step) -> None:
        """Kill the process of a step whose folder is another command's by now, and record nothing."""
        running = self._running.pop(step.identity)
        running.process.kill()
        running.process.wait()
        _close(running)
        _release(running)
        self._started -= 1
        self.say(f"    another command took over while this one was suspended: {step.title}")

    def _report_progress(self) -> None:
        now = time.monotonic()
        if self.progress is None or now - self._progressed < PROGRESS_SECONDS:
            return
        self._progressed = now
        for step in self.steps:
            if (running := self._running.get(step.identity)) is not None:
                self.progress(step, running.name, now - running.began, _last_line(step.folder / LOG))

    def _ended(self, step: Step, content: dict[str, Any], code: int, seconds: float, message: str) -> None:
        record = finish(step, content, code=code, seconds=seconds, message=message)
        if self.ended is not None and code != INTERRUPTED:
            self.ended(step, record)
        if code == 0:
            self.say(f"    done in {duration(seconds)}: {step.title}")
        else:
            self._lost.add(step.identity)
            ended = "stopped" if code == INTERRUPTED else "FAILED"
            self.say(f"    {ended} after {duration(seconds)}: {step.title}: {message}")
        self.records[step.identity] = record

    def _stop(self) -> None:
        """Terminate the running steps. A training saves on SIGTERM."""
        for step in [s for s in self.steps if s.identity in self._running]:
            lease = self._running[step.identity].lease
            if lease is not None and lease.is_lost():
                self._abandon(step)
        for running in self._running.values():
            running.process.terminate()
        for step in [s for s in self.steps if s.identity in self._running]:
            running = self._running.pop(step.identity)
            code = running.process.wait()
            _close(running)
            message = _last_line(step.folder / LOG) or f"exit code {code}"
            seconds = time.monotonic() - running.began
            if code == 0:
                _settle(step)
            self._ended(step, running.content, 0 if code == 0 else INTERRUPTED, seconds, message if code else "")
            _release(running)

    def _kill(self) -> None:
        for running in self._running.values():
            running.process.kill()


def lease_path(step: Step) -> Path:
    """The lease of a step, by its identity: tables may name its folder differently."""
    return step.folder.parent / ".leases" / step.identity[:DIGITS]


def check_folder(step: Step, record: Record) -> None:
    """Check that the folder of a step can be made, which is not done. Raises FileProblem if something else is in the way."""
    if not step.trains:
        check_marked(step.folder, RECORD)
    elif os.path.lexists(step.folder) and not step.folder.is_dir():
        raise FileProblem("in the way of a folder", file=step.folder, hint="move it away")
    elif record.state == "changed":
        check_marked(_aside(step.folder), RECORD)


def _link_to_finished(step: Step) -> None:
    """Another command, for a table whose rows have other names, may have run the step since the plan, in another folder.

    A link of an earlier command whose step is no longer done is removed.
    """
    own = step.folder.is_symlink() and step.folder.readlink().name.endswith(f"-{step.identity[:DIGITS]}")
    if own and read_record(step).state != "done":
        remove_own(step.folder)
    if os.path.lexists(step.folder):
        return
    for folder in folders_of(step.folder.parent, step.identity[:DIGITS]):
        if read_record(replace(step, folder=folder)).state == "done":
            step.folder.symlink_to(folder.name)
            return


def _release(running: _Running) -> None:
    if running.lease is not None:
        running.lease.release()


def visible_devices() -> list[str]:
    """The GPUs that this process may use, as values of CUDA_VISIBLE_DEVICES."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _aside(folder: Path) -> Path:
    return folder.with_name(folder.name + BEFORE)


def _put_aside(folder: Path) -> None:
    """Rename a folder to `NAME.before`, replacing an earlier one."""
    aside = _aside(folder)
    remove_marked(aside, RECORD)
    move_own(folder, aside)


def _joined(paths: Sequence[Path], target: Path) -> Path:
    """One plain file with the content of all `paths`: the only path itself, or a temporary file."""
    if len(paths) == 1 and paths[0].suffix not in (".gz", ".xz"):
        return files.require_file(paths[0], "input of the step")
    _concatenate(paths, target)
    return target


def _concatenate(paths: Sequence[Path], target: Path, lines: tuple[int, int | None] | None = None) -> None:
    """Write the files one after the other; of all lines together, those from `lines[0]` to before `lines[1]`, from 0."""
    with files.disk.open(target, "wb") as out, contextlib.closing(_lines(paths)) as joined:
        before = out.tell()
        out.writelines(itertools.islice(joined, *(lines or (None,))))
        if lines is not None and out.tell() == before:
            raise UsageError(f"{CONCATENATE}: the text has no line {lines[0] + 1}")


def _lines(paths: Sequence[Path]) -> Generator[bytes, None, None]:
    """The lines of files without their byte order marks; a file that ends without a line end gets one before the next."""
    last = b""
    for path in paths:
        with open_binary(path) as handle:
            if handle.peek(len(BOM)).startswith(BOM):
                handle.read(len(BOM))
            for line in handle:
                if last:
                    yield last if last.endswith(b"\n") else last + b"\n"
                last = line
    if last:
        yield last


def _line_range(arguments: Sequence[str]) -> tuple[int, int | None] | None:
    """The lines that `concatenate FIRST-LAST` names, from 0 and half-open; None means all."""
    if not arguments:
        return None
    match = LINES.fullmatch(arguments[0])
    if match is None or len(arguments) > 1 or (match[2] and int(match[2]) < int(match[1])):
        raise UsageError(
            f"{CONCATENATE} {' '.join(arguments)}: lines are FIRST-LAST or FIRST-, such as 1-10000 or 10001-"
        )
    return int(match[1]) - 1, int(match[2]) if match[2] else None


def _close(running: _Running) -> None:
    for handle in running.handles:
        handle.close()


def _settle(step: Step) -> None:
    """Rename the file of standard output and remove the temporary input."""
    if step.stdout is not None:
        move_own(step.folder / STDOUT, step.stdout)
    remove_own(step.folder / STDIN)


def _last_line(log: Path) -> str:
    """The last line of a log that is not blank, without control characters."""
    if not log.is_file():
        return ""
    with log.open("rb") as handle:
        handle.seek(max(0, log.stat().st_size - TAIL))
        lines = handle.read().decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return escape_controls(last.strip())[:400]


def duration(seconds: float) -> str:
    """Seconds in words: 12 s, 3.5 min, 2.1 h, 4.0 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    for unit, size, limit in (("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:,.1f} days"
