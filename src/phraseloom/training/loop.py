"""The training loop.

One update: gradients of the summed loss of every micro-batch, added up over micro-batches and processes, divided by the
number of target tokens of the whole update (or of its sentences: `gradient_per`), clipped, and one step of Adam. So
the cut into micro-batches does not change the step (beyond rounding), nor does the number of processes (on CPUs to the
bit, see `distributed.py`). Dropout of a micro-batch is seeded by (seed, update, index).

The host decides about every update on CPUs. A device decides by itself, and the host does not wait for it: it learns the
numbers of the updates when it writes a line of the log, before checkpoints and at the ends of epochs (`settle`); several
processes also every `SIGNAL_EVERY` updates, for a signal that one of them got.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from phraseloom import files
from phraseloom.data.batches import BatchPlan, mix
from phraseloom.errors import DivergedError, FileProblem, InterruptedRun, PhraseloomError
from phraseloom.models.device import arithmetic
from phraseloom.native.farthest import search_by_bytes
from phraseloom.options.training import TrainingConfig
from phraseloom.training import checkpoint, guard
from phraseloom.training.compiled import compile_loss
from phraseloom.training.distributed import World
from phraseloom.training.logbook import Display, Hook, Logbook, Tracker, finite
from phraseloom.training.optimization import FlatAdam, FlatParameters, Rate, rate_factors
from phraseloom.training.prefetch import Prefetcher
from phraseloom.training.signals import StopSignal
from phraseloom.training.state import Progress

DROPOUT_STREAM = 2
SIGNAL_EVERY = 10  # updates after which several processes with devices ask each other for a signal


class ValidationInterrupted(Exception):
    """A signal arrived during validation; a resumed run repeats the validation."""


class Launched(NamedTuple):
    """An update whose numbers the host may not know yet.

    `numbers` (4,) in float64: the sums of objective, nll and guided loss, and the norm of the gradient. `units`: what the
    gradient is divided by. `guided`: whether there is a guided loss.
    """

    batches: list[np.ndarray]
    epoch: int
    examples: int
    source_tokens: int
    tokens: int
    units: int
    guided: bool
    numbers: torch.Tensor


@dataclass
class TrainingJob:
    """The parts of a run. Only the first process has a folder, a log and a display."""

    config: TrainingConfig
    model: torch.nn.Module  # with loss(batch) -> (objective, nll, tokens)
    plan: BatchPlan
    batch_of: Callable[[np.ndarray], Any]  # example indices -> a batch on the right device
    validate: Callable[[TrainingJob], dict[str, Any]]
    write_model: Callable[[Path], None]
    rate: Rate
    highest_perplexity: float  # a validation above it is a divergence
    world: World = field(default_factory=World)
    state: Progress = field(default_factory=Progress)
    run: Path | None = None
    log: Logbook | None = None
    display: Display | None = None
    tracker: Tracker | None = None
    hook: Hook | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    saved: tuple[int, int] | None = None  # (update, update of the last validation) of the newest checkpoint
    lock: files.FolderLock | None = None  # on `run`
    unproven: bool = False  # no finite loss or validation has come from the newest checkpoint yet

    check_data: Callable[[], None] | None = None  # before each epoch: raises CorruptError if the data are damaged
    prefetcher: Prefetcher | None = None  # reads the batches of updates instead of `batch_of`
    deferred: bool | None = None  # leave the numbers of updates on the device until they are needed; None: on devices
    unsettled: list[Launched] = field(default_factory=list)  # updates that are launched and not counted yet
    rates: torch.Tensor = field(init=False)  # of the next steps, and how many of them the device has taken
    applied: torch.Tensor = field(init=False)

    @property
    def position(self) -> int:
        """The number of the next update, from 0."""
        return self.state.update + len(self.unsettled)

    def __post_init__(self) -> None:
        self.flat = FlatParameters(self.model, self.world.gradient_buffer)
        if self.world.device.type != "cpu":
            self.world.overlap(self.flat.grad, self.flat.places)
        self.optimizer = FlatAdam(self.flat, self.config.optimizer, rate_factors(self.model, self.config.rates))
        if self.deferred is None:
            self.deferred = self.world.device.type != "cpu"
        search_by_bytes(self.model)
        loss: Callable[[Any], Any] = cast(Any, self.model).loss
        self.loss = compile_loss(self.model) if self.config.compile else loss

    def close(self) -> None:
        """End the thread of batches, and close the display and the logs."""
        for part in (self.prefetcher, self.display, self.tracker, self.hook, self.log):
            if part is not None:
                part.close()

    def say(self, text: str) -> None:
        """Show a message on the display and write it to the log."""
        if self.display is not None:
            self.display.say(text)
        if self.log is not None:
            self.log.say(text)


def train(job: TrainingJob) -> str:
    """Train until a limit of the recipe is reached; returns a message on it. Saves and raises InterruptedRun after a signal."""
    job.model.train()
    try:
        while True:
            if not job.unsettled:
                if job.state.wants_validation(job.config):
                    _save_and_validate(job)
                reason = _reason_to_stop(job)
                if reason is not None:
                    break
            run_update(job)
            if job.unproven and not job.unsettled and not job.state.bad_in_a_row:
                rotate(job)
        if job.state.validated != job.state.update:
            _save_and_validate(job)
        rotate(job)
        return reason
    except (InterruptedRun, ValidationInterrupted):
        _save_with_time(job)
        raise InterruptedRun(
            f"stopped by {job.stop.name or 'a signal'} after update {job.state.update}, all saved",
            hint="the same command resumes from there",
        ) from None
    except DivergedError:
        _undo_bad_checkpoints(job)
        raise
    except PhraseloomError as error:
        if not _of_run_folder(error, job):  # out of memory, another process is lost, a damaged dataset:
            _save_with_time(job)  # the weights are those after the last whole update
        raise


def run_update(job: TrainingJob) -> None:
    """One update of the weights, skipped if it is not finite; the counters advance in both cases.

    If `job.deferred`, the device decides, and the counters advance when the numbers come to the host (`settle`).
    """
    number = job.position
    if job.check_data is not None and job.plan.position(number)[1] == 0:
        job.check_data()
    batches = job.plan.update(number)
    examples = np.concatenate(batches)
    epoch = job.plan.position(number)[0]
    guide = getattr(job.model, "guide", None)
    if guide is not None:
        guide.epoch = epoch
    source_tokens, tokens, units = _counts(job, examples)
    numbers = torch.cat([accumulate(job, batches), job.flat.gradient_norm().double()[None]])
    launched = Launched(batches, epoch, len(examples), source_tokens, tokens, units, guide is not None, numbers)
    if job.deferred:
        _step_on_device(job, launched)
    job.unsettled.append(launched)
    if _must_settle(job):
        settle(job)


def _counts(job: TrainingJob, examples: np.ndarray) -> tuple[int, int, int]:
    """The source and target tokens of an update, and what its gradient is divided by. Pairs without a loss do not count."""
    can_segment: Callable[..., np.ndarray] | None = getattr(job.model, "can_segment", None)
    if can_segment is not None:
        examples = examples[can_segment(job.plan.source[examples], job.plan.target[examples])]
    source_tokens, tokens = job.plan.count(examples)
    return source_tokens, max(1, tokens), max(1, tokens if job.config.gradient_per == "token" else len(examples))


def _step_on_device(job: TrainingJob, launched: Launched) -> None:
    """The step of the optimiser, or none if a number is not finite, without asking the device which."""
    state, config, device = job.state, job.config, job.world.device
    if not job.unsettled:
        rates = [job.rate(state.applied + 1 + n) * state.rate_factor for n in range(config.log_every)]
        job.rates = torch.tensor(rates, dtype=torch.float32, device=device)
        job.applied = torch.zeros(1, dtype=torch.int64, device=device)
    objective, norm = launched.numbers[0], launched.numbers[3] / launched.units
    is_finite = (objective / launched.tokens).isfinite() & norm.isfinite()
    clip = (config.clip_norm / norm).clamp(max=1.0) if config.clip_norm else torch.ones_like(norm)
    rate = job.rates.index_select(0, job.applied)[0]
    job.optimizer.step_if(is_finite, rate, clip / launched.units)
    job.applied += is_finite


def _must_settle(job: TrainingJob) -> bool:
    """Whether the host has to know what the updates so far have given: for the log, a decision or a signal."""
    follows_a_checkpoint = job.state.validated == job.state.update  # in every process alike, and proves the checkpoint
    if not job.deferred or follows_a_checkpoint or job.state.bad_in_a_row or (job.stop.is_set and job.world.size == 1):
        return True
    config = job.config
    meetings = SIGNAL_EVERY if job.world.size > 1 else None
    ends = (config.log_every, config.checkpoint_every, job.plan.updates_per_epoch, config.max_updates, meetings)
    return any(end and job.position % end == 0 for end in ends)


def settle(job: TrainingJob) -> None:
    """Bring the numbers of the updates so far to the host, count and report them. Raises DivergedError."""
    if not job.unsettled:
        return
    settled, job.unsettled = job.unsettled, []
    rows = torch.stack([launched.numbers for launched in settled]).tolist()
    for launched, (objective, nll, guided, norm) in zip(settled, rows, strict=True):
        _finish(job, launched, objective, nll, guided, norm / launched.units)


def _finish(job: TrainingJob, launched: Launched, objective: float, nll: float, guided: float, norm: float) -> None:
    state, config, tokens = job.state, job.config, launched.tokens
    rate = job.rate(state.applied + 1) * state.rate_factor
    folder = job.run if job.world.first else None
    applied = guard.accept_step(state, config, objective / tokens, norm, launched.batches, folder)
    if applied:
        if not job.deferred:
            clip = min(1.0, config.clip_norm / norm) if config.clip_norm and norm > 0 else 1.0
            job.optimizer.step(rate, clip / launched.units)
        state.applied += 1
    state.update += 1
    record: dict[str, Any] = {"update": state.update, "epoch": launched.epoch}
    record |= {"loss": finite(objective / tokens), "nll": finite(nll / tokens)}
    record |= {"guided": finite(guided / tokens)} if launched.guided else {}
    record |= {"lr": rate, "grad_norm": finite(norm), "tokens": tokens, "source_tokens": launched.source_tokens}
    record |= {"examples": launched.examples}
    _report(job, record if applied else {**record, "skipped": True})


def accumulate(job: TrainingJob, batches: list[np.ndarray]) -> torch.Tensor:
    """Sum the gradients of all micro-batches of all processes into `job.flat.grad`.

    Returns the sums of objective, nll and guided loss, (3,) in float64.
    """
    world, update = job.world, job.position
    if job.prefetcher is not None:
        same_epoch = job.plan.position(update + 1)[1] > 0  # the next epoch begins with a check of the data
        following = job.plan.update(update + 1) if same_epoch else []
        job.prefetcher.request([*batches[world.rank :: world.size], *following[world.rank :: world.size]])
    job.flat.grad.zero_()
    sums = torch.zeros(3, len(batches), dtype=torch.float64, device=world.device)
    for begin in range(0, len(batches), world.size):
        i = begin + world.rank
        if i < len(batches):
            if i + world.size >= len(batches):
                world.last_backward()
            torch.manual_seed(mix(job.config.seed, DROPOUT_STREAM, update, i))
            with guard.naming_the_batch(job.plan.source, job.plan.target, batches[i], f"in update {update + 1}"):
                sums[:, i] = forward_backward(job, batches[i])
        world.add_gradients(job.flat.grad, first=begin == 0, last=begin + world.size >= len(batches))
    return world.sum_(sums).sum(1)


def forward_backward(job: TrainingJob, examples: np.ndarray) -> torch.Tensor:
    """Add the gradient of one micro-batch's summed loss to `job.flat.grad`; returns (objective, nll, guided loss)."""
    with autocast(job):
        loss = job.loss((job.prefetcher or job.batch_of)(examples))
    loss.objective.backward()
    guided = getattr(loss, "guided", None)
    values = (loss.objective, loss.nll, torch.zeros_like(loss.objective) if guided is None else guided)
    return torch.stack([torch.as_tensor(value).detach().double() for value in values])


def autocast(job: TrainingJob) -> contextlib.AbstractContextManager[Any]:
    """bf16 arithmetic if the recipe asks for it; weights, sums and the optimiser stay in fp32."""
    return arithmetic(job.config.precision, job.world.device)


def probe_largest(job: TrainingJob) -> None:
    """Run the largest micro-batch once and discard its gradient, so that training runs out of memory now or never."""
    examples = job.plan.largest()
    with guard.naming_the_batch(job.plan.source, job.plan.target, examples, "before the first update"):
        forward_backward(job, examples)
    job.flat.grad.zero_()


def save(job: TrainingJob) -> None:
    """Write a checkpoint of the current update, unless there is one, and set the links. Only the first process writes."""
    _write(job)
    if job.run is not None:
        link(job.run, job.state)


def _save_with_time(job: TrainingJob) -> None:
    """Save, with the time and the tokens until now: a resumed run counts on from the last record."""
    settle(job)
    if job.log is not None:
        job.log.timing(job.state.update)
    save(job)


def _write(job: TrainingJob) -> None:
    settle(job)
    state = job.state
    if job.saved is None or job.saved[0] != state.update:
        guard.check_finite({"a weight": job.flat.data, **job.optimizer.moments}, state.update)
    if not job.world.first or job.run is None or job.log is None or job.saved == (state.update, state.validated):
        return
    check_folder(job)
    job.log.sync()
    if job.saved is not None and job.saved[0] == state.update:
        checkpoint.save_state(job.run, state)
    else:
        checkpoint.save_checkpoint(job.run, state, job.optimizer.tensors(), job.write_model)
        job.unproven = True
    job.saved = (state.update, state.validated)


def link(run: Path, state: Progress) -> None:
    """Point `last` and `best` to the checkpoints of a state; `last` does not move if the newest losses were not finite."""
    if state.validated == state.update or not state.bad_in_a_row:
        checkpoint.set_link(run, "last", state.update)
    checkpoint.set_link(run, "best", state.best_update)


def rotate(job: TrainingJob) -> None:
    """Delete old checkpoints, once the newest one has given a finite loss or ended the run with a validation."""
    job.unproven = False
    if job.run is None:
        return
    check_folder(job)
    every, keep = job.config.checkpoint_every, job.config.keep_last
    checkpoint.rotate(job.run, job.state, keep_last=keep, regular_every=every, warn=job.say)


def check_folder(job: TrainingJob) -> None:
    """Raise LostFolder if the run folder is no longer the one that was locked."""
    if job.lock is None:
        return
    try:
        job.lock.check()
    except files.LostFolder as error:
        raise files.LostFolder(
            error.what,
            file=error.file,
            hint="this run stops and writes nothing more; put its folder back, or start again",
        ) from None


def _of_run_folder(error: PhraseloomError, job: TrainingJob) -> bool:
    """Whether the error means that the run folder is not writable, so that saving would fail again."""
    if not isinstance(error, FileProblem) or job.run is None or error.file is None:
        return False
    return isinstance(error, files.LostFolder) or Path(error.file).is_relative_to(job.run)


def _undo_bad_checkpoints(job: TrainingJob) -> None:
    """Set aside the checkpoints whose weights gave non-finite values: a resumed run would diverge again."""
    if job.run is None:
        return
    check_folder(job)
    state = job.state
    stopped = state.bad_in_a_row >= job.config.bad_steps  # then `update` does not count the last of them
    first = state.update - state.bad_in_a_row + stopped
    checkpoint.set_aside(job.run, first, lambda text: job.say(f"{text}: its weights had diverged"))


def _save_and_validate(job: TrainingJob) -> None:
    _write(job)  # first, so that a validation that fails costs nothing; `last` follows only after it
    job.model.eval()
    hint = "lower training.valid_tokens or training.bleu_beam; the state before the validation is saved"
    try:
        with guard.naming_memory(f"in the validation after update {job.state.update}", hint):
            results = job.validate(job)
    finally:
        job.model.train()
    guard.check_perplexity(results["perplexity"], job.config, job.highest_perplexity)
    best = job.state.record_validation(results, job.config)
    _record(job, {"update": job.state.update, "validation": results, "best": best})
    if job.log is not None:
        job.log.timing(job.state.update)
    words = ", ".join(f"{k} {v:.3f}" for k, v in results.items() if isinstance(v, float) and k != "nll")
    job.say(f"update {job.state.update}: validation {words}" + (" (best)" if best else ""))
    save(job)


def _reason_to_stop(job: TrainingJob) -> str | None:
    """The reason to stop, equal in all processes: a signal in any of them, or the clock of the first."""
    seconds = job.log.seconds() if job.log is not None else 0.0
    late = job.config.max_minutes is not None and seconds >= 60 * job.config.max_minutes
    signalled, late_any = float(job.stop.is_set), float(late)
    if job.world.size > 1:
        flags = torch.tensor([signalled, late_any], device=job.world.device)
        signalled, late_any = job.world.sum_(flags).tolist()
    if signalled:
        raise InterruptedRun("stopped")
    return job.state.reason_to_stop(job.config, job.plan.updates_per_epoch, math.inf if late_any else 0.0)


def _record(job: TrainingJob, record: dict[str, Any]) -> None:
    if job.log is not None:
        job.log.metrics(record)
    if job.tracker is not None:
        job.tracker.record(record)
    if job.hook is not None:
        job.hook.record(record)


def _report(job: TrainingJob, record: dict[str, Any]) -> None:
    _record(job, record)
    if job.log is None:
        return
    job.log.count(record["source_tokens"], record["tokens"])
    if record["update"] % job.config.log_every == 0:
        check_folder(job)
        job.log.timing(record["update"])
    if job.display is not None:
        line = job.display.update(record, job.log.seconds())
        if line:
            job.log.say(line)
