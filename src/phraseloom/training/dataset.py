"""Open the dataset of a recipe, check that it fits, and make batches on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from phraseloom.data.corpus import Dataset, Split
from phraseloom.data.tensors import Batch, from_padded
from phraseloom.errors import FileProblem, UsageError
from phraseloom.options.training import flatten
from phraseloom.phrases.segmenters import cut_sizes
from phraseloom.recipe import AnyRecipe, LanguageModelRecipe
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.training.checkpoint import list_checkpoints

__all__ = ["as_prepared", "batches_of", "check_vocabularies", "line_tags", "open_dataset", "reads_phrases"]

OF_FILES = ("file", "sha256", "vectors", "vectors_sha256")  # a dataset may have been prepared at another place


def open_dataset(recipe: AnyRecipe) -> Dataset:
    """The dataset of a recipe. Raises FileProblem if it is not prepared, UsageError if it does not fit the recipe."""
    folder = recipe.data.folder
    if not Path(folder).exists():
        raise FileProblem("the prepared dataset is not there", file=folder, hint="run phraseloom prepare first")
    dataset = Dataset.open(folder)
    if dataset.is_text != isinstance(recipe, LanguageModelRecipe):
        kind = "text of one language" if dataset.is_text else "pairs of two languages"
        hint = "prepare it again with this recipe, or name another data.folder"
        raise UsageError(
            f"this dataset has {kind}, but the task of the recipe is {recipe.task}", file=folder, hint=hint
        )
    if "valid" not in dataset:
        hint = "give data.valid and run phraseloom prepare again"
        raise UsageError("training needs validation text, and this dataset has none", file=folder, hint=hint)
    if reads_phrases(recipe) and dataset.segmenter is None:
        raise UsageError(
            "model.phrases.segments is {kind: dataset}, and this dataset has no phrases",
            file=folder,
            hint="give data.phrases ({kind: tree} or {kind: table, file: FILE}) and run phraseloom prepare again",
        )
    if recipe.training.guided_alignment is not None and dataset.split("train").info.links is None:
        raise UsageError(
            "training.guided_alignment needs word links, and this dataset has none",
            file=folder,
            hint="give data.train.0.links: FILE and run phraseloom prepare again",
        )
    return dataset


def as_prepared(recipe: AnyRecipe, dataset: Dataset) -> tuple[AnyRecipe, list[str]]:
    """The recipe with the text options, subwords and phrases that its dataset was prepared with, and a warning of each change.

    What `prepare` takes from `data.tokenizer` is not compared, nor are the places of files; `phrase_data.check_prepared`
    compares the text and vectors that it makes for `data.target_phrases`.
    """
    own, theirs, warnings = recipe.data, dataset.config, list[str]()
    names = [] if own.tokenizer is not None else ["text", "subwords"]
    made = ("data.subwords.vectors",) if getattr(own, "target_phrases", None) is not None else ()
    names += ["phrases"] if reads_phrases(recipe) else []
    differing = {}
    for name in names:
        here, there = (flatten(data.model_dump(mode="json", include={name}), "data") for data in (own, theirs))
        keys = [key for key in sorted(here.keys() | there.keys()) if here.get(key) != there.get(key)]
        keys = [key for key in keys if key.split(".")[-1] not in OF_FILES and not key.startswith(made)]
        warnings += [
            f"warning: this dataset was prepared with {key}: {there.get(key)}, but the recipe has {here.get(key)}; "
            "the dataset counts"
            for key in keys
        ]
        if keys:
            differing[name] = getattr(theirs, name)
    data = own.model_copy(update=differing)
    return (recipe.model_copy(update={"data": data}) if differing else recipe), warnings


def check_vocabularies(run: Path, dataset: Dataset) -> None:
    """Raise UsageError if a vocabulary of the newest checkpoint is not that of the dataset: its rows belong to other tokens."""
    checkpoints = list_checkpoints(run)
    if not checkpoints or not (folder := checkpoints[-1][1] / "tokenizer").is_dir():
        return
    theirs = Tokenizer.load(folder)
    for side in ("source", "target"):
        ours, trained = (list(getattr(t, side).vocabulary) for t in (dataset.tokenizer, theirs))
        if ours != trained:
            size = f"of {len(ours):,} pieces" if len(ours) != len(trained) else "with other pieces, or in another order"
            raise UsageError(
                f"this run was trained with another {side} vocabulary than that of the dataset, which is one {size}",
                file=run,
                hint=f"prepare the data again with data.tokenizer: {checkpoints[-1][1]}, or choose another --run folder",
            )


def reads_phrases(recipe: AnyRecipe) -> bool:
    """Whether the model of a recipe reads source phrases from the dataset."""
    if isinstance(recipe, LanguageModelRecipe):
        return False
    return recipe.model.phrases is not None and recipe.model.phrases.segments.kind == "dataset"


def line_tags(dataset: Dataset, split: str) -> list[tuple[str, ...]] | None:
    """The tags of each raw line of a split; None if its corpora have none."""
    entries = dataset.config.files(split)
    if not any(files.tags for files in entries):
        return None
    infos = dataset.split(split).info.files
    return [files.tags for files, info in zip(entries, infos, strict=True) for _ in range(info.lines)]


def batches_of(
    split: Split, device: torch.device, *, phrases: bool = False, links: bool = False, longest: int | None = None
) -> Callable[[np.ndarray], Batch]:
    """A function from example indices to a batch on the device, with the `phrases` and `links` of the dataset if requested.

    Sides above `longest` subwords are cropped.
    """

    def batch_of(indices: np.ndarray) -> Batch:
        sizes = split.phrase_sizes(indices) if phrases else None
        linked = split.links(indices) if links else None
        source, source_lengths, target, target_lengths = split.batch(indices)
        if longest is not None:
            if sizes is not None and source_lengths.max(initial=0) > longest:
                sizes = _cropped_sizes(sizes, source_lengths, longest)
            source, source_lengths = source[:, :longest], source_lengths.clip(max=longest)
            target, target_lengths = target[:, :longest], target_lengths.clip(max=longest)
        batch = from_padded(source, source_lengths, target, target_lengths, phrase_sizes=sizes, links=linked)
        return batch.to(device)

    return batch_of


def _cropped_sizes(sizes_BP: np.ndarray, source_lengths: np.ndarray, longest: int) -> np.ndarray:
    """The phrase sizes of sources cropped to `longest` subwords."""
    result = np.zeros_like(sizes_BP, shape=(len(sizes_BP), sizes_BP.shape[1] + 1))
    for row, sizes, length in zip(result, sizes_BP, source_lengths, strict=True):
        remaining = sizes[sizes > 0].tolist()
        remaining = cut_sizes(remaining, 0, longest) if length > longest else remaining
        row[: len(remaining)] = remaining
    return result[:, : max(1, int((result > 0).sum(1).max(initial=0)))]
