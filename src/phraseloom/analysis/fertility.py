"""How well does a model tell fertility? Precision, recall and F1 of each class (Park and Tsvetkov 2019, Tables 4 and 5).

    precision = right / predicted     recall = right / total     F1 = 2 · right / (predicted + total)         0 where 0 / 0

Over all source tokens with a label; the predicted class is the likeliest one (ties: the lower). Beside the classes there is
the choice that the gate makes: word, where the word share is at least one half, or phrase.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phraseloom.errors import ModelError
from phraseloom.layers.fertility import WORD_CLASSES, Fertility
from phraseloom.losses.fertility import CLASS_WEIGHTS, weighted_cross_entropy
from phraseloom.models.store import find_model, load_model, load_segmenter_of
from phraseloom.training.fertility import FertilityFitOptions, read_checked
from phraseloom.training.fertility_data import LabelledText, batches, join_states
from phraseloom.training.fertility_fit import Report

NAMES = {4: ("0", "1", "2", "3+"), 2: ("0-1", "2+")}
"""What the classes are called, by their number: words that a source word gives."""


@dataclass(frozen=True)
class ClassScore:
    """Tokens of a class: in truth, as predicted, and both."""

    total: int
    predicted: int
    right: int

    @property
    def precision(self) -> float:
        """Which share of those predicted is right."""
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Which share of those in truth is predicted."""
        return self.right / self.total if self.total else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.predicted + self.total
        return 2 * self.right / both if both else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data; shares are fractions."""
        scores = {"precision": self.precision, "recall": self.recall, "f1": self.f1}
        return {**scores, "total": self.total, "predicted": self.predicted, "right": self.right}


@dataclass(frozen=True)
class FertilityScore:
    """`confusion_CC`: tokens by true and predicted class; `gate_22`: the same of word and phrase, as the gate chooses.

    `loss`: weighted cross-entropy in nats, with the weights of `losses/fertility.py`. `confusion_NCC`: of each sentence.
    """

    confusion_CC: np.ndarray
    gate_22: np.ndarray
    loss: float
    sentences: int
    confusion_NCC: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """How many tokens were scored."""
        return int(self.confusion_CC.sum())

    @property
    def classes(self) -> dict[str, ClassScore]:
        """The score of each class, by its name."""
        return scores_of(self.confusion_CC, NAMES[len(self.confusion_CC)])

    @property
    def gate(self) -> dict[str, ClassScore]:
        """The score of the two choices."""
        return scores_of(self.gate_22, ("word", "phrase"))

    @property
    def accuracy(self) -> float:
        """Which share of all tokens is of the class predicted."""
        return float(np.trace(self.confusion_CC)) / self.tokens

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "sentences": self.sentences,
            "tokens": self.tokens,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "classes": {name: score.as_dict() for name, score in self.classes.items()},
            "gate": {name: score.as_dict() for name, score in self.gate.items()},
            "confusion": self.confusion_CC.tolist(),
            "by_sentence": {"classes": self._by_sentence()},
        }

    def _by_sentence(self) -> dict[str, dict[str, list[list[int]]]]:
        """The numerator and denominator of each sentence, of each score of each class."""
        if self.confusion_NCC is None:
            return {}
        totals_NC, predicted_NC = self.confusion_NCC.sum(2), self.confusion_NCC.sum(1)
        right_NC = self.confusion_NCC.diagonal(axis1=1, axis2=2)
        scores = {
            "precision": (right_NC, predicted_NC),
            "recall": (right_NC, totals_NC),
            "f1": (2 * right_NC, predicted_NC + totals_NC),
        }
        return {
            name: {score: np.stack([a[:, c], b[:, c]], 1).tolist() for score, (a, b) in scores.items()}
            for c, name in enumerate(NAMES[len(self.confusion_CC)])
        }


def scores_of(confusion_CC: np.ndarray, names: tuple[str, ...]) -> dict[str, ClassScore]:
    """The score of each class from the numbers of tokens by true (rows) and predicted class."""
    columns = (confusion_CC.sum(1), confusion_CC.sum(0), confusion_CC.diagonal())
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    return {name: ClassScore(*three) for name, three in zip(names, numbers, strict=True)}


def evaluate_fertility(
    folder: str | Path,
    source: Path,
    labels: Path,
    *,
    device: str = "cpu",
    max_tokens: int = FertilityFitOptions.max_tokens,
    report: Report = print,
) -> FertilityScore:
    """Score the fertility module of the model that `folder` means on a text with the fertilities of its words.

    Raises ModelError for a model without the module, and as `read_checked` and `load_model`.
    """
    model, tokenizer, _ = load_model(folder, device)
    fertility = getattr(model, "fertility", None)
    if not isinstance(fertility, Fertility):
        hint = "phraseloom fertility train gives it one"
        raise ModelError("this model has no fertility module", file=find_model(folder), hint=hint)
    options = FertilityFitOptions(classes=fertility.classes, max_tokens=max_tokens)
    text = read_checked(tokenizer, source, labels, options, load_segmenter_of(folder), report)
    return score(model, fertility, text, device=torch.device(device))


@torch.no_grad()
def score(model: Any, fertility: Fertility, text: LabelledText, *, device: torch.device) -> FertilityScore:
    """The score over all tokens of a text, with a model whose `source_states` the module reads."""
    classes, words = fertility.classes, WORD_CLASSES[fertility.classes]
    confusion_NCC, gate_22 = np.zeros((text.num_sentences, classes, classes), np.int64), np.zeros((2, 2), np.int64)
    weights_C = torch.tensor(CLASS_WEIGHTS[classes], device=device)
    objective = weight = 0.0
    for chosen, batch in batches(text, np.arange(text.num_sentences)):
        logits_BSC = fertility.classify(join_states(model, fertility, batch, device)).float()
        lengths = [int(text.bounds[i + 1] - text.bounds[i]) for i in chosen]
        logits_NC = torch.cat([row[:length] for row, length in zip(logits_BSC, lengths, strict=True)])
        true = np.concatenate([text.labels[text.bounds[i] : text.bounds[i + 1]] for i in chosen]).astype(np.int64)
        sums = weighted_cross_entropy(logits_NC, torch.from_numpy(true).to(device), weights_C)
        objective, weight = objective + float(sums.objective), weight + float(sums.weight)
        sentence = np.repeat(chosen, lengths)
        np.add.at(confusion_NCC, (sentence, true, logits_NC.argmax(-1).cpu().numpy()), 1)
        phrase = (fertility.word_share(logits_NC) < 0.5).cpu().numpy().astype(np.int64)
        np.add.at(gate_22, ((true >= words).astype(np.int64), phrase), 1)
    return FertilityScore(confusion_NCC.sum(0), gate_22, objective / weight, text.num_sentences, confusion_NCC)
