from __future__ import annotations

import gzip
import hashlib
import lzma
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.data import survey as module
from phraseloom.data.shards import FileInfo
from phraseloom.data.survey import chunks, parallel, read_through, readings, sample, survey
from phraseloom.errors import CorruptError, DataError
from phraseloom.options.data import ParallelFiles
from phraseloom.text import lines as lines_module
from phraseloom.text.lines import read_lines, split_region, write_lines


def surveyed(files: ParallelFiles, root: Path) -> FileInfo:
    return survey(files, root, [read_through(*job) for job in readings(files, root)])


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 60), st.integers(1, 9))
def test_samples_are_spread_and_chunks_are_exact(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], wanted: int, size: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    total, paths = sum(sizes), []
    for number, count in enumerate(sizes):
        paths.append(folder / f"part{number}")
        start = sum(sizes[:number])
        write_lines(paths[-1], (str(i) for i in range(start, start + count)))
    found = [int(line) for line in sample(paths, total, wanted)]
    assert len(found) == len(set(found)) == min(wanted, total)
    gaps = [b - a for a, b in pairwise(found)]
    assert not gaps or max(gaps) - min(gaps) <= 1
    cut = list(chunks(paths[0], size))
    assert [line for _, data in cut for line in split_region(data)] == [str(i) for i in range(sizes[0])]
    assert [count for count, _ in cut] == [len(split_region(data)) for _, data in cut]
    assert all(count == size for count, _ in cut[:-1])
    middle = len(found) // 3
    parts = [sample(paths, total, wanted, rows) for rows in (range(middle), range(middle, len(found)))]
    assert [int(line) for part in parts for line in part] == found


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.lists(st.sampled_from(["a", "", "\r", "ü\u2028b", "x\r", "\0", "\ufeff", "a long line of text"]), max_size=30),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", "\ufeff"]),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_samples_and_chunks_have_the_lines_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, bom: str, ended: bool, block: int, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "awkward"
    text = end.join(lines) + (end if ended else "")
    path.write_bytes((bom + text).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "BLOCK", block)
        whole = list(read_lines(path))
        cut = list(chunks(path, size))
        assert [line for _, data in cut for line in split_region(data)] == whole
        assert [count for count, _ in cut] == [len(split_region(data)) for _, data in cut]
        assert list(sample([path], len(whole), len(whole))) == whole
        assert list(sample([path, path], 2 * len(whole), 7)) == [
            (2 * whole)[j * 2 * len(whole) // min(7, 2 * len(whole))] for j in range(min(7, 2 * len(whole)))
        ]


def test_a_sample_stops_at_every_line_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"a\n" * 10 + b"\xff\n" + b"a\n" * 9)
    with pytest.raises(DataError, match=r"s:11: invalid UTF-8"):
        list(sample([tmp_path / "s"], 20, 2))


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    write_lines(tmp_path / "s", ["a"] * 5)
    write_lines(tmp_path / "t", ["a"] * 4)
    with pytest.raises(DataError, match="changed during reading"):
        list(parallel({"source": tmp_path / "s", "target": tmp_path / "t"}, 2))


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_one_reading_gives_counts_and_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    compress = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[ending]
    data = compress(b"one\n" * 400_000) + (compress(b"two\n") if ending else b"") + (b"\0" * 512 if ending else b"")
    (tmp_path / f"s{ending}").write_bytes(data)
    (tmp_path / f"t{ending}").write_bytes(data)
    monkeypatch.setattr(module, "sha256_file", lambda _: pytest.fail("the file was read again"))
    found = surveyed(ParallelFiles(source=f"s{ending}", target=f"t{ending}"), tmp_path)
    assert found.source_sha256 == found.target_sha256 == hashlib.sha256(data).hexdigest()
    assert found.lines == 400_000 + bool(ending)


def test_the_wrong_file_is_named_before_its_content(tmp_path: Path) -> None:
    for side in "st":
        (tmp_path / side).write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="invalid UTF-8"):
        surveyed(ParallelFiles(source="s", target="t"), tmp_path)
    with pytest.raises(CorruptError, match="SHA-256 is"):
        surveyed(ParallelFiles(source="s", target="t", source_sha256="0" * 64), tmp_path)
