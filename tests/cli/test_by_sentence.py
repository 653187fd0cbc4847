"""`--by-sentence`: what every verb writes for resampling makes the very numbers that stand beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.metrics.ratio import Form, Ratio
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.reproduce.measure import select, split

from .conftest import Command

TARGETS = [*reversed(LINES)]
LINKS = ["0-0 1-1", "0-1", "0-0", "1-0 0-0"]
ITEMS = [
    {"source": s, "correct": t, "wrong": "old " + t, "distance": n}
    for n, (s, t) in enumerate(zip(LINES, TARGETS, strict=True))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model `m` with phrase slots for queries and keys; texts, gold links and contrastive pairs."""
    out = tmp_path_factory.mktemp("by_sentence")
    tokenizer = tiny_tokenizer(out / "tokenizer")
    torch.manual_seed(3)
    size = len(tokenizer.source.vocabulary)
    sizes = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 2}}
    sizes["init"] = "xavier_uniform"  # weights large enough for attention beyond tau in every layer
    config = ModelConfig.model_validate({**sizes, "attention": "queryk interleaved 1-2 keys-per-order"})
    save_model(out / "m", build_model(config, size, size), config, tokenizer)
    texts = {"s": LINES, "t": TARGETS, "g": LINKS, "items": [json.dumps(item) for item in ITEMS]}
    for name, lines in texts.items():
        (out / name).write_text("".join(f"{line}\n" for line in lines))
    return out


SCORE = ["score", "m", "s", "t", "--output", "summary"]
ACTIVATION = ["analyse", "activation", "m", "-s", "s", "-t", "t", "--tau", "0.2", "--output", "json"]
ENTROPY = ["analyse", "entropy", "m", "-s", "s", "-t", "t", "--json", "out.json"]
ALIGNMENT = ["analyse", "alignment", "m", "-s", "s", "-t", "t", "-g", "g", "--json", "out.json"]
CONTRASTIVE = ["analyse", "contrastive", "m", "--items", "items", "--bins", "0,1", "--output", "json"]
NUMBERS: list[tuple[list[str], str, str, Form, float]] = [
    (SCORE, "perplexity", "by_sentence.perplexity", "exp", 4),
    (SCORE, "word_perplexity", "by_sentence.word_perplexity", "exp", 4),
    *[
        (ACTIVATION, f"uses.cross.*.{kind}.{part}", f"uses.cross.*.by_sentence.{kind}.{part}", "ratio", 4)
        for kind in ("mass", "joint", "activation")
        for part in ("token-to-token", "token-to-phrase", "phrase-to-token", "phrase-to-phrase")
    ],
    (ENTROPY, "systems.0.tokens.layers.*.steps", "systems.0.tokens.by_sentence.layers.*", "ratio", 4),
    (ENTROPY, "systems.0.slots.whole.steps", "systems.0.slots.by_sentence.whole", "ratio", 4),
    (ALIGNMENT, "systems.0.settings.*.aer", "systems.0.settings.*.by_sentence", "complement", 4),
    (CONTRASTIVE, "groups.*.systems.0.accuracy", "groups.*.systems.0.by_sentence", "ratio", 0),
]


@pytest.mark.parametrize(("argv", "at", "by_sentence", "form", "sentences"), NUMBERS)
def test_the_sums_make_the_numbers(
    command: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    at: str,
    by_sentence: str,
    form: Form,
    sentences: int,
) -> None:
    monkeypatch.chdir(folder)
    overwrite = ["--overwrite"] if "out.json" in argv else []
    found = [_json(command(*argv, *flag, *overwrite), folder) for flag in ([], ["--by-sentence"])]
    assert "by_sentence" not in json.dumps(found[0])
    numbers = [value for _, value in select(found[1], split(at))]
    assert numbers and numbers == [value for _, value in select(found[0], split(at))]
    rows = [np.array(value) for _, value in select(found[1], split(by_sentence))]
    assert [Ratio(form).value(some.sum(0)) for some in rows] == pytest.approx(numbers)
    assert not sentences or {some.shape for some in rows} == {(sentences, 2)}


@pytest.mark.parametrize("argv", [SCORE, ACTIVATION, ENTROPY, ALIGNMENT, CONTRASTIVE])
def test_it_needs_a_place_to_be_written(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.chdir(folder)
    done = command(*argv[:-2], "--by-sentence")
    assert done.code == 2
    assert f"--by-sentence needs {argv[-2]} " in done.err


def _json(done: Any, folder: Path) -> Any:
    assert done.code == 0, done.err
    return json.loads(done.out if done.out.startswith("{") else (folder / "out.json").read_text())
