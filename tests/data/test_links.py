"""Word links in a dataset: from lines of Pharaoh text to links between tokens, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.test_prepare import make
from tests.helpers import content

from phraseloom.data.corpus import Dataset
from phraseloom.data.tally import table
from phraseloom.errors import CorruptError, DataError
from phraseloom.text.lines import read_lines, write_lines


def linked(tmp_path: Path, **more: Any) -> dict[str, Any]:
    """The corpora of test_prepare; every word of `a` is linked with the word of the same number, `b` has no links."""
    if not (tmp_path / "a.s").exists():
        make(tmp_path, overwrite=True)
    lines = zip(read_lines(tmp_path / "a.s"), read_lines(tmp_path / "a.t"), strict=True)
    counts = [min(len(s.split()), len(t.split())) for s, t in lines]
    write_lines(tmp_path / "a.links", [" ".join(f"{n}-{n}" for n in range(count)) for count in counts])
    first = {"source": "a.s", "target": "a.t", "links": "a.links", **more}
    return {"train": [first, {"source": "b.s", "target": "b.t"}], "filter": {"max_ratio": 2.0}}


@pytest.mark.parametrize("tags", [{}, {"tag": ["<x>", "<y>"]}])
def test_a_link_of_words_links_all_their_tokens(tmp_path: Path, tags: dict[str, Any]) -> None:
    make(tmp_path, overwrite=True, **linked(tmp_path, **tags))
    dataset = Dataset.open(tmp_path / "out")
    train, before = dataset.split("train"), len(tags.get("tag", ()))
    numbers = list(range(0, len(train), 7))
    matrices = train.links(numbers)
    assert matrices is not None and matrices.dtype == np.float32
    assert f"train: {train.info.links:,} links between subwords" in table(dataset.index)
    assert len(train.lines) < 300 and train.info.links == train.links(range(len(train))).sum()  # type: ignore[union-attr]
    for number, found in zip(numbers, matrices, strict=True):
        source, target = (side.word_of_piece(ids.tolist()) for side, ids in (
            (dataset.tokenizer.source, train.source(number)), (dataset.tokenizer.target, train.target(number)),
        ))  # fmt: skip
        expected = np.zeros_like(found)
        for t, target_word in enumerate(target):
            for s, source_word in enumerate(source):
                expected[t, s] = source_word == target_word and s >= before and train.lines[number] < 200
        assert np.array_equal(found, expected)


def test_processes_do_not_change_the_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from phraseloom.data import prepare as module

    monkeypatch.setattr(module, "CHUNK_PAIRS", 40)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 1)
    more = linked(tmp_path)
    more["filter"] = {"max_ratio": 2.0, "deduplicate": True}
    make(tmp_path, overwrite=True, **more)
    alone = content(tmp_path / "out")
    make(tmp_path, overwrite=True, processes=2, **more)
    assert content(tmp_path / "out") == alone


def test_a_dataset_without_links_has_the_same_files(tmp_path: Path) -> None:
    make(tmp_path)
    files = content(tmp_path / "out")
    assert not [name for name in files if "link" in name] and b'"links"' not in files["index.json"]
    assert Dataset.open(tmp_path / "out").split("train").links([0]) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0-0 1:1", "field 2, '1:1', is not a link"),
        ("0-40", "0-40: the target has"),
        ("40-0", "40-0: the source has"),
        ("0p0", "is not a link"),
    ],
)
def test_a_bad_link_is_refused_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    more = linked(tmp_path)
    lines = [*read_lines(tmp_path / "a.links")]
    row = next(n for n, own in enumerate(lines) if own.count("-") > 3 and n > 20)
    write_lines(tmp_path / "a.links", [*lines[:row], line, *lines[row + 1 :]])
    more["filter"] = {"max_ratio": None}
    with pytest.raises(DataError, match=message) as caught:
        make(tmp_path, overwrite=True, **more)
    assert caught.value.line == row + 1 and str(caught.value.file).endswith("a.links")


def test_links_of_a_pair_that_is_left_out_are_checked(tmp_path: Path) -> None:
    """A link of a blank line is the clearest sign of a file that is shifted."""
    more = linked(tmp_path)
    sources, lines = [*read_lines(tmp_path / "a.s")], [*read_lines(tmp_path / "a.links")]
    row = next(n for n, own in enumerate(lines) if own)
    write_lines(tmp_path / "a.s", [*sources[:row], "", *sources[row + 1 :]])
    with pytest.raises(DataError, match="the source has") as caught:
        make(tmp_path, overwrite=True, **more)
    assert caught.value.line == row + 1 and str(caught.value.file).endswith("a.links")


def test_what_reading_changes_in_a_file_of_links_is_reported(tmp_path: Path) -> None:
    more = linked(tmp_path)
    path = tmp_path / "a.links"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    report = make(tmp_path, overwrite=True, **more)
    assert "a.links: 1 byte order mark at the beginning, left out (first: line 1)" in table(report.index, learned=False)


def test_another_number_of_lines_is_refused(tmp_path: Path) -> None:
    more = linked(tmp_path)
    write_lines(tmp_path / "a.links", [*read_lines(tmp_path / "a.links")][:-3])
    with pytest.raises(DataError, match=r"197 in a\.links, but 200 pairs") as caught:
        make(tmp_path, overwrite=True, **more)
    assert caught.value.line == 198


def test_links_beyond_a_sentence_are_corrupt(tmp_path: Path) -> None:
    make(tmp_path, overwrite=True, **linked(tmp_path))
    path = tmp_path / "out" / "train" / "00000.links"
    values = np.fromfile(path, "<u2")
    values[0] = 999
    values.tofile(path)
    dataset = Dataset.open(tmp_path / "out", verify=False)
    with pytest.raises(CorruptError, match="links of tokens that the sentences lack"):
        dataset.split("train").links([0])
    with pytest.raises(CorruptError):
        Dataset.open(tmp_path / "out")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"valid": [{"source": "v.s", "target": "v.t", "links": "x"}]}, "links: only training uses links"),
        (
            {"train": [{"source": "a.s", "target": "a.t", "links_sha256": "0" * 64}]},
            "links_sha256 is given, but no links",
        ),
    ],
)
def test_links_where_nobody_reads_them_are_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **more)
