"""`phraseloom translate --unknown`: unknown words on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.text.subwords import UNKNOWN
from phraseloom.text.vocabulary import UNK

from .conftest import Command

LINES = b"the old man sleeps\n\nwe invite them\n"
BOUNDS = ("--beam", "2", "--min-length", "3", "--max-length", "6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that likes the unknown word."""
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    layers = {"encoder": {"layers": 1}, "decoder": {"layers": 1}}
    output = {"output": {"kind": "softmax", "bias": True}, "tied": "none"}
    config = ModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 32, **layers, **output})
    torch.manual_seed(5)
    model = build_model(config, len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary))
    with torch.no_grad():
        model.output.bias[UNK] = 6.0
    path = tmp_path_factory.mktemp("model") / "m"
    save_model(path, model, config, tokenizer, languages=("en", "de"))
    return path


def test_forbidden_kept_and_replaced(command: Command, folder: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = command("translate", folder, *BOUNDS, *arguments, stdin=LINES)
        assert done.code == 0, done.err
        assert done.out.count("\n") == 3
        return done.out

    assert UNKNOWN not in run()
    assert run("--unknown", "forbid") == run()
    assert UNKNOWN in run("--unknown", "keep")
    copied = run("--unknown", "replace")
    assert UNKNOWN not in copied
    assert {"the", "old", "man", "sleeps"} & set(copied.split("\n")[0].split())
    (tmp_path / "lexicon").write_bytes(
        b"the\tder\t3\t3\nold\talte\nman\tmann\nsleeps\tschl\xc3\xa4ft\nwe\tw\ninvite\ti\nthem\tt\n"
    )
    translated = run("--unknown", "replace", "--lexicon", "lexicon")
    assert {"der", "alte", "mann", "schläft"} & set(translated.split("\n")[0].split())
    assert not {"the", "old", "man", "sleeps"} & set(translated.split())


def test_json_and_n_best_say_what_was_replaced(command: Command, folder: Path, tmp_path: Path) -> None:
    form = ("--output", "json", "--n-best", "2", "--unknown", "replace", "--alignments", "links")
    done = command("translate", folder, *BOUNDS, *form, stdin=LINES)
    assert done.code == 0, done.err
    values = [json.loads(line) for line in done.out.rstrip("\n").split("\n")]
    assert values[1]["replaced"] == []
    for value, line in ((values[0], "the old man sleeps"), (values[2], "we invite them")):
        for one in (value, *value["alternatives"]):
            assert one["replaced"]
            for replaced in one["replaced"]:
                assert set(replaced) == {"target", "source", "original", "word", "from_lexicon"}
                assert one["words"][replaced["target"]] == replaced["word"] == line.split()[replaced["source"]]
                assert replaced["from_lexicon"] is False
            assert "<unk>" in one["tokens"]
    assert len((tmp_path / "links").read_bytes().split(b"\n")[0].split()) == len(values[0]["words"])
    kept = command("translate", folder, *BOUNDS, "--output", "json", "--unknown", "keep", stdin=LINES)
    assert all("replaced" not in json.loads(line) for line in kept.out.rstrip("\n").split("\n"))
    listed = command("translate", folder, *BOUNDS, "--output", "nbest", "--unknown", "replace", stdin=LINES)
    assert UNKNOWN not in listed.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--lexicon", "lexicon"), 2, "--lexicon is for --unknown replace"),
        (("--unknown", "keep", "--lexicon", "lexicon"), 2, "--lexicon is for --unknown replace"),
        (("--unknown", "replace", "--lexicon", "none"), 1, "none: lexicon not found"),
        (("--unknown", "replace", "--lexicon", "lexicon"), 1, "lexicon:1: the row has one column"),
    ],
)
def test_refused_before_anything_is_read_or_written(
    command: Command, folder: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "lexicon").write_bytes(b"one\n")
    done = command("translate", folder, *arguments, "--alignments", "links", stdin=LINES)
    assert done.code == code
    assert done.is_one_line_of("translate")
    assert message in done.err
    assert not (tmp_path / "links").exists()
