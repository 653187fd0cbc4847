from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import prepare
from phraseloom.errors import CorruptError, DataError, FileProblem, UsageError
from phraseloom.options.data import DataConfig
from phraseloom.text.lines import write_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(1)
    for side in "st":
        lines = [" ".join(random.choice(["the", "dog", "runs", "far"], random.integers(1, 40))) for _ in range(500)]
        write_lines(root / side, lines)
        write_lines(root / f"v{side}", ["", *lines[:5], " \u2028", "a\rb"])
    given = {
        "folder": str(root / "out"),
        "source_language": "en",
        "target_language": "de",
        "train": [{"source": "s", "target": "t"}],
        "valid": [{"source": "vs", "target": "vt"}, {"source": "vs", "target": "vt"}],
        "subwords": {"kind": "subword_nmt", "merges": 20},
        "filter": {"max_ratio": None},
        "shard_pairs": 120,
    }
    prepare(DataConfig.model_validate(given), data_root=root)
    return root / "out"


@settings(max_examples=50, deadline=None, database=None)
@given(st.data())
def test_a_batch_is_its_pairs(folder: Path, data: st.DataObject) -> None:
    split = Dataset.open(folder, verify=False).split("train")
    wanted = data.draw(st.lists(st.integers(0, 499), max_size=20))
    source, source_lengths, target, target_lengths = split.batch(wanted)
    assert source.dtype == target.dtype == source_lengths.dtype == np.int64
    for row, i in enumerate(wanted):
        n, m = source_lengths[row], target_lengths[row]
        assert source[row, :n].tolist() == split.source(i).tolist() and not source[row, n:].any()
        assert target[row, :m].tolist() == split.target(i).tolist() and not target[row, m:].any()
        assert (n, m) == (split.source_lengths[i], split.target_lengths[i])
    assert source.shape == (len(wanted), source_lengths.max(initial=0))


def test_lengths_and_places(folder: Path) -> None:
    split = Dataset.open(folder).split("train")
    assert split.source_lengths.dtype == np.int32 and len(split.source_lengths) == 500 == len(split)
    assert split.lines.tolist() == list(range(500)) and len(split.info.shards) == 5
    for bad in (-1, 500):
        with pytest.raises(IndexError):
            split.source(bad)
        with pytest.raises(IndexError):
            split.batch([0, bad])


def test_a_batch_takes_less_than_a_millisecond(folder: Path) -> None:
    split = Dataset.open(folder).split("train")
    wanted = np.random.default_rng(0).integers(0, 500, 130)
    times = []
    for _ in range(30):
        started = time.process_time()
        split.batch(wanted)
        times.append(time.process_time() - started)
    assert min(times) < 1e-3


def test_raw_text_is_kept_for_valid_only(folder: Path) -> None:
    dataset = Dataset.open(folder)
    source, target = dataset.split("valid").text()
    assert len(source) == len(target) == 16 == len(dataset.split("valid"))
    assert source[0] == "" and source[6] == " \u2028" and source[7] == "a\rb" and source[8:] == source[:8]
    with pytest.raises(UsageError, match="raw text of train is not stored"):
        dataset.split("train").text()
    with pytest.raises(DataError, match=r"no test data \(it has train, valid\)"):
        dataset.split("test")


def damaged(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_damaged_file_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = damaged(folder, tmp_path)
    for path in sorted(p for p in copy.rglob("*") if p.is_file()):
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for bad in (content[:-2], content + b"\0", bytes(flipped), b""):
            path.write_bytes(bad)
            with pytest.raises(CorruptError):
                Dataset.open(copy)
        path.unlink()
        with pytest.raises(FileProblem):
            Dataset.open(copy)
        path.write_bytes(content)
    Dataset.open(copy)


def test_a_large_dataset_is_checked_by_size(folder: Path, tmp_path: Path) -> None:
    copy = damaged(folder, tmp_path)
    path = copy / "train/00002.source.tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptError, match=r"00002\.source\.tokens: size is"):
        Dataset.open(copy, verify=False)


def test_offsets_that_lie_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = damaged(folder, tmp_path)
    for change in (2**40, -5):
        offsets = np.fromfile(copy / "train/00001.target.offsets", dtype="<i8")
        offsets[3] = change
        offsets.tofile(copy / "train/00001.target.offsets")
        with pytest.raises(CorruptError, match="offsets do not fit"):
            _ = Dataset.open(copy, verify=False).split("train").target_lengths


def test_ids_beyond_the_vocabulary_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = damaged(folder, tmp_path)
    tokens = np.fromfile(copy / "train/00001.source.tokens", dtype="<u2")
    tokens[5] = 60_000
    tokens.tofile(copy / "train/00001.source.tokens")
    split = Dataset.open(copy, verify=False).split("train")
    with pytest.raises(CorruptError, match=r"00001\.source\.tokens: holds ids beyond the vocabulary"):
        split.batch(range(len(split)))


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"files": {"index.json": 3}}', '{"files": {"../x": {}}}'])
def test_manifests_that_are_none(folder: Path, tmp_path: Path, manifest: str) -> None:
    copy = damaged(folder, tmp_path)
    (copy / "manifest.json").write_text(manifest)
    for verify in (True, False, None):
        with pytest.raises(CorruptError):
            Dataset.open(copy, verify=verify)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "dataset of format 2, but this version reads 1"),
        ({"token_type": "object"}, "not a dataset index: token_type"),
        ({"tokenizer_sha256": "0"}, "tokenizer belongs to another"),
        ({"config": {}}, "no valid data section"),
        ({"splits": 3}, "not a dataset index: splits"),
        ({"more": 3}, "not a dataset index: more"),
    ],
)
def test_an_index_that_does_not_fit(folder: Path, tmp_path: Path, change: dict[str, object], text: str) -> None:
    from phraseloom.files import verify_manifest, write_manifest

    copy = damaged(folder, tmp_path)
    names = verify_manifest(copy)
    index = json.loads((copy / "index.json").read_text())
    (copy / "index.json").write_text(json.dumps({**index, **change}))
    write_manifest(copy, names)
    with pytest.raises(CorruptError, match=text):
        Dataset.open(copy)


def test_what_is_no_dataset(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing", folder / "index.json", folder / "tokenizer"):
        with pytest.raises(FileProblem):
            Dataset.open(path)
