"""Nothing is removed or replaced that phraseloom did not make: folders that verbs write, their working folders, their swaps."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phraseloom import files
from phraseloom.cli.main import run
from phraseloom.errors import FileProblem, PhraseloomError, UsageError
from phraseloom.replace import FolderKind, move_own, new_folder, point_link, remove_marked, swap
from phraseloom.reproduce.writing import check_place

KIND = FolderKind("thing")
SMALL = ("--train", "3", "--valid", "1", "--test", "1", "--contrastive", "1")


def fill(folder: Path, text: str = "one") -> None:
    (folder / "inner").mkdir()
    files.atomic_write_text(folder / "a", text)
    files.atomic_write_text(folder / "inner/b", text)
    files.write_manifest(folder, ["a", "inner/b"])


def make(path: str | Path, text: str = "one", **more: Any) -> None:
    with new_folder(path, KIND, **more) as folder:
        fill(folder, text)


def tree(root: Path) -> dict[str, bytes | str | None]:
    """Everything below a folder: bytes of files, text of links, None for folders."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "pipe" if path.is_fifo() else None
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(path: str | Path, match: str, **more: Any) -> None:
    """Refused before anything is done: the folder looks as before, byte for byte."""
    before = tree(Path())
    with pytest.raises(PhraseloomError, match=match) as error, new_folder(path, KIND, **more) as folder:
        raise AssertionError(f"{folder} was made")
    assert "\n" not in str(error.value) and error.value.hint
    assert tree(Path()) == before


def test_made_and_replaced_whole() -> None:
    make("out")
    first = tree(Path())
    assert set(first) == {"out", "out/a", "out/inner", "out/inner/b", "out/manifest.json"}
    refused("out", "thing folder is not empty; choose another name or give --overwrite")
    make("out", "two", overwrite=True)
    assert set(tree(Path())) == set(first) and Path("out/a").read_bytes() == b"two"
    make("deep/er/out")
    Path("empty").mkdir()
    make("empty")
    make("out/", "three", overwrite=True)
    make("empty/../out/.", "four", overwrite=True)
    assert Path("out/a").read_bytes() == b"four"
    assert {p.name for p in Path().iterdir()} == {"out", "deep", "empty"}


def test_a_block_that_raises_leaves_everything(here: Path) -> None:
    make("out")
    before = tree(here)
    for path in ("out", "new"):
        with pytest.raises(ZeroDivisionError), new_folder(path, KIND, overwrite=True) as folder:
            fill(folder, "two")
            raise ZeroDivisionError
    assert tree(here) == before


@pytest.mark.parametrize("content", [{"mine": b"1"}, {"new": None, "mine": b"1"}, {"phraseloom.json": b"{}"},
                                     {"phraseloom.json": b"{", "new": None}, {"old": None}, {"new": b"1"},
                                     {".lock": b"my own lock"}, {".lock": None}])  # fmt: skip
def test_a_working_folder_of_somebody_else(content: dict[str, bytes | None]) -> None:
    """Rows 1 and 2 of the audit: OUT.partial with files of the user."""
    Path("out.partial").mkdir()
    for name, data in content.items():
        path = Path("out.partial", name)
        path.mkdir() if data is None else path.write_bytes(data)
    refused("out", "out.partial: this name is needed while out is written; .* move it away")
    make("other")
    refused("out", "out.partial: this name is needed", overwrite=True)


def test_a_working_folder_that_is_a_link_or_a_file() -> None:
    Path("corpus").mkdir()
    Path("corpus/text").write_bytes(b"mine")
    for name, target in (("full", "corpus"), ("loop", "loop.partial"), ("dangling", "nowhere")):
        Path(f"{name}.partial").symlink_to(target)
        refused(name, f"{name}.partial: this name is needed")
    Path("file.partial").write_bytes(b"mine")
    os.mkfifo("pipe.partial")
    for name in ("file", "pipe"):
        refused(name, f"{name}.partial: this name is needed")
    Path("inside.partial").mkdir()
    Path("inside.partial/.lock").symlink_to("../corpus/text")
    refused("inside", "inside.partial: this name is needed")
    Path("marked.partial").mkdir()
    mark = {"phraseloom": "unfinished", "kind": "thing", "for": "marked"}
    Path("marked.partial/phraseloom.json").write_text(json.dumps(mark))
    Path("marked.partial/new").symlink_to("../corpus")
    refused("marked", "marked.partial: this name is needed")


def test_a_working_folder_of_another_name_or_kind(here: Path) -> None:
    left_by_a_kill("out", here)
    Path("out.partial").rename("copy.partial")
    refused("copy", "no folder that an earlier run left when it made this thing")
    left_by_a_kill("out", here)
    with pytest.raises(FileProblem, match="no folder that an earlier run left"), new_folder("out", FolderKind("x")):
        pass


def left_by_a_kill(name: str, here: Path, *, at: str = "new", **more: Any) -> None:
    """End a child in the middle: with half of the folder written, or between the two renames."""
    child = os.fork()
    if not child:
        try:
            if at == "new":
                with new_folder(name, KIND, **more) as folder:
                    (folder / "a").write_bytes(b"half")
                    os._exit(9)
            real, count = files.disk.rename, 0

            def rename(source: Path, target: Path) -> None:
                nonlocal count
                if source.name == "new":
                    os._exit(9)
                real(source, target)

            files.disk.rename = rename  # type: ignore[method-assign]
            make(name, "two", **more)
        finally:
            os._exit(70)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_what_a_kill_leaves_is_cleared(here: Path) -> None:
    left_by_a_kill("out", here)
    assert Path("out.partial/new/a").exists()
    make("out")
    assert {p.name for p in here.iterdir()} == {"out"}
    left_by_a_kill("out", here, overwrite=True)
    make("out", "two", overwrite=True)
    assert {p.name for p in here.iterdir()} == {"out"} and Path("out/a").read_bytes() == b"two"


def test_a_kill_between_the_renames_loses_nothing(here: Path) -> None:
    make("out")
    before = tree(here)
    left_by_a_kill("out", here, at="swap", overwrite=True)
    assert not Path("out").exists() and Path("out.partial/old/a").read_bytes() == b"one"
    with pytest.raises(UsageError, match="not empty"):
        make("out")
    assert tree(here) == before, "the next run puts it back, and asks"


def test_a_stranger_in_the_working_folder_of_a_killed_run(here: Path) -> None:
    left_by_a_kill("out", here)
    Path("out.partial/notes").write_bytes(b"mine")
    refused("out", "out.partial: this name is needed")


def test_only_a_folder_of_our_kind_is_replaced() -> None:
    for name in ("mine", "half"):
        Path(name).mkdir()
        Path(name, "text").write_bytes(b"mine")
    Path("half/manifest.json").write_bytes(b'{"format": 1, "files": []}')
    refused("mine", "not a thing of phraseloom .no manifest.json there.", overwrite=True)
    with pytest.raises(FileProblem, match="does not list the files"):
        make("half", overwrite=True)
    assert Path("half/text").exists()


@pytest.mark.parametrize("stranger", ["notes.txt", "inner/notes.txt", "sub/deep/notes", ".hidden", "größe ✓"])
def test_a_folder_with_a_file_of_the_user(stranger: str) -> None:
    make("out")
    Path("out", stranger).parent.mkdir(parents=True, exist_ok=True)
    Path("out", stranger).write_bytes(b"mine")
    refused("out", "not a file of the thing, and --overwrite would remove it", overwrite=True)


def test_links_and_empty_folders_in_a_folder() -> None:
    make("out")
    Path("text").write_bytes(b"mine")
    for make_it in (
        lambda: Path("out/link").symlink_to("../text"),
        lambda: Path("out/folder").symlink_to(".."),
        lambda: Path("out/empty").mkdir(),
        lambda: os.mkfifo("out/pipe"),
    ):
        make_it()
        refused("out", "not a file of the thing", overwrite=True)
        for name in ("link", "folder", "empty", "pipe"):
            path = Path("out", name)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    Path("out/a").unlink()
    Path("out/a").symlink_to("../text")
    refused("out", "not a file of the thing", overwrite=True)
    Path("out/a").unlink()
    os.link("text", "out/a")
    make("out", "two", overwrite=True)
    assert Path("text").read_bytes() == b"mine", "the other name of a hard link stays"


def test_a_folder_that_holds_an_input() -> None:
    """Row 17, also through links and other spellings."""
    make("w")
    make("elsewhere")
    Path("link").symlink_to("w")
    for name in ("w/a", "./w/inner/../a", "link/a", "w", str(Path("w/inner/b").absolute())):
        refused("w", "holds an input of the command", overwrite=True, inputs=[name])
        refused("w", "holds an input of the command", inputs=[name])
    make("w", "two", overwrite=True, inputs=["elsewhere/a", "-", None, "not there", "wall"])


def test_the_current_folder_and_those_above(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("out")
    monkeypatch.chdir("out/inner")
    before = tree(here)
    for path in ("..", "../../out", here / "out", ".", "", "../inner", here / "out" / "inner", "/", here):
        with pytest.raises(PhraseloomError, match=r"current folder|does not name a folder"):
            make(path, overwrite=True)
    assert tree(here) == before
    (here / "nothing").mkdir()
    monkeypatch.chdir(here / "nothing")
    with pytest.raises(UsageError, match="current folder"):
        make("../nothing")


def test_a_link_as_output(here: Path) -> None:
    """Row 20: all or nothing."""
    make("real")
    Path("link").symlink_to("real")
    refused("link", "this is a link to a folder that is not empty")
    refused("link", "replaces no folder through a link", overwrite=True)
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    for name in ("dangling", "loop"):
        refused(name, "a link to nothing", overwrite=True)
    Path("disk").mkdir()
    Path("disk/empty").mkdir()
    Path("to-empty").symlink_to("disk/empty")
    make("to-empty")
    assert Path("to-empty").is_symlink() and Path("disk/empty/a").is_file()
    assert {p.name for p in Path("disk").iterdir()} == {"empty"}
    Path("parent").symlink_to("disk")
    make("parent/new")
    make("parent/new", "two", overwrite=True)
    assert Path("disk/new/a").read_bytes() == b"two" and Path("parent").is_symlink()
    Path("file").write_bytes(b"mine")
    for name in ("file", "file/below"):
        with pytest.raises(FileProblem, match="file"):
            make(name, overwrite=True)
    assert Path("file").read_bytes() == b"mine"


def test_something_appears_meanwhile(here: Path) -> None:
    for kind in ("file", "folder"):
        with pytest.raises(PhraseloomError, match=r"appeared|not empty"), new_folder(kind, KIND) as folder:
            fill(folder)
            Path(kind).write_bytes(b"mine") if kind == "file" else make(here / "x") or shutil.copytree("x", kind)
        assert Path(kind).exists() and not Path(f"{kind}.partial").exists()


OPERATIONS = ("open", "write", "flush", "fsync", "rename", "mkdir", "fsync_folder", "remove_tree", "unlink")


def failing(at: int, code: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    count = 0
    for name in OPERATIONS:

        def call(real: Any, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise OSError(code, os.strerror(code))
            return real(*arguments)

        yield name, partial(call, getattr(files.disk, name))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_any_operation(here: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The old folder or the new one is there, whole; the next run goes through."""
    make("out")
    old = tree(here / "out")
    for at in range(1, 200):
        with monkeypatch.context() as patch:
            for name, call in failing(at, code):
                patch.setattr(files.disk, name, call)
            try:
                make("out", "two", overwrite=True)
                done = True
            except FileProblem as problem:
                done = False
                assert "\n" not in str(problem)
        now = {k: v for k, v in tree(here / "out").items() if k != "manifest.json"}
        files.verify_manifest("out")
        assert now in (
            {k: v for k, v in old.items() if k != "manifest.json"},
            {"a": b"two", "inner": None, "inner/b": b"two"},
        )
        make("out", overwrite=True)
        assert {p.name for p in here.iterdir()} == {"out"}, at
        if done:
            assert at > 25
            return
    raise AssertionError("never finished")


def test_a_rename_that_fails_half_way_puts_the_old_folder_back(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("target", "new"):
        Path(name).mkdir()
        Path(name, name).write_bytes(name.encode())
    before = tree(here)
    real = files.disk.rename

    def rename(source: Path, target: Path) -> None:
        if source.name == "new":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target)

    monkeypatch.setattr(files.disk, "rename", rename)
    with pytest.raises(OSError, match="cross-device"):
        swap(Path("new"), Path("target"), Path("old"))
    assert tree(here) == before

    def never_back(source: Path, target: Path) -> None:
        if source.name in ("new", "old"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    monkeypatch.setattr(files.disk, "rename", never_back)
    with pytest.raises(FileProblem, match="cannot be put back; it is in old"):
        swap(Path("new"), Path("target"), Path("old"))
    assert Path("old/target").read_bytes() == b"target"


def test_an_old_folder_that_cannot_be_put_back_is_kept_and_comes_back(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("out")
    real = files.disk.rename

    def rename(source: Path, target: Path) -> None:
        if source.name in ("new", "old"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.disk, "rename", rename)
        with pytest.raises(FileProblem, match=r"it is in .*out\.partial/old"):
            make("out", "two", overwrite=True)
    assert Path("out.partial/old/a").read_bytes() == b"one"
    make("out", "three", overwrite=True)
    assert {p.name for p in here.iterdir()} == {"out"} and Path("out/a").read_bytes() == b"three"


def test_two_at_once(here: Path) -> None:
    with new_folder("out", KIND) as folder:
        fill(folder)
        with pytest.raises(FileProblem, match="in use by process"):
            make("out")
    assert {p.name for p in here.iterdir()} == {"out"}


def test_a_file_system_without_locks_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(FileProblem, match=r"this file system has no locks \(Function not implemented\)"):
        make("out")


def test_folders_of_ours_inside_of_folders_of_ours(here: Path) -> None:
    for name in ("user", "step"):
        Path(name).mkdir()
        Path(name, "text").write_bytes(b"mine")
    Path("step/record.json").write_bytes(b"{}")
    Path("link").symlink_to("user")
    Path("file").write_bytes(b"mine")
    before = tree(here)
    for name in ("user", "link", "file"):
        with pytest.raises(FileProblem, match="in the way"):
            remove_marked(Path(name), "record.json")
        with pytest.raises(FileProblem, match="in the way"):
            point_link(Path("user"), "step")
    for name in ("user", "link"):
        with pytest.raises(FileProblem, match="in the way"):
            move_own(Path("file"), Path(name))
    assert tree(here) == before
    remove_marked(Path("step"), "record.json")
    remove_marked(Path("step"), "record.json")
    assert not Path("step").exists()


def test_a_lock_is_not_written_through_a_link(here: Path) -> None:
    Path("text").write_bytes(b"mine")
    Path("folder").mkdir()
    Path("folder/.lock").symlink_to("../text")
    with pytest.raises(FileProblem, match="the lock is not a plain file"), files.FolderLock("folder"):
        pass
    assert Path("text").read_bytes() == b"mine"


def test_a_file_is_not_written_through_a_link_at_its_temporary_name(here: Path) -> None:
    Path("text").write_bytes(b"mine")
    files.temporary_path(Path("new")).symlink_to("text")
    files.atomic_write_text("new", "new")
    assert Path("text").read_bytes() == b"mine" and Path("new").read_bytes() == b"new"


# --- the verbs -------------------------------------------------------------------------------------------------------

RECIPE = """format: 1
name: small
data:
  folder: {folder}
  source_language: en
  target_language: de
  train: [{{source: w/train.en, target: w/train.de}}]
  subwords: {{kind: subword_nmt, merges: 5}}
  processes: 1
model: {{width: 8, heads: 2, ffn_width: 16, encoder: {{kind: transformer, layers: 1}},
  decoder: {{kind: transformer, layers: 1}}}}
training: {{batch_tokens: 200, max_updates: 4}}
"""


@pytest.fixture
def world(here: Path) -> Path:
    assert run(["world", "w", *SMALL]) == 0
    (here / "r.yaml").write_bytes(RECIPE.format(folder="d").encode())
    return here


def fails(capsys: pytest.CaptureFixture[str], here: Path, match: str, *arguments: str) -> None:
    before = tree(here)
    capsys.readouterr()
    assert run(list(arguments)) in (1, 2)
    err = capsys.readouterr().err
    assert match in err and err.count("\n") == 1, err
    assert tree(here) == before


def test_prepare(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("d.partial", "d.old"):
        Path(name).mkdir()
        Path(name, "mine").write_bytes(b"mine")
    fails(capsys, world, "d.partial: this name is needed", "prepare", "r.yaml")
    shutil.rmtree("d.partial")
    Path("d.partial").symlink_to("w")
    fails(capsys, world, "d.partial: this name is needed", "prepare", "r.yaml")
    Path("d.partial").unlink()
    assert run(["prepare", "r.yaml"]) == 0
    assert run(["prepare", "r.yaml", "--overwrite"]) == 0
    assert Path("d.old/mine").read_bytes() == b"mine"
    shutil.rmtree("d.old")
    fails(capsys, world, "holds an input of the command", "prepare", "r.yaml", "data.folder=w", "--overwrite")
    fails(capsys, world, "holds an input of the command", "prepare", "r.yaml", "data.folder=./d/../w", "--overwrite")
    shutil.copytree("w", "w2")
    fails(capsys, world, "not a dataset of phraseloom", "prepare", "r.yaml", "data.folder=w2", "--overwrite")
    Path("link").symlink_to("d")
    fails(capsys, world, "through a link", "prepare", "r.yaml", "data.folder=link", "--overwrite")
    fails(capsys, world, "this is a file", "prepare", "r.yaml", "data.folder=r.yaml", "--overwrite")
    shutil.copy("r.yaml", "d/r.yaml")
    fails(capsys, world, "holds an input of the command, d/r.yaml", "prepare", "d/r.yaml", "--overwrite")


def test_world(world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["world", "w", *SMALL, "--overwrite"]) == 0
    monkeypatch.chdir("w")
    for name in (".", "..", str(world / "w")):
        before = tree(world)
        assert run(["world", name, *SMALL, "--overwrite"]) in (1, 2)
        assert tree(world) == before
    monkeypatch.chdir(world)
    Path("w/notes").write_bytes(b"mine")
    fails(capsys, world, "w/notes: this is not a file of the world", "world", "w", *SMALL, "--overwrite")
    Path("d").mkdir()
    Path("d/world.json").write_bytes(b"[]")
    fails(capsys, world, "does not list the files", "world", "d", *SMALL, "--overwrite")


def test_subwords_and_multi_word_subsets(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learn = ("subwords", "train", "t", "w/train.en", "--kind", "words", "--min-frequency", "1")
    assert run(list(learn)) == 0
    fails(capsys, world, "not empty", *learn)
    assert run([*learn, "--overwrite"]) == 0
    Path("t/mine").write_bytes(b"mine")
    fails(capsys, world, "t/mine: this is not a file of the tokenizer", *learn, "--overwrite")
    fails(capsys, world, "holds an input", "subwords", "train", "w", "w/train.en", "--overwrite")
    assert run(["prepare", "r.yaml"]) == 0
    fails(capsys, world, "part of", "subwords", "train", "d/tokenizer", "w/train.en", "--overwrite")
    Path("table").write_bytes(b"x y\n")
    mwt = ("phrases", "mwt", "-s", "w/test.en", "-t", "w/test.de", "-a", "w/test.align", "--table", "table", "-o", "m")
    assert run(list(mwt)) == 0 and run([*mwt, "--overwrite"]) == 0
    Path("m/mine").write_bytes(b"mine")
    fails(capsys, world, "m/mine: this is not a file of the multi-word subset", *mwt, "--overwrite")
    fails(capsys, world, "holds an input", *mwt[:-1], "w", "--overwrite")


def test_a_table_is_written_over_a_table_only(here: Path) -> None:
    for name in ("table.md", "table.json", "table.svg"):
        Path(name).write_bytes(b"mine")
        with pytest.raises(UsageError, match=f"{name}: this file is not part of a reproduced table"):
            check_place(here)
        Path(name).unlink()
    check_place(here)
    Path("table.json").write_bytes(b'{"format": 1, "claims": []}')
    Path("table.md").write_bytes(b"made before")
    check_place(here)
