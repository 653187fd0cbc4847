"""`phraseloom analyse segments`: sentences, tables and JSON of a small model, and what a user can get wrong."""

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
    "s": "the old man sleeps .\na winter garden is dark .\n\n",
    "t": "a cow is small .\nthe winter garden .\na\n",
    "p": "0:2-0:1=compound 2:4-1:3=idiom\n1:3-1:2=compound\n\n",
    "short": "0:2\n",
    "wrong": "0:2\nx\n\n",
    "beyond": "0:2-5:9\n\n\n",
    "none": "\n\n\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, phrases, a segmental model and another."""
    out = tmp_path_factory.mktemp("segments")
    for name, text in FILES.items():
        (out / name).write_bytes(text.encode())
    tokenizer = tiny_tokenizer(out / "tokenizer")
    size = len(tokenizer.source.vocabulary)
    segmental = {
        "width": 16,
        "heads": 2,
        "ffn_width": 16,
        "encoder": {"kind": "columns"},
        "decoder": {"kind": "segmental", "max_segment": 4},
        "output": {"bias": True},
    }
    for name, made in (("segmental", segmental), ("token", {"preset": "tiny"})):
        torch.manual_seed(2)
        config = ModelConfig.model_validate(made)
        model = build_model(config, size, size)
        if name == "segmental":
            with torch.no_grad():
                model.output.bias[-1] = 2.0
        save_model(out / name, model, config, tokenizer)
    return out


def arguments(folder: Path, *options: str, **change: str) -> list[str | Path]:
    names = {"model": "segmental", "s": "s", "t": "t", "phrases": "p"} | change
    flags = {"s": "-s", "t": "-t", "phrases": "--phrases"}
    files = [a for key, flag in flags.items() if names[key] for a in (flag, folder / names[key])]
    return ["analyse", "segments", folder / names["model"], *files, *options]


def test_given_pairs(folder: Path, command: Command) -> None:
    done = command(*arguments(folder))
    assert done.code == 0 and not done.err
    first, _, third, *rest = done.out.splitlines()
    assert first.startswith("1  ") and "→[▁a" in first
    assert third == "3  (left out)"
    assert any(line.startswith("pairs left out: 1 with a blank side") for line in rest)
    assert [line.split()[:2] for line in rest[-2:]] == [["all", "1"], ["idiom", "1"]]
    backward = command(*arguments(folder, "--reverse", "-n", "0")).out
    assert backward.startswith("subwords that a source subword writes\n")
    assert [line.split()[:2] for line in backward.splitlines()[-3:]] == [
        ["all", "3"],
        ["compound", "2"],
        ["idiom", "1"],
    ]
    few = command(*arguments(folder, "-n", "1"))
    assert "\n2  " not in few.out and few.out.startswith(first)


def test_own_translations(folder: Path, command: Command) -> None:
    done = command(*arguments(folder, "--output", "json", t="", phrases=""))
    told = json.loads(done.out)
    assert set(told) == {"format", "kind", "lengths", "sentences"}
    assert len(told["sentences"]) == 3
    assert told["sentences"][2] == {"source": [], "target": [], "segments": [], "log_prob": 0.0}
    for one in told["sentences"]:
        assert [i for s in one["segments"] for i in range(s["start"], s["end"])] == list(range(len(one["target"])))
    assert sum(told["lengths"].values()) == sum(len(one["source"]) for one in told["sentences"])
    assert "pairs left out" not in command(*arguments(folder, t="", phrases="")).out


def test_json_of_given_pairs(folder: Path, command: Command) -> None:
    told = json.loads(command(*arguments(folder, "--output", "json", "--kinds", "idiom")).out)
    assert told["left_out"] == {"blank": 1, "too_long": 0, "impossible": 0}
    assert told["sentences"][2] is None
    assert told["phrases"]["idiom"]["phrases"] == told["phrases"][""]["phrases"] == 1


@pytest.mark.parametrize(
    ("change", "options", "code", "message"),
    [
        ({"model": "token"}, (), 1, "writes no segments"),
        ({"model": "nothing"}, (), 1, "no such folder"),
        ({"s": "nothing"}, (), 1, "nothing"),
        ({"phrases": "short"}, (), 1, "short has 1 line"),
        ({"t": "short"}, (), 1, "short has 1 line"),
        ({"phrases": "wrong"}, (), 1, "wrong:2: not a phrase: 'x'"),
        ({"phrases": "beyond"}, (), 1, "beyond:1: the sentence has 5 and 5 words"),
        ({"phrases": "none"}, (), 1, "no phrase that is a run of two and more target words"),
        ({}, ("--kinds", "idiot"), 1, "no phrase of the kind idiot"),
        ({"t": ""}, (), 2, "--phrases are those of a given target"),
        ({"phrases": ""}, ("--kinds", "idiom"), 2, "--kinds is about known phrases"),
        ({"phrases": ""}, ("--reverse",), 2, "--reverse is about known phrases"),
        ({}, ("-n", "-1"), 2, "sentences"),
    ],
)
def test_what_a_user_can_get_wrong(
    folder: Path, command: Command, change: dict[str, str], options: tuple[str, ...], code: int, message: str
) -> None:
    done = command(*arguments(folder, *options, **change))
    assert done.code == code, done
    assert done.is_one_line_of("analyse"), done.err
    assert message in done.err, done.err
