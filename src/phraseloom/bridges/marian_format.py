"""A MarianMT model of Hugging Face: what a folder holds, its settings, the names of its parameters, and its tensors.

`pytorch_model.bin` is a pickle. Only torch's weights-only loader reads it, which makes tensors and plain containers and runs
nothing; a file that needs more is refused. No other place of the package reads pickles (tests/test_architecture.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phraseloom.errors import CorruptError, FileProblem, ModelError
from phraseloom.models.store import load_tensors

SHARED = "model.shared.weight"
SOURCE_EMBEDDING, TARGET_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

# The layers of each side: our attention or norm -> theirs.
ATTENTION = {
    "encoder": {"attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
NORMS = {
    "encoder": {"attention_residual": "self_attn_layer_norm", "feed_forward_residual": "final_layer_norm"},
    "decoder": {
        "self_residual": "self_attn_layer_norm",
        "cross_residual": "encoder_attn_layer_norm",
        "feed_forward_residual": "final_layer_norm",
    },
}


def layer_names(side: str, layers: int) -> Iterator[tuple[str, list[str]]]:
    """Each parameter of the layers of a side, and those of theirs whose rows, one after the other, it holds."""
    for number in range(layers):
        ours, theirs = f"{side}.layers.{number}.", f"model.{side}.layers.{number}."
        for own, other in ATTENTION[side].items():
            for kind, packed in (("weight", "score.weight"), ("bias", "bias")):
                yield f"{ours}{own}.{packed}", [f"{theirs}{other}.{part}_proj.{kind}" for part in "qkv"]
                yield f"{ours}{own}.arrangement.{kind}", [f"{theirs}{other}.out_proj.{kind}"]
        for kind in ("weight", "bias"):
            for own, other in NORMS[side].items():
                yield f"{ours}{own}.norm.{kind}", [f"{theirs}{other}.{kind}"]
            for own, other in (("up", "fc1"), ("down", "fc2")):
                yield f"{ours}feed_forward.{own}.{kind}", [f"{theirs}{other}.{kind}"]


@dataclass(frozen=True)
class Settings:
    """The keys of a file of another program, each read as the type that it must have; null means that a key is not given.

    `usual`: the default of that program; None if there is none. Every method but `get` raises ModelError for a value of
    another type, and for a key that is missing and has no default.
    """

    values: dict[str, Any]
    file: Path

    def get(self, key: str, usual: Any = None) -> Any:
        """A value of any type."""
        value = self.values.get(key)
        return usual if value is None else value

    def whole(self, key: str, usual: int | None = None, *, least: int = 0) -> int:
        """A whole number of at least `least`."""
        return self._read(key, usual, lambda v: type(v) is int and v >= least, f"a whole number of at least {least}")

    def number(self, key: str, usual: float) -> float:
        """A number, neither infinite nor NaN."""
        most = sys.float_info.max
        return float(
            self._read(key, usual, lambda v: type(v) in (int, float) and -most <= v <= most, "a finite number")
        )

    def flag(self, key: str, usual: bool) -> bool:
        """True or false."""
        return self._read(key, usual, lambda v: isinstance(v, bool), "true or false")

    def text(self, key: str, usual: str) -> str:
        """A string."""
        return self._read(key, usual, lambda v: isinstance(v, str), "a string")

    def items(self, key: str) -> list[Any]:
        """A list; an empty one by default."""
        return self._read(key, [], lambda v: isinstance(v, list), "a list")

    def _read(self, key: str, usual: Any, fits: Callable[[Any], bool], what: str) -> Any:
        value = self.get(key, usual)
        if value is None:
            raise ModelError(f"{key} is missing", file=self.file, hint=f"it must be {what}")
        if not fits(value):
            default = "" if usual is None else f", or remove the key to use the default, {usual!r}"
            raise ModelError(f"{key} is {value!r:.80}, not {what}", file=self.file, hint=f"correct it{default}")
        return value


@dataclass(frozen=True)
class MarianFolder:
    """A MarianMT model: `config` with the keys of config.json, the ids of pieces, sentencepiece models, and tensors to read."""

    config: Settings
    vocabularies: list[tuple[Path, dict[str, Any]]]  # one for both sides, or of source and target
    sentencepiece: list[Path]  # of source and target
    languages: tuple[str, str]
    generation: Settings  # with the keys of generation_config.json
    read_tensors: Callable[[], tuple[dict[str, Tensor], Path]]
    settings: dict[str, Any] = field(default_factory=dict)  # ours, over those of `generation`


SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
_POINTER = b"version https://git-lfs"


def read_tensors(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors by name, and their file. Raises FileProblem where there is none, CorruptError for a damaged one."""
    for name in (SAFE, PICKLED):
        path = folder / name
        if path.is_file():
            with path.open("rb") as handle:
                begins = handle.read(len(_POINTER))
            if begins == _POINTER:
                raise CorruptError(
                    "a pointer of Git LFS in place of the file", file=path, hint="run git lfs pull there"
                )
            return (load_tensors(path) if name == SAFE else _unpickled(path)), path
    if (index := next(iter(sorted(folder.glob("*.index.json"))), None)) is not None:
        raise FileProblem("the weights are in several files, which is not supported", file=index)
    others = sorted(
        p.name for p in folder.iterdir() if p.suffix in (".pkl", ".pickle", ".bin", ".pt", ".h5", ".msgpack")
    )
    what = f"no {SAFE} and no {PICKLED} there" + (f", only {others[0]}, which is not read" if others else "")
    raise FileProblem(what, file=folder, hint="is the download complete?")


def _unpickled(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has no name for it that is not pickle's, and a damaged file raises anything
        raise CorruptError(
            "not read: it is damaged, or holds more than tensors", file=path, hint="use a folder with model.safetensors"
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise CorruptError("holds more than named tensors", file=path, hint="use a folder with model.safetensors")
    return content
