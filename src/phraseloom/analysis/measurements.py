"""Everything that a report can measure of one trained model, from whatever text there is.

Each measurement is that of a verb (`evaluate`, `analyse …`, `fertility evaluate`) in the form of its JSON. What a model cannot
have (no attention, no fertility module) or the material does not allow is a `Lack` with the reason, and ends nothing.

What two systems are compared by, sentence by sentence: their translations, log-probabilities and phrase links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phraseloom.align.links import Gold
from phraseloom.analysis.activation import activation_shares
from phraseloom.analysis.alignment import Files, measure
from phraseloom.analysis.contrastive import JudgedItem, judge
from phraseloom.analysis.contrastive_items import Item
from phraseloom.analysis.entropy import attention_entropy
from phraseloom.analysis.fertility import evaluate_fertility
from phraseloom.decoding.batching import num_workers
from phraseloom.decoding.source_phrases import TREES
from phraseloom.decoding.translation import TranslationReport
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.metrics.ratio import plain

KINDS = ("translation", "contrastive", "alignment", "entropy", "activation", "fertility")


@dataclass(frozen=True)
class Material:
    """What models are measured on: parallel lines with what is known of them, contrastive items, fertilities.

    `trees` of the sources; `gold` links of the pairs; `most` pairs are looked into for entropy and activation, the first ones.
    `labels`: fertilities of the words of the file `labelled`.
    """

    sources: Sequence[str] | None = None
    references: Sequence[str] | None = None
    trees: Sequence[str] | None = None
    trees_file: Path | None = None
    gold: Sequence[Gold] | None = None
    items: Sequence[Item] | None = None
    labelled: Path | None = None
    labels: Path | None = None
    files: Files = ("source", "reference")
    most: int = 500
    translate: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to measure."""
        return not _wanted(self)


@dataclass(frozen=True)
class Lack:
    """Why something could not be measured."""

    why: str


@dataclass(frozen=True)
class Translated:
    """The translations of all sources, what they took, and what was not as it should be."""

    lines: list[str]
    seconds: float
    tokens: int
    workers: int
    device: str
    options: dict[str, Any]
    warnings: list[str]


Say = Callable[[str], None]


def measure_model(folder: Path, material: Material, *, device: str = "cpu", say: Say = print) -> dict[str, Any]:
    """By kind of `KINDS`: what was measured (`Translated`, `JudgedItem`, plain data), or a `Lack`; only what was asked for.

    Raises FileProblem, CorruptError, ModelError where the model cannot be loaded, DataError where a text does not fit.
    """
    translator = Translator.from_pretrained(folder, device=device)
    if not hasattr(translator.model, "encode"):
        raise ModelError("not a model of translations", file=folder)
    reads_trees = translator.segmenter is not None and translator.segmenter.needs_trees
    lacks_trees = "it takes its phrases from parse trees, and none were given (--trees)"
    trees = material.trees if reads_trees else None
    wanted = _wanted(material)
    found: dict[str, Any] = {}
    for kind in wanted:
        if reads_trees and trees is None and kind not in ("contrastive", "fertility"):
            found[kind] = Lack(lacks_trees)
            continue
        say(f"{folder}: {kind}")
        try:
            found[kind] = _MEASURES[kind](translator, folder, material, trees, device)
        except ModelError as error:
            found[kind] = Lack(error.what)
        except UsageError as error:
            if kind != "contrastive" or not reads_trees:
                raise
            found[kind] = Lack(error.what)
        except DataError as error:
            if error.file != TREES or material.trees_file is None:
                raise
            raise DataError(error.what, file=material.trees_file, line=error.line, hint=error.hint) from error
    return found


def _wanted(material: Material) -> list[str]:
    pairs = material.sources is not None and material.references is not None
    asked = {
        "translation": material.sources is not None and material.translate,
        "contrastive": material.items is not None,
        "alignment": pairs and material.gold is not None,
        "entropy": pairs,
        "activation": pairs,
        "fertility": material.labels is not None,
    }
    return [kind for kind in KINDS if asked[kind]]


def _translate(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> Translated:
    counts = TranslationReport()
    start = time.perf_counter()
    found = translator.translate(material.sources, trees=trees, report=counts)
    seconds = time.perf_counter() - start
    config = translator.config
    return Translated(
        [translation.text for translation in found],
        seconds,
        sum(len(translation.tokens) + 1 for translation in found),
        num_workers(config.workers, translator.device),
        device,
        {"beam": config.beam, "length_penalty": config.length_penalty.model_dump(mode="json")},
        counts.warnings(config.max_input_tokens),
    )


def _contrastive(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> JudgedItem:
    return judge(translator, material.items or [])


def _alignment(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    sources, targets = material.sources or [], material.references or []
    measured = measure(translator, sources, targets, material.gold or [], trees=trees, files=material.files)
    return {"model": str(folder), "settings": [plain(m.as_dict()) for m in measured]}


def _entropy(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    some = slice(material.most)
    of = None if trees is None else trees[some]
    found = attention_entropy(translator, (material.sources or [])[some], (material.references or [])[some], trees=of)
    return {"model": str(folder), **plain(asdict(found))}


def _activation(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    uses = _phrasal(translator.model)
    some = slice(material.most)
    of = None if trees is None else trees[some]
    sources, targets = (material.sources or [])[some], (material.references or [])[some]
    return plain(asdict(activation_shares(translator, sources, targets, uses=uses, trees=of)))


def _phrasal(model: Any) -> list[str]:
    """The uses of attention that have phrase slots. Raises ModelError where none has."""
    decoder = model.decoder
    structures = {
        "encoder-self": getattr(getattr(model, "encoder", None), "structures", ()),
        "decoder-self": getattr(decoder, "own_structures", ()),
        "cross": decoder.cross_structures,
    }
    found = [use for use, some in structures.items() if any(not s.is_token for s in some)]
    if not found:
        raise ModelError("its attention has no phrase slots")
    return found


def _fertility(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    assert material.labels is not None and material.labelled is not None
    found = evaluate_fertility(folder, material.labelled, material.labels, device=device, report=lambda _: None)
    return {"model": str(folder), **plain(found.as_dict())}


_MEASURES: dict[str, Callable[..., Any]] = {
    "translation": _translate,
    "contrastive": _contrastive,
    "alignment": _alignment,
    "entropy": _entropy,
    "activation": _activation,
    "fertility": _fertility,
}


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
