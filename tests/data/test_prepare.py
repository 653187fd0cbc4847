from __future__ import annotations

import errno
import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import content

from phraseloom import files
from phraseloom.cli.main import run
from phraseloom.data import prepare as module
from phraseloom.data.corpus import Dataset
from phraseloom.data.encode import Encoder
from phraseloom.data.prepare import Report, prepare
from phraseloom.data.tally import table
from phraseloom.data.workers import Workers
from phraseloom.errors import CorruptError, DataError, FileProblem, PhraseloomError, UsageError, plural
from phraseloom.options.data import DataConfig
from phraseloom.text.lines import write_lines

WORDS = ("the", "a", "old", "new", "house", "dog", "bird", "garden", "small", "large", "sings", "runs", "stands", "in")


def sentences(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 12))) for _ in range(count)]


def config(tmp_path: Path, **more: Any) -> DataConfig:
    """A corpus of 300 pairs in two files, with valid and test."""
    if not (tmp_path / "a.s").exists():
        for name, count in (("a", 200), ("b", 100), ("v", 20), ("t", 10)):
            for side in "st":
                write_lines(tmp_path / f"{name}.{side}", sentences(count, hash((ord(name), ord(side))) % 1000))
    pairs = {n: {"source": f"{n}.s", "target": f"{n}.t"} for n in "abvt"}
    given = {
        "folder": str(tmp_path / "out"),
        "source_language": "en",
        "target_language": "de",
        "train": [pairs["a"], pairs["b"]],
        "valid": [pairs["v"]],
        "test": [pairs["t"]],
        "subwords": {"kind": "sentencepiece", "size": 340},
        "filter": {"max_ratio": None},
        "processes": 1,
        **more,
    }
    return DataConfig.model_validate(given)


def make(tmp_path: Path, *, overwrite: bool = False, **more: Any) -> Report:
    return prepare(config(tmp_path, **more), data_root=tmp_path, overwrite=overwrite)


def decoded(dataset: Dataset, split: str) -> list[tuple[str, str]]:
    pairs, side = dataset.split(split), dataset.tokenizer
    ids = ((pairs.source(i).tolist(), pairs.target(i).tolist()) for i in range(len(pairs)))
    return [(side.source.decode(s), side.target.decode(t)) for s, t in ids]


@pytest.mark.parametrize("kind", ["sentencepiece", "subword_nmt"])
@pytest.mark.parametrize("joint", [True, False])
def test_every_pair_comes_back(tmp_path: Path, kind: str, joint: bool) -> None:
    size = {"size": 340} if kind == "sentencepiece" else {"merges": 50}
    report = make(tmp_path, subwords={"kind": kind, "joint": joint, **size})
    dataset = Dataset.open(report.folder)
    for split, names in (("train", "ab"), ("valid", "v"), ("test", "t")):
        raw = [[x for n in names for x in (tmp_path / f"{n}.{s}").read_text().split("\n")[:-1]] for s in "st"]
        assert decoded(dataset, split) == list(zip(*raw, strict=True))
    assert dataset.tokenizer.joint is joint
    assert dataset.config.train == report_config(tmp_path).train and "test" in dataset and "dev" not in dataset


def report_config(tmp_path: Path) -> DataConfig:
    return config(tmp_path)


def test_the_bytes_do_not_depend_on_processes_or_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 16)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 0)
    more = {"filter": {"deduplicate": True, "max_tokens": 30}, "shard_pairs": 50}
    first = make(tmp_path, folder=str(tmp_path / "one"), **more)
    second = make(tmp_path, folder=str(tmp_path / "two"), processes=2, **more)
    assert content(first.folder) == content(second.folder)
    assert len(first.index.splits["train"].shards) > 3
    assert Dataset.open(first.folder).fingerprint == Dataset.open(second.folder).fingerprint


SEVERAL: dict[str, dict[str, Any]] = {
    "separate": {"subwords": {"kind": "sentencepiece", "size": 340, "joint": False}},
    "unigram": {"subwords": {"kind": "sentencepiece", "model": "unigram", "size": 300}},
    "truecased": {
        "subwords": {"kind": "subword_nmt", "merges": 30, "joint": False, "sample_lines": 170},
        "text": {"tokenize": "moses", "truecase": True},
    },
    "words": {"subwords": {"kind": "words", "size": 9, "source": {"kind": "subword_nmt", "merges": 20}}},
}


@pytest.mark.parametrize("case", SEVERAL)
def test_what_several_processes_count_and_learn_is_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Files are read, the parts of the sample counted and both sides learned in other processes: the same bytes."""
    first = make(tmp_path, folder=str(tmp_path / "one"), **SEVERAL[case])
    for name, value in (("CHUNK_PAIRS", 60), ("SMALL_CHUNKS", 0), ("SMALL_BYTES", 0)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("phraseloom.data.sample.PART_LINES", 40)
    real, elsewhere = Workers.run, set[str]()

    def run(self: Workers, function: Any, jobs: Any, *, here: bool = False) -> Any:
        jobs = list(jobs)
        if jobs and not here:
            elsewhere.add(function.__name__)
        return real(self, function, jobs, here=here)

    monkeypatch.setattr(Workers, "run", run)
    second = make(tmp_path, folder=str(tmp_path / "two"), processes=2, **SEVERAL[case])
    assert content(first.folder) == content(second.folder)
    learned = set() if case == "unigram" else {"count", "learn"}  # unigram needs lines, and joint has one side
    assert elsewhere == {"read_through", "encode_raw"} | learned


def test_shards_and_chunks_hold_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Dataset.open(make(tmp_path).folder).split("train")
    monkeypatch.setattr(module, "CHUNK_PAIRS", 7)
    cut = Dataset.open(make(tmp_path, folder=str(tmp_path / "cut"), shard_pairs=30).folder).split("train")
    assert len(cut.info.shards) == 9 and (cut.lines == whole.lines).all()
    for i in range(len(whole)):
        assert (whole.source(i) == cut.source(i)).all() and (whole.target(i) == cut.target(i)).all()


def test_filters_count_everything(tmp_path: Path) -> None:
    source = ["the", "", "  ", "the", "the dog " * 50, "the a old new house dog bird garden", "the", "good", "the"]
    target = ["a", "a", "", "\u3000", "a", "a", "a", "dog", "a"]
    write_lines(tmp_path / "x.s", source)
    write_lines(tmp_path / "x.t", target)
    config(tmp_path)
    report = make(
        tmp_path,
        train=[{"source": "a.s", "target": "a.t"}, {"source": "x.s", "target": "x.t"}],
        filter={"max_tokens": 40, "max_ratio": 6, "deduplicate": True},
    )
    info = report.index.splits["train"]
    dropped = {reason: d.pairs for reason, d in info.dropped.items()}
    assert dropped.pop("ratio") >= 1 and dropped.pop("duplicate") >= 2
    assert dropped == {"empty_source": 1, "empty_both": 1, "empty_target": 1, "too_long": 1}
    assert (info.dropped["too_long"].first_file, info.dropped["too_long"].first_line) == ("x.s", 5)
    assert info.read == 209 == info.pairs + sum(d.pairs for d in info.dropped.values())
    text = table(report.index)
    assert all(f"left out {plural(d.pairs, 'pair')}" in text for d in info.dropped.values())
    kept = set(range(209)) - set(Dataset.open(report.folder).split("train").lines.tolist())
    assert {201, 202, 203, 204, 205, 206, 208} - {200} <= kept | {200}


def test_pairs_of_which_a_side_is_in_valid_or_test_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case, punctuation and spaces do not count; lines of fewer words stay; worker processes leave out the same pairs."""
    config(tmp_path)
    source = ["The DOG sings, in (a garden).", "the dog sings", "a house stands in the old garden", "small birds run"]
    target = ["x", "in a large house", "y", "the old dog runs in a garden !"]
    write_lines(tmp_path / "x.s", source)
    write_lines(tmp_path / "x.t", target)
    write_lines(tmp_path / "y.s", ["the dog sings in a garden", "the dog sings"])
    write_lines(tmp_path / "y.t", ["a house stands in the old garden", "The old dog runs in a garden"])
    files = {
        "train": [{"source": "a.s", "target": "a.t"}, {"source": "x.s", "target": "x.t"}],
        "valid": [{"source": "v.s", "target": "v.t"}],
        "test": [{"source": "y.s", "target": "y.t"}],
    }
    report = make(tmp_path, filter={"decontaminate": 5}, **files)
    dropped = report.index.splits["train"].dropped["held_out"]
    assert (dropped.first_file, dropped.first_line) == ("x.s", 1)
    assert "left out 2 pairs: a side is in valid or test (first: x.s:1)" in table(report.index)
    kept = decoded(Dataset.open(report.folder), "train")
    assert [pair for pair in kept if pair[0] in source] == [(source[1], target[1]), (source[2], target[2])]

    before = content(report.folder)
    with monkeypatch.context() as patch:
        patch.setattr(module, "CHUNK_PAIRS", 60)
        patch.setattr(module, "SMALL_CHUNKS", 0)  # worker processes
        make(tmp_path, overwrite=True, filter={"decontaminate": 5}, processes=2, **files)
    assert content(report.folder) == before
    longer = make(tmp_path, overwrite=True, filter={"decontaminate": 7}, **files)
    assert longer.index.splits["train"].dropped["held_out"].pairs == 1
    plain = make(tmp_path, overwrite=True, **files)
    assert "held_out" not in plain.index.splits["train"].dropped
    assert b"decontaminate" not in content(plain.folder)["index.json"] and b"decontaminate" in before["index.json"]
    with pytest.raises(ValueError, match="decontaminate compares with the lines of valid and test, and there are none"):
        config(tmp_path, filter={"decontaminate": 5}, valid=[], test=[])
    with pytest.raises(DataError, match="no train pair is left: 2 a side is in valid or test"):
        make(tmp_path, overwrite=True, filter={"decontaminate": 1}, **(files | {"train": files["test"]}))


def test_blank_lines_of_valid_and_test_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 7)
    assert make(tmp_path).index.splits["valid"].blank is None
    for name, blank in (("v.s", [8, 12]), ("v.t", [9, 12]), ("t.t", range(10))):
        path = tmp_path / name
        lines = path.read_text().split("\n")[:-1]
        write_lines(path, [" " if i in blank else line for i, line in enumerate(lines)])
    report = make(tmp_path, overwrite=True)
    found = report.index.splits["valid"].blank
    assert found is not None and (found.pairs, found.first_file, found.first_line) == (3, "v.s", 9)
    text = table(report.index)
    assert "warning: valid has 3 pairs with a blank side, which are kept (first: v.s:9)" in text
    assert "warning: test has 10 pairs with a blank side, which are kept (first: t.s:1)" in text
    assert len(Dataset.open(report.folder).split("valid")) == 20
    assert (
        b'"blank"' not in make(tmp_path, overwrite=True, valid=[], test=[]).folder.joinpath("index.json").read_bytes()
    )


def test_long_lines_of_valid_are_named(tmp_path: Path) -> None:
    config(tmp_path)
    lines = (tmp_path / "v.t").read_text().splitlines()
    write_lines(tmp_path / "v.t", [*lines[:6], "house " * 2000, *lines[7:]])
    report = make(tmp_path)
    found = report.index.splits["valid"].long
    assert found is not None and (found.pairs, found.first_file, found.first_line) == (1, "v.s", 7)
    expected = (
        "warning: valid has 1 pair of more than 1,024 subwords, which validation and the model crop (first: v.s:7)"
    )
    assert expected in table(report.index)
    assert (
        make(tmp_path, overwrite=True, filter={"max_tokens": 5000, "max_ratio": None}).index.splits["valid"].long
        is None
    )


def test_duplicates_are_those_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 9)
    random = np.random.default_rng(3)
    raw = [(WORDS[i % 8], WORDS[i % 5]) for i in random.integers(0, 40, 200)]
    config(tmp_path)
    write_lines(tmp_path / "a.s", [s for s, _ in raw])
    write_lines(tmp_path / "a.t", [t for _, t in raw])
    files = [{"source": "a.s", "target": "a.t"}]
    report = make(tmp_path, train=files, filter={"deduplicate": True}, subwords={"kind": "subword_nmt", "merges": 9})
    lines = Dataset.open(report.folder).split("train").lines.tolist()
    assert [raw[i] for i in lines] == list(dict.fromkeys(raw))
    assert lines == [raw.index(pair) for pair in dict.fromkeys(raw)]


def test_a_pair_with_another_tag_is_no_duplicate(tmp_path: Path) -> None:
    config(tmp_path)
    for name in ("a", "b"):
        write_lines(tmp_path / f"{name}.s", [WORDS[0], WORDS[1], WORDS[0]])
        write_lines(tmp_path / f"{name}.t", [WORDS[0], WORDS[1], WORDS[0]])
    files = [{"source": f"{name}.s", "target": f"{name}.t", "tag": f"<2{name}>"} for name in ("a", "b")]
    report = make(tmp_path, train=files, filter={"deduplicate": True}, subwords={"kind": "subword_nmt", "merges": 9})
    assert Dataset.open(report.folder).split("train").lines.tolist() == [0, 1, 3, 4]


def test_compressed_files_give_the_same_dataset(tmp_path: Path) -> None:
    plain = make(tmp_path)
    for side in "st":
        (tmp_path / f"a.{side}.gz").write_bytes(gzip.compress((tmp_path / f"a.{side}").read_bytes()))
    packed = make(
        tmp_path,
        folder=str(tmp_path / "gz"),
        train=[{"source": "a.s.gz", "target": "a.t.gz"}, {"source": "b.s", "target": "b.t"}],
    )
    names = [n for n in content(plain.folder) if n.startswith("train/")]
    assert all((plain.folder / n).read_bytes() == (packed.folder / n).read_bytes() for n in names)


def test_hashes_of_the_raw_files(tmp_path: Path) -> None:
    config(tmp_path)
    right = hashlib.sha256((tmp_path / "a.s").read_bytes()).hexdigest()
    report = make(tmp_path, train=[{"source": "a.s", "target": "a.t", "source_sha256": right}])
    assert report.index.splits["train"].files[0].source_sha256 == right
    with pytest.raises(CorruptError, match=f"a.t: SHA-256 is .*, but the recipe has {right}"):
        make(tmp_path, overwrite=True, train=[{"source": "a.s", "target": "a.t", "target_sha256": right}])
    Dataset.open(report.folder)


def test_earlier_work_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    first = make(tmp_path)
    before = content(first.folder)
    with pytest.raises(UsageError, match=r"not empty; .*--overwrite"):
        make(tmp_path)
    assert content(first.folder) == before
    make(tmp_path, overwrite=True, filter={"max_tokens": 10})
    assert content(first.folder) != before
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["out"]


def test_a_failed_overwrite_keeps_the_earlier_dataset(tmp_path: Path) -> None:
    first = make(tmp_path)
    before = content(first.folder)
    with pytest.raises(DataError, match="too small for 9999 subwords"):
        make(tmp_path, overwrite=True, subwords={"kind": "sentencepiece", "size": 9999})
    assert content(first.folder) == before and not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (errno.ENOSPC, 23),
        (errno.EIO, 31),
        *(pytest.param(c, 1, marks=pytest.mark.full) for c in (errno.ENOSPC, errno.EIO)),
    ],
)
def test_a_disk_that_fails_at_any_operation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: int
) -> None:
    config(tmp_path)
    for k in range(1, 1000, step):
        if write_with_failure(tmp_path, monkeypatch, code, k):
            assert k > 40
            return
        if (tmp_path / "out").exists():  # only the last step, making the name durable, comes after the rename
            Dataset.open(tmp_path / "out", verify=True)
            files.disk.remove_tree(tmp_path / "out")
        assert not (tmp_path / "out.partial").exists()
    raise AssertionError("never finished")


def write_with_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, k: int) -> bool:
    """Prepare with the k-th operation of the disk failing; whether it was finished before."""
    count = 0

    def failing(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == k:
                raise OSError(code, os.strerror(code))
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("open", "write", "flush", "fsync", "rename", "mkdir", "fsync_folder"):
            patch.setattr(files.disk, name, failing(getattr(files.disk, name)))
        try:
            make(tmp_path, subwords={"kind": "subword_nmt", "merges": 5})
        except FileProblem as problem:
            assert "\n" not in str(problem)
            return False
    return True


KILLED = """
import os, sys
from pathlib import Path
from phraseloom import files
from phraseloom.options.data import DataConfig
from phraseloom.data.prepare import prepare
count, last, real = 0, int(sys.argv[3]), files.disk.write
def write(*arguments):
    global count
    count += 1
    if count == last:
        os._exit(9)
    return real(*arguments)
files.disk.write = write
prepare(DataConfig.model_validate_json(Path(sys.argv[1]).read_text()), data_root=sys.argv[2])
"""


@pytest.mark.parametrize("last", [1, 9, 30])
def test_a_killed_run_leaves_no_dataset_and_the_next_one_succeeds(tmp_path: Path, last: int) -> None:
    chosen = config(tmp_path)
    (tmp_path / "c.json").write_text(chosen.model_dump_json())
    command = [sys.executable, "-c", KILLED, str(tmp_path / "c.json"), str(tmp_path), str(last)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 9
    for name in ("out", "out.partial"):
        with pytest.raises(FileProblem):
            Dataset.open(tmp_path / name)
    Dataset.open(make(tmp_path).folder)
    assert not (tmp_path / "out.partial").exists()


def test_two_at_once_the_second_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    with files.FolderLock(tmp_path / "out.partial"), pytest.raises(FileProblem, match="in use by process"):
        make(tmp_path)
    Dataset.open(make(tmp_path).folder)


def test_a_dead_worker_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 5)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 0)
    real = Encoder.run

    def killing(self: Encoder, *arguments: Any) -> Any:
        for number, result in enumerate(real(self, *arguments)):
            if number == 2:
                for process in self.workers._pool._processes.values():  # type: ignore[union-attr]
                    process.kill()
            yield result

    monkeypatch.setattr(Encoder, "run", killing)
    with pytest.raises(PhraseloomError, match="worker process was killed"):
        make(tmp_path, processes=2)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_errors_of_worker_processes_are_those_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file with an error is named, whichever process is the first to find one."""
    chosen = config(tmp_path)
    with (tmp_path / "a.t").open("ab") as file:
        file.write(b"\xff\n")
    (tmp_path / "v.s").write_bytes(b"\xff\n")
    monkeypatch.setattr(module, "SMALL_BYTES", 0)
    messages = []
    for processes in (1, 2):
        with pytest.raises(DataError, match=r"a\.t:201: invalid UTF-8") as caught:
            prepare(chosen.model_copy(update={"processes": processes}), data_root=tmp_path)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_input_that_cannot_be_used(tmp_path: Path) -> None:
    config(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for name, problem, text in [
        ("folder", FileProblem, "this is a folder"),
        ("a.x", FileProblem, "did you mean a.s|did you mean a.t"),
        ("pipe", FileProblem, "pipe or device"),
        ("empty", DataError, "train files are empty"),
    ]:
        with pytest.raises(problem, match=text):
            make(tmp_path, train=[{"source": name, "target": name}])
    with pytest.raises(DataError, match="no train pair is left: 300 a side has fewer than min_tokens"):
        make(tmp_path, filter={"min_tokens": 100, "max_tokens": 200})
    for folder in (".", "/", "x/.."):
        with pytest.raises(UsageError, match="does not name a folder"):
            make(tmp_path, folder=folder)
    with pytest.raises(FileProblem, match="this is a file"):
        make(tmp_path, folder=str(tmp_path / "empty"))
    assert not list(tmp_path.glob("*.partial"))


RECIPE = """format: 1
name: small
data:
  folder: {folder}
  source_language: en
  target_language: de
  train: [{{source: a.s, target: a.t}}]
  subwords: {{kind: sentencepiece, size: 340}}
"""


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path)
    (tmp_path / "r.yaml").write_text(RECIPE.format(folder=tmp_path / "out"))
    arguments = ["prepare", str(tmp_path / "r.yaml"), "--data-root", str(tmp_path)]
    assert run([*arguments, "data.filter.max_tokens=9"]) == 0
    captured = capsys.readouterr()
    assert "left out" in captured.out and f"dataset in {tmp_path / 'out'}" in captured.out and captured.err == ""
    assert run(arguments) == 2 and "--overwrite" in capsys.readouterr().err
    assert run([*arguments, "--overwrite", "--processes", "1"]) == 0
    assert run([*arguments, "--processes", "0"]) == 2
    assert run([*arguments, "--overwrite", "data.subwords.size=99999"]) == 1
    assert "too small for 99999 subwords" in capsys.readouterr().err
    assert run([*arguments, "--overwrite", "data.filtr.max_tokens=9"]) == 2
    assert "did you mean filter?" in capsys.readouterr().err
    Dataset.open(tmp_path / "out")


def test_multi30k(shared: Path, tmp_path: Path) -> None:
    pairs = {n: {"source": f"{n}.en.gz", "target": f"{n}.de.gz"} for n in ("train", "val", "test_2016_flickr")}
    chosen = DataConfig.model_validate(
        {
            "folder": str(tmp_path / "m"),
            "source_language": "en",
            "target_language": "de",
            "train": [pairs["train"]],
            "valid": [pairs["val"]],
            "test": [pairs["test_2016_flickr"]],
            "processes": 1,
        }
    )
    report = prepare(chosen, data_root=shared / "data" / "multi30k")
    assert {n: s.pairs for n, s in report.index.splits.items()} == {"train": 29_000, "valid": 1014, "test": 1000}
    test = Dataset.open(report.folder).split("test")
    assert test.text()[0] == [s for s, _ in decoded(Dataset.open(report.folder), "test")]


def test_data_without_validation_text_says_so(tmp_path: Path) -> None:
    note = "there is no validation text: phraseloom train needs data.valid"
    assert note not in table(make(tmp_path).index).splitlines()
    assert note in table(make(tmp_path, overwrite=True, valid=[]).index).splitlines()
