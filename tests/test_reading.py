"""The safetensors header: equal to safetensors' own reading, and never anything but CorruptError for a damaged file."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from phraseloom.data.shards import SEQUENCES
from phraseloom.errors import CorruptError, FileProblem, PhraseloomError
from phraseloom.reading import TensorInfo, limit_of, read_header

ARRAYS = {
    "encoder.0.w": np.zeros((3, 4), np.float32),
    "bias": np.ones(5, np.float16),
    "step": np.array(3, np.int64),
    "none": np.zeros((0, 7), np.float32),
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(ARRAYS, path, metadata={"format": "pt"})
    return path


def test_names_shapes_types(weights: Path) -> None:
    assert read_header(weights) == [
        TensorInfo("bias", "F16", (5,)),
        TensorInfo("encoder.0.w", "F32", (3, 4)),
        TensorInfo("none", "F32", (0, 7)),
        TensorInfo("step", "I64", ()),
    ]
    assert [t.size for t in read_header(weights)] == [5, 12, 0, 1]


def written(folder: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "bad.safetensors"
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def tensor(shape: object = (2,), offsets: object = (0, 8), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD: dict[str, tuple[object, bytes]] = {
    "huge shape": ({"a": tensor([2**62, 2**62])}, b"x" * 8),
    "shape of 2^63": ({"a": tensor([2**63])}, b"x" * 8),
    "negative": ({"a": tensor([-2], [0, -8])}, b"x" * 8),
    "bool": ({"a": tensor([True], [0, 4])}, b"x" * 4),
    "float": ({"a": tensor([2.0])}, b"x" * 8),
    "overlap": ({"a": tensor(), "b": tensor()}, b"x" * 8),
    "gap": ({"a": tensor((2,), (8, 16))}, b"x" * 16),
    "too much data": ({"a": tensor()}, b"x" * 9),
    "too little data": ({"a": tensor()}, b"x" * 7),
    "unknown type": ({"a": tensor(dtype="F128")}, b"x" * 8),
    "type is a list": ({"a": tensor(dtype=["F32"])}, b"x" * 8),
    "extra key": ({"a": {**tensor(), "evil": 1}}, b"x" * 8),
    "no table": ([1, 2], b""),
    "tensor is no table": ({"a": 3}, b""),
    "name twice": (b'{"a": 1, "a": 2}', b""),
    "not utf-8": (b'{"\xff": 1}', b""),
    "not json": (b"{", b""),
    "deep": (b"[" * 100_000, b""),
    "pickle": (b"cos\nsystem\n(S'true'\ntR.", b""),
}


@pytest.mark.parametrize("name", BAD)
def test_impossible_headers_are_refused(tmp_path: Path, name: str) -> None:
    header, data = BAD[name]
    with pytest.raises(CorruptError):
        read_header(written(tmp_path, header, data))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 10**9, 100])
def test_a_header_length_beyond_the_file_allocates_nothing(tmp_path: Path, length: int) -> None:
    with pytest.raises(CorruptError):
        read_header(written(tmp_path, {"a": tensor()}, b"x" * 8, length=length))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 20])
def test_cut_files(weights: Path, size: int) -> None:
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(CorruptError):
        read_header(weights)


def test_mutations_are_refused_or_harmless(weights: Path) -> None:
    """Flips, cuts, repeats: a typed error or a list of tensors that fits the file, at once."""
    whole, rng = weights.read_bytes(), random.Random(4)
    start = time.process_time()
    for _ in range(600):
        data = bytearray(whole)
        kind = rng.randrange(3)
        at = rng.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 9)]
        weights.write_bytes(data)
        try:
            tensors = read_header(weights)
        except PhraseloomError:
            continue
        assert sum(t.size for t in tensors) <= len(data)
    assert time.process_time() - start < 10


def test_paths(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileProblem):
            read_header(path)


def test_parts_of_a_dataset_may_be_of_any_size() -> None:
    """A shard of 500,000 pairs has 16 MiB of word links from 8.4 links a pair on."""
    assert [limit_of(f"train/00000.{name}") for sequence in SEQUENCES for name in sequence] == [None] * 8
