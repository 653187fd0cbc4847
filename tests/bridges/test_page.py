"""docs/bridges.md: its commands on a folder that transformers wrote, and its Python, as they stand there."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bridges import marian
from tests.docs.pages import ROOT, blocks

from phraseloom.cli.main import run

pytest.importorskip("transformers", reason=marian.REASON)
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'phraseloom[ctranslate2]'")
PAGE = (ROOT / "docs" / "bridges.md").read_bytes().decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    marian.write_folder(Path("opus-mt-en-de"))
    lines = [line.strip() for line in PAGE.split("\n") if line.startswith("    phraseloom convert")]
    assert len(lines) == 3
    for line in lines:
        assert run(shlex.split(line)[1:]) == 0, line
        assert shlex.split(line)[4] in capsys.readouterr().out
        assert run(shlex.split(line)[1:]) == 2, "the folder is there already"
        assert "not empty" in capsys.readouterr().err
        assert run([*shlex.split(line)[1:], "--overwrite"]) == 0
    assert run(["inspect", "en-de"]) == 0
    assert "swish" in capsys.readouterr().out
    shutil.rmtree("opus-mt-en-de")
    assert run(["convert", "from-marian", "opus-mt-en-de", "other"]) == 1
    assert "MarianMT folder not found" in capsys.readouterr().err and not Path("other").exists()


def test_the_python(tmp_path: Path) -> None:
    code = [block.text for block in blocks(PAGE) if block.language == "python"]
    assert len(code) == 2
    done = subprocess.run([sys.executable, "-c", code[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["equal at first: True", "trained: [[0, 8, 7, 6, 5, 1]]", "loaded: True", ""]


def to_safetensors(folder: Path, checkpoint: dict[str, Any], key: str) -> subprocess.CompletedProcess[str]:
    """The lines of the page on a checkpoint; what they write is `out.safetensors`."""
    torch.save(checkpoint, folder / "model.pt")
    code = [block.text for block in blocks(PAGE) if block.language == "python"][1]
    command = [sys.executable, "-c", code, "model.pt", key, "out.safetensors"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def check_safetensors(folder: Path, expected: dict[str, Any]) -> None:
    from safetensors.torch import load_file

    result = load_file(folder / "out.safetensors")
    assert result.keys() == {name for name, value in expected.items() if isinstance(value, torch.Tensor)}
    assert all(torch.equal(result[name], expected[name]) for name in result)


def test_a_checkpoint_with_the_keys_of_fairseq(tmp_path: Path) -> None:
    shared = torch.randn(7, 4)
    parameters = {
        "encoder.embed_tokens.weight": shared,
        "decoder.embed_tokens.weight": shared,
        "decoder.version": torch.ones(1),
    }
    history = [{"criterion_name": "LabelSmoothedCrossEntropyCriterion", "best_loss": np.float64(4.5), "num_updates": 3}]
    options = argparse.Namespace(arch="transformer", encoder_layers=6)
    content = {
        "args": options,
        "cfg": None,
        "model": parameters,
        "optimizer_history": history,
        "extra_state": {"epoch": 2},
    }
    done = to_safetensors(tmp_path, content, "model")
    assert done.returncode == 0, done.stderr
    check_safetensors(tmp_path, parameters)
    done = to_safetensors(tmp_path, {**content, "extra_state": Path("x")}, "model")
    assert done.returncode == 1 and "Weights only load failed" in done.stderr


def test_a_model_of_joeynmt(tmp_path: Path) -> None:
    """Where JoeyNMT can be imported: its own model, under the keys of its trainer."""
    joeynmt = pytest.importorskip("joeynmt.model", reason="joeynmt is not installed")
    from joeynmt.vocabulary import Vocabulary

    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
    ids = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "sep_id": None, "lang_tags": []}
    vocabulary = Vocabulary(["a", "b", "c"], argparse.Namespace(**special, **ids))
    side = {
        "type": "transformer", "num_layers": 2, "num_heads": 2, "hidden_size": 8, "ff_size": 16,
        "embeddings": {"embedding_dim": 8, "scale": True},
    }  # fmt: skip
    options = {"encoder": side, "decoder": dict(side), "tied_embeddings": True, "tied_softmax": True}
    model = joeynmt.build_model(options, src_vocab=vocabulary, trg_vocab=vocabulary)
    optimizer = torch.optim.Adam(model.parameters())
    stats = {"steps": 5, "total_tokens": 90, "best_ckpt_score": np.float64(12.5), "best_ckpt_iter": 5, "is_best": True}
    content = {"model_state": model.state_dict(), "optimizer_state": optimizer.state_dict(), "scaler_state": None}
    done = to_safetensors(
        tmp_path, {**content, "train_iter_state": torch.get_rng_state(), "stats_state": stats}, "model_state"
    )
    assert done.returncode == 0, done.stderr
    check_safetensors(tmp_path, model.state_dict())
