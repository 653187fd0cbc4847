"""All measurements of a trained model for `report`, and the translations and scores of a model for `diff`.

Each measurement is that of a command (`evaluate`, `analyse …`, `fertility evaluate`) in the form of its JSON. A measurement
that the model (no attention, no fertility module) or the material does not allow is a `Lack` with the reason, not an error.
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
from phraseloom.decoding.long_lines import CroppedLines
from phraseloom.decoding.source_phrases import TREES
from phraseloom.decoding.translation import TranslationReport
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.metrics.ratio import plain

KINDS = ("translation", "contrastive", "alignment", "entropy", "activation", "fertility")
GIVEN_LINES = "its translations were given, not made here"
UNKNOWN_PHRASES = "the targets of the model are joined text (phrases segment), and plain text does not tell it"


@dataclass(frozen=True)
class Material:
    """The data to measure on: parallel lines with annotation, contrastive items, fertilities.

    `trees` belong to the sources, `gold` links to the pairs. Entropy and activation use the first `most` pairs. `labels` has
    the fertilities of the words of the file `labelled`. `tags` are given to models that have tags.
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
    tags: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to measure."""
        return not _kinds(self)


@dataclass(frozen=True)
class Lack:
    """The reason why something could not be measured."""

    why: str


@dataclass(frozen=True)
class Translated:
    """The translations of all sources, with time, settings and warnings."""

    lines: list[str]
    seconds: float
    tokens: int
    workers: int
    device: str
    options: dict[str, Any]
    warnings: list[str]


def measure_model(
    folder: Path, material: Material, *, device: str = "cpu", say: Callable[[str], None] = print
) -> dict[str, Any]:
    """The measurements that `material` allows, by KINDS: `Translated`, `JudgedItem`, plain data, or a `Lack`.

    `say` logs progress. Raises FileProblem, CorruptError, ModelError for an unusable model, UsageError for a tag that it lacks,
    DataError for text that does not fit.
    """
    translator = _with_tags(Translator.from_pretrained(folder, device=device), folder, material.tags, say)
    if not hasattr(translator.model, "encode"):
        raise ModelError("not a translation model", file=folder)
    lacks_trees = "its phrases come from parse trees, and there are none (--trees)"
    trees = material.trees if translator.needs_trees else None
    result: dict[str, Any] = {}
    for kind in _kinds(material):
        if translator.needs_trees and trees is None and kind not in ("contrastive", "fertility"):
            result[kind] = Lack(lacks_trees)
            continue
        say(f"{folder}: {kind}")
        try:
            result[kind] = _MEASURES[kind](translator, folder, material, trees, device)
        except ModelError as error:
            result[kind] = Lack(error.what)
        except UsageError as error:
            if kind not in ("contrastive", "fertility") or not translator.needs_trees:
                raise
            result[kind] = Lack(error.what)
        except DataError as error:
            if error.file != TREES or material.trees_file is None:
                raise
            raise DataError(error.what, file=material.trees_file, line=error.line, hint=error.hint) from error
    return result


def _with_tags(translator: Translator, folder: Path, tags: Sequence[str], say: Callable[[str], None]) -> Translator:
    """The translator with `tags`, if its model has tags. Raises UsageError for one that the model lacks."""
    own = translator.tokenizer.tags
    if not own:
        if tags:
            say(f"{folder} has no tags: --tag is left out")
        return translator
    if tags:
        translator.tokenizer.tag_ids(tags)
        return translator.with_options(tags=list(tags))
    if not translator.config.tags:
        say(f"warning: no --tag is given; the tags of {folder} are {', '.join(own)}")
    return translator


def _kinds(material: Material) -> list[str]:
    pairs = material.sources is not None and material.references is not None
    possible = {
        "translation": material.sources is not None and material.translate,
        "contrastive": material.items is not None,
        "alignment": pairs and material.gold is not None,
        "entropy": pairs,
        "activation": pairs,
        "fertility": material.labels is not None,
    }
    return [kind for kind in KINDS if possible[kind]]


def _translate(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> Translated:
    counts = TranslationReport()
    start = time.perf_counter()
    translations = translator.translate(material.sources, trees=trees, report=counts)
    seconds = time.perf_counter() - start
    config = translator.config
    return Translated(
        [translation.text for translation in translations],
        seconds,
        sum(len(translation.tokens) + 1 for translation in translations),
        num_workers(config.workers, translator.device),
        device,
        {"beam": config.beam, "length_penalty": config.length_penalty.model_dump(mode="json")},
        counts.warnings(config.max_input_tokens),
    )


def _contrastive(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> JudgedItem:
    return judge(translator, material.items or [])


def _alignment(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    _forces_references(translator)
    sources, targets = material.sources or [], material.references or []
    counted = CroppedLines("pair")
    gold = material.gold or []
    measured = measure(translator, sources, targets, gold, trees=trees, files=material.files, cropped=counted)
    return {"model": str(folder), "settings": [plain(m.as_dict()) for m in measured], "cropped": counted.cropped}


def _entropy(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    _forces_references(translator)
    sources, targets, trees = _first(material, trees)
    return {"model": str(folder), **plain(asdict(attention_entropy(translator, sources, targets, trees=trees)))}


def _activation(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    _forces_references(translator)
    sources, targets, trees = _first(material, trees)
    uses = _phrasal(translator.model)
    return plain(asdict(activation_shares(translator, sources, targets, uses=uses, trees=trees)))


def _forces_references(translator: Any) -> None:
    """Raise ModelError if the references cannot be the target of the model."""
    if translator.tokenizer.target.joined:
        raise ModelError(UNKNOWN_PHRASES, hint="give phraseloom analyse the joined text of phrases segment")


def _first(material: Material, trees: Any) -> tuple[Sequence[str], Sequence[str], Any]:
    """The first `material.most` sources, references and trees."""
    first = slice(material.most)
    return (material.sources or [])[first], (material.references or [])[first], None if trees is None else trees[first]


def _phrasal(model: Any) -> list[str]:
    """The uses of attention that have phrase slots. Raises ModelError if there are none."""
    decoder = model.decoder
    structures = {
        "encoder-self": getattr(getattr(model, "encoder", None), "structures", ()),
        "decoder-self": getattr(decoder, "own_structures", ()),
        "cross": decoder.cross_structures,
    }
    uses = [use for use, layers in structures.items() if any(not s.is_token for s in layers)]
    if not uses:
        raise ModelError("its attention has no phrase slots")
    return uses


def _fertility(translator: Any, folder: Path, material: Material, trees: Any, device: str) -> dict[str, Any]:
    assert material.labels is not None and material.labelled is not None
    options: dict[str, Any] = {"device": device, "tags": translator.config.tags, "report": lambda _: None}
    result = evaluate_fertility(folder, material.labelled, material.labels, **options)
    return {"model": str(folder), **plain(result.as_dict())}


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
    """The lines of one run, log P of the references (or of these lines) in nats, and phrase links as text.

    `phrases` is None if they were not requested or are not available; `why` has the reason in the latter case. `log_probs` is
    None for a model of joined text, except for its own translations: plain text does not tell its tokens and phrases.
    """

    lines: list[str]
    log_probs: list[float] | None
    phrases: list[str] | None = None
    why: str = ""


def translate_and_score(
    folder: Path,
    sources: Sequence[str],
    references: Sequence[str] | None,
    lines: Sequence[str] | None = None,
    *,
    trees: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    alignments: bool = False,
    device: str = "cpu",
    say: Callable[[str], None] = print,
) -> ScoredRun:
    """Translate the sources with a model (or use `lines`, its earlier translations), and score the references.

    Without references, log P is that of the translations, with the phrases that the model wrote.

    A model with phrases from parse trees gets `trees`, one with tags `tags`. `say` logs what a model did not get. Raises as
    `Translator.translate` and `score`.
    """
    translator = _with_tags(Translator.from_pretrained(folder, device=device), folder, tags, say)
    if not translator.needs_trees:
        trees = None
    phrases, why = None, ""
    joined = translator.tokenizer.target.joined
    targets = references
    if lines is None:
        aligned = alignments and translator.can_align
        why = "" if aligned or not alignments else "the model attends to no source tokens"
        translations = translator.translate(sources, trees=trees, alignments=aligned, report=TranslationReport())
        lines = [translation.text for translation in translations]
        if targets is None:
            targets = [" ".join(t.tokens) for t in translations] if joined else lines
        if aligned:
            side = translator.tokenizer.source
            phrases = [_phrases(side.words(source), t) for source, t in zip(sources, translations, strict=True)]
    elif alignments:
        why = GIVEN_LINES
    if joined and (targets is None or targets is references):
        return ScoredRun(list(lines), None, phrases, why)
    scores = translator.score(sources, lines if targets is None else targets, trees=trees)
    return ScoredRun(list(lines), [score.log_prob for score in scores], phrases, why)


def _phrases(words: Sequence[str], translation: Any) -> str:
    """The phrase links as `der Hund → the dog (0.93)`, in the order of the target words; `words`: those of the source."""
    links = translation.phrases or []
    return "; ".join(
        f"{' '.join(words[s1:s2])} → {' '.join(translation.words[t1:t2])} ({weight:.2f})"
        for (s1, s2), (t1, t2), weight in links
    )
