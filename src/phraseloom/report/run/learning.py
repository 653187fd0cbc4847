"""Has a model learned anything? Two levels that need no model, and the warnings of a report about runs near them.

    unigram perplexity = exp(-1/N Σ log p(w)),   p(w) = (count of w in the training text + 1) / (its tokens + V)

The sum is over the N target tokens of the validation text, EOS included. A model that ignores the source and the words before
can reach it. A run has learned next to nothing if its best validation perplexity is above `UNIGRAM_SHARE` of this level, or if
its BLEU is below `BLEU_FLOOR`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phraseloom.data.corpus import Dataset, Split
from phraseloom.errors import PhraseloomError
from phraseloom.text.vocabulary import EOS

if TYPE_CHECKING:
    from phraseloom.report.run.parts import ComparedScore, Part
    from phraseloom.report.run.report import ReportedSystem
    from phraseloom.report.run.runs import OverRuns, RunFacts

UNIGRAM_SHARE = 0.8
BLEU_FLOOR = 2.0
MOST_PAIRS = 20_000  # of the training text, evenly spaced


def unigram_level(config: Mapping[str, Any] | None, fingerprint: str | None) -> float | None:
    """The unigram perplexity of the dataset of a run; None if the dataset is not there any more, or has changed."""
    data = (config or {}).get("data")
    folder = data.get("folder") if isinstance(data, Mapping) else None
    if not isinstance(folder, str) or fingerprint is None:
        return None
    try:
        dataset = Dataset.open(folder, verify=False)
        if dataset.fingerprint != fingerprint:
            return None
        size = len(dataset.tokenizer.target.vocabulary)
        counts = [_counts(dataset.split(name), size) for name in ("train", "valid")]
    except (PhraseloomError, OSError):
        return None
    return unigram_perplexity(*counts)


def unigram_perplexity(train_V: np.ndarray, valid_V: np.ndarray) -> float:
    """The perplexity of validation tokens under the unigram distribution of training tokens, from the counts of both."""
    log_p_V = np.log(train_V + 1.0) - math.log(float(train_V.sum()) + len(train_V))
    return float(np.exp(-(valid_V * log_p_V).sum() / valid_V.sum()))


def _counts(split: Split, size: int) -> np.ndarray:
    """How often each target token occurs, (V,); EOS once per sentence."""
    numbers = np.unique(np.linspace(0, len(split) - 1, min(len(split), MOST_PAIRS)).astype(int))
    counts = np.zeros(size)
    for number in numbers.tolist():
        counts += np.bincount(split.target(number), minlength=size)
    counts[EOS] += len(numbers)
    return counts


def learned_nothing(systems: Sequence[ReportedSystem], parts: Sequence[Part] = ()) -> Iterator[str]:
    """A warning for each system whose figures are those of a model that has learned next to nothing.

    Its test BLEU is that of its summary, else of the first of the `parts` that has one.
    """
    for system in systems:
        test = system.summary.scores.get("BLEU") or _bleu_of_parts(system.name, parts)
        reasons = [*_perplexity_reasons(system.runs), *_bleu_reasons(test, system.summary.valid_bleu)]
        if reasons:
            yield f"{system.name} has learned next to nothing, so it cannot be compared: {'; '.join(reasons)}."


def _perplexity_reasons(runs: Sequence[RunFacts]) -> Iterator[str]:
    for run in runs:
        level, best = run.unigram_perplexity, run.valid_perplexity
        if run.output not in (None, "softmax") or level is None or best is None:
            continue
        if best.value > UNIGRAM_SHARE * level:
            yield (
                f"the best validation perplexity of {run.folder} is {best.value:.1f}, above {100 * UNIGRAM_SHARE:.0f} % "
                f"of that of a unigram model ({level:.1f})"
            )


def _bleu_of_parts(name: str, parts: Sequence[Part]) -> ComparedScore | None:
    whole = [system for part in parts if part.kind == "scores" and part.of is None for system in part.systems]
    return next((s.scores["BLEU"] for s in whole if s.name == name and "BLEU" in s.scores), None)


def _bleu_reasons(test: ComparedScore | None, valid: OverRuns | None) -> Iterator[str]:
    if test is not None and test.value < BLEU_FLOOR:
        yield f"BLEU is {test.value:.2f}, below {BLEU_FLOOR:g}"
    elif test is None and valid is not None and valid.mean < BLEU_FLOOR:
        yield f"the best validation BLEU is {valid.mean:.2f}, below {BLEU_FLOOR:g}"
