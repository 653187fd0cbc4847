"""Updates whose numbers stay on the device: the same steps, and the host waits once for many of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
from tests.fake_device import FakeDevice, device, to_device
from tests.helpers import run_records
from tests.training.test_loop import poison

from phraseloom.errors import DivergedError, InterruptedRun
from phraseloom.training import loop
from phraseloom.training.distributed import World


def numbers(record: dict[str, Any]) -> list[float]:
    return [v for v in {**record, **record.get("validation", {})}.values() if isinstance(v, float)]


def test_the_steps_are_those_of_a_run_that_waits(tmp_path: Path) -> None:
    settings = toy.config(optimizer={"weight_decay": 0.01}, clip_norm=0.5)
    waiting = toy.finish(tmp_path / "waiting", settings)
    deferred = toy.finish(tmp_path / "deferred", settings, deferred=True)
    torch.testing.assert_close(deferred.flat.data, waiting.flat.data, rtol=1e-5, atol=1e-6)
    pairs = list(zip(run_records(tmp_path / "waiting"), run_records(tmp_path / "deferred"), strict=True))
    assert len(pairs) > 23
    for one, other in pairs:
        assert one.keys() == other.keys() and one["update"] == other["update"]
        assert numbers(other) == pytest.approx(numbers(one), rel=1e-5)
    assert deferred.state.applied == waiting.state.applied == 23


def test_the_numbers_come_when_the_log_or_a_checkpoint_needs_them(tmp_path: Path) -> None:
    job = toy.make(tmp_path, toy.config(log_every=4, checkpoint_every=6, max_updates=7), deferred=True)
    updates = []
    for _ in range(7):
        loop.run_update(job)
        updates.append(job.state.update)
    job.close()
    assert updates == [0, 0, 0, 4, 4, 6, 7]


def test_bad_steps_are_skipped_and_do_not_count(tmp_path: Path) -> None:
    jobs = []
    for name in ("waiting", "deferred"):
        job = toy.make(tmp_path / name, toy.config(log_every=6, checkpoint_every=100), deferred=name == "deferred")
        inner = job.loss

        def loss(batch: Any, job: loop.TrainingJob = job, inner: Any = inner) -> toy.Sums:
            sums = inner(batch)
            return sums._replace(objective=sums.objective * math.nan) if job.position in (2, 3) else sums

        job.loss = loss
        for _ in range(12):
            loop.run_update(job)
        job.close()
        jobs.append(job)
    waiting, deferred = jobs
    assert deferred.state == waiting.state and deferred.state.skipped == 2
    assert deferred.optimizer.count.tolist() == waiting.optimizer.count.tolist() == [10.0]
    torch.testing.assert_close(deferred.flat.data, waiting.flat.data, rtol=1e-5, atol=1e-6)
    skipped = [[r["update"] for r in run_records(tmp_path / n) if r.get("skipped")] for n in ("waiting", "deferred")]
    assert skipped == [[3, 4]] * 2


def test_a_divergence_is_found_when_the_numbers_come(tmp_path: Path) -> None:
    job = toy.make(tmp_path, toy.config(bad_steps=3, log_every=7), deferred=True)
    poison(job, set(range(8, 40)), math.nan)
    with pytest.raises(DivergedError, match="3 updates in a row"):
        loop.train(job)
    job.close()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000005"]


def test_a_signal_ends_the_run_and_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    settings = toy.config(log_every=9)
    toy.finish(tmp_path / "whole", settings, deferred=True)
    job = toy.make(tmp_path / "cut", settings, deferred=True)
    inner, calls = job.batch_of, []

    def batch_of(indices: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 24:
            job.stop.name = "SIGTERM"
        return inner(indices)

    job.batch_of = batch_of
    with pytest.raises(InterruptedRun):
        loop.train(job)
    job.close()
    assert 5 < job.state.update < 23 and job.state.update % 9
    toy.finish(tmp_path / "cut", settings, deferred=True)
    assert toy.result(tmp_path / "cut") == toy.result(tmp_path / "whole")


def test_a_device_is_waited_for_once_in_log_every_updates() -> None:
    data = toy.ToyData()
    with FakeDevice() as fake:
        torch.manual_seed(1)
        job = loop.TrainingJob(
            config=toy.config(log_every=5, checkpoint_every=100),
            model=to_device(toy.ToyModel()),
            plan=toy.BatchPlan(data.source_lengths, data.target_lengths, seed=1, batch_tokens=20),
            batch_of=lambda indices: [tuple(x.to(device()) for x in pair) for pair in data.batch(indices)],
            validate=lambda _: {},
            write_model=lambda _: None,
            rate=lambda _: 0.1,
            highest_perplexity=40.0,
            world=World(device=device()),
        )
        assert job.plan.updates_per_epoch > 10
        before = job.flat.data.inner.clone()
        for _ in range(10):
            loop.run_update(job)
        assert job.state.update == job.state.applied == 10
        assert not torch.equal(job.flat.data.inner, before)
        assert dict(fake.synchronisations) == {"training/loop.py:settle to the host": 2}


def test_several_processes_ask_each_other_for_a_signal_long_before_a_line_of_the_log(tmp_path: Path) -> None:
    settings = toy.config(log_every=10**4, checkpoint_every=10**4, max_updates=10**4, batch_tokens=5)
    job = toy.make(tmp_path, settings, deferred=True)
    job.state.validated = -1

    def settled(world: World) -> list[int]:
        job.world, found = world, []
        for job.state.update in range(1, 41):
            if loop._must_settle(job):
                found.append(job.state.update)
        return found

    ends = settled(World())
    assert len(ends) < 40 / loop.SIGNAL_EVERY
    assert set(settled(World(0, 2))) == {*ends, *range(loop.SIGNAL_EVERY, 41, loop.SIGNAL_EVERY)}
    job.close()
