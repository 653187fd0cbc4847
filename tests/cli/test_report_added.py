"""`phraseloom report --add` of what the verbs really write about segments, source phrases and embeddings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig

from .conftest import Command

SIZES = {"width": 16, "heads": 2, "ffn_width": 16}
LAYERS = {"encoder": {"layers": 1}, "decoder": {"layers": 1}}
MODELS = {
    "base": {**SIZES, **LAYERS},
    "phrases": {**SIZES, **LAYERS, "phrases": {}},
    "npmt": {**SIZES, "encoder": {"kind": "columns"}, "decoder": {"kind": "segmental", "max_segment": 4}},
}


@pytest.fixture
def models(command: Command, tmp_path: Path) -> Path:
    """A model of each kind and a text, in the folder where commands are run."""
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    size = len(tokenizer.source.vocabulary)
    for name, made in MODELS.items():
        torch.manual_seed(2)
        config = ModelConfig.model_validate(made)
        save_model(tmp_path / name, build_model(config, size, size), config, tokenizer, languages=("en", "de"))
    (tmp_path / "s").write_bytes("".join(f"{line}\n" for line in LINES).encode())
    (tmp_path / "p").write_bytes(b"0:2-0:2=compound\n" * len(LINES))
    return tmp_path


def test_segments_phrases_and_neighbours(models: Path, command: Command) -> None:
    cut = ("analyse", "segments", "npmt", "-s", "s", "-t", "s", "--phrases", "p", "--output", "json")
    (models / "cut.json").write_bytes(command(*cut).out.encode())
    (models / "made.json").write_bytes(
        command("analyse", "phrases", "phrases", "-s", "s", "--output", "json").out.encode()
    )
    assert command("analyse", "neighbours", "base", "phrases", "--tokens", "9", "--json", "near.json").code == 0
    added = ("--add", "npmt=cut.json", "--add", "phrases=made.json", "--add", "source=near.json")
    done = command("report", "base", "phrases", "npmt", "-o", "r.html", "--json", "r.json", *added)
    assert done.code == 0, done.err
    parts = {part["kind"]: part for part in json.loads((models / "r.json").read_bytes())["parts"]}
    assert list(parts) == ["segments", "source_phrases", "neighbours"]
    told = json.loads((models / "cut.json").read_bytes())
    (segments,) = parts["segments"]["systems"]
    assert {str(e["size"]): e["count"] for e in segments["lengths"]} == told["lengths"]
    assert [(e["kind"], e["phrases"], e["segment"]) for e in segments["phrases"]] == [
        (kind, entry["phrases"], entry["segment"]) for kind, entry in told["phrases"].items()
    ]
    (made,) = parts["source_phrases"]["systems"]
    sentences = json.loads((models / "made.json").read_bytes())["sentences"]
    assert made["phrases"] == sum(map(len, sentences))
    assert [system["name"] for system in parts["neighbours"]["systems"]] == ["base", "phrases"]
    html = (models / "r.html").read_bytes().decode()
    assert all(f'id="{kind}-' in html for kind in parts)


def test_what_a_report_does_not_show_is_said(models: Path, command: Command) -> None:
    (models / "out.json").write_bytes(
        command("translate", "base", "--output", "json", stdin=b"a cow .\nthe man .\n").out.encode()
    )
    assert command("explain", "base", "-s", "s", "--json", "explained.json").code == 0
    (models / "found.json").write_bytes(command("inspect", "base", "--output", "json").out.encode())
    (models / "scored.json").write_bytes(command("score", "base", "s", "s", "--output", "json").out.encode())
    for file, verb in {"out": "translate", "explained": "explain", "found": "inspect", "scored": "score"}.items():
        done = command("report", "base", "-o", "r.html", "--add", f"base={file}.json")
        assert (done.code, done.is_one_line_of("report")) == (1, True), done.err
        assert f"{file}.json: JSON of {verb}, which is not a result" in done.err
    assert not (models / "r.html").exists()
