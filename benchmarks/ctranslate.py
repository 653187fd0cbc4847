"""CTranslate2 as a server process with the same weights: our parameters under its names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import PEERS
from phraseloom.layers.embeddings import sinusoid
from phraseloom.layers.feedforward import NORM_EPSILON
from phraseloom.options.model import ModelConfig

MATRICES = {
    "source_embedding.weight": "source_embeddings",
    "target_embedding.weight": "target_embeddings",
    "output.weight": "output_weight",
    "output.bias": "output_bias",
}
RENAMES = (
    (".layers.", "."),
    ("attention_residual.norm", "self.norm"),
    ("self_residual.norm", "self.norm"),
    ("cross_residual.norm", "cross.norm"),
    ("feed_forward_residual.norm", "ffn.norm"),
    ("self_attention.", "self."),
    ("cross_attention.", "cross."),
    (".attention.", ".self."),
    ("feed_forward.", "ffn."),
    ("self.score.", "self.qkv."),
    ("arrangement.", "o."),
)


def what_does_not_fit(config: ModelConfig) -> str | None:
    """Why CTranslate2 cannot run such a model, or None."""
    blocks = config.attention
    if (config.encoder.kind, config.decoder.kind) != ("transformer", "transformer"):
        return "it is no Transformer"
    if config.norm != "pre":
        return "it is post-norm"
    if config.positions.source != config.positions.target or config.positions.source.kind != "sinusoid":
        return "it has not the same sinusoid positions on both sides"
    if any(b.score.kind != "token" for b in (blocks.encoder_self, blocks.decoder_self, blocks.cross)):
        return "its attention is not the ordinary one"
    return None


def arrays_of(model: torch.nn.Module, config: ModelConfig, positions: int) -> dict[str, np.ndarray]:
    """The parameters of a model under the names of peers/ct2_model.py; an unknown one stays as it is and is refused."""
    layout: Any = getattr(config.positions.source, "layout", "halves")
    found = {"positions": sinusoid(positions, config.width, layout).numpy()}
    for name, parameter in model.named_parameters():
        value = parameter.detach().float().numpy()
        if name in MATRICES:
            found["embeddings" if config.tied == "three_way" and name[0] == "s" else MATRICES[name]] = value
            continue
        for old, new in RENAMES:
            name = name.replace(old, new)
        if name.endswith("cross.score.weight"):
            stem = name.removesuffix("score.weight")
            found[stem + "q.weight"], found[stem + "kv.weight"] = value[: config.width], value[config.width :]
        else:
            found[name] = value
    return found


class CTranslate:
    """The server of peers/ct2_server.py with one model converted."""

    def __init__(self, interpreter: str, sentences: Path, scratch: Path) -> None:
        command = [interpreter, str(PEERS / "ct2_server.py"), str(sentences)]
        self.scratch = scratch
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("CTranslate2 stopped; its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def convert(self, model: torch.nn.Module, config: ModelConfig, positions: int) -> str:
        """Pass the weights; return the version of CTranslate2."""
        file = self.scratch / "weights.npz"
        np.savez(file, **arrays_of(model, config, positions))  # type: ignore[arg-type]
        request = {"convert": str(file), "out": str(self.scratch / "ct2"), "heads": config.heads}
        return str(self.ask({**request, "epsilon": NORM_EPSILON})["version"])

    def translate(self, **request: Any) -> dict[str, Any]:
        """Translate the sentences; see peers/ct2_server.py."""
        return self.ask({"model": str(self.scratch / "ct2"), **request})

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
