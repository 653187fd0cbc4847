"""What stops a run that cannot go on: steps that are not finite, a model that diverges, memory that does not suffice.

Signals that end a run politely: a flag is set, the loop saves and leaves; the second one ends it at once.

SIGHUP never counts as the second: a terminal that closes may send it twice, systemd sends it after SIGTERM.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from phraseloom.errors import DivergedError, FileProblem, PhraseloomError
from phraseloom.files import atomic_write_json
from phraseloom.options.training import TrainingConfig
from phraseloom.training.state import Progress

__all__ = ["StopSignal", "accept_step", "check_finite", "check_perplexity", "naming_memory", "naming_the_batch"]

SLOWER = "lower the learning rate or lengthen the warm-up"


def accept_step(
    state: Progress,
    config: TrainingConfig,
    loss: float,
    norm: float,
    batches: Sequence[np.ndarray],
    folder: Path | None,
) -> bool:
    """Whether a step with this loss and gradient norm may be taken; counts those that may not.

    After `bad_steps` in a row: DivergedError, with the examples of the last one in `diverged.json` of `folder`.
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


def check_perplexity(perplexity: float, config: TrainingConfig, vocabulary: int) -> None:
    """DivergedError if the model is far worse than a uniform guess, or above the recipe's alarm, or not finite."""
    # Fresh weights give logits of variance 1 or so: up to twice the vocabulary.
    limit = min(4.0 * vocabulary, config.alarm_perplexity or math.inf)
    if not perplexity <= limit:  # NaN is not
        raise DivergedError(
            f"validation perplexity {perplexity:.4g} is above {limit:g}: the model has diverged", hint=SLOWER
        )


def check_finite(tensors: dict[str, torch.Tensor], update: int) -> None:
    """DivergedError if a number in `tensors` (what it is: its values) is not finite: such a state is never saved."""
    for what, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DivergedError(f"{what} is not finite after update {update}", hint=SLOWER)


@contextlib.contextmanager
def naming_the_batch(sources: np.ndarray, targets: np.ndarray, examples: np.ndarray, when: str) -> Iterator[None]:
    """Turn running out of memory into an error that says on which shape, and what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        source, target = int(sources[examples].max()) + 1, int(targets[examples].max()) + 1
        shape = f"{len(examples)} sentences × ({source} source, {target} target) tokens"
        raise PhraseloomError(
            f"out of memory {when}: a micro-batch of {shape}",
            hint="lower training.batch_tokens, raise training.micro_batches, or set training.max_micro_tokens",
        ) from error


@contextlib.contextmanager
def naming_memory(when: str, hint: str) -> Iterator[None]:
    """Turn running out of memory into an error that says when, and what to do."""
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


POLITE = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")


class StopSignal:
    """A context in which SIGINT, SIGTERM, SIGUSR1 and SIGHUP only set a flag; nothing is done inside the handler.

    A SIGHUP that is ignored when the context is entered stays ignored (`nohup`).
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self.name: str | None = None
        self._insisted = False
        self._at_once = at_once
        self._before: dict[int, object] = {}

    @property
    def is_set(self) -> bool:
        """Whether a signal came."""
        return self.name is not None

    def _handle(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name != "SIGHUP":
            if self._insisted:
                if self._at_once is not None:
                    self._at_once()
                os._exit(128 + number)
            self._insisted = True
        self.name = self.name or name

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for name in POLITE:
                if hasattr(signal, name):
                    number = getattr(signal, name)
                    if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                        continue
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
