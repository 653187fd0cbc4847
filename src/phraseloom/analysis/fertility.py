"""How well does a model tell fertility? Precision, recall and F1 of each class (Park and Tsvetkov 2019, Tables 4 and 5).

    precision = right / predicted     recall = right / total     F1 = 2 · right / (predicted + total)         0 where 0 / 0

Over all source tokens with a label; the predicted class is the likeliest one (ties: the lower). Beside the classes there is
the choice that the gate makes: word, where the word share is at least one half, or phrase.

Four working points. The one above is that of the probabilities that the model uses, less the shift if there is one
(`layers/fertility.py`). `as_trained` are the probabilities without the shift: those of the training objective. `break_even`
calls as many tokens phrases as there are, the likeliest ones: precision = recall, whatever the prior. `at_paper_recall` calls
the likeliest tokens phrases, as few as reach a recall: that of the paper's Table 4, whose precision there is 33 % for German to
English at a recall of 28 %, and 17 % for Turkish to English at 10 %.

    calibration     tokens by the probability p of a phrase, in the bins `EDGES`: their number, mean p, and share of phrases
    ECE             Σ_b n_b / N · |mean p − share|      (expected calibration error; bins as above)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phraseloom.errors import ModelError, UsageError
from phraseloom.layers.fertility import WORD_CLASSES, Fertility
from phraseloom.losses.fertility import CLASS_WEIGHTS, weighted_cross_entropy
from phraseloom.models.store import find_model, load_model, load_segmenter_of
from phraseloom.training.fertility import FertilityFitOptions, read_checked
from phraseloom.training.fertility_data import LabelledText, batches, join_states
from phraseloom.training.fertility_fit import Report

EDGES = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Bins of p, [a, b) and the last one [a, b]: narrow where p is small, because phrases are rare."""

PAPER_RECALL = 0.28
"""Recall of phrases in Table 4 of the paper, German to English; that of Turkish to English is 0.10."""

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
class Calibration:
    """Of each bin: tokens, the sum of their probabilities of a phrase, and phrases among them."""

    tokens: list[int]
    probability: list[float]
    phrases: list[int]

    @property
    def error(self) -> float:
        """The expected calibration error."""
        gaps = (abs(p - n) for p, n in zip(self.probability, self.phrases, strict=True))
        return sum(gaps) / max(1, sum(self.tokens))

    def as_dict(self) -> dict[str, Any]:
        """Plain data; bins without tokens are left out."""
        rows = zip(EDGES, EDGES[1:], self.tokens, self.probability, self.phrases, strict=False)
        bins = [{"from": a, "to": b, "tokens": n, "probability": p / n, "share": k / n} for a, b, n, p, k in rows if n]
        return {"error": self.error, "mean": sum(self.probability) / max(1, sum(self.tokens)), "bins": bins}


def calibration_of(probability_N: np.ndarray, is_phrase_N: np.ndarray) -> Calibration:
    """The reliability curve of probabilities (float64) against what was true."""
    bin_N = np.clip(np.searchsorted(EDGES, probability_N, side="right") - 1, 0, len(EDGES) - 2)
    tokens, phrases = (np.bincount(bin_N, w, len(EDGES) - 1) for w in (None, is_phrase_N.astype(np.float64)))
    sums = np.bincount(bin_N, probability_N, len(EDGES) - 1)
    return Calibration(tokens.tolist(), sums.tolist(), phrases.astype(int).tolist())


def break_even(probability_N: np.ndarray, is_phrase_N: np.ndarray) -> ClassScore:
    """The score of phrases where as many tokens are called phrases as there are (ties: the earlier tokens)."""
    total = int(is_phrase_N.sum())
    chosen = np.argsort(-probability_N, kind="stable")[:total]
    return ClassScore(total, total, int(is_phrase_N[chosen].sum()))


def at_recall(probability_N: np.ndarray, is_phrase_N: np.ndarray, recall: float) -> ClassScore:
    """The score of phrases where the fewest tokens are called phrases that reach a recall (ties: the earlier tokens)."""
    total = int(is_phrase_N.sum())
    right_N = np.cumsum(is_phrase_N[np.argsort(-probability_N, kind="stable")])
    needed = math.ceil(round(recall * total, 6))
    predicted = int(np.searchsorted(right_N, needed)) + 1 if needed else 0
    return ClassScore(total, predicted, needed)


@dataclass(frozen=True)
class FertilityScore:
    """`confusion_CC`: tokens by true and predicted class; `gate_22`: the same of word and phrase, as the gate chooses.

    `loss`: weighted cross-entropy in nats of the trained logits, with the weights of `losses/fertility.py`. `confusion_NCC`: of
    each sentence. `nll`: mean -log p of the true class, without weights. `trained_CC`, `trained_22`: as `confusion_CC` and
    `gate_22`, without the shift; None where they were not counted. `paper_recall`: the recall of `at_paper_recall`.
    """

    confusion_CC: np.ndarray
    gate_22: np.ndarray
    loss: float
    sentences: int
    confusion_NCC: np.ndarray | None = None
    nll: float | None = None
    calibration: Calibration | None = None
    break_even: ClassScore | None = None
    at_paper_recall: ClassScore | None = None
    trained_CC: np.ndarray | None = None
    trained_22: np.ndarray | None = None
    paper_recall: float = PAPER_RECALL

    @property
    def as_trained(self) -> dict[str, dict[str, ClassScore]]:
        """Classes and gate without the shift; empty where they were not counted."""
        if self.trained_CC is None or self.trained_22 is None:
            return {}
        classes = scores_of(self.trained_CC, NAMES[len(self.trained_CC)])
        return {"classes": classes, "gate": scores_of(self.trained_22, ("word", "phrase"))}

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
            "nll": self.nll,
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
            "break_even": None if self.break_even is None else self.break_even.as_dict(),
            "paper_recall": self.paper_recall,
            "at_paper_recall": None if self.at_paper_recall is None else self.at_paper_recall.as_dict(),
            "as_trained": {
                table: {name: score.as_dict() for name, score in scores.items()}
                for table, scores in self.as_trained.items()
            },
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
    recall: float = PAPER_RECALL,
    tags: Sequence[str] | None = None,
    report: Report = print,
) -> FertilityScore:
    """Score the fertility module of the model that `folder` means on a text with the fertilities of its words.

    `recall`: that of the working point `at_paper_recall`. `tags` before each sentence, for a model that has some; default:
    those of its generation settings. Raises UsageError unless the recall is between 0 and 1, ModelError for a model without
    the module, and as `read_checked` and `load_model`.
    """
    if not 0.0 < recall < 1.0:
        raise UsageError(f"a recall of {recall:g} is not between 0 and 1", hint="10 % is 0.10")
    model, tokenizer, generation = load_model(folder, device)
    fertility = getattr(model, "fertility", None)
    if not isinstance(fertility, Fertility):
        hint = "phraseloom fertility train gives it one"
        raise ModelError("this model has no fertility module", file=find_model(folder), hint=hint)
    options = FertilityFitOptions(classes=fertility.classes, max_tokens=max_tokens)
    chosen = generation.get("tags", []) if tags is None else tags
    text = read_checked(tokenizer, source, labels, options, load_segmenter_of(folder), report, tags=chosen)
    return score(model, fertility, text, device=torch.device(device), recall=recall)


@torch.no_grad()
def score(
    model: Any, fertility: Fertility, text: LabelledText, *, device: torch.device, recall: float = PAPER_RECALL
) -> FertilityScore:
    """The score over all tokens of a text, with a model whose `source_states` the module reads; 9 bytes a token are held."""
    classes, words = fertility.classes, WORD_CLASSES[fertility.classes]
    confusion_NCC, gate_22 = np.zeros((text.num_sentences, classes, classes), np.int64), np.zeros((2, 2), np.int64)
    trained_CC, trained_22 = np.zeros((classes, classes), np.int64), np.zeros((2, 2), np.int64)
    probability_N, is_phrase_N = np.zeros(len(text.labels)), text.labels >= words
    weights_C = torch.tensor(CLASS_WEIGHTS[classes], device=device)
    objective = weight = nll = 0.0
    for chosen, batch in batches(text, np.arange(text.num_sentences)):
        logits_BSC = fertility.classify(join_states(model, fertility, batch, device)).float()
        lengths = [int(text.bounds[i + 1] - text.bounds[i]) for i in chosen]
        logits_BSC = logits_BSC[:, len(text.tags) :]
        trained_NC = torch.cat([row[:length] for row, length in zip(logits_BSC, lengths, strict=True)])
        places = np.concatenate([np.arange(text.bounds[i], text.bounds[i + 1]) for i in chosen])
        true = text.labels[places].astype(np.int64)
        true_N = torch.from_numpy(true).to(device)
        sums = weighted_cross_entropy(trained_NC, true_N, weights_C)
        objective, weight = objective + float(sums.objective), weight + float(sums.weight)
        logits_NC = fertility.calibrate(trained_NC)
        nll += float(weighted_cross_entropy(logits_NC, true_N, torch.ones_like(weights_C)).objective)
        np.add.at(confusion_NCC, (np.repeat(chosen, lengths), true, logits_NC.argmax(-1).cpu().numpy()), 1)
        np.add.at(trained_CC, (true, trained_NC.argmax(-1).cpu().numpy()), 1)
        for counts_22, of_NC in ((gate_22, logits_NC), (trained_22, trained_NC)):
            phrase = (fertility.shares(of_NC)[:, 0] < 0.5).cpu().numpy().astype(np.int64)
            np.add.at(counts_22, (is_phrase_N[places].astype(np.int64), phrase), 1)
        probability_N[places] = logits_NC.double().softmax(-1)[:, words:].sum(-1).cpu().numpy()
    return FertilityScore(
        confusion_NCC.sum(0),
        gate_22,
        objective / weight,
        text.num_sentences,
        confusion_NCC,
        nll / len(text.labels),
        calibration_of(probability_N, is_phrase_N),
        break_even(probability_N, is_phrase_N),
        at_recall(probability_N, is_phrase_N, recall),
        trained_CC,
        trained_22,
        recall,
    )
