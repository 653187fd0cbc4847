"""N6–N9: the gradient does not depend on the cut; a bad step changes nothing; too little memory is said with a shape."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
from tests.helpers import run_records

from phraseloom.errors import CorruptError, DivergedError, PhraseloomError
from phraseloom.training import guard, loop
from phraseloom.training.checkpoint import list_checkpoints


def gradient(batches: list[np.ndarray], **keys: Any) -> torch.Tensor:
    job = loop.TrainingJob(
        config=toy.config(**keys),
        model=seeded_model(0.0),
        plan=plan(),
        batch_of=toy.ToyData().batch,
        validate=lambda _: {},
        write_model=lambda _: None,
        rate=lambda _: 0.1,
        highest_perplexity=40.0,
    )
    loop.accumulate(job, batches)
    return job.flat.grad.double()


def seeded_model(dropout: float) -> toy.ToyModel:
    torch.manual_seed(1)
    return toy.ToyModel(dropout)


def plan() -> toy.BatchPlan:
    data = toy.ToyData()
    return toy.BatchPlan(data.source_lengths, data.target_lengths, seed=1, batch_tokens=60)


def test_gradient_does_not_depend_on_the_cut() -> None:
    examples = np.arange(24)
    whole = gradient([examples])
    assert whole.norm() > 0.1
    for pieces in (2, 3, 5, 24):
        cut = gradient(np.array_split(examples, pieces))
        assert ((cut - whole).norm() / whole.norm()).item() <= 1e-6
    ragged = gradient([examples[:1], examples[1:20], examples[20:]])
    assert ((ragged - whole).norm() / whole.norm()).item() <= 1e-6


def test_dropout_depends_on_seed_update_and_micro_batch_only() -> None:
    job_gradients = []
    for noise in (0, 123):
        torch.manual_seed(noise)
        job = make_plain()
        torch.rand(noise + 1)
        loop.accumulate(job, job.plan.update(0))
        job_gradients.append(job.flat.grad.clone())
    assert torch.equal(*job_gradients)
    job.state.update = 1
    loop.accumulate(job, job.plan.update(0))
    assert not torch.equal(job.flat.grad, job_gradients[0])


def make_plain() -> loop.TrainingJob:
    return loop.TrainingJob(
        config=toy.config(),
        model=seeded_model(0.3),
        plan=plan(),
        batch_of=toy.ToyData().batch,
        validate=lambda _: {},
        write_model=lambda _: None,
        rate=lambda _: 0.1,
        highest_perplexity=40.0,
    )


def poison(job: loop.TrainingJob, updates: set[int], value: float) -> None:
    """Make the loss of these updates not finite, from one micro-batch."""
    inner = job.loss

    def loss(batch: Any) -> toy.Sums:
        sums = inner(batch)
        bad = job.state.update + 1 in updates
        return toy.Sums(sums.objective * value, sums.nll, sums.tokens) if bad else sums

    job.loss = loss


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_step_leaves_weights_and_optimiser_as_they_were(value: float) -> None:
    job = make_plain()
    for _ in range(3):
        loop.run_update(job)
    before = [t.clone() for t in (job.flat.data, *job.optimizer.moments.values(), job.optimizer.count)]
    poison(job, {4, 5}, value)
    loop.run_update(job)
    loop.run_update(job)
    after = [job.flat.data, *job.optimizer.moments.values(), job.optimizer.count]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert (job.state.update, job.state.applied, job.state.skipped, job.state.bad_in_a_row) == (5, 3, 2, 2)
    loop.run_update(job)
    assert (job.state.applied, job.state.bad_in_a_row) == (4, 0)
    assert torch.isfinite(job.flat.data).all() and not torch.equal(before[0], job.flat.data)


def test_bad_gradient_with_a_finite_loss_is_seen() -> None:
    job = make_plain()
    job.model.hidden.bias.register_hook(lambda g: g * math.nan)  # type: ignore[union-attr, operator]
    before = job.flat.data.clone()
    loop.run_update(job)
    assert torch.equal(before, job.flat.data) and job.state.skipped == 1


def test_bad_steps_in_a_row_stop_the_run_with_the_batch_named(tmp_path: Path) -> None:
    job = toy.make(tmp_path, toy.config(bad_steps=3))
    poison(job, {8, 9, 10, 11}, math.nan)
    with pytest.raises(DivergedError, match=r"3 updates in a row .* the last is update 10") as caught:
        loop.train(job)
    job.log.close()  # type: ignore[union-attr]
    assert caught.value.exit_code == 4
    bundle = json.loads((tmp_path / "diverged.json").read_bytes())
    assert bundle["update"] == 10 and bundle["examples"] == [[int(i) for i in b] for b in job.plan.update(9)]
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step_00000005"], "nothing is saved after"
    lines = run_records(tmp_path)
    assert lines[-1] == {**lines[-1], "update": 9, "loss": None, "skipped": True}


def test_skipped_steps_resume_to_the_same_bytes(tmp_path: Path) -> None:
    runs = []
    for name, stops in (("whole", [23]), ("parts", [7, 8, 23])):
        for stop in stops:
            job = toy.make(tmp_path / name, toy.config(max_updates=stop, checkpoint_every=100))
            poison(job, {7, 8, 9}, math.nan)
            loop.train(job)
            job.log.close()  # type: ignore[union-attr]
        runs.append((tmp_path / name / "last" / "model.safetensors").read_bytes())
    assert runs[0] == runs[1]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    job = toy.make(tmp_path, toy.config())
    job.flat.data[3] = math.inf
    with pytest.raises(DivergedError, match="a weight is not finite"):
        loop.save(job)
    job.log.close()  # type: ignore[union-attr]
    assert not (tmp_path / "checkpoints").exists()


def test_diverging_model_stops_itself(tmp_path: Path) -> None:
    """N9: a learning rate a thousand times too high is seen at the next validation."""
    keys = {"schedule": {"kind": "constant", "rate": 50.0}, "max_updates": 200, "clip_norm": None}
    with pytest.raises(DivergedError, match="validation perplexity"):
        toy.finish(tmp_path, toy.config(**keys), highest_perplexity=4.0 * toy.VOCABULARY)
    assert not list_checkpoints(tmp_path) and not (tmp_path / "last").is_symlink()


def test_a_new_segmental_model_has_not_diverged() -> None:
    """Its guess ends a segment at every source token: about the second power of the vocabulary at first."""
    size = 8300
    guard.check_perplexity(2.0 * size**2, toy.config(), guard.highest_perplexity(size, segmental=True))
    with pytest.raises(DivergedError):
        guard.check_perplexity(2.0 * size**2, toy.config(), guard.highest_perplexity(size, segmental=False))
    with pytest.raises(DivergedError):
        guard.check_perplexity(math.inf, toy.config(), guard.highest_perplexity(size, segmental=True))


def test_continuous_output_has_no_limit_of_perplexity() -> None:
    """A density that is sure of wrong words has any perplexity (1e8 in the ladder's loss_reg1, whose loss still fell)."""
    highest = guard.highest_perplexity(3000, continuous=True)
    guard.check_perplexity(1.2e8, toy.config(), highest)
    with pytest.raises(DivergedError):
        guard.check_perplexity(math.nan, toy.config(), highest)
    with pytest.raises(DivergedError, match="is above 100"):
        guard.check_perplexity(1.2e8, toy.config(alarm_perplexity=100.0), highest)


def test_perplexity_alarm(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"is above 1\.5"):
        toy.finish(tmp_path, toy.config(alarm_perplexity=1.5))


def test_nan_validation_is_divergence(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="perplexity nan"):
        toy.finish(tmp_path, validate=lambda _: {"perplexity": math.nan})


def test_largest_batch_runs_first_and_names_its_shape(tmp_path: Path) -> None:
    sizes: list[int] = []

    def batch(indices: np.ndarray) -> Any:
        sizes.append(len(indices))
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(
        PhraseloomError, match=r"out of memory before the first update: a micro-batch of \d+ sentences × "
    ) as c:
        toy.finish(tmp_path, batch_of=batch)
    assert "set or lower training.max_micro_tokens" in str(c.value)
    assert sizes == [len(plan().largest())]


def test_out_of_memory_later_saves_the_last_whole_update(tmp_path: Path) -> None:
    data, calls = toy.ToyData(), 0

    def batch(indices: np.ndarray) -> Any:
        nonlocal calls
        calls += 1
        if calls == 17:  # the second micro-batch of update 8
            raise MemoryError
        return data.batch(indices)

    with pytest.raises(PhraseloomError, match="out of memory in update 8"):
        toy.finish(tmp_path / "run", batch_of=batch)
    assert json.loads((tmp_path / "run" / "last" / "state.json").read_bytes())["update"] == 7
    toy.finish(tmp_path / "run")
    toy.finish(tmp_path / "whole")
    assert toy.result(tmp_path / "run") == toy.result(tmp_path / "whole")


def test_clipping_limits_the_step() -> None:
    norms = []
    for clip in (None, 1e-3):
        job = make_plain()
        job.config = toy.config(clip_norm=clip)
        loop.run_update(job)
        norms.append(job.optimizer.moments["exp_avg"].norm().item() / 0.1)
    assert norms[0] > 0.05 and norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_clipping_of_the_gradient_per_sentence() -> None:
    """The same gradient, larger by the tokens of a sentence: a limit between the two norms acts on it alone."""
    plain, sentence = make_plain(), make_plain()
    sentence.config = toy.config(clip_norm=None, gradient_per="sentence")
    plain.config = toy.config(clip_norm=None)
    examples = np.concatenate(plain.plan.update(0))
    ratio = plain.plan.count(examples)[1] / len(examples)
    assert ratio > 2
    norms = {}
    for name, job in (("token", plain), ("sentence", sentence)):
        loop.run_update(job)
        norms[name] = job.optimizer.moments["exp_avg"].norm().item() / 0.1
    assert norms["sentence"] == pytest.approx(ratio * norms["token"], rel=1e-4)
    between = norms["token"] * ratio**0.5
    for per, expected in (("token", norms["token"]), ("sentence", between)):
        job = make_plain()
        job.config = toy.config(clip_norm=between, gradient_per=per)
        loop.run_update(job)
        assert job.optimizer.moments["exp_avg"].norm().item() / 0.1 == pytest.approx(expected, rel=1e-4)


def test_plateau_lowers_the_learning_rate(tmp_path: Path) -> None:
    schedule = {"kind": "plateau", "rate": 0.1, "factor": 0.5, "patience": 1}
    toy.finish(tmp_path, toy.config(schedule=schedule), validate=lambda _: {"perplexity": 3.0})
    lines = run_records(tmp_path)
    rates = [r["lr"] for r in lines if "lr" in r]
    assert rates == [0.1] * 10 + [0.05] * 5 + [0.025] * 5 + [0.0125] * 3


def test_a_plateau_is_the_same_after_an_end_between_two_checkpoints(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"schedule": {"kind": "plateau", "rate": 0.1, "factor": 0.5, "patience": 1}}
    for end in (7, 12, 23):
        toy.finish(tmp_path / "run", toy.config(max_updates=end, **keys), validate=lambda _: {"perplexity": 3.0})
    toy.finish(tmp_path / "whole", toy.config(**keys), validate=lambda _: {"perplexity": 3.0})
    rates = [{r["update"]: r["lr"] for r in run_records(tmp_path / run) if "lr" in r} for run in ("run", "whole")]
    assert rates[0] == rates[1] and len(rates[0]) == 23


def test_the_toy_learns(tmp_path: Path) -> None:
    toy.finish(tmp_path, toy.config(max_updates=80, checkpoint_every=80, schedule={"kind": "linear", "peak": 0.05}))
    losses = run_records(tmp_path)
    assert losses[-1]["validation"]["perplexity"] < 7 < math.exp(losses[0]["nll"])


def test_loop_is_one_screen() -> None:
    """`train` and `run_update`, the loop proper, fit on a screen."""
    import inspect

    assert len(inspect.getsource(loop.train).split("\n")) + len(inspect.getsource(loop.run_update).split("\n")) < 70


def test_the_data_are_checked_before_each_epoch_and_damage_ends_with_a_save(tmp_path: Path) -> None:
    job = toy.make(tmp_path, toy.config(max_updates=40))
    checked: list[int] = []

    def check() -> None:
        checked.append(job.state.update)
        if len(checked) == 3:
            raise CorruptError("was truncated", file="x.tokens")

    job.check_data = check
    with pytest.raises(CorruptError, match=r"x\.tokens: was truncated"):
        loop.train(job)
    job.close()
    epoch = job.plan.updates_per_epoch
    assert checked == [0, epoch, 2 * epoch]
    assert (tmp_path / "checkpoints" / f"step_{2 * epoch:08d}").is_dir()
