"""A segmental model that has learned nothing yet passes its first validation."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.helpers import run_records

from phraseloom.cli.main import run as phraseloom
from phraseloom.decoding.translator import Translator
from phraseloom.text.lines import write_lines
from phraseloom.world.sampling import train_block


@pytest.mark.usefixtures("one_process")
def test_a_high_first_perplexity_is_no_divergence(tmp_path: Path) -> None:
    """It guesses each word and each end of a segment: far more than four times the vocabulary."""
    pairs = [pair.annotations() for pair in train_block(3, 0, 60)]
    for side in ("en", "de"):
        write_lines(tmp_path / f"text.{side}", [pair[side] for pair in pairs])
    files = [{"source": str(tmp_path / "text.en"), "target": str(tmp_path / "text.de")}]
    recipe = {
        "name": "segments",
        "data": {
            "folder": str(tmp_path / "dataset"), "source_language": "en", "target_language": "de", "processes": 1,
            "train": files, "valid": list(map(dict, files)), "subwords": {"kind": "words"},
        },
        "model": {"width": 16, "encoder": {"kind": "columns"}, "decoder": {"kind": "segmental", "max_segment": 3}},
        "training": {"batch_tokens": 200, "max_updates": 1, "checkpoint_every": 1, "bleu_every": 0, "processes": 1,
                     "best_by": "perplexity"},
        "decoding": {"workers": 1},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_bytes(yaml.safe_dump(recipe).encode())
    assert phraseloom(["prepare", str(tmp_path / "recipe.yaml")]) == 0
    assert phraseloom(["train", str(tmp_path / "recipe.yaml"), "--run", str(tmp_path / "run")]) == 0
    (perplexity,) = [r["validation"]["perplexity"] for r in run_records(tmp_path / "run") if "validation" in r]
    vocabulary = Translator.from_pretrained(tmp_path / "run").tokenizer.target.vocabulary
    assert perplexity > 4 * len(vocabulary)
