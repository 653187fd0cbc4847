"""Learning fertility from items: Adam on the weighted cross-entropy; of all epochs the best stays.

The same items, options and number of threads give the same parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from phraseloom.errors import DivergedError, UsageError
from phraseloom.layers.fertility import Fertility
from phraseloom.losses.fertility import CLASS_WEIGHTS, weighted_cross_entropy
from phraseloom.training.fertility_data import Items

CHUNK = 4096

Report = Callable[[str], None]


@dataclass(frozen=True)
class FertilityFitOptions:
    """How a fertility module is made and trained.

    `classes`, `inputs`, `widths`: see `layers/fertility.py`. `weights` of the classes (None: those of `losses/fertility.py`).
    `downsample`: only as many words as phrases are learned from. `batch`: items of an update. `max_tokens`: longer lines are
    left out. `memory`: bytes of inputs that are held; what is above it lies in a file. `calibrate`: the prior that `downsample`
    and `weights` bring in is taken off again (the shift of the module), and the epoch with the lowest unweighted loss of the
    calibrated probabilities stays; without it all is as in the released program. Raises UsageError for weights or a rate that
    cannot be.
    """

    classes: int = 4
    inputs: str = "both"
    widths: tuple[int, ...] = (4096, 1024)
    weights: tuple[float, ...] | None = None
    downsample: bool = True
    epochs: int = 10
    rate: float = 5e-4
    batch: int = 256
    seed: int = 1
    max_tokens: int = 256
    memory: int = 2**31
    calibrate: bool = True

    def __post_init__(self) -> None:
        given = self.class_weights
        if len(given) != self.classes or not all(0 < weight < math.inf for weight in given):
            shown = ", ".join(f"{weight:g}" for weight in given)
            raise UsageError(f"class weights {shown}: one positive number for each of the {self.classes} classes")
        if not 0 < self.rate < math.inf:
            raise UsageError(f"learning rate {self.rate:g}: a positive number is expected")

    @property
    def class_weights(self) -> tuple[float, ...]:
        """The weight of each class."""
        return CLASS_WEIGHTS[self.classes] if self.weights is None else self.weights


@dataclass(frozen=True)
class Epoch:
    """The loss (nats) of an epoch, from 1: of its updates, and of the validation items after it."""

    epoch: int
    train_loss: float
    valid_loss: float


def best_epoch(history: list[Epoch]) -> Epoch:
    """The epoch with the lowest validation loss, the first of several."""
    return min(history, key=lambda epoch: (epoch.valid_loss, epoch.epoch))


def weighted_loss(fertility: Fertility, items: Items, weights: tuple[float, ...], *, device: torch.device) -> float:
    """The weighted cross-entropy of items in nats, of the logits less the shift, `CHUNK` of them at a time."""
    weights_C = torch.tensor(weights, dtype=torch.float32, device=device)
    objective = weight = 0.0
    with torch.no_grad():
        for x_NI, y_N in zip(items.inputs_NI.split(CHUNK), items.labels_N.split(CHUNK), strict=True):
            logits_NC = fertility.calibrate(fertility.classify(x_NI.to(device)))
            sums = weighted_cross_entropy(logits_NC, y_N.to(device), weights_C)
            objective, weight = objective + float(sums.objective), weight + float(sums.weight)
    return objective / weight


def fit(
    fertility: Fertility,
    train: Items,
    valid: Items,
    options: FertilityFitOptions,
    *,
    device: torch.device,
    report: Report,
) -> list[Epoch]:
    """Train the module, whose shift is the final one; it ends with the parameters that it had after the best epoch.

    Raises DivergedError where a loss is not finite.
    """
    optimizer = torch.optim.Adam(fertility.parameters(), lr=options.rate, fused=True)
    valid_weights = (1.0,) * options.classes if options.calibrate else options.class_weights
    history: list[Epoch] = []
    best: dict[str, Any] = {}
    for epoch in range(1, options.epochs + 1):
        train_loss = _one_epoch(fertility, train, options, optimizer, epoch, device)
        valid_loss = weighted_loss(fertility, valid, valid_weights, device=device)
        if not math.isfinite(valid_loss):
            raise DivergedError(f"epoch {epoch}: the loss is not finite", hint="a lower learning rate may help")
        history.append(Epoch(epoch, train_loss, valid_loss))
        if best_epoch(history).epoch == epoch:
            best = copy.deepcopy(fertility.state_dict())
        report(f"epoch {epoch} of {options.epochs}: loss {train_loss:.4f}, validation {valid_loss:.4f}")
    fertility.load_state_dict(best)
    return history


def _one_epoch(
    fertility: Fertility,
    items: Items,
    options: FertilityFitOptions,
    optimizer: torch.optim.Optimizer,
    epoch: int,
    device: torch.device,
) -> float:
    """All items once, in an order of the seed and the epoch; their loss on the way."""
    weights_C = torch.tensor(options.class_weights, dtype=torch.float32, device=device)
    generator = torch.Generator().manual_seed(options.seed * 1_000_003 + epoch)
    order = torch.randperm(len(items.labels_N), generator=generator)
    objective = weight = 0.0
    for rows in order.split(options.batch):
        logits_NC = fertility.classify(items.inputs_NI[rows].to(device))
        sums = weighted_cross_entropy(logits_NC, items.labels_N[rows].to(device), weights_C)
        optimizer.zero_grad()
        (sums.objective / sums.weight).backward()
        optimizer.step()
        objective, weight = objective + float(sums.objective.detach()), weight + float(sums.weight)
    return objective / weight
