"""The tensors of a MarianMT folder of Hugging Face, from `model.safetensors` or `pytorch_model.bin`.

`pytorch_model.bin` is a pickle. Only torch's weights-only loader reads it, which makes tensors and plain containers and runs
nothing; a file that needs more is refused. No other place of the package reads pickles (tests/test_architecture.py).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from phraseloom.errors import CorruptError, FileProblem
from phraseloom.models.store import load_tensors

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
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise CorruptError("holds more than named tensors", file=path, hint="use a folder with model.safetensors")
    return content
