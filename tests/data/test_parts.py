"""Parts of a dataset: a killed `prepare` resumes, several machines share the work, and duplicates are found on disk."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import content

from phraseloom import files
from phraseloom.cli.main import run
from phraseloom.data import parts as parts_module
from phraseloom.data import prepare as module
from phraseloom.data.corpus import Dataset
from phraseloom.data.encode import Chunk, Coder
from phraseloom.data.parts import bits_of, repeated_pairs
from phraseloom.data.prepare import prepare, prepare_part
from phraseloom.errors import DataError, FileProblem, UsageError
from phraseloom.files import is_temporary
from phraseloom.options.data import DataConfig
from phraseloom.text.lines import write_lines

WORDS = ("the", "a", "old", "new", "house", "dog", "bird", "garden")
PAIRS = 230  # of chunks of 10 and parts of 2 chunks: 8 parts of the first file and the second, 4 of the rest


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 10)
    monkeypatch.setattr(module, "PART_CHUNKS", 2)
    monkeypatch.setattr(parts_module, "BUCKET", 32)


def config(root: Path, folder: str = "out", **more: Any) -> DataConfig:
    random = np.random.default_rng(5)
    for name, count in (("a", 155), ("b", 75), ("v", 25)):
        for side in "st":
            if not (root / f"{name}.{side}").exists():
                write_lines(root / f"{name}.{side}", [" ".join(random.choice(WORDS[:4], 2)) for _ in range(count)])
    given = {
        "folder": str(root / folder),
        "source_language": "en",
        "target_language": "de",
        "train": [{"source": f"{n}.s", "target": f"{n}.t"} for n in "ab"],
        "valid": [{"source": "v.s", "target": "v.t"}],
        "subwords": {"kind": "subword_nmt", "merges": 5},
        "filter": {"deduplicate": True, "max_ratio": None},
        "processes": 1,
        "shard_pairs": 40,
        **more,
    }
    return DataConfig.model_validate(given)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The parts of the chunks that are encoded in this process."""
    result: list[int] = []
    real = Coder.encode

    def encode(self: Coder, chunk: Chunk, filters: Any) -> Any:
        if filters is not None:
            result.append(chunk.part)
        return real(self, chunk, filters)

    monkeypatch.setattr(Coder, "encode", encode)
    return result


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.part"))


KILLED = """
import os, sys
from pathlib import Path
from phraseloom import files
from phraseloom.data import parts, prepare
from phraseloom.options.data import DataConfig
prepare.CHUNK_PAIRS, prepare.PART_CHUNKS, parts.BUCKET = 10, 2, 32
count, last, real = 0, int(sys.argv[3]), files.disk.write
def write(handle, data):
    global count
    count += 1
    if count == last:
        real(handle, bytes(data)[: len(data) // 2])
        handle.flush()
        os._exit(9)
    return real(handle, data)
files.disk.write = write
prepare.prepare(DataConfig.model_validate_json(Path(sys.argv[1]).read_text()), data_root=sys.argv[2])
"""


def test_a_killed_call_continues_with_the_same_bytes(tmp_path: Path, encoded: list[int]) -> None:
    chosen = config(tmp_path)
    whole = content(prepare(config(tmp_path, "whole"), data_root=tmp_path).folder)
    everything = len(encoded)
    (tmp_path / "c.json").write_text(chosen.model_dump_json())
    stored: list[int] = []
    for last in (4, 9, 3, 9, 20, 40):
        command = [sys.executable, "-c", KILLED, str(tmp_path / "c.json"), str(tmp_path), str(last)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 9
        assert not (tmp_path / "out").exists()
        stored.append(len(parts(tmp_path / "out.parts")))
    assert stored == sorted(stored) and 0 < stored[1] < stored[-1]
    encoded.clear()
    assert content(prepare(chosen, data_root=tmp_path).folder) == whole
    assert len(encoded) < everything
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["out", "whole"]


def test_a_full_disk_loses_no_part(tmp_path: Path, encoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content(prepare(config(tmp_path, "whole"), data_root=tmp_path).folder)
    everything = len(encoded)
    with monkeypatch.context() as patch:
        real, count = files.disk.write, 0

        def write(handle: Any, data: Any) -> None:
            nonlocal count
            count += "000006.part" in handle.name
            if count:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle, data)

        patch.setattr(files.disk, "write", write)
        with pytest.raises(FileProblem, match=r"000006.part: the disk is full .*; free some space, run it again"):
            prepare(config(tmp_path), data_root=tmp_path)
    assert len(parts(tmp_path / "out.parts")) == 6 and not (tmp_path / "out.partial").exists()
    encoded.clear()
    assert content(prepare(config(tmp_path), data_root=tmp_path).folder) == whole
    assert len(encoded) == everything - 12


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "missing"])
def test_a_damaged_part_is_encoded_again(tmp_path: Path, encoded: list[int], damage: str) -> None:
    whole = content(prepare(config(tmp_path, "whole"), data_root=tmp_path).folder)
    for number in (1, 2):
        prepare_part(config(tmp_path), number, 2, data_root=tmp_path)
    path = next((tmp_path / "out.parts").rglob("train-000003.part"))
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-1], "flip": data[:-1] + b"\1", "empty": b"", "missing": b""}[damage])
    if damage == "missing":
        path.unlink()
    encoded.clear()
    assert content(prepare(config(tmp_path), data_root=tmp_path).folder) == whole
    assert encoded == [3, 3]


def test_parts_of_several_machines_give_the_bytes_of_one(tmp_path: Path, encoded: list[int]) -> None:
    whole = content(prepare(config(tmp_path, "whole"), data_root=tmp_path).folder)
    everything = sorted(encoded)
    encoded.clear()
    sizes = [
        prepare_part(config(tmp_path, f"m{n}/out", processes=1), n, 3, data_root=tmp_path).pairs for n in (1, 2, 3)
    ]
    assert sum(sizes) == PAIRS and min(sizes) >= 60
    assert sorted(encoded) == everything
    encoded.clear()
    others = [tmp_path / "m2/out.parts", tmp_path / "m3/out.parts"]
    report = prepare(config(tmp_path, "m1/out"), data_root=tmp_path, merge=others)
    assert content(report.folder) == whole and encoded == []
    assert not (tmp_path / "m1/out.parts").exists() and others[0].is_dir()
    Dataset.open(report.folder, verify=True)


def test_who_works_on_the_parts_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a part is encoded: the same part and the dataset are refused, another part is not. Nothing is lost."""
    whole = content(prepare(config(tmp_path, "whole"), data_root=tmp_path).folder)
    chosen, real, seen = config(tmp_path), Coder.encode, list[str]()

    def refused(work: Any, *arguments: Any) -> None:
        with pytest.raises(FileProblem) as caught:
            work(*arguments, data_root=tmp_path)
        assert caught.value.file == (tmp_path / "out.parts").resolve()
        seen.append(f"{caught.value.what}; {caught.value.hint}")

    def encode(self: Coder, chunk: Chunk, filters: Any) -> Any:
        if chunk.base == 20:
            monkeypatch.setattr(Coder, "encode", real)
            refused(prepare_part, chosen, 1, 2)
            refused(prepare, chosen)
            assert prepare_part(chosen, 2, 2, data_root=tmp_path).pairs > 0
            refused(prepare_part, chosen, 1, 2)
        return real(self, chunk, filters)

    monkeypatch.setattr(Coder, "encode", encode)
    prepare_part(chosen, 1, 2, data_root=tmp_path)
    me = f"the folder is in use by process {os.getpid()} on {socket.gethostname()}"
    wait = "wait until it has ended, or choose another folder"
    assert seen == [f"part 1/2: {me}; {wait}", f"the parts: {me}; {wait}", f"part 1/2: {me}; {wait}"]

    real_assemble = module._Work.assemble

    def assemble(self: Any, split: str, tokenizer: Any) -> Any:
        monkeypatch.setattr(module._Work, "assemble", real_assemble)
        refused(prepare_part, chosen, 3, 3)
        return real_assemble(self, split, tokenizer)

    monkeypatch.setattr(module._Work, "assemble", assemble)
    assert content(prepare(chosen, data_root=tmp_path).folder) == whole
    assert len(seen) == 4 and seen[-1].startswith("part 3/3: the folder is in use")
    assert not (tmp_path / "out.parts").exists()


TOGETHER = """
import sys
from pathlib import Path
from phraseloom.data import parts, prepare
from phraseloom.options.data import DataConfig
prepare.CHUNK_PAIRS, prepare.PART_CHUNKS, parts.BUCKET = 10, 2, 32
config = DataConfig.model_validate_json(Path(sys.argv[1]).read_text())
print("ready", flush=True)
sys.stdin.readline()
prepare.prepare_part(config, int(sys.argv[3]), 2, data_root=sys.argv[2])
"""


def test_two_machines_begin_at_the_same_time(tmp_path: Path, encoded: list[int]) -> None:
    """Both learn the subwords and store them, in the same folder."""
    whole = content(prepare(config(tmp_path, "whole"), data_root=tmp_path).folder)
    (tmp_path / "c.json").write_text(config(tmp_path).model_dump_json())
    command = [sys.executable, "-c", TOGETHER, str(tmp_path / "c.json"), str(tmp_path)]
    both = [
        subprocess.Popen([*command, number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in ("1", "2")
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=300)
    assert [process.returncode for process in both] == [0, 0]
    encoded.clear()
    assert content(prepare(config(tmp_path), data_root=tmp_path).folder) == whole and encoded == []


def test_a_mark_that_another_machine_is_writing_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    files.temporary_path(tmp_path / "out.parts" / "parts.json").write_text("{")
    assert prepare_part(config(tmp_path), 1, 1, data_root=tmp_path).pairs == PAIRS


def test_machines_with_the_same_process_id_write_different_files(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for host in ("a", "b"):
        monkeypatch.setattr(files.socket, "gethostname", lambda host=host: host)
        names.append(files.temporary_path(Path("x")).name)
    assert names[0] != names[1] and all(is_temporary(Path(name)) for name in names)


def test_parts_of_other_text_or_options_are_not_used(tmp_path: Path, encoded: list[int]) -> None:
    prepare_part(config(tmp_path), 1, 1, data_root=tmp_path)
    encoded.clear()
    prepare_part(config(tmp_path), 1, 1, data_root=tmp_path)
    assert encoded == []
    prepare_part(config(tmp_path, shard_pairs=50), 1, 1, data_root=tmp_path)  # no matter of the parts
    assert encoded == []
    prepare_part(config(tmp_path, filter={"max_tokens": 3}), 1, 1, data_root=tmp_path)
    assert encoded
    encoded.clear()
    write_lines(tmp_path / "a.s", ["a dog"] * 155)
    changed = content(prepare(config(tmp_path, "changed"), data_root=tmp_path).folder)
    assert content(prepare(config(tmp_path), data_root=tmp_path).folder) == changed
    with pytest.raises(UsageError, match="no parts of this dataset; prepare them with the same recipe"):
        prepare_part(config(tmp_path, "other", filter={"max_tokens": 4}), 1, 1, data_root=tmp_path)
        prepare(config(tmp_path, "new"), data_root=tmp_path, merge=[tmp_path / "other.parts"])


@pytest.mark.parametrize("split", ["b.t", "v.s"])
def test_text_that_changes_during_the_work_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    """The index names the text that was read first, so nothing of another one may be in the dataset, or left for later."""
    given, real = config(tmp_path), module._Work.start
    changed, before = tmp_path / split, (tmp_path / split).read_bytes()

    def start(self: Any) -> Any:
        changed.write_bytes(before.swapcase())
        return real(self)

    prepare(given, data_root=tmp_path)
    wanted = content(tmp_path / "out")
    monkeypatch.setattr(module._Work, "start", start)
    for work in (
        lambda: prepare(given, data_root=tmp_path, overwrite=True),
        lambda: prepare_part(config(tmp_path, "new"), 1, 1, data_root=tmp_path),
    ):
        changed.write_bytes(before)
        with pytest.raises(DataError, match=f"{split}: this file changed while it was prepared"):
            work()
        assert content(tmp_path / "out") == wanted
        assert not list(tmp_path.glob("*.parts"))

    def touch(self: Any) -> Any:
        os.utime(changed)
        return real(self)

    monkeypatch.setattr(module._Work, "start", touch)
    changed.write_bytes(before)
    prepare(given, data_root=tmp_path, overwrite=True)
    assert content(tmp_path / "out") == wanted


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    chosen = config(tmp_path)
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts" / "mine").write_text("mine")
    with pytest.raises(FileProblem, match=r"out.parts: this name is needed .*; move it away"):
        prepare(chosen, data_root=tmp_path)
    assert (tmp_path / "out.parts" / "mine").read_text() == "mine"
    (tmp_path / "out.parts" / "mine").unlink()
    prepare_part(chosen, 1, 1, data_root=tmp_path)
    for side in "st":
        (tmp_path / f"out.parts/x.{side}").write_text("a dog\n")
    train = [{"source": "out.parts/x.s", "target": "out.parts/x.t"}]
    with pytest.raises(UsageError, match=r"out.parts: this folder holds an input"):
        prepare(config(tmp_path, train=train), data_root=tmp_path)
    assert (tmp_path / "out.parts/x.s").is_file()


RECIPE = """format: 1
name: small
data:
  folder: {folder}
  source_language: en
  target_language: de
  train: [{{source: a.s, target: a.t}}]
  subwords: {{kind: subword_nmt, merges: 5}}
  filter: {{max_ratio: null}}
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(folder=tmp_path / name))

    def command(name: str, *more: str) -> int:
        return run(["prepare", str(tmp_path / f"{name}.yaml"), "--data-root", str(tmp_path), *more])

    assert command("one", "--part", "1/2") == 0 and command("two", "--part", "2/2") == 0
    out = capsys.readouterr().out
    assert f"part 1/2 of 155 pairs: 80 in {tmp_path / 'one.parts'}" in out
    assert f"part 2/2 of 155 pairs: 75 in {tmp_path / 'two.parts'}" in out
    assert command("one", "--merge", str(tmp_path / "two.parts")) == 0
    assert not (tmp_path / "one.parts").exists()
    for wrong in ("0/2", "3/2", "2", "x/2"):
        assert command("two", "--part", wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert command("two", "--part", "1/2", "--merge", "x") == 2


def in_memory(blocks: list[list[int]]) -> Iterator[bool]:
    seen: set[int] = set()
    for value in (value for block in blocks for value in block):
        yield value in seen
        seen.add(value)


@settings(max_examples=100, deadline=None, database=None)
@given(st.lists(st.lists(st.integers(0, 90), max_size=30), max_size=12), st.integers(1, 40), st.integers(1, 9))
def test_repeated_pairs_are_those_of_a_set(
    tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]], bucket: int, most: int
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    keys = [
        np.array([bytes([i * 2 % 256, i // 128, *bytes(13), i % 2]) for i in block], dtype="S16") for block in blocks
    ]
    total = sum(map(len, blocks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_module, "BUCKET", bucket)
        patch.setattr(parts_module, "MAX_BUCKETS", most)
        bits = repeated_pairs(keys, total, folder)
    expected = list(in_memory(blocks))
    assert bits_of(bits, 0, total).tolist() == expected
    for begin in range(0, total, 7):
        assert bits_of(bits, begin, min(begin + 7, total)).tolist() == expected[begin : begin + 7]
    assert not any(folder.iterdir())
