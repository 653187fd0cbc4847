"""`phraseloom analyse coverage`: tables and JSON of a small model with phrase slots, and what a user can get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig

from .conftest import Command

FILES = {
    "s.en": "the old man sleeps .\na winter garden is dark .\nwe invite them tonight .\n",
    "t.de": "zwei Büros .\nthe winter garden .\nwe sleeps .\n",
    "p": "0:2-0:1=compound 2:4-1:3=idiom\n1:3-1:2=compound\n\n",
    "links": "0-1 1-1\n1-0 2-2\n\n",
    "short": "0:2\n",
    "wrong": "0:2\nx\n\n",
    "beyond": "0:2\n\n0:77\n",
    "single": "0:1-0:2=expansion\n\n\n",
    "none": "\n\n\n",
    "digits": "0-" + "9" * 5000 + "\n\n\n",
    "far": "0:2-0:99999999\n\n\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, phrases, and two models: `phrases` with slots of two tokens, `token` without."""
    out = tmp_path_factory.mktemp("coverage")
    for name, text in FILES.items():
        (out / name).write_bytes(text.encode())
    tokenizer = tiny_tokenizer(out / "tokenizer")
    sizes = len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary)
    for name, attention in (("phrases", "queryk heterogeneous 1-2"), ("token", "token")):
        torch.manual_seed(2)
        layers = {"encoder": {"layers": 2}, "decoder": {"layers": 1}}
        config = ModelConfig.model_validate(
            {"width": 16, "heads": 2, "ffn_width": 32, **layers, "attention": attention}
        )
        save_model(out / name, build_model(config, *sizes), config, tokenizer)
    return out


def arguments(folder: Path, **change: str) -> list[str | Path]:
    names = {"model": "phrases", "-s": "s.en", "-t": "t.de", "--phrases": "p"} | change
    model = names.pop("model")
    return [
        "analyse",
        "coverage",
        folder / model,
        *(a for k, v in names.items() for a in (k, folder / v)),
        "--bootstrap",
        "9",
    ]


def test_the_tables(folder: Path, command: Command) -> None:
    done = command(*arguments(folder))
    assert done.code == 0
    assert "analyse: warning: intervals and p of 2 sentences are too small to mean anything" in done.err
    masses, strongest = done.out.split("\nThe strongest phrase slot")
    lines = masses.splitlines()
    assert lines[0].startswith("3 phrases in 2 sentences; left out: 1 sentence without one")
    assert [line.split()[:3] for line in lines[4:]] == [
        [use, layer, order]
        for use, layer in (("encoder-self", "1"), ("encoder-self", "2"), ("cross", "1"))
        for order in "12"
    ]
    kinds = [line.split()[:4] for line in strongest.splitlines()[4:]]
    assert kinds[-3:] == [["cross", "1", "all", "3"], ["cross", "1", "compound", "2"], ["cross", "1", "idiom", "1"]]
    markdown = command(*arguments(folder), "--output", "markdown")
    assert markdown.out.count("\n| attention ") == 2


def test_alignments_and_kinds(folder: Path, command: Command) -> None:
    own = json.loads(command(*arguments(folder), "--output", "json").out)
    linked = json.loads(command(*arguments(folder, **{"--alignments": "links"}), "--output", "json").out)
    assert (own["sentences"], own["phrases"], own["seed"]) == (2, 3, 12345)
    counts = [r["uses"]["cross"][0]["strongest"][""]["phrases"] for r in (own, linked)]
    assert counts == [3, 2]  # the links name no target word for the idiom
    assert own["uses"]["encoder-self"] == linked["uses"]["encoder-self"]
    some = json.loads(command(*arguments(folder), "--kinds", "idiom", "--output", "json").out)
    assert (some["sentences"], some["phrases"]) == (1, 1)
    bare = json.loads(command(*arguments(folder, **{"--phrases": "beyond"}), "--output", "json").out or "null")
    assert bare is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "token"}, "no phrase slots in encoder self- or cross-attention"),
        ({"model": "nothing"}, "no such folder"),
        ({"-s": "nothing"}, "nothing"),
        ({"--phrases": "short"}, "short has 1 line, but"),
        ({"-t": "short"}, "short has 1 line"),
        ({"--alignments": "short"}, "short has 1 line"),
        ({"--phrases": "wrong"}, "wrong:2: not a phrase: 'x'"),
        ({"--alignments": "p"}, "p:1: not a word link"),
        ({"--alignments": "digits"}, "digits:1: not a word link: '0-9999"),
        ({"--phrases": "digits"}, "digits:1: not a phrase: '0-9999"),
        ({"--phrases": "far"}, "far:1: not a phrase: '0:2-0:99999999'"),
        ({"--phrases": "beyond"}, "beyond:3: the sentence has 5 and 3 words"),
        ({"--phrases": "single"}, "no sentence has a gold phrase of two or more source words"),
        ({"--phrases": "none"}, "no sentence has a gold phrase"),
    ],
)
def test_what_a_user_can_get_wrong(folder: Path, command: Command, change: dict[str, str], message: str) -> None:
    done = command(*arguments(folder, **change))
    assert done.code == 1, done
    assert done.is_one_line_of("analyse"), done.err
    assert message in done.err, done.err


def test_wrong_options(folder: Path, command: Command) -> None:
    for options, code, message in (
        (["--kinds", "idiot"], 1, "is of the kind idiot"),
        (["--output", "xml"], 2, "xml"),
        (["--bootstrap", "0"], 2, "bootstrap"),
    ):
        done = command(*arguments(folder), *options)
        assert (done.code, done.is_one_line_of("analyse")) == (code, True), done
        assert message in done.err, done.err
