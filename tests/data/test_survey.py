from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.data.survey import chunks, parallel, sample
from phraseloom.errors import DataError
from phraseloom.text.lines import write_lines


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
    assert [line for chunk in cut for line in chunk] == [str(i) for i in range(sizes[0])]
    assert all(len(chunk) == size for chunk in cut[:-1])


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    write_lines(tmp_path / "s", ["a"] * 5)
    write_lines(tmp_path / "t", ["a"] * 4)
    with pytest.raises(DataError, match="changed during reading"):
        list(parallel({"source": tmp_path / "s", "target": tmp_path / "t"}, 2))
