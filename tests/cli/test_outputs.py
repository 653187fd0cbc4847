"""Every option that names a file to write, of every verb: what is there is refused before any work, and replaced when told."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.cli.conftest import Command
from tests.training import fertility_net as net

from phraseloom.cli.main import VERBS, load_verb

RATE = Path(__file__).resolve().parents[2] / "docs" / "results" / "small" / "002-rate"
PAIR = ("-s", "s.en", "-t", "s.de")
LINKED = (*PAIR, "-a", "s.links")
# (verb, option) of every output that is a file -> a command line that writes it to FILE, inputs, what else is written
FILES: dict[tuple[str, str], tuple[str, ...]] = {
    ("translate", "--alignments"): ("translate", "run", "--alignments", "FILE"),
    ("translate", "--phrases"): ("translate", "run", "--phrases", "FILE"),
    ("evaluate", "--plot"): ("evaluate", "s.de", "-r", "s.de", "-s", "s.en", "--plot", "FILE.svg"),
    ("align train", "--output"): ("align", "train", *PAIR, "-o", "FILE"),
    ("align train", "--links"): ("align", "train", *PAIR, "-o", "other.new", "--links", "FILE"),
    ("align apply", "--output"): ("align", "apply", "aligner", *PAIR, "-o", "FILE"),
    ("align model", "--output"): ("align", "model", "run", *PAIR, "-o", "FILE"),
    ("align lexicon", "--output"): ("align", "lexicon", *LINKED, "-o", "FILE"),
    ("align evaluate", "--json"): ("align", "evaluate", "s.links", "-g", "s.links", "--json", "FILE"),
    ("phrases extract", "--output"): ("phrases", "extract", *PAIR, "-a", "s.two", "-o", "FILE"),
    ("phrases filter", "--output"): ("phrases", "filter", "candidates", "-t", "adjacent", "-o", "FILE"),
    ("phrases filter", "--moses"): ("phrases", "filter", "candidates", "-t", "adjacent", "-o", "other.new", "--moses", "FILE"),
    ("phrases segment", "--fertility"): (
        "phrases", "segment", "s.de", "--table", "table", "-s", "s.en", "-a", "s.links", "--fertility", "FILE",
    ),
    ("phrases sample", "--output"): (
        "phrases", "sample", "-s", "s.en", "-r", "s.de", "--system", "a=joined", "-o", "FILE",
    ),
    ("phrases sample", "--json"): ("phrases", "sample", "--tally", "sheet", "--json", "FILE"),
    ("embeddings train", "--output"): (
        "embeddings", "train", "s.en", "--width", "2", "--epochs", "1", "--min-count", "1", "--buckets", "9",
        "-o", "FILE.vec",
    ),
    ("embeddings check", "--json"): ("embeddings", "check", "small.vec", "--json", "FILE"),
    ("tokenize", "--learn-truecaser"): ("tokenize", "-l", "en", "s.en", "--learn-truecaser", "FILE"),
    ("embeddings nearest", "--json"): ("embeddings", "nearest", "small.vec", "a", "--json", "FILE"),
    ("fertility evaluate", "--json"): ("fertility", "evaluate", "net", "-s", "f.s", "--labels", "f.l", "--json", "FILE"),
    ("analyse entropy", "--json"): ("analyse", "entropy", "run", *PAIR, "--json", "FILE"),
    ("analyse entropy", "--plot"): ("analyse", "entropy", "run", *PAIR, "--plot", "FILE.svg"),
    ("analyse alignment", "--json"): ("analyse", "alignment", "run", *PAIR, "-g", "s.links", "--json", "FILE"),
    ("analyse alignment", "--plot"): ("analyse", "alignment", "run", *PAIR, "-g", "s.links", "--plot", "FILE.svg"),
    ("analyse heatmap", "--output"): (
        "analyse", "heatmap", "run", "--sentence", "a dog", "--layer", "1", "-o", "FILE.svg",
    ),
    ("analyse contrastive", "--plot"): ("analyse", "contrastive", "run", "--items", "items", "--plot", "FILE.svg"),
    ("analyse contrastive", "--scores"): ("analyse", "contrastive", "run", "--items", "items", "--scores", "FILE"),
    ("analyse neighbours", "--json"): ("analyse", "neighbours", "run", "--json", "FILE"),
    ("analyse neighbours", "--plot"): ("analyse", "neighbours", "run", "--plot", "FILE.svg"),
    ("explain", "--output"): ("explain", "run", "-s", "s.en", "-o", "FILE.html"),
    ("explain", "--json"): ("explain", "run", "-s", "s.en", "--json", "FILE"),
    ("report", "--output"): ("report", "run", "-o", "FILE.html"),
    ("report", "--json"): ("report", "run", "-o", "other.new.html", "--json", "FILE"),
    ("diff", "--output"): ("diff", "run", "run2", "-o", "FILE.txt"),
    ("reproduce", "--plot"): ("reproduce", "--evidence", "tables", "--plot", "FILE.svg"),
    ("schema", "--output"): ("schema", "-o", "FILE"),
}  # fmt: skip
# Those that are folders; what is done with them stands in tests/test_replace.py. A run and steps of tables have no --overwrite.
FOLDERS = {
    ("world", "out"), ("prepare", "recipe"), ("subwords train", "output"), ("phrases mwt", "--output"),
    ("fertility train", "--output"), ("average", "output"), ("train", "--run"), ("reproduce", "--folder"),
    ("reproduce", "--index"), ("reproduce", "--into"), ("reproduce", "--recompute"), ("convert from-marian", "model"),
    ("convert to-ctranslate2", "folder"), ("convert to-marian", "folder"), ("hub pull", "folder"),
    ("align train", "--scratch"), ("decontaminate", "--output"),
}  # fmt: skip
# What has a path in it, and is only read.
INPUTS = {
    ("hub push", "model"),
    ("convert from-marian", "folder"), ("convert to-ctranslate2", "model"), ("convert to-marian", "model"),
    ("prepare", "--data-root"), ("train", "recipe"), ("reproduce", "--data-root"), ("reproduce", "--recipes"),
    ("tokenize", "folder"), ("subwords train", "files"), ("subwords apply", "folder"), ("subwords undo", "folder"),
    ("phrases extract", "--source"), ("phrases extract", "--target"), ("phrases extract", "--links"),
    ("phrases filter", "candidates"), ("phrases filter", "--target"), ("phrases filter", "--stop-words"),
    ("phrases filter", "--tags"), ("phrases segment", "--table"), ("phrases segment", "--source"),
    ("phrases segment", "--links"), ("phrases mwt", "--source"), ("phrases mwt", "--target"), ("phrases mwt", "--links"),
    ("phrases mwt", "--table"), ("phrases mwt", "--also"), ("phrases sample", "--source"),
    ("phrases sample", "--reference"), ("phrases sample", "--system"), ("phrases sample", "--table"),
    ("phrases sample", "--tally"), ("embeddings train", "text"), ("embeddings train", "--vocabulary"),
    ("embeddings nearest", "file"), ("embeddings check", "file"), ("tokenize", "--truecaser"),
    ("fertility train", "model"), ("fertility train", "--source"),
    ("fertility train", "--labels"), ("fertility train", "--valid-source"), ("fertility train", "--valid-labels"),
    ("fertility evaluate", "model"), ("fertility evaluate", "--source"), ("fertility evaluate", "--labels"),
    ("score", "--add-phrases"),
    ("average", "checkpoints"), ("translate", "model"), ("translate", "--lexicon"), ("translate", "--prefixes"),
    ("translate", "--trees"), ("translate", "--add-phrases"), ("translate", "--ensemble"), ("translate", "--constraints"),
    ("translate", "--terms"), ("evaluate", "--scores"), ("reproduce", "--merge"), ("reproduce", "--evidence"),
    ("reproduce", "--pool"),
    ("reproduce", "--pictures"), ("reproduce", "--rows-from"),
    ("prepare", "--merge"), ("score", "--ensemble"), ("report", "--scores"), ("decontaminate", "--source"),
    ("decontaminate", "--target"), ("decontaminate", "--held-out-source"), ("decontaminate", "--held-out-target"),
    ("generate", "model"), ("score", "model"),
    ("score", "--source"), ("score", "--target"), ("score", "--trees"), ("evaluate", "--reference"),
    ("evaluate", "--source"), ("evaluate", "--lines"), ("align train", "--source"), ("align train", "--target"),
    ("align apply", "model"), ("align apply", "--source"), ("align apply", "--target"), ("align model", "model"),
    ("align model", "--source"), ("align model", "--target"), ("align model", "--trees"), ("align model", "--gold"),
    ("align lexicon", "--source"), ("align lexicon", "--target"), ("align lexicon", "--links"),
    ("align evaluate", "--gold"), ("align evaluate", "--source"), ("align evaluate", "--target"),
}  # fmt: skip
READING_VERBS = {"serve", "inspect", "analyse activation", "analyse phenomena", "analyse phrases", "analyse segments",
                 "analyse coverage", "doctor"}  # fmt: skip
# In the verbs whose outputs all stand in FILES, an option of one of these names is an input.
READ = {
    "model", "models", "source", "target", "targets", "trees", "gold", "correct", "wrong", "distances", "items", "sets",
    "text", "reference", "lines", "lingeval", "runs", "outputs", "mwt", "contrastive", "fertility_source", "fertility_labels",
    "add", "first", "second",
}  # fmt: skip


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command below a verb, with its name."""
    if hasattr(command, "commands"):
        for inner, below in command.commands.items():
            yield from commands(below, f"{name} {inner}")
    else:
        yield name, command


def path_options() -> Iterator[tuple[str, Any]]:
    """(command, parameter) of everything that is typed as a path or shown as a file or folder."""
    for verb in VERBS:
        for name, command in commands(load_verb(verb), verb):
            hints = get_type_hints(inspect.unwrap(command.callback))
            for parameter in command.params:
                shown = parameter.metavar or ""
                is_path = "Path" in str(hints.get(parameter.name, ""))
                if is_path or any(word in shown for word in ("FILE", "FOLDER", "OUT", "SHEET", "STEM")):
                    yield name, parameter


def option_of(parameter: Any) -> str:
    return next((o for o in parameter.opts if o.startswith("--")), parameter.name)


def test_every_path_of_every_verb_is_known_to_be_read_or_written() -> None:
    """A new option that takes a path must be put into one of the tables above; an output then has its test below."""
    unknown, written = [], set()
    for verb, parameter in path_options():
        key = (verb, option_of(parameter))
        if key in FILES or key in FOLDERS:
            written.add(key)
        elif key in INPUTS or verb in READING_VERBS or parameter.name in READ:
            continue
        else:
            unknown.append(key)
    assert not unknown
    assert set(FILES) <= written, set(FILES) - written


def test_every_verb_that_writes_has_overwrite_and_says_it_alike() -> None:
    for verb in VERBS:
        for name, command in commands(load_verb(verb), verb):
            writes = any(key[0] == name for key in FILES)
            overwrite = next((p for p in command.params if "--overwrite" in p.opts), None)
            if writes:
                assert overwrite is not None and overwrite.help == "Replace existing files.", name


@pytest.fixture(scope="module")
def material(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command lines above read."""
    folder = tmp_path_factory.mktemp("material") / "m"
    shutil.copytree(project, folder, symlinks=True)
    shutil.copytree(folder / "run", folder / "run2", symlinks=True)
    lines = {side: (folder / f"valid.{side}").read_bytes().splitlines()[:8] for side in ("en", "de")}
    for side, some in lines.items():
        (folder / f"s.{side}").write_bytes(b"".join(line + b"\n" for line in some))
    links = [" ".join(f"{i}-{i}" for i in range(len(line.split()))) for line in lines["en"]]
    words = lines["de"][0].decode().split()
    net.saved(folder / "plain")
    sources, labels = net.lines(30)
    net.written(
        folder,
        **{
            "s.links": links,
            "s.two": ["0-0 0-1"] * 8,
            "adjacent": ["ein hund", "hund rennt"] * 9 + ["a b c d e f g"] * 9,
            "f.s": sources,
            "f.l": labels,
            "table": ["ein hund", "hund rennt"],
        },
        candidates=["ein hund\ta\t5\t9", "hund rennt\tdog\t3\t8"],
        joined=["ein_hund" if i == 0 else "hund" for i in range(8)],
        sheet=["line\tposition\tphrase\tcategory\tcorrect a\treference\tsource"],
    )
    (folder / "small.vec").write_bytes(b"3 2\na 1 0\nb 0 1\nc 1 1\n")
    shutil.copytree(RATE, folder / "tables" / "small" / RATE.name)
    items = [{"source": "a dog", "correct": "ein hund", "wrong": "hund", "distance": n % 2} for n in range(4)]
    (folder / "items").write_bytes("".join(json.dumps(item) + "\n" for item in items).encode())
    assert words
    return folder


@pytest.fixture
def place(material: Path, tmp_path: Path, command: Command) -> Path:
    """The material in the current folder; the command line is ready."""
    for path in material.iterdir():
        target = tmp_path / path.name
        shutil.copytree(path, target, symlinks=True) if path.is_dir() else shutil.copy(path, target)
    return tmp_path


def written_by(key: tuple[str, str]) -> tuple[list[str], Path]:
    """The command line and the file that its option names."""
    arguments = list(FILES[key])
    at = next(i for i, word in enumerate(arguments) if word.startswith("FILE"))
    arguments[at] = arguments[at].replace("FILE", "taken")
    return arguments, Path(arguments[at])


@pytest.mark.parametrize("key", FILES, ids=" ".join)
def test_a_file_is_refused_before_any_work(key: tuple[str, str], command: Command, tmp_path: Path) -> None:
    """Nothing else is there: what comes first is the file in the way, not the inputs that are missing."""
    arguments, path = written_by(key)
    path.write_bytes(b"mine\n")
    for name in ("run", "run2"):
        (tmp_path / name).mkdir()
    done = command(*arguments, stdin=b"a\n")
    assert (done.code, done.out) == (2, ""), done.err
    assert f"{path}: the file is there already; choose another name or give --overwrite\n" in done.err
    assert path.read_bytes() == b"mine\n"
    assert {p.name for p in tmp_path.iterdir()} == {path.name, "run", "run2"}


@pytest.mark.parametrize("key", [key for key in FILES if key != ("embeddings train", "--output")], ids=" ".join)
def test_no_file_is_named_as_if_it_were_compressed(key: tuple[str, str], command: Command, tmp_path: Path) -> None:
    """Readers go by the name, so such a file could not be read."""
    arguments, path = written_by(key)
    arguments[arguments.index(str(path))] = f"{path}.xz"
    for name in ("run", "run2"):
        (tmp_path / name).mkdir()
    done = command(*arguments, stdin=b"a\n")
    assert (done.code, done.out) == (2, ""), done.err
    assert any(f"{path}.xz{said} " in done.err for said in (":", "' is not the name of a page;")), done.err
    assert not Path(f"{path}.xz").exists()


def prepared(key: tuple[str, str], command: Command) -> None:
    if key[0] == "align apply":
        assert command("align", "train", *PAIR, "-o", "aligner").code == 0
    if key[0] == "phrases sample":
        Path("sheet").unlink()
        arguments, _ = written_by(("phrases sample", "--output"))
        assert command(*[word if word != "taken" else "sheet" for word in arguments]).code == 0
    if key[0] == "fertility evaluate":
        done = command("fertility", "train", "plain", "-s", "f.s", "--labels", "f.l", "-o", "net", "--widths", "4",
                       "--epochs", "1")  # fmt: skip
        assert done.code == 0, done.err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("key", FILES, ids=" ".join)
def test_overwrite_replaces_it(key: tuple[str, str], command: Command) -> None:
    arguments, path = written_by(key)
    prepared(key, command)
    path.write_bytes(b"mine\n")
    done = command(*arguments, "--overwrite", stdin=b"a dog\n")
    assert done.code == 0, done.err
    assert path.is_file() and path.read_bytes() != b"mine\n"
    for other in Path().glob("other.new*"):
        other.unlink()
    assert command(*arguments, stdin=b"a dog\n").code == 2, "the second run is refused"


def is_refused(done: Any, *what: str) -> bool:
    return done.code in (1, 2) and all(text in done.err for text in what) and done.err.count("\n") == 1


@pytest.mark.usefixtures("place")
def test_two_outputs_that_are_one_file_by_another_spelling(command: Command) -> None:
    Path("d").mkdir()
    Path("e").symlink_to(".")
    Path("al3").symlink_to("al1")
    for other in ("al1", "d/../al1", "e/al1", "./al1", str(Path("al1").absolute()), "al3"):
        done = command("translate", "run", "--alignments", "al1", "--phrases", other, stdin=b"a\n")
        assert is_refused(done, "--alignments and --phrases are the same file"), (other, done.err)
        assert not done.out and not Path("al1").exists()
    Path("al1").write_bytes(b"mine\n")
    os.link("al1", "al2")
    done = command("translate", "run", "--alignments", "al1", "--phrases", "al2", "--overwrite", stdin=b"a\n")
    assert is_refused(done, "--alignments and --phrases are the same file")
    assert Path("al2").read_bytes() == b"mine\n"


@pytest.mark.usefixtures("place")
def test_an_output_is_never_an_input(command: Command) -> None:
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    os.link("s.en", "hard")
    Path("soft").symlink_to("s.en")
    for name in ("s.en", "./s.en", "hard", "soft", str(Path("s.en").absolute())):
        for arguments in (
            ("align", "train", *PAIR, "-o", name),
            ("align", "train", *PAIR, "-o", "new", "--links", name),
            ("embeddings", "train", "s.en", "-o", name),
            ("phrases", "extract", *LINKED, "-o", name),
            ("align", "lexicon", *LINKED, "-o", name),
            ("evaluate", "s.de", "-r", "s.de", "-s", "s.en", "--plot", name),
            ("explain", "run", "-s", "s.en", "--json", name),
            ("phrases", "segment", "s.de", "--table", "table", "-s", "s.en", "-a", "s.links", "--fertility", name),
        ):
            done = command(*arguments, "--overwrite")
            assert is_refused(done, "is also an input of the command"), (arguments, done.err)
    assert is_refused(command("report", "run", "-o", "p.html", "--json", "s.en", "-s", "s.en", "--overwrite"), "input")
    assert is_refused(
        command("report", "run", "-o", "p.html", "--json", "x", "--outputs", "a=x", "--overwrite"), "input"
    )
    assert {path: path.read_bytes() for path in before} == before and not Path("new").exists()


@pytest.mark.usefixtures("place")
def test_no_part_of_a_folder_that_a_manifest_names_is_replaced(command: Command) -> None:
    best = (Path("run") / "best").resolve()
    for path in (best / "config.json", best / "manifest.json", Path("dataset/index.json")):
        before = path.read_bytes()
        done = command("schema", "-o", path, "--overwrite")
        assert is_refused(done, "this file is part of"), done.err
        assert path.read_bytes() == before
    tokenizer = next((best / "tokenizer").iterdir())
    assert is_refused(command("schema", "-o", tokenizer, "--overwrite"), "this file is part of")
    assert command("world", "w", "--train", "2", "--valid", "1", "--test", "1", "--contrastive", "1").code == 0
    for name in ("world.json", "train.en"):
        assert is_refused(command("schema", "-o", f"w/{name}", "--overwrite"), "this file is part of"), name
    assert command("schema", "-o", "run/notes.json").code == 0, "a new file beside them is fine"


def test_what_is_no_file(command: Command, tmp_path: Path) -> None:
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    Path("file").write_bytes(b"mine")
    for path, what in (
        ("pipe", "device or pipe"),
        ("/dev/null", "device or pipe"),
        ("loop", "leads to itself"),
        ("folder", "this is a folder"),
        ("folder/", "this is a folder"),
        (".", "this is a folder"),
        ("file/below", "this is not a folder"),
        ("file/below/deeper", "this is not a folder"),
        ("x" * 300, "File name too long"),
    ):
        for overwrite in ((), ("--overwrite",)):
            done = command("schema", "-o", path, *overwrite)
            assert is_refused(done, what), (path, done.err)
    assert Path("pipe").is_fifo() and Path("file").read_bytes() == b"mine"
    Path("dangling").symlink_to("folder/made")
    assert command("schema", "-o", "dangling").code == 0, "a link to nothing: what it names is written"
    assert Path("dangling").is_symlink() and (tmp_path / "folder/made").is_file()
    assert is_refused(command("schema", "-o", "dangling"), "there already")
    assert command("schema", "-o", "neu ✓/größe.json").code == 0 and Path("neu ✓/größe.json").is_file()
