"""Makes the stored run and the stored model of format 1: `python -m tests.golden.make` from the root of the repository.

Only to be run again when a change is meant to alter the numbers; the commit then says which and by how much. A model of an
earlier format is never made again: it stays, and later versions have to read it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from phraseloom.cli.main import run
from phraseloom.decoding.translator import Translator

HERE = Path(__file__).parent
CURVE, MODEL = HERE / "loss_curve.json", HERE / "model_format_1"

RECIPE: dict[str, Any] = {
    "name": "stored",
    "data": {
        "folder": "dataset",
        "source_language": "en",
        "target_language": "de",
        "train": [{"source": "world/train.en", "target": "world/train.de"}],
        "valid": [{"source": "world/valid.en", "target": "world/valid.de"}],
        "subwords": {"kind": "sentencepiece", "model": "bpe", "size": 300, "byte_fallback": False},
        "processes": 1,
    },
    "model": {
        "width": 32, "heads": 2, "ffn_width": 64, "encoder": {"layers": 1}, "decoder": {"layers": 1}, "init": "xavier_uniform",
    },
    "training": {
        "batch_tokens": 400, "micro_batches": 2, "processes": 1, "device": "cpu", "log_every": 100,
        "schedule": {"kind": "linear", "peak": 0.01, "warmup": 20}, "max_updates": 40, "checkpoint_every": 40,
    },
}  # fmt: skip


def train(folder: Path, **training: Any) -> Path:
    """The run folder of the stored recipe, made in `folder`."""
    keys = {**RECIPE, "training": {**RECIPE["training"], **training}}
    keys["data"] = {**RECIPE["data"], "folder": str(folder / "dataset")}
    (folder / "recipe.yaml").write_bytes(json.dumps(keys).encode())
    for command in (
        ["world", str(folder / "world"), "--train", "1500", "--valid", "50", "--test", "50"],
        ["prepare", str(folder / "recipe.yaml"), "--data-root", str(folder)],
        ["train", str(folder / "recipe.yaml"), "--run", str(folder / "run")],
    ):
        assert run(command) == 0
    return folder / "run"


def losses(run_folder: Path) -> list[float]:
    """The logged losses of all updates."""
    records = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_bytes().split(b"\n") if line]
    return [r["loss"] for r in records if "loss" in r]


def main() -> None:
    """Write both."""
    with tempfile.TemporaryDirectory() as name:
        CURVE.write_bytes(json.dumps(losses(train(Path(name)))).encode() + b"\n")
    with tempfile.TemporaryDirectory() as name:
        best = train(Path(name), max_updates=600, checkpoint_every=600) / "best"
        shutil.rmtree(MODEL, ignore_errors=True)
        MODEL.mkdir()
        from phraseloom.files import read_json, write_manifest

        names = [
            n for n in read_json(best / "manifest.json")["files"] if n not in ("optimizer.safetensors", "state.json")
        ]
        for file in names:
            (MODEL / "model" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(best / file, MODEL / "model" / file)
        write_manifest(MODEL / "model", names)
        source = (Path(name) / "world" / "test.en").read_bytes().decode().split("\n")[:12]
        output = [t.text for t in Translator.from_pretrained(MODEL / "model").translate(source)]
        (MODEL / "source.en").write_bytes("".join(f"{s}\n" for s in source).encode())
        (MODEL / "output.de").write_bytes("".join(f"{o}\n" for o in output).encode())
    sys.stdout.write(f"written: {CURVE}, {MODEL}\n")


if __name__ == "__main__":
    main()
