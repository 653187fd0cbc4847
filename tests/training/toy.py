"""A model and a data set of a few kilobytes with the interface of the real ones; also a program that the fault tests run.

python toy.py RUN JSON-of-training-keys     train in RUN; exit codes like `phraseloom train`
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from phraseloom import files
from phraseloom.data.batches import BatchPlan, mix
from phraseloom.errors import PhraseloomError
from phraseloom.options.training import TrainingConfig
from phraseloom.training import distributed
from phraseloom.training import run as runs
from phraseloom.training.loop import TrainingJob
from phraseloom.training.optimization import rate_function
from phraseloom.training.signals import StopSignal
from phraseloom.training.validate import Validator

VOCABULARY, WIDTH = 13, 8
DEFAULTS: dict[str, Any] = {
    "batch_tokens": 60,
    "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.05, "warmup": 5},
    "max_updates": 23,
    "checkpoint_every": 5,
    "valid_tokens": 40,
    "keep_last": 2,
    "processes": 1,
    "device": "cpu",
    "log_every": 10,
}


class Sums(NamedTuple):
    """What `loss` gives back."""

    objective: Tensor
    nll: Tensor
    tokens: int
    cosine_loss: None = None


class ToyModel(nn.Module):
    """Predicts each target token from the mean of the source; the embedding is also the output matrix (tied)."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)

    def loss(self, batch: list[tuple[Tensor, Tensor]]) -> Sums:
        """Sums over target tokens, with a little label smoothing."""
        means = torch.stack([self.embedding(s).mean(0) for s, _ in batch])
        logits = self.output(self.dropout(torch.tanh(self.hidden(means)))).log_softmax(-1)
        rows = torch.cat([torch.full_like(t, i) for i, (_, t) in enumerate(batch)])
        gold = torch.cat([t for _, t in batch])
        picked = logits[rows]
        nll = functional.nll_loss(picked, gold, reduction="sum")
        return Sums(0.9 * nll - 0.1 * picked.mean(-1).sum(), nll, len(gold))


class ToyData:
    """`count` pairs; a target is a function of its source. Lengths are without the end symbol, as in a dataset."""

    def __init__(self, count: int = 90, seed: int = 5) -> None:
        random = np.random.default_rng(seed)
        lengths = random.integers(0, 9, count)
        self.sources = [random.integers(4, VOCABULARY, n) for n in lengths]
        self.targets = [np.sort(s)[: max(0, len(s) - 1)] for s in self.sources]
        self.source_lengths = np.array([len(s) for s in self.sources], np.int32)
        self.target_lengths = np.array([len(t) for t in self.targets], np.int32)

    def batch(self, indices: np.ndarray) -> list[tuple[Tensor, Tensor]]:
        """Pairs with the end symbol (3) added."""
        return [tuple(torch.tensor([*side[i], 3]) for side in (self.sources, self.targets)) for i in indices]  # type: ignore[misc]


def config(**keys: Any) -> TrainingConfig:
    """A configuration of a run of a second."""
    return TrainingConfig.model_validate({**DEFAULTS, **keys})


def make(run: Path, settings: TrainingConfig, world: distributed.World | None = None, **more: Any) -> TrainingJob:
    """A job in the folder `run`, resumed from its newest checkpoint; `more` replaces fields of the job."""
    dropout, data, valid = more.pop("dropout", 0.2), ToyData(), ToyData(20, seed=6)
    torch.manual_seed(mix(settings.seed, 3))
    model = ToyModel(dropout)
    names = ("seed", "batch_tokens", "micro_batches", "max_micro_tokens", "pool_updates")
    plan = BatchPlan(data.source_lengths, data.target_lengths, **{n: getattr(settings, n) for n in names})

    def write(folder: Path) -> None:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        files.atomic_write_json(folder / "config.json", {"toy": 1})
        files.atomic_write_bytes(folder / "model.safetensors", safetensors.torch.save(weights))

    def read(folder: Path) -> None:
        weights = safetensors.torch.load_file(folder / "model.safetensors")
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(weights[name])

    fields: dict[str, Any] = {
        "config": settings,
        "model": model,
        "plan": plan,
        "batch_of": data.batch,
        "validate": Validator(valid.source_lengths, valid.target_lengths, valid.batch),
        "write_model": write,
        "rate": rate_function(settings.schedule, width=WIDTH, max_updates=settings.max_updates),
        "highest_perplexity": 4000.0 * VOCABULARY,
        "world": world or distributed.World(),
    }
    job = TrainingJob(**{**fields, **more})
    run.mkdir(parents=True, exist_ok=True)
    runs.resume(job, run, read, "valid")
    return job


def finish(run: Path, settings: TrainingConfig | None = None, **more: Any) -> TrainingJob:
    """Train in `run` to the end, from wherever it is; whatever is raised comes through, with the files closed."""
    job = make(run, settings or config(), **more)
    try:
        runs.train_or_skip(job)
    finally:
        if job.log is not None:
            job.log.close()
    return job


def result(run: Path) -> dict[str, bytes]:
    """All bytes of a run that must not depend on how often it was interrupted."""
    kept = [run / "metrics.jsonl", *sorted(run.glob("checkpoints/step_*/*"))]
    found = {p.relative_to(run).as_posix(): p.read_bytes() for p in kept}
    return found | {
        name: str((run / name).readlink()).encode() for name in ("best", "last") if (run / name).is_symlink()
    }


def run_once(run: Path, keys: dict[str, Any]) -> int:
    """What the command does, in short; the exit code."""
    settings = config(**keys)
    with contextlib.ExitStack() as stack:
        try:
            lock = None
            if not distributed.is_child():
                lock = stack.enter_context(files.FolderLock(run))
            world = distributed.launch(settings, [sys.executable, *sys.argv])
            torch.set_num_threads(1)
            stack.callback(world.close)
            stop = stack.enter_context(StopSignal(at_once=world.kill_children))
            job = make(run, settings, world, stop=stop, deferred=bool(os.environ.get("TOY_DEFERRED")) or None)
            job.lock = lock
            if os.environ.get("TOY_OVERLAPS"):
                world.overlap(job.flat.grad, job.flat.places, elements=40)
            _break(job)
            if world.first:
                pids = [os.getpid(), *(c.pid for c in world.children)]
                os.write(1, f"running {' '.join(map(str, pids))}\n".encode())
            with world.reporting():
                runs.train_or_skip(job)
            if world.first:
                files.atomic_write_bytes(run / "gradient", safetensors.torch.save({"gradient": job.flat.grad}))
        except PhraseloomError as error:
            if distributed.is_child() and isinstance(error, distributed.LostProcess) and not error.of_first:
                return error.exit_code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return error.exit_code
    return 0


def _break(job: TrainingJob) -> None:
    """TOY_OUT_OF_MEMORY=0,1: these ranks have no memory for update 8."""
    inner = job.batch_of

    def batch_of(indices: np.ndarray) -> Any:
        if job.state.update == 7:
            raise MemoryError
        return inner(indices)

    if str(job.world.rank) in os.environ.get("TOY_OUT_OF_MEMORY", "").split(","):
        job.batch_of = batch_of


if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ.get("TOY_WITHOUT_SHARED_MEMORY"):
        distributed.share_gradient = lambda world, length: None
    sys.exit(run_once(Path(sys.argv[1]), json.loads(sys.argv[2])))
