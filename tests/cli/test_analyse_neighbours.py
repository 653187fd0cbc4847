"""`phraseloom analyse neighbours`: tables, JSON and pictures of small models, and what a user can get wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom.models.build import build_language_model, build_model
from phraseloom.models.store import save_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig

from .conftest import Command

TEXT = "the old man sleeps .\na winter garden is dark .\nthe man .\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models `a` and `b`, of which `b` differs in a few rows of its target side; a language model `lm`; a text."""
    out = tmp_path_factory.mktemp("neighbours")
    (out / "text").write_bytes(TEXT.encode())
    (out / "text.gz").write_bytes(gzip.compress(TEXT.encode()))
    (out / "empty").write_bytes(b"")
    tokenizer = tiny_tokenizer(out / "tokenizer")
    sizes = len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary)
    layers = {"encoder": {"layers": 1}, "decoder": {"layers": 1}, "tied": "none"}
    config = ModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 32, **layers})
    for name in "ab":
        torch.manual_seed(2)
        model = build_model(config, *sizes)
        if name == "b":
            with torch.no_grad():
                model.target_embedding.weight[10:20].normal_()
        save_model(out / name, model, config, tokenizer)
    of_text = LanguageModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 32, "decoder": {"layers": 1}})
    save_model(out / "lm", build_language_model(of_text, sizes[1]), of_text, tokenizer)
    return out


def run(command: Command, folder: Path, *arguments: object) -> list[str]:
    done = command("analyse", "neighbours", *arguments)
    assert done.code == 0 and not done.err, done.err
    return done.out.splitlines()


def test_one_model(folder: Path, command: Command) -> None:
    lines = run(command, folder, folder / "a", "--text", folder / "text", "--tokens", "4", "--neighbours", "2")
    assert lines[0] == (
        f"4 source tokens, the most frequent of {folder / 'text'}; neighbours among 56 pieces of the vocabulary"
    )
    assert lines[2].split() == ["token", "count", "neighbours", "(cosine)"]
    rows = [line.split() for line in lines[4:]]
    assert len(rows) == 4 and all(len(row) == 6 for row in rows)
    assert [int(row[1]) for row in rows] == sorted((int(row[1]) for row in rows), reverse=True)
    assert all(1 > float(row[3]) >= float(row[5]) for row in rows)


def test_without_text_it_is_the_order_of_the_vocabulary(folder: Path, command: Command) -> None:
    lines = run(command, folder, folder / "a", "--tokens", "3")
    assert lines[0].startswith("3 source tokens, the first of the vocabulary; ")
    assert lines[2].split() == ["token", "neighbours", "(cosine)"] and len(lines) == 7


def test_two_models(folder: Path, command: Command, tmp_path: Path) -> None:
    same = run(command, folder, folder / "a", folder / "b", "--tokens", "6")
    assert "*" not in "".join(same) and same[-2:] == [
        "overlap 1.000 of 5 neighbours; by chance 0.091",
        "cosines of 15 pairs of tokens: Pearson 1.000, Spearman 1.000",
    ]
    path = tmp_path / "out.json"
    lines = run(command, folder, folder / "a", folder / "b", "--side", "target", "--tokens", "30", "--json", path)
    found = json.loads(path.read_bytes())
    assert lines[0].endswith("neighbours among 56 pieces that both models have")
    assert lines[2].split() == ["token", "shared", str(folder / "a"), str(folder / "b")]
    rows = [line.split() for line in lines[4:34]]
    for row, token in zip(rows, found["tokens"], strict=True):
        of_a, of_b = ([piece for piece, _ in some] for some in token["neighbours"])
        assert row[0] == token["piece"] and int(row[1]) == token["shared"] == len({*of_a} & {*of_b})
        assert row[2:7] == [p if p in of_b else f"*{p}" for p in of_a]
        assert row[7:] == [p if p in of_a else f"*{p}" for p in of_b]
        assert token["count"] is None
    shared = [token["shared"] for token in found["tokens"]]
    assert found["overlap"] == pytest.approx(sum(shared) / 30 / 5) and 0.1 < found["overlap"] < 1
    assert lines[-2] == f"overlap {found['overlap']:.3f} of 5 neighbours; by chance 0.091"
    kept = {k: found[k] for k in ("side", "text", "models", "neighbours", "candidates", "zero", "pairs")}
    models = [str(folder / "a"), str(folder / "b")]
    assert kept == {
        "side": "target", "text": None, "models": models, "neighbours": 5, "candidates": 56, "zero": 0, "pairs": 435
    }  # fmt: skip
    assert 0.3 < found["pearson"] < 1 and 0.3 < found["spearman"] < 1 and found["chance"] == 5 / 55


def test_json_of_one_model_and_a_compressed_text(folder: Path, command: Command, tmp_path: Path) -> None:
    files = []
    for name in ("text", "text.gz"):
        run(command, folder, folder / "a", "--text", folder / name, "--json", tmp_path / f"{name}.json")
        files.append(json.loads((tmp_path / f"{name}.json").read_bytes()))
    assert files[0].pop("text") == str(folder / "text") and files[1].pop("text") == str(folder / "text.gz")
    assert files[0] == files[1] and "overlap" not in files[0] and "shared" not in files[0]["tokens"][0]


@pytest.mark.parametrize("models", [["a"], ["a", "b"]])
@pytest.mark.parametrize("more", [[], ["--tokens", "1", "--neighbours", "1"], ["--tokens", "2", "--neighbours", "1"]])
def test_pictures(folder: Path, command: Command, tmp_path: Path, models: list[str], more: list[str]) -> None:
    pytest.importorskip("matplotlib")
    paths = [folder / name for name in models]
    run(command, folder, *paths, "--text", folder / "text", "--plot", tmp_path / "p.svg", *more)
    assert b"<svg" in (tmp_path / "p.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["a", "b", "a"], 2, "give one or two models, not 3"),
        (["a", "a"], 2, "a is given twice"),
        (["lm"], 1, "this is a language model"),
        (["a", "nothing"], 1, "not found"),
        (["a", "--text", "nothing"], 1, "nothing"),
        (["a", "--text", "empty"], 1, "empty: the text has none of the pieces; give raw text"),
        (["a", "--neighbours", "56"], 2, "56 pieces; 56 neighbours need 57"),
        (["a", "--side", "both"], 2, "both"),
        (["a", "--tokens", "0"], 2, "greater than or equal to 1"),
        (["a", "--plot", "p.jpg"], 2, "pictures are .png, .svg or .pdf"),
        (["a", "--json", "a"], 1, "this is a folder"),
    ],
)
def test_what_a_user_can_get_wrong(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(folder)
    done = command("analyse", "neighbours", *arguments)
    assert done.code == code and message in done.err and not done.out
    assert done.err.count("\n") == 1
