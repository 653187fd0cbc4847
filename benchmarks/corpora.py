"""The data of the speed benchmarks: a prepared dataset, a recipe to prepare, or the built-in world; and its export.

Peers get token ids, not text: every trainer reads the same numbers, so that none gains by another segmentation.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common import WORK
from phraseloom.data.corpus import Dataset, Split
from phraseloom.data.prepare import prepare
from phraseloom.files import atomic_write_text
from phraseloom.recipe import load_recipe
from phraseloom.text.vocabulary import SPECIALS

WORLD_RECIPE = """
format: 1
name: bench-world
data:
  folder: {folder}
  source_language: en
  target_language: de
  train: [{{source: train.en, target: train.de}}]
  valid: [{{source: valid.en, target: valid.de}}]
  test: [{{source: test.en, target: test.de}}]
  subwords: {{kind: sentencepiece, model: bpe, size: {size}}}
"""
WORLD_PAIRS, WORLD_SUBWORDS = 20_000, 2_000


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """--dataset, or --recipe with --data-root and --vocabulary; neither: the built-in world."""
    parser.add_argument("--dataset", type=Path, help="a dataset folder of phraseloom prepare")
    parser.add_argument("--recipe", type=Path, help="prepare the data section of this recipe instead")
    parser.add_argument("--data-root", type=Path, default=Path(), help="where the files of the recipe are")
    parser.add_argument("--vocabulary", type=int, default=8000, help="subwords learned for --recipe")
    parser.add_argument("--world-pairs", type=int, default=WORLD_PAIRS, help="training pairs of the built-in world")
    parser.add_argument("--world-subwords", type=int, default=WORLD_SUBWORDS, help="subwords of the built-in world")


def open_data(options: argparse.Namespace) -> Dataset:
    """The dataset that the options name; prepared in the ignored folder local/bench if it does not exist yet."""
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    if options.recipe is not None:
        return _from_recipe(options.recipe, options.data_root, options.vocabulary)
    return _world(options.world_pairs, options.world_subwords)


def _from_recipe(recipe: Path, root: Path, size: int) -> Dataset:
    key = hashlib.sha256(recipe.read_bytes()).hexdigest()[:8]
    folder = WORK / "data" / f"{recipe.stem}-{size}-{key}"
    if not folder.is_dir():
        config = load_recipe(recipe, [f"data.folder={folder}"]).data
        if config.subwords.kind == "sentencepiece":
            config = config.model_copy(update={"subwords": config.subwords.model_copy(update={"size": size})})
        print(f"preparing {recipe} with {size} subwords", flush=True)
        prepare(config, data_root=root)
    return Dataset.open(folder)


def world_text(pairs: int) -> Path:
    """The folder with `train.en`, `train.de`, … of the built-in world; written unless that was done before."""
    from phraseloom.world.writer import write_world

    folder = WORK / "data" / f"world-{pairs}"
    if not (folder / "world.json").is_file():
        write_world(folder, train=pairs, challenge=0, contrastive=0, overwrite=True)
    return folder


def _world(pairs: int, subwords: int) -> Dataset:
    folder = WORK / "data" / f"world-{pairs}-{subwords}"
    if not folder.is_dir():
        print("writing and preparing the built-in world", flush=True)
        text = world_text(pairs)
        recipe = WORK / "data" / "world.yaml"
        atomic_write_text(recipe, WORLD_RECIPE.format(folder=folder, size=subwords))
        prepare(load_recipe(recipe).data, data_root=text)
    return Dataset.open(folder)


@dataclass(frozen=True)
class Export:
    """A folder with `train.source`, `train.target` (ids, one sentence a line), `vocabulary.txt` (ids, no specials)."""

    folder: Path
    vocabulary: int
    target_share: float


def export(dataset: Dataset) -> Export:
    """Write the training ids of a dataset for the peers, unless that was done before."""
    size = max(len(dataset.tokenizer.source.vocabulary), len(dataset.tokenizer.target.vocabulary))
    train = dataset.split("train")
    source, target = (int(x.sum()) + len(train) for x in (train.source_lengths, train.target_lengths))
    found = Export(WORK / "export" / dataset.fingerprint[:16], size, target / (source + target))
    if not (found.folder / "vocabulary.txt").is_file():
        found.folder.mkdir(parents=True, exist_ok=True)
        for side in ("source", "target"):
            read = getattr(train, side)
            lines = (" ".join(map(str, read(i).tolist())) + "\n" for i in range(len(train)))
            atomic_write_text(found.folder / f"train.{side}", "".join(lines))
        ids = "".join(f"{i}\n" for i in range(len(SPECIALS), size))
        atomic_write_text(found.folder / "vocabulary.txt", ids)
    return found


@dataclass(frozen=True)
class Work:
    """FLOP of one training update per real token, forward and backward, matrix products only."""

    per_source: float
    per_target: float

    def of(self, source: float, target: float) -> float:
        """FLOP for these numbers of source and target tokens."""
        return self.per_source * source + self.per_target * target


def training_work(split: Split, vocabulary: int, shape: dict[str, object]) -> Work:
    """Six FLOP a weight and token (two forward, four backward), and 12·D a query and key in each attention."""
    d, f = int(str(shape["width"])), int(str(shape["ffn_width"]))
    encoder, decoder = (int(str(dict(shape[side])["layers"])) for side in ("encoder", "decoder"))  # type: ignore[call-overload]
    source, target = (x.astype(np.float64) + 1 for x in (split.source_lengths, split.target_lengths))
    own_source = float((source**2).sum() / source.sum())
    own_target = float((target**2).sum() / target.sum())
    cross = float((source * target).sum() / target.sum())
    per_source = 6 * (encoder * (4 * d * d + 2 * d * f) + decoder * 2 * d * d) + 12 * d * encoder * own_source
    per_target = 6 * (decoder * (6 * d * d + 2 * d * f) + vocabulary * d) + 12 * d * decoder * (own_target + cross)
    return Work(per_source, per_target)
