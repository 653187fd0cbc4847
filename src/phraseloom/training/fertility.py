"""A model with a trained fertility module from one without, everything else frozen (Park and Tsvetkov 2019, §2.3, §2.4; spec
§4.8).

What the frozen model knows of each source token is computed once. Of the tokens those that give a phrase are kept, and as many
others, drawn with the seed; validation takes all tokens. The same text, options and number of threads give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phraseloom.config import validate
from phraseloom.errors import DataError, FileProblem, ModelError, PhraseloomError, UsageError, plural
from phraseloom.files import (
    atomic_write_json,
    read_json,
    require_regular_file,
    sha256_file,
    verify_manifest,
    write_manifest,
)
from phraseloom.layers.fertility import WORD_CLASSES
from phraseloom.losses.fertility import prior_shift
from phraseloom.models.store import CONFIG, MODEL, find_model, load_model, load_segmenter_of, read_config, write_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig, fill_stored
from phraseloom.phrases.source import Segmenter
from phraseloom.replace import check_folder, new_folder
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.training.fertility_data import LabelledText, Room, choose_items, held_out, read_items, read_sentences
from phraseloom.training.fertility_fit import Epoch, FertilityFitOptions, Report, best_epoch, fit

__all__ = ["Epoch", "FertilityFitOptions", "Files", "read_checked", "train_fertility"]

ORIGIN = "fertility.json"
HELD_OUT, MOST_HELD_OUT = 0.05, 2000
"""Share of the sentences that validate where no text is given for it, and their largest number."""
PREFIX = "fertility."


@dataclass(frozen=True)
class Files:
    """A text and the fertilities of its words, and those that validate (None: some lines are held out for it).

    Raises FileProblem where one cannot be read, UsageError where one of a pair is missing.
    """

    source: Path
    labels: Path
    valid_source: Path | None = None
    valid_labels: Path | None = None

    def __post_init__(self) -> None:
        if (self.valid_source is None) != (self.valid_labels is None):
            raise UsageError("a validation text and its labels go together", hint="--valid-source, --valid-labels")
        for source, labels in self.pairs:
            require_regular_file(source, "source text")
            require_regular_file(labels, "file of fertilities")

    @property
    def pairs(self) -> Iterator[tuple[Path, Path]]:
        """Each text with its labels."""
        yield self.source, self.labels
        if self.valid_source is not None and self.valid_labels is not None:
            yield self.valid_source, self.valid_labels


def train_fertility(
    folder: str | Path,
    files: Files,
    output: Path,
    options: FertilityFitOptions,
    *,
    device: str = "cpu",
    overwrite: bool = False,
    tags: Sequence[str] | None = None,
    report: Report = print,
) -> list[Epoch]:
    """Write the model that `folder` means, with a fertility module trained on `files`, into `output`.

    Every other parameter stays as it is; a fertility module that the model had is replaced. `report` gets lines for people.
    `tags` before each sentence, for a model that has some, are also those of the generation settings of the new one; default:
    those of the old one.
    Raises ModelError for a model whose output does not choose between words and phrases, DataError for texts that do not fit
    or give no phrase, UsageError for an output folder that is in use, DivergedError, FileProblem, CorruptError.
    """
    origin, output, place = find_model(folder), Path(output), torch.device(device)
    inputs = [origin, *(path for pair in files.pairs for path in pair)]
    _can_write(output, origin)
    check_folder(output, MODEL, overwrite=overwrite, inputs=inputs)
    config = with_fertility(origin, options)
    old, tokenizer, generation = load_model(origin, device)
    segmenter = load_segmenter_of(origin)
    model = _successor(old, config, tokenizer, options.seed).to(place)
    generation = {**generation, **({} if tags is None else {"tags": list(tags)})}
    train, valid = _texts(tokenizer, files, options, segmenter, report, generation.get("tags", []))
    kept = np.arange(len(train.labels))
    if options.downsample:
        kept = choose_items(train.labels, options.classes, seed=options.seed)
    report(_summary(train, valid, kept, options.classes))
    if options.calibrate:
        shift = shift_of(train.labels, kept, options)
        config = with_fertility(origin, options, shift)
        model.fertility.set_shift(shift)
    room = Room(options.memory, output.absolute().parent)
    items = read_items(model, model.fertility, train, kept, room, device=place)
    validation = read_items(model, model.fertility, valid, np.arange(len(valid.labels)), room, device=place)
    history = fit(model.fertility, items, validation, options, device=place, report=report)

    said = read_config(origin)[0].get("languages", {})
    languages = (str(said.get("source", "")), str(said.get("target", "")))
    rest: dict[str, Any] = {"languages": languages, "generation": generation, "segmenter": segmenter}
    with new_folder(output, MODEL, overwrite=overwrite, inputs=inputs) as new:
        names = write_model(new, model, config, tokenizer, **rest)
        atomic_write_json(new / ORIGIN, _origin(origin, files, options, history, len(kept)))
        write_manifest(new, [*names, ORIGIN])
    return history


def shift_of(labels_N: np.ndarray, kept: np.ndarray, options: FertilityFitOptions) -> tuple[float, ...]:
    """What training on the items `kept` of all labels adds to the logit of each class (`losses/fertility.py`).

    Words are kept with one probability and phrases with another, whatever their class: `choose_items`.
    """
    words, phrases = labels_N < WORD_CLASSES[options.classes], labels_N >= WORD_CLASSES[options.classes]
    shares = [float(part[kept].sum() / max(1, part.sum())) or 1.0 for part in (words, phrases)]
    by_class = [shares[int(c >= WORD_CLASSES[options.classes])] for c in range(options.classes)]
    return prior_shift(by_class, options.class_weights)


def with_fertility(folder: Path, options: FertilityFitOptions, shift: tuple[float, ...] = ()) -> ModelConfig:
    """The configuration of the model in `folder`, with a fertility module. Raises ModelError where its output has no gate."""
    raw, config = read_config(folder)
    kind = config.output.kind
    if kind != "word_or_phrase":
        raise ModelError(
            f"this model has a {kind} output; fertility chooses between words and phrases",
            file=folder,
            hint="train a model with model.output: {kind: word_or_phrase}",
        )
    if getattr(config.decoder, "attention", None) == "fixed":
        hint = "it weighs the gate; train a model with another decoder.attention"
        raise ModelError("the decoder of this model has no attention", file=folder, hint=hint)
    module: dict[str, Any] = {"classes": options.classes, "inputs": options.inputs, "widths": list(options.widths)}
    if shift:
        module["shift"] = list(shift)
    stored = fill_stored(raw["model"])
    described = {**stored, "output": {**stored["output"], "fertility": module}}
    return validate(ModelConfig, described, file=folder / CONFIG)


def _successor(old: Any, config: ModelConfig, tokenizer: Tokenizer, seed: int) -> Any:
    """The model of `config` with the parameters of `old`, which need no gradient, and a fertility module drawn with `seed`."""
    with torch.random.fork_rng(devices=[]):
        new: Any = build(config, tokenizer)
        torch.manual_seed(seed)
        new.fertility.reset()
    known = dict(old.named_parameters())
    with torch.no_grad():
        for name, parameter in new.named_parameters():
            if not name.startswith(PREFIX):
                parameter.copy_(known[name])
                parameter.requires_grad_(False)
    return new.eval()


def _can_write(output: Path, model: Path) -> None:
    """What would fail at the end is refused before the work."""
    if output.is_dir() and output.resolve() in (model.resolve(), *model.resolve().parents):
        raise UsageError("the model is made from one in this folder", file=output, hint="choose another name")
    if not output.absolute().parent.is_dir():
        raise FileProblem("no such folder", file=output.absolute().parent)


def read_checked(
    tokenizer: Tokenizer,
    source: Path,
    labels: Path,
    options: FertilityFitOptions,
    segmenter: Segmenter | None,
    report: Report,
    *,
    tags: Sequence[str] = (),
) -> LabelledText:
    """A text with the classes of its tokens; what is left out of it is reported, and that a model with tags gets none.

    Raises DataError where no line is left, UsageError for a model that needs the parse tree of each line, or lacks a tag.
    """
    if segmenter is not None and segmenter.needs_trees:
        raise UsageError("the source phrases of this model are made of parse trees, which cannot be given here")
    text = read_sentences(
        tokenizer.source,
        source,
        labels,
        classes=options.classes,
        max_tokens=options.max_tokens,
        segmenter=segmenter,
        tags=tokenizer.tag_ids(tags),
    )
    if tokenizer.tags and not tags:
        report(f"warning: no --tag is given; the tags of this model are {', '.join(tokenizer.tags)}")
    reasons = {
        "long": f"of more than {options.max_tokens} tokens",
        "unclear": f"in which the tokens of each word are ambiguous, the first is {text.unclear}: tokenise the text first",
    }
    for name, reason in reasons.items():
        if text.left_out[name]:
            report(f"{source}: {plural(text.left_out[name], 'line')} left out {reason}")
    if not text.num_sentences:
        raise DataError("no line of it can be used", file=source)
    return text


def _texts(
    tokenizer: Tokenizer,
    files: Files,
    options: FertilityFitOptions,
    segmenter: Segmenter | None,
    report: Report,
    tags: Sequence[str],
) -> tuple[LabelledText, LabelledText]:
    """What is learned from, and what validates."""
    found = [read_checked(tokenizer, *pair, options, segmenter, report, tags=tags) for pair in files.pairs]
    if len(found) == 1:
        if found[0].num_sentences == 1:
            raise DataError("only one line can be used", file=files.source, hint="give a validation text too")
        found = [*held_out(found[0], share=HELD_OUT, most=MOST_HELD_OUT, seed=options.seed)]
    if not (found[0].labels >= WORD_CLASSES[options.classes]).any():
        hint = "they are made by phraseloom phrases segment --fertility"
        raise DataError("no word gives a phrase: there is nothing to learn", file=files.labels, hint=hint)
    return found[0], found[1]


def _summary(train: LabelledText, valid: LabelledText, kept: np.ndarray, classes: int) -> str:
    counts = ", ".join(f"{count:,}" for count in np.bincount(train.labels, minlength=classes))
    learned = f"{len(kept):,} of them are learned from"
    return (
        f"{plural(train.num_sentences, 'sentence')}, {plural(len(train.labels), 'token')} (by class: {counts}); {learned}; "
        f"validation: {plural(valid.num_sentences, 'sentence')}, {plural(len(valid.labels), 'token')}"
    )


def is_from(output: Path, folder: str | Path, files: Files, options: FertilityFitOptions) -> bool:
    """Whether `output` is a complete model that these options made from the model of `folder` and these files."""
    try:
        verify_manifest(output)
        noted = read_json(output / ORIGIN, "history of a fertility module")
    except PhraseloomError:
        return False
    expected = json.loads(json.dumps(_made_from(find_model(folder), files, options)))
    return isinstance(noted, dict) and all(noted.get(key) == value for key, value in expected.items())


def _made_from(origin: Path, files: Files, options: FertilityFitOptions) -> dict[str, Any]:
    named = {name: path for name, path in vars(files).items() if path is not None}
    return {
        "format": 1,
        "weights_sha256": sha256_file(origin / "model.safetensors"),
        "files": {name: {"name": path.name, "sha256": sha256_file(path)} for name, path in named.items()},
        "options": {**asdict(options), "weights": options.class_weights},
    }


def _origin(
    origin: Path, files: Files, options: FertilityFitOptions, history: list[Epoch], items: int
) -> dict[str, Any]:
    return {
        **_made_from(origin, files, options),
        "items": items,
        "history": [asdict(epoch) for epoch in history],
        "best_epoch": best_epoch(history).epoch,
    }
