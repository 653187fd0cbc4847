"""A dataset that is damaged while it is read ends with a message, not with a bus error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from phraseloom.data.shards import Shard, ShardInfo, ShardWriter
from phraseloom.errors import CorruptError


def shard(folder: Path) -> tuple[Shard, ShardInfo]:
    writer = ShardWriter(folder, "train", "uint16", 10**6)
    count = 5000
    tokens = np.arange(count, dtype=np.int64) % 7
    writer.add((tokens, tokens), (np.ones(count, np.int64), np.ones(count, np.int64)), np.arange(count))
    info = writer.finish()[0]
    return Shard(folder, info, "uint16", (10, 10)), info


@pytest.mark.parametrize("name", ["source.tokens", "target.tokens", "source.offsets", "target.offsets", "lines"])
def test_a_file_that_is_cut_is_named(tmp_path: Path, name: str) -> None:
    mapped, info = shard(tmp_path)
    mapped.check()
    path = tmp_path / f"{info.name}.{name}"
    size = path.stat().st_size
    os.truncate(path, 100)
    with pytest.raises(CorruptError, match=f"{name}: was truncated to 100 bytes during reading; it had {size}"):
        mapped.check()


def test_a_dataset_made_again_at_the_same_place_does_not_disturb_a_reader(tmp_path: Path) -> None:
    mapped, info = shard(tmp_path)
    path = tmp_path / f"{info.name}.source.tokens"
    path.with_name("new").write_bytes(b"")
    path.with_name("new").replace(path)
    mapped.check()
    assert mapped.tokens[0][4999] == 4999 % 7
