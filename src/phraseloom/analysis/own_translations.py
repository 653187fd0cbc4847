"""What two systems are compared by, sentence by sentence: their translations, log-probabilities and phrase links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phraseloom.decoding.translation import TranslationReport
from phraseloom.decoding.translator import Translator


@dataclass(frozen=True)
class ScoredRun:
    """The lines of one run, log P of the references (else of these lines) in nats, and phrase links as text.

    `phrases` None: not asked for, or not to be had, and then `why`.
    """

    lines: list[str]
    log_probs: list[float]
    phrases: list[str] | None = None
    why: str = ""


def translate_and_score(
    folder: Path,
    sources: Sequence[str],
    references: Sequence[str] | None,
    lines: Sequence[str] | None = None,
    *,
    trees: Sequence[str] | None = None,
    alignments: bool = False,
    device: str = "cpu",
) -> ScoredRun:
    """What a model makes of the sources (or `lines`, which it made before), and how probable it finds the references.

    Trees are handed on where the model takes its phrases from them. Raises as `Translator.translate` and `score`.
    """
    translator = Translator.from_pretrained(folder, device=device)
    of = trees if translator.segmenter is not None and translator.segmenter.needs_trees else None
    phrases, why = None, ""
    if lines is None:
        aligned = alignments and translator.can_align
        why = "" if aligned or not alignments else "the model attends to no source tokens"
        found = translator.translate(sources, trees=of, alignments=aligned, report=TranslationReport())
        lines = [translation.text for translation in found]
        if aligned:
            phrases = [_phrases(source, t) for source, t in zip(sources, found, strict=True)]
    elif alignments:
        why = "its translations were given, not made here"
    targets = lines if references is None else references
    scores = translator.score(sources, targets, trees=of)
    return ScoredRun(list(lines), [score.log_prob for score in scores], phrases, why)


def _phrases(source: str, translation: Any) -> str:
    """The phrase links as `der Hund → the dog (0.93)`, in the order of the target words."""
    words = [word for word in source.split(" ") if word]
    links = translation.phrases or []
    said = []
    for (s1, s2), (t1, t2), weight in links:
        said.append(f"{' '.join(words[s1:s2])} → {' '.join(translation.words[t1:t2])} ({weight:.2f})")
    return "; ".join(said)
