"""Stop a run that cannot continue: non-finite steps, divergence, not enough memory."""

from __future__ import annotations

import contextlib
import errno
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from phraseloom.errors import DivergedError, FileProblem, PhraseloomError
from phraseloom.files import atomic_write_json
from phraseloom.options.training import TrainingConfig
from phraseloom.training.signals import StopSignal
from phraseloom.training.state import Progress

__all__ = [
    "StopSignal",
    "accept_step",
    "check_finite",
    "check_perplexity",
    "highest_perplexity",
    "naming_memory",
    "naming_the_batch",
]

SLOWER = "lower the learning rate or lengthen the warm-up"


def accept_step(
    state: Progress,
    config: TrainingConfig,
    loss: float,
    norm: float,
    batches: Sequence[np.ndarray],
    folder: Path | None,
) -> bool:
    """Whether loss and gradient norm are finite; counts the steps where they are not.

    After `bad_steps` in a row raises DivergedError, and writes the examples of the last one to `diverged.json` in `folder`.
    """
    if math.isfinite(loss) and math.isfinite(norm):
        state.bad_in_a_row = 0
        return True
    state.skipped += 1
    state.bad_in_a_row += 1
    if state.bad_in_a_row < config.bad_steps:
        return False
    where = "" if folder is None else f"; its examples are in {folder / 'diverged.json'}"
    if folder is not None:
        bundle = {
            "update": state.update + 1,
            "loss": repr(loss),
            "gradient_norm": repr(norm),
            "steps_taken": state.applied,
            "examples": [[int(i) for i in b] for b in batches],
        }
        try:
            atomic_write_json(folder / "diverged.json", bundle)
        except FileProblem:  # a full disk must not hide the divergence
            where = ""
    first = int(batches[0][0])
    raise DivergedError(
        f"{state.bad_in_a_row} updates in a row were not finite (loss {loss}, gradient norm {norm}), the last is update "
        f"{state.update + 1}, whose first example is {first}{where}",
        hint=SLOWER,
    )


def highest_perplexity(vocabulary: int, *, segmental: bool = False, continuous: bool = False) -> float:
    """The validation perplexity above which a model with a vocabulary of this size has diverged.

    The logits of initial weights have a variance of about 1, so the perplexity is up to twice the vocabulary. A segmental model
    also ends a segment at every source token, with probability 1 / vocabulary at first: up to two ends for a target token.
    Continuous output is not trained as a distribution over its table: a concentrated density, which is sure of a wrong word,
    has any perplexity, and may still translate: the limit is infinity.
    """
    if continuous:
        return math.inf
    return 4.0 * float(vocabulary) ** (3 if segmental else 1)


def check_perplexity(perplexity: float, config: TrainingConfig, highest: float) -> None:
    """Raise DivergedError if the perplexity is above `highest`, above the recipe's limit, or NaN."""
    limit = min(highest, config.alarm_perplexity or math.inf)
    if not perplexity <= limit:  # NaN is not
        raise DivergedError(
            f"validation perplexity {perplexity:.4g} is above {limit:g}: the model has diverged", hint=SLOWER
        )


def check_finite(tensors: dict[str, torch.Tensor], update: int) -> None:
    """Raise DivergedError if a number in `tensors` (by description) is not finite: such a state is never saved."""
    for description, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DivergedError(f"{description} is not finite after update {update}", hint=SLOWER)


@contextlib.contextmanager
def naming_the_batch(sources: np.ndarray, targets: np.ndarray, examples: np.ndarray, when: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the shape of the batch and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        source, target = int(sources[examples].max()) + 1, int(targets[examples].max()) + 1
        shape = f"{len(examples)} sentences × ({source} source, {target} target) tokens"
        raise PhraseloomError(
            f"out of memory {when}: a micro-batch of {shape}",
            hint="set or lower training.max_micro_tokens, which does not change the result as smaller batch_tokens would",
        ) from error


@contextlib.contextmanager
def naming_memory(when: str, hint: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that says when it happened and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not _out_of_memory(error):
            raise
        raise PhraseloomError(f"out of memory {when}", hint=hint) from error


def _out_of_memory(error: BaseException) -> bool:
    words = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return any(w in str(error) for w in words)
