"""A dataset that is damaged while it is read ends with a message, not with a bus error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from phraseloom.data.shards import ShardWriter, SplitFiles
from phraseloom.errors import CorruptError

COUNT, SHARDS = 5000, 3


@pytest.fixture
def split(tmp_path: Path) -> SplitFiles:
    """Three shards of pairs of one token: pair i of shard k has the token (i + k) % 7."""
    writer = ShardWriter(tmp_path, "train", "uint16", COUNT)
    ones = np.ones(COUNT, np.int64)
    for shard in range(SHARDS):
        tokens = (np.arange(COUNT) + shard) % 7
        writer.add((tokens, tokens), (ones, ones), np.arange(COUNT))
    return SplitFiles(tmp_path, writer.finish(), "uint16", (10, 10))


@pytest.mark.parametrize("name", ["source.tokens", "target.tokens", "source.offsets", "target.offsets", "lines"])
def test_a_file_that_is_cut_is_named(split: SplitFiles, name: str) -> None:
    files = split.file(name)
    files.check(1)
    size = files.paths[1].stat().st_size
    os.truncate(files.paths[1], 100)
    files.check(0)
    with pytest.raises(CorruptError, match=f"00001.{name}: was truncated to 100 bytes during reading; it had {size}"):
        files.check(1)


def test_a_read_of_a_cut_file_is_an_error(split: SplitFiles) -> None:
    lengths = split.lengths(0)
    os.truncate(split.file("source.tokens").paths[2], 100)
    with pytest.raises(CorruptError, match="was truncated"):
        split.gather(0, np.array([2]), np.array([4999]), lengths[-1:].astype(np.int64), 0)


def test_a_dataset_made_again_at_the_same_place_does_not_disturb_a_reader(split: SplitFiles) -> None:
    path = split.file("source.tokens").paths[2]
    lengths = split.lengths(0)
    path.with_name("new").write_bytes(b"")
    path.with_name("new").replace(path)
    values = split.gather(0, np.array([2, 0]), np.array([4999, 3]), lengths[:2].astype(np.int64), 0)
    assert values.tolist() == [[(4999 + 2) % 7], [3]]


def test_files_that_are_mapped_stay_what_they_were_before_the_first_read(split: SplitFiles, tmp_path: Path) -> None:
    split.map([0, 1])
    for name in ("source.tokens", "source.offsets", "target.tokens", "target.offsets"):
        path = tmp_path / f"train/00002.{name}"
        path.with_name("new").write_bytes(bytes(path.stat().st_size))
        path.with_name("new").replace(path)
    for side in (0, 1):
        lengths = split.lengths(side)
        assert lengths.tolist() == [1] * (SHARDS * COUNT)
        values = split.gather(side, np.array([2]), np.array([4999]), lengths[:1].astype(np.int64), 0)
        assert values.tolist() == [[(4999 + 2) % 7]]


def test_opening_keeps_no_file_open(split: SplitFiles) -> None:
    """However many shards there are; each file was five descriptors before."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("source.tokens", "source.offsets", "target.tokens", "lines"):
        split.file(name)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_of_another_size_is_refused_when_it_is_mapped(split: SplitFiles, tmp_path: Path) -> None:
    os.truncate(tmp_path / "train/00001.lines", 16)
    with pytest.raises(CorruptError, match=r"00001\.lines: size is 16 bytes, the index says 40000"):
        split.file("lines")


def test_all_files_in_use_are_checked_at_once(split: SplitFiles) -> None:
    split.check_sizes()
    for name in ("source.tokens", "target.offsets"):
        split.file(name)
    split.check_sizes()
    os.truncate(split.file("target.offsets").paths[2], 8)
    with pytest.raises(CorruptError, match=r"00002.target.offsets: was truncated to 8 bytes"):
        split.check_sizes()
