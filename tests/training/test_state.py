"""The counters of a run: what is best (C9), when to stop, what of a stored state is believed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import toy

from phraseloom.errors import CorruptError
from phraseloom.training.state import Progress, better


@pytest.mark.parametrize(
    ("name", "value", "best", "expected"),
    [
        ("perplexity", 5.0, None, True),
        ("perplexity", 5.0, 6.0, True),
        ("perplexity", 5.0, 5.0, False),
        ("perplexity", 6.0, 5.0, False),
        ("perplexity", math.nan, None, False),
        ("perplexity", math.nan, 5.0, False),
        ("perplexity", math.inf, None, False),
        ("perplexity", -math.inf, 5.0, False),
        ("bleu", 30.0, 20.0, True),
        ("bleu", 20.0, 20.0, False),
        ("bleu", math.nan, 20.0, False),
        ("bleu", math.inf, 20.0, False),
        ("bleu", 0.0, None, True),
    ],
)
def test_better(name: str, value: float, best: float | None, expected: bool) -> None:
    assert better(name, value, best) is expected


def validate(state: Progress, config: object, *values: float, name: str = "perplexity") -> list[bool]:
    found = []
    for value in values:
        state.update += 1
        found.append(state.record_validation({"perplexity": 1.0, name: value}, config))  # type: ignore[arg-type]
    return found


def test_patience_counts_validations_without_a_better_value() -> None:
    config, state = toy.config(patience=2, checkpoint_every=1), Progress()
    assert validate(state, config, 9, 8, 8.5, 7, 7.5) == [True, True, False, True, False]
    assert state.reason_to_stop(config, 10, 0) is None
    validate(state, config, 7)
    assert state.reason_to_stop(config, 10, 0) == "no better perplexity in 2 validations"
    assert state.best_update == 4 and state.best_value == 7


def test_validations_without_bleu_do_not_count_for_it() -> None:
    config, state = toy.config(best_by="bleu", bleu_every=2, patience=1, checkpoint_every=1), Progress()
    validate(state, config, 30, name="bleu")
    validate(state, config, 5)
    assert state.worse_in_a_row == 0
    validate(state, config, 29, name="bleu")
    assert state.reason_to_stop(config, 10, 0) == "no better bleu in 1 validations"


def test_the_lowest_cosine_loss_is_the_best() -> None:
    config, state = toy.config(best_by="cosine_loss"), Progress()
    assert validate(state, config, 0.9, 0.95, 0.4, name="cosine_loss") == [True, False, True]


def test_plateau_lowers_the_rate_after_its_patience() -> None:
    config = toy.config(schedule={"kind": "plateau", "rate": 0.1, "factor": 0.5, "patience": 2}, checkpoint_every=1)
    state = Progress()
    validate(state, config, 9, 9, 9, 8, 8, 8)
    assert state.rate_factor == 0.25
    assert Progress.from_json(state.as_json(), "state.json") == state


def test_the_validation_at_the_end_of_a_run_is_none_of_a_plateau() -> None:
    config = toy.config(schedule={"kind": "plateau", "rate": 0.1, "factor": 0.5, "patience": 1}, checkpoint_every=4)
    state = Progress(plateau_best=1.0, plateau_by="perplexity")
    for update, validations, factor in ((4, 1, 0.5), (6, 1, 0.5), (8, 2, 0.25)):
        state.update = update
        state.record_validation({"perplexity": 2.0}, config)
        assert (state.validated, state.validations, state.rate_factor) == (update, validations, factor)


def test_the_validation_at_the_end_of_a_run_costs_no_patience() -> None:
    config, state = toy.config(patience=2, checkpoint_every=4), Progress()
    for state.update, value, best, worse in (
        (4, 2.0, True, 0),
        (6, 3.0, False, 0),
        (8, 3.0, False, 1),
        (10, 1.5, True, 0),
    ):
        assert state.record_validation({"perplexity": value}, config) == best
        assert state.worse_in_a_row == worse


def test_a_plateau_of_bleu_ignores_perplexity() -> None:
    """The rate falls with BLEU that no longer rises, not at validations without BLEU, nor with perplexity."""
    schedule = {"kind": "plateau", "rate": 0.1, "factor": 0.5, "patience": 2, "by": "bleu"}
    config, state = toy.config(schedule=schedule, bleu_every=1), Progress()
    for bleu in (10.0, None, None, 11.0, 12.0):
        state.record_validation({"perplexity": 9.0} | ({} if bleu is None else {"bleu": bleu}), config)
    assert state.rate_factor == 1
    for bleu in (12.0, 11.5):
        state.record_validation({"perplexity": 8.0 - bleu / 10, "bleu": bleu}, config)
    assert state.rate_factor == 0.5


def test_another_metric_does_not_compete_with_values_of_the_one_before() -> None:
    """A run goes on with another `best_by` or `schedule.by`: patience and the best begin anew, and the rate does not fall."""
    schedule = {"kind": "plateau", "rate": 0.1, "factor": 0.5, "patience": 2}
    by_loss, by_bleu = (
        toy.config(best_by="loss", schedule=schedule, bleu_every=1),
        toy.config(best_by="perplexity", schedule={**schedule, "by": "bleu"}, bleu_every=1),
    )
    state = Progress()
    for loss in (1.5, 1.6):
        state.record_validation({"perplexity": 40.0, "loss": loss, "bleu": 20.0}, by_loss)
    state = Progress.from_json(state.as_json(), "state.json")
    state.worse_in_a_row = 5
    for config, ends in ((by_loss, True), (by_bleu, False)):
        patient = config.model_copy(update={"patience": 5})
        assert (state.reason_to_stop(patient, 10, 0) is not None) == ends
    results = [{"perplexity": 6.0 - bleu / 100, "loss": 2.0, "bleu": bleu} for bleu in (21.0, 22.0, 23.0)]
    assert [state.record_validation(result, by_bleu) for result in results] == [True, True, True]
    assert (state.rate_factor, state.best_update, state.worse_in_a_row) == (1, state.update, 0)


COSINE = {"kind": "cosine", "peak": 0.1, "warmup": 5}


@pytest.mark.parametrize(
    ("keys", "progress", "warning"),
    [
        ({"max_epochs": 1}, {}, "ends at update 4, inside the warm-up: training.schedule.warmup is 5"),
        ({"max_updates": 5, "max_epochs": 9}, {}, "ends at update 5, inside the warm-up"),
        ({"max_epochs": 1}, {"applied": 7}, None),  # the optimiser of another run continues
        ({"max_epochs": 1}, {"update": 4, "applied": 4}, None),  # finished
        ({"max_updates": None, "max_minutes": 1}, {}, None),
        ({"max_epochs": 2}, {}, None),
        (
            {"schedule": COSINE, "max_updates": 100_000, "max_epochs": 2},
            {},
            "ends at update 8 (training.max_epochs), long before the cosine schedule does, at update 100000 "
            "(training.max_updates); set training.schedule.updates=8",
        ),
        ({"schedule": {**COSINE, "updates": 100}, "max_epochs": 2}, {}, None),
        ({"schedule": COSINE, "max_updates": 8, "max_epochs": 9}, {}, None),
    ],
)
def test_an_end_that_does_not_fit_the_schedule(
    keys: dict[str, Any], progress: dict[str, int], warning: str | None
) -> None:
    text = toy.runs.warning_of_end(toy.config(**keys), Progress(**progress), 4)
    assert text is None if warning is None else text is not None and warning in text


def test_a_state_of_an_earlier_version_is_read() -> None:
    newer = {"run", "best_by", "plateau_by"}
    state = Progress(update=3, best_value=7.0, plateau_best=7.0)
    earlier = {key: value for key, value in state.as_json().items() if key not in newer}
    assert Progress.from_json(earlier, "state.json") == state


@pytest.mark.parametrize(
    ("keys", "update", "seconds", "reason"),
    [
        ({}, 22, 0, None),
        ({}, 23, 0, "23 updates are done"),
        ({"max_epochs": 2}, 11, 0, None),
        ({"max_epochs": 2}, 12, 0, "2 epochs are done"),
        ({"max_epochs": 1}, 6, 0, "1 epoch is done"),
        ({"max_minutes": 0.5}, 1, 29.9, None),
        ({"max_minutes": 0.5}, 1, 30, "0.5 minutes are over"),
    ],
)
def test_limits(keys: dict[str, object], update: int, seconds: float, reason: str | None) -> None:
    assert Progress(update=update).reason_to_stop(toy.config(**keys), 6, seconds) == reason


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {**Progress().as_json(), "format": 2},
        {**Progress().as_json(), "update": "7"},
        {**Progress().as_json(), "update": 1.5},
        {**Progress().as_json(), "update": True},
        {**Progress().as_json(), "best_value": "nan"},
        {**Progress().as_json(), "best_by": 1},
        {**Progress().as_json(), "more": 1},
        {k: v for k, v in Progress().as_json().items() if k != "applied"},
    ],
)
def test_a_state_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(CorruptError, match=r"state\.json"):
        Progress.from_json(value, "state.json")
