"""The progress of a run: counters that, with the weights and the optimiser, determine all later updates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from phraseloom.errors import CorruptError, plural
from phraseloom.options.training import PlateauConfig, TrainingConfig

__all__ = ["Progress", "better"]

NEWER = frozenset({"run", "best_by", "plateau_by", "valid"})
"""Words of the state that runs of earlier versions lack."""


def better(name: str, value: float, best: float | None) -> bool:
    """Whether `value` of metric `name` is better than `best`: lower perplexity or loss, higher BLEU; never NaN or infinity."""
    if not math.isfinite(value):
        return False
    if best is None:
        return True
    return value > best if name == "bleu" else value < best


def _done(number: int, noun: str) -> str:
    return f"{plural(number, noun)} {'is' if number == 1 else 'are'} done"


@dataclass
class Progress:
    """The counters of a run, stored in `state.json`; without times, paths and random states."""

    update: int = 0  # updates done: the position in the data
    applied: int = 0  # optimiser steps taken: the position in the schedule
    skipped: int = 0  # updates whose step was not finite
    bad_in_a_row: int = 0
    validated: int = -1  # the update of the last validation
    validations: int = 0  # at multiples of `checkpoint_every`, for `bleu_every`
    best_value: float | None = None
    best_by: str | None = None  # the metric of `best_value`; None in runs of earlier versions, as `plateau_by`
    best_update: int | None = None
    worse_in_a_row: int = 0  # validations since the best, for patience
    rate_factor: float = 1.0  # plateau schedule
    plateau_wait: int = 0
    plateau_best: float | None = None
    plateau_by: str | None = None  # the metric of `plateau_best`
    valid: str | None = None  # the validation text of both, as a hash
    run: str | None = None  # the identity of the run in `run.json`; None in runs of earlier versions

    def record_validation(self, results: dict[str, Any], config: TrainingConfig) -> bool:
        """Record a validation at the current update; True if it is the best so far, by the metric that `config` names now.

        One between the multiples of `checkpoint_every` ends a run. It may be the best, but changes neither the rate nor the
        turn of BLEU, and costs no patience: the run may be resumed with a later end.
        """
        self.validated = self.update
        is_regular = self.update % config.checkpoint_every == 0
        if is_regular:
            self.validations += 1
            self._plateau(results, config)
        if config.best_by not in results:  # no BLEU this time, or no finite loss
            return False
        if self.best_by not in (None, config.best_by):
            self.best_value, self.worse_in_a_row = None, 0
        self.best_by, value = config.best_by, results[config.best_by]
        if better(config.best_by, value, self.best_value):
            self.best_value, self.best_update, self.worse_in_a_row = value, self.update, 0
            return True
        self.worse_in_a_row += is_regular
        return False

    def forget_best(self) -> None:
        """Let the next validation be the best: the checkpoint of the best so far is gone."""
        self.best_value, self.best_update, self.worse_in_a_row = None, None, 0

    def validate_on(self, valid: str) -> bool:
        """Compare validations on this text (a hash) from now on; True if earlier ones were on another."""
        changed, self.valid = self.valid not in (None, valid), valid
        if changed:  # the best so far is kept until a validation takes its place
            self.best_value, self.worse_in_a_row = None, 0
            self.plateau_best, self.plateau_wait = None, 0
        return changed

    def _plateau(self, results: dict[str, Any], config: TrainingConfig) -> None:
        schedule = config.schedule
        if not isinstance(schedule, PlateauConfig) or schedule.by not in results:
            return
        if self.plateau_by not in (None, schedule.by):
            self.plateau_best, self.plateau_wait = None, 0
        self.plateau_by, value = schedule.by, results[schedule.by]
        if better(schedule.by, value, self.plateau_best):
            self.plateau_best, self.plateau_wait = value, 0
            return
        self.plateau_wait += 1
        if self.plateau_wait >= schedule.patience:
            self.rate_factor *= schedule.factor
            self.plateau_wait = 0

    def wants_validation(self, config: TrainingConfig) -> bool:
        """Whether a validation is due at the current update; at update 0 only with `start_from`."""
        is_trained = self.update > 0 or config.start_from is not None
        return is_trained and self.update % config.checkpoint_every == 0 and self.validated != self.update

    def reason_to_stop(self, config: TrainingConfig, updates_per_epoch: int, seconds: float) -> str | None:
        """A message on the first limit of the recipe that is reached, or None."""
        if config.max_updates and self.update >= config.max_updates:
            return _done(config.max_updates, "update")
        if config.max_epochs and self.update >= config.max_epochs * updates_per_epoch:
            return _done(config.max_epochs, "epoch")
        patient = config.patience and self.worse_in_a_row >= config.patience
        if patient and self.best_by in (None, config.best_by):  # with another metric, patience begins again
            return f"no better {config.best_by} in {config.patience} validations"
        if config.max_minutes and seconds >= 60 * config.max_minutes:
            return f"{config.max_minutes:g} minutes are over"
        return None

    def as_json(self) -> dict[str, Any]:
        """Plain data for `state.json`."""
        values = asdict(self)
        return {"format": 1} | {k: v for k, v in values.items() if not (k in NEWER and v is None)}

    @classmethod
    def from_json(cls, value: Any, file: Any) -> Progress:
        """The state in a parsed `state.json`; CorruptError if it is not one."""
        names = cls.__dataclass_fields__.keys() - NEWER
        if not isinstance(value, dict) or value.get("format") != 1 or value.keys() - {"format", *NEWER} != names:
            raise CorruptError("not a training state of format 1", file=file)
        newer: dict[str, Any] = {name: value.get(name) for name in NEWER}
        for name, word in newer.items():
            if not (word is None or isinstance(word, str)):
                raise CorruptError(f"{name} is {word!r}", file=file)
        whole = {
            "update",
            "applied",
            "skipped",
            "bad_in_a_row",
            "validated",
            "validations",
            "worse_in_a_row",
            "plateau_wait",
        }
        for name in names:
            v = value[name]
            fits = (
                isinstance(v, int) and not isinstance(v, bool)
                if name in whole
                else v is None or isinstance(v, int | float)
            )
            if not fits:
                raise CorruptError(f"{name} is {v!r}", file=file)
        return cls(**{name: value[name] for name in names}, **newer)
