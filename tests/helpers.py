"""What many tests share: a tokenizer learned on a few lines, whole runs in one process, and how long to wait for one."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phraseloom.phrases.trees import Tree, parse_tree
from phraseloom.text.tokenizer import Tokenizer

# Seconds after which a process that a test waits for is taken to hang. It ends a broken test; it says nothing about speed.
HANGS = 1200

# A recipe with nothing that could be left out; its files do not exist.
SMALLEST_RECIPE = """\
name: toy
data: {folder: d, source_language: en, target_language: de, train: [{source: a, target: b}]}
"""

LINES = [
    "the old man sleeps .",
    "a cow is small , but a winter garden is dark .",
    "we invite them tonight .",
    "zwei Büros .",
]
WORDS = ["one", "two", "three", "four", "five", "six", "red", "blue", "green", "cat", "dog", "house"]


def in_turn(*axes: Iterable[Any], every: int = 2) -> list[Any]:
    """The parameters of a grid. `make test` takes one cell in `every`, along the diagonals; `make test-full` takes all."""
    cases = []
    for places in itertools.product(*(enumerate(axis) for axis in axes)):
        marks = [pytest.mark.full] if sum(number for number, _ in places) % every else []
        cases.append(pytest.param(*(value for _, value in places), marks=marks))
    return cases


def tiny_tokenizer(folder: Path) -> Tokenizer:
    """A joint tokenizer of some 60 pieces, saved in `folder` and loaded from there."""
    from phraseloom.options.text import SentencepieceConfig, TextConfig
    from phraseloom.text.tokenizer import learn_subwords

    subwords = learn_subwords(LINES, SentencepieceConfig(size=60, byte_fallback=False))
    Tokenizer(TextConfig(), "en", "de", subwords, subwords).save(folder)
    return Tokenizer.load(folder)


def treebank_sample(shared: Path) -> list[Tree]:
    """The trees of the sample of the Penn Treebank; each begins at the start of a line."""
    text = gzip.decompress((shared / "data" / "ptb_sample_trees" / "wsj_sample.mrg.gz").read_bytes()).decode()
    return [parse_tree(tree) for tree in re.split(r"^(?=\()", text, flags=re.MULTILINE) if tree.strip()]


def tagged_tokenizer(*tags: str) -> Tokenizer:
    """The tokenizer of `tiny_tokenizer` with tags."""
    from phraseloom.options.text import SentencepieceConfig, TextConfig
    from phraseloom.text.extension import add_tags
    from phraseloom.text.tokenizer import learn_subwords

    subwords = add_tags(learn_subwords(LINES, SentencepieceConfig(size=60, byte_fallback=False)), tags)
    return Tokenizer(TextConfig(), "en", "de", subwords, subwords, tags=tags)


def bpe_tokenizer() -> Tokenizer:
    """A joint tokenizer of subword-nmt; `★` is unknown to it, also inside a word."""
    from phraseloom.options.text import SubwordNmtConfig, TextConfig
    from phraseloom.text.tokenizer import learn_subwords

    subwords = learn_subwords(LINES, SubwordNmtConfig(merges=20))
    return Tokenizer(TextConfig(), "en", "de", subwords, subwords)


@contextlib.contextmanager
def training_in_this_process() -> Iterator[pytest.MonkeyPatch]:
    """Whole runs on one core in the process of the tests; torch's settings, which a run changes, are restored."""
    import torch

    from phraseloom.training import distributed

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "available_cores", lambda: 1)
        yield patch
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def toy_pairs(folder: Path) -> dict[str, list[dict[str, str]]]:
    """100 pairs to train on and 10 to validate, written to `folder`, as keys of `data`; a target is its source in capitals."""
    import numpy as np

    random = np.random.default_rng(1)
    for name, count in (("train", 100), ("valid", 10)):
        lines = [" ".join(random.choice(WORDS, random.integers(2, 7))) for _ in range(count)]
        for language, side in (("en", lines), ("de", [line.upper() for line in lines])):
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in side))
    return {name: [{"source": f"{name}.en", "target": f"{name}.de"}] for name in ("train", "valid")}


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder and of the folders in it."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run_records(run: Path) -> list[dict[str, Any]]:
    """What a run has logged."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs wrote the same records, and their last checkpoints have the same bytes."""
    for name in ("last/model.safetensors", "last/optimizer.safetensors", "last/state.json", "metrics.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
