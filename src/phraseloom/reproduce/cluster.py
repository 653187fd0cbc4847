"""Run the steps of a table as jobs of submitit: on Slurm, or in processes of this machine (`local`).

The plan and the records of the steps are those of `execute.py`; only the running differs. A job runs one step with an
`Execution` of its own, which writes `step.json`. This side submits the steps whose needs are done, at most `jobs` at a time
(those that are ready together as one array), and judges a job that has ended by the record that it left:

    done       its step is done
    failed     submitted again, at most `RETRIES` times
    otherwise  the job was preempted, ran out of time or lost its machine: submitted again, at most `REQUEUES` times;
               a training resumes from its checkpoint

submitit writes the submitted calls as pickles into a folder of this command, and jobs read no others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from phraseloom import files
from phraseloom.errors import FileProblem, InterruptedRun, PhraseloomError, UsageError
from phraseloom.reproduce.execute import PROGRAM, VISIBLE, Execution, Say, check_folder, visible_devices
from phraseloom.reproduce.records import Record, read_record, unsettled
from phraseloom.reproduce.steps import DIGITS, Step
from phraseloom.training.signals import StopSignal

__all__ = ["ClusterExecution", "run_job"]

RETRIES, REQUEUES = 1, 20
SUBMISSIONS = 8  # in a row that the queue may refuse while no job runs
POLL_SECONDS = {"local": 0.5, "slurm": 20.0}
CANCEL_SECONDS = 120.0
LONGEST_MINUTES = 60 * 24 * 30  # of a local job; submitit's default is 2 minutes
ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "FINISHED", "INTERRUPTED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT", "NO PROCESS AND NO RESULT",
}  # fmt: skip


def run_job(step: Step, flop: Mapping[str, float], program: Sequence[str], environment: Mapping[str, str]) -> str:
    """In a job: run one step and return its state. SIGTERM, and the warning of submitit, stop it; a training saves."""
    os.environ.update(environment)
    signal.signal(signal.SIGUSR2, _stop_politely)  # submitit: the time is nearly up, or the job is preempted
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    execution = Execution([step], say=print, flop=flop, program=program)
    try:
        execution.run()
    except InterruptedRun:
        return "stopped"
    return execution.records[step.identity].state


def _stop_politely(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _obstacle(step: Step, record: Record) -> str | None:
    """What is in the way of the folder of a step; a job for it would fail without a record."""
    try:
        check_folder(step, record)
    except FileProblem as error:
        return str(error)
    return None


@dataclass
class _Job:
    job: Any
    step: Step
    device: str | None
    gone: int = 0  # looks that found it ended, without a result


@dataclass
class ClusterExecution:
    """The steps of a table in an order in which they can run; `run` as in `Execution`."""

    steps: Sequence[Step]
    on: Literal["local", "slurm"]
    jobs: int
    say: Say
    flop: Mapping[str, float]
    program: Sequence[str] = PROGRAM
    folder: Path = Path("jobs")
    slurm: Mapping[str, str] = field(default_factory=dict)
    poll_seconds: float | None = None
    records: dict[str, Record] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _attempts: dict[tuple[str, str], int] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _unsettled: set[str] = field(default_factory=set)  # as in Execution
    _refused: int = 0

    def run(self) -> dict[str, Record]:
        """Run the steps that are not done. Returns the record of every step by identity.

        Raises InterruptedRun after a signal, PhraseloomError if there is no submitit or the queue takes no jobs.
        """
        self.records = {step.identity: read_record(step) for step in self.steps}
        for need in (need for step in self.steps for need in step.needs):
            self.records.setdefault(need.identity, read_record(need))
        self._unsettled = unsettled(self.steps, self.records)
        waiting = [step for step in self.steps if not self._is_done(step)]
        if len(waiting) < len(self.steps):
            self.say(f"{len(self.steps) - len(waiting)} of {len(self.steps)} steps are done already")
        executor = self._executor()
        devices = visible_devices() if self.on == "local" and self.jobs > 1 else []
        pause = self.poll_seconds or POLL_SECONDS[self.on]
        with StopSignal() as stop:
            try:
                while (waiting or self._jobs) and not stop.is_set:
                    waiting = self._submit(executor, waiting, devices)
                    if waiting or self._jobs:
                        time.sleep(pause)
                        waiting += self._collect()
            finally:
                self._cancel(pause)
        if stop.is_set:
            raise InterruptedRun(f"stopped by {stop.name}", hint="run the same command to resume")
        return self.records

    def _executor(self) -> Any:
        try:
            import submitit
        except ImportError as error:
            what = f"--on {self.on} needs submitit"
            raise UsageError(what, hint='install it: pip install "phraseloom[cluster]"') from error
        files.disk.mkdir(self.folder)
        where = str(self.folder.absolute() / "%j")
        if self.on == "local":
            executor: Any = submitit.LocalExecutor(where)
            executor.update_parameters(timeout_min=LONGEST_MINUTES)
            return executor
        try:
            executor = submitit.SlurmExecutor(where)
            numbers = {key: int(value) if value.isdigit() else value for key, value in self.slurm.items()}
            executor.update_parameters(**{"job_name": "phraseloom", "array_parallelism": self.jobs, **numbers})
        except RuntimeError as error:
            raise UsageError(f"--on slurm: {error}", hint="run this where sbatch and srun are") from error
        except (ValueError, TypeError) as error:
            raise UsageError("--slurm: " + str(error).split("\n")[0]) from error
        return executor

    def _submit(self, executor: Any, waiting: list[Step], devices: Sequence[str]) -> list[Step]:
        """Submit the steps that can start now. Returns those that have to wait."""
        ready: list[Step] = []
        left: list[Step] = []
        for step in waiting:
            lost = next((need for need in step.needs if need.identity in self._lost), None)
            done = self.records[step.identity].state == "done"
            if lost is not None and not done:
                self._lost.add(step.identity)
                self.records[step.identity] = Record("new", {"message": f"not run: {lost.title} failed"})
                self.say(f"not run: {step.title}, which needs {lost.title}")
            elif lost is None and not all(self._is_done(need) for need in step.needs):
                left.append(step)
            elif done and (lost is not None or read_record(step).state == "done"):
                self._unsettled.discard(step.identity)
            elif (problem := _obstacle(step, self.records[step.identity])) is not None:
                self._lost.add(step.identity)
                self.records[step.identity] = Record("failed", {"message": problem})
                self.say(f"    FAILED: {step.title}: {problem}")
            elif len(self._jobs) + len(ready) < self.jobs:
                ready.append(step)
            else:
                left.append(step)
        if not ready:
            return left
        chosen: list[str | None] = []
        used = [job.device for job in self._jobs.values()]
        for _ in ready:
            chosen.append(min(devices, key=(used + chosen).count, default=None))
        environments = [self._environment(device) for device in chosen]
        count = len(ready)
        try:
            jobs = executor.map_array(run_job, ready, [self.flop] * count, [self.program] * count, environments)
        except Exception as error:  # of sbatch, as submitit passes it on: a full queue, a wrong option
            self._refuse(error)
            return ready + left
        self._refused = 0
        for step, job, device in zip(ready, jobs, chosen, strict=True):
            self._jobs[step.identity] = _Job(job, step, device)
            where = "" if device is None else f", GPU {device}"
            self.say(f"job {job.job_id}: {step.title} (step {step.identity[:DIGITS]}{where})")
        return left

    def _is_done(self, step: Step) -> bool:
        return self.records[step.identity].state == "done" and step.identity not in self._unsettled

    def _environment(self, device: str | None) -> dict[str, str]:
        """What a job has to set itself: submitit's local jobs see no GPU, and Slurm's those that Slurm gave them."""
        if self.on == "slurm":
            return {}
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, files.available_cores() // self.jobs)))
        visible = device if device is not None else os.environ.get(VISIBLE)
        return {"OMP_NUM_THREADS": threads} | ({} if visible is None else {VISIBLE: visible})

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, (FileProblem, OSError)):
            raise error
        lines = [line for line in str(error).split("\n") if line.strip()]
        self._refused += not self._jobs
        message = lines[-1].strip() if lines else type(error).__name__
        if self._refused >= SUBMISSIONS:
            raise PhraseloomError(
                f"the queue refused the jobs {SUBMISSIONS} times: {message}",
                hint="run the same command later, or with other --slurm options",
            ) from error
        self.say(f"the queue refuses jobs for now: {message}")

    def _collect(self) -> list[Step]:
        """Judge the jobs that have ended. Returns the steps that are to be submitted again."""
        again = []
        for identity, running in list(self._jobs.items()):
            if not self._has_ended(running):
                continue
            del self._jobs[identity]
            step, record = running.step, read_record(running.step)
            self.records[identity] = record
            self._unsettled.discard(identity)
            if record.state == "done":
                self.say(f"    done: {step.title}")
                continue
            kind, limit = ("failed", RETRIES) if record.state == "failed" else ("stopped", REQUEUES)
            attempts = self._attempts[identity, kind] = self._attempts.get((identity, kind), 0) + 1
            reason = record.message or f"job {running.job.job_id} ended without a result"
            if attempts <= limit:
                self.say(f"    {kind}, submitted again ({attempts} of {limit}): {step.title}: {reason}")
                again.append(step)
            else:
                self._lost.add(identity)
                self.records[identity] = Record("failed", {**record.content, "message": reason}, record.changed)
                self.say(f"    FAILED: {step.title}: {reason}")
        return again

    def _has_ended(self, running: _Job) -> bool:
        job = running.job
        if self.on == "local":
            return str(job.state) in ENDED  # and so is submitit's own process
        if job.paths.result_pickle.exists():
            return True
        job.watcher.update()
        state = job.watcher.get_state(job.job_id, mode="cache").split(" ")[0]  # `CANCELLED by 123`
        running.gone = running.gone + 1 if state in ENDED else 0
        return running.gone >= 3  # a result may reach a shared folder a little later

    def _cancel(self, pause: float) -> None:
        """Stop the jobs that still run; trainings save. Their records are read afterwards."""
        for running in self._jobs.values():
            with contextlib.suppress(Exception):
                if self.on == "local":
                    os.kill(int(running.job.job_id), signal.SIGTERM)  # submitit's cancel kills after a second
                else:
                    running.job.cancel(check=False)
        deadline = time.monotonic() + CANCEL_SECONDS
        while self._jobs and time.monotonic() < deadline:
            for identity, running in list(self._jobs.items()):
                if self._has_ended(running):
                    del self._jobs[identity]
                    self.records[identity] = read_record(running.step)
            time.sleep(min(pause, 1.0) if self._jobs else 0)
