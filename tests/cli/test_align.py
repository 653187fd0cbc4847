"""`phraseloom align`: the group, `evaluate` and `symmetrize` as commands."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from phraseloom.cli import align
from phraseloom.cli.group import lazy_group

from .conftest import Command, phraseloom

GOLD = "1-1 2-3 2p2\n\n1-1\n"
HYPOTHESIS = "0-0 1-1\n\n0-1\n"
SOURCE, TARGET = "a b\nc\nd\n", "u v w\nx\ny z\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in {"gold": GOLD, "hyp": HYPOTHESIS, "source": SOURCE, "target": TARGET}.items():
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


# --- evaluate ---------------------------------------------------------------------------------------------------------

TABLE = """\
3 sentences; gold links of gold: 3 sure, 1 only possible

system    AER  precision  recall     F1  links
──────  ─────  ─────────  ──────  ─────  ─────
hyp     50.00      66.67   33.33  44.44      3
"""


@pytest.mark.usefixtures("files")
def test_scores_of_one_system(command: Command) -> None:
    """A = {1-1, 2-2, 1-2 of the third}, counted from 1: of 3 links two are possible, one of them is sure, of 3 sure ones."""
    outcome = command("align", "evaluate", "hyp", "--gold", "gold", "--base", "1")
    assert (outcome.code, outcome.out, outcome.err) == (0, TABLE, "")
    checked = command("align", "evaluate", "hyp", "-g", "gold", "--base", "1", "-s", "source", "-t", "target")
    assert (checked.code, checked.out, checked.err) == (0, TABLE, "")


def test_several_systems_and_json(command: Command, files: Path) -> None:
    (files / "best.gz").write_bytes(gzip.compress(b"0-0 1-2\n\n0-0\n"))
    arguments = ["align", "evaluate", "hyp", "best.gz", "-", "-g", "gold", "--base", "1", "--json", "out.json"]
    outcome = command(*arguments, stdin=b"\n\n\n")
    assert outcome.code == 0, outcome.err
    rows = [line.split() for line in outcome.out.splitlines()[4:]]
    assert rows[1] == ["best.gz", "0.00", "100.00", "100.00", "100.00", "3"]
    assert rows[2] == ["stdin", "100.00", "100.00", "0.00", "0.00", "0"]
    found = json.loads((files / "out.json").read_bytes())
    assert found["gold"] == "gold"
    assert [s["name"] for s in found["systems"]] == ["hyp", "best.gz", "stdin"]
    first = found["systems"][0]
    assert (first["aer"], first["precision"], first["recall"]) == (0.5, pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (first["links"], first["in_sure"], first["in_possible"], first["sure"], first["possible"]) == (3, 1, 2, 3, 4)


def test_the_same_gold_in_other_forms(command: Command, files: Path) -> None:
    (files / "rows").write_bytes(b"1 0 0 S\n1 2 1\n3 0 0 S\n1 1 1 P\n")
    outcome = command("align", "evaluate", "hyp", "-g", "rows", "--reverse")
    assert outcome.code == 0, outcome.err
    assert outcome.out == TABLE.replace("gold: 3", "rows: 3")
    assert command("align", "evaluate", "hyp", "-g", "rows", "--reverse", "--format", "naacl").out == outcome.out


def test_a_gold_file_that_seems_to_count_from_one(command: Command, files: Path) -> None:
    outcome = command("align", "evaluate", "hyp", "-g", "gold")
    assert outcome.code == 0
    assert outcome.err == "phraseloom align: gold: no link has a word 0; does the file count from 1 (--base 1)?\n"
    for text in (b"0-1\n\n\n", b"1-0\n\n\n", b"1-1 2p0\n\n\n"):
        (files / "gold").write_bytes(text)
        assert command("align", "evaluate", "hyp", "-g", "gold").err == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["hyp"], 2, "Missing option '-g' / '--gold'"),
        (["hyp", "-g", "none"], 1, "none: file of links not found"),
        (["none", "-g", "gold"], 1, "none: file of links not found"),
        (["hyp", "-g", "gold", "--base", "2"], 2, "--base"),
        (["hyp", "-g", "gold", "--format", "giza"], 2, "no alignment format 'giza'; choose from auto, pharaoh, talp"),
        (
            ["hyp", "-g", "gold", "--format", "pharaoh"],
            1,
            "gold:1: field 3, '2p2', is not a link i-j; only the format talp has possible links",
        ),
        (["hyp", "hyp", "-g", "gold"], 2, "hyp is given twice"),
        (["-", "stdin", "-g", "gold"], 2, "stdin is given twice"),
        (["hyp", "-g", "-"], 2, "- (standard input) is only allowed for links to score"),
        (["hyp", "-g", "gold", "-s", "source"], 2, "the links are checked against both texts or none; give -s and -t"),
        (["hyp", "-g", "gold", "-s", "source", "-t", "short"], 1, "short has 2 lines, but source has 3"),
        (["hyp", "-g", "gold", "-s", "source", "-t", "target"], 1, "gold:1: 2-3: the source has 2 words, 0 to 1; does"),
        (["hyp", "-g", "gold", "--base", "1", "-s", "target", "-t", "source"], 1, "come first (use --reverse)?"),
        (["bad", "-g", "gold"], 1, "bad:2: field 1, 'x', is not a link i-j"),
        (["far", "-g", "gold", "--base", "1", "-s", "source", "-t", "target"], 1, "far:3: 0-9: the target has 2 words"),
        (["short", "-g", "hyp"], 1, "short has 2 lines, but hyp has 3 sentences; a sentence without links is a blank"),
        (["hyp", "-g", "hyp", "--json", "gold/x"], 1, "gold"),
    ],
)
def test_what_evaluate_refuses(arguments: list[str], code: int, message: str, command: Command, files: Path) -> None:
    for name, text in {"short": "\n\n", "bad": "\nx\n\n", "far": "\n\n0-9\n"}.items():
        (files / name).write_bytes(text.encode())
    outcome = command("align", "evaluate", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert outcome.is_one_line_of("align"), outcome


def test_rows_that_end_early(command: Command, files: Path) -> None:
    (files / "rows").write_bytes(b"1 0 0\n")
    outcome = command("align", "evaluate", "hyp", "-g", "rows")
    assert outcome.code == 1 and "give -s and -t if the gold links are rows" in outcome.err
    outcome = command("align", "evaluate", "hyp", "-g", "rows", "-s", "source", "-t", "target")
    assert outcome.code == 0 and "3 sentences; gold links of rows: 1 sure" in outcome.out


# --- symmetrize -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("intersection", "0-0\n\n"),
        ("union", "0-0 1-1 4-3\n0-0\n"),
        ("grow-diag", "0-0 1-1\n\n"),
        ("grow-diag-final-and", "0-0 1-1 4-3\n0-0\n"),
    ],
)
def test_two_files_to_one(method: str, wanted: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"4-3 0-0\n\n"))
    (tmp_path / "b").write_bytes(b"1-1 0-0\n0-0\n")
    outcome = command("align", "symmetrize", "f.gz", "b", "--method", method)
    assert (outcome.code, outcome.out, outcome.err) == (0, wanted, "")


def test_order_of_lines_standard_input_and_other_direction(command: Command, tmp_path: Path) -> None:
    lines = [f"{n}-{n + 1}" for n in range(3000)]
    (tmp_path / "f").write_bytes("\n".join(lines).encode())
    exchanged = "".join(f"{n + 1}-{n} 0-0\n" for n in range(3000)).encode()
    outcome = command(
        "align", "symmetrize", "f", "-", "--method", "intersection", "--reverse-backward", stdin=exchanged
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "".join(line + "\n" for line in lines)
    both = command("align", "symmetrize", "-", "f", "--method", "union", stdin=b"0-9\n" * 3000)
    assert both.out == "".join(f"{' '.join(sorted(['0-9', line]))}\n" for line in lines)


def test_forward_comes_first(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0-2 2-4 3-5\n")
    (tmp_path / "b").write_bytes(b"0-1 2-5 3-5\n")
    assert command("align", "symmetrize", "f", "b").out == "0-2 2-4 2-5 3-5\n"
    assert command("align", "symmetrize", "b", "f").out == "0-1 2-4 2-5 3-5\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["f"], 2, "Missing argument 'BACKWARD'"),
        (["f", "none"], 1, "none: text file not found"),
        (["f", "b", "--method", "grow"], 2, "no symmetrisation 'grow'; --method takes intersection, union, grow-diag"),
        (["-", "-"], 2, "only one of FORWARD and BACKWARD can be -"),
        (["bad", "f"], 1, "bad:1: field 2, '1_1', is not a link i-j; write word numbers, such as 0-2"),
        (["f", "bad"], 1, "bad:1: field 2, '1_1', is not a link i-j; write word numbers, such as 0-2"),
    ],
)
def test_what_symmetrize_refuses(
    arguments: list[str], code: int, message: str, command: Command, tmp_path: Path
) -> None:
    for name, text in {"f": "0-0\n", "b": "0-0\n", "bad": "0-0 1_1\n"}.items():
        (tmp_path / name).write_bytes(text.encode())
    outcome = command("align", "symmetrize", *arguments)
    assert (outcome.code, message in outcome.err) == (code, True), outcome
    assert outcome.is_one_line_of("align")


@pytest.mark.parametrize(("short", "long"), [("f", "b"), ("b", "f")])
def test_files_of_different_lengths(short: str, long: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / short).write_bytes(b"0-0\n")
    (tmp_path / long).write_bytes(b"0-0\n\n")
    outcome = command("align", "symmetrize", "f", "b")
    assert (outcome.code, outcome.out) == (1, "0-0\n")
    wanted = (
        f"phraseloom align: {short}: ends after 1 line, but {long} has more; the files must be parallel, line by line\n"
    )
    assert outcome.err == wanted


def test_nothing_in_nothing_out(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    outcome = command("align", "symmetrize", "f", "-")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


def test_no_torch_for_alignments_that_are_there(files: Path) -> None:
    code = (
        "import sys; from phraseloom.cli.main import run; "
        "codes = [run(['align', 'symmetrize', 'hyp', 'hyp']), run(['align', 'evaluate', 'hyp', '-g', 'gold'])]; "
        "sys.exit(codes != [0, 0] or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=files, check=False, capture_output=True).returncode == 0
    done = phraseloom("align", "symmetrize", "hyp", "hyp", cwd=files)
    assert (done.returncode, done.stdout.decode()) == (0, HYPOTHESIS)


# --- the group --------------------------------------------------------------------------------------------------------


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `align model` was called with, whatever that command really does."""
    calls: list[str] = []

    def command(model: Annotated[str, typer.Argument(help="A model.")], rest: list[str] | None = None) -> None:
        """Align."""
        calls.extend([model, *(rest or [])])

    module: Any = types.ModuleType("phraseloom.cli.align.model")
    module.command = command
    monkeypatch.setitem(sys.modules, "phraseloom.cli.align.model", module)
    return calls


def test_a_first_word_that_is_no_subcommand_is_a_model(called: list[str], command: Command, tmp_path: Path) -> None:
    (tmp_path / "modell").mkdir()
    for words in (["runs/mine"], ["model", "runs/mine"], ["modell"], ["xyz"], ["./evaluate"], ["model", "model"]):
        called.clear()
        outcome = command("align", *words)
        assert (outcome.code, outcome.err, called) == (0, "", words[-1:])


@pytest.mark.usefixtures("called")
def test_typing_errors_of_subcommands_and_options(command: Command) -> None:
    for word, message in {
        "evaluat": "No such command 'evaluat'. Did you mean 'evaluate'?",
        "symmetrise": "No such command 'symmetrise'. Did you mean 'symmetrize'?",
        "--gold": "No such option: --gold",
    }.items():
        outcome = command("align", word)
        assert outcome.code == 2 and message in outcome.err
        assert outcome.is_one_line_of("align")


@pytest.mark.usefixtures("called")
def test_help_lists_the_table(command: Command) -> None:
    outcome = command("align", "--help")
    assert outcome.code == 0
    for name, (_, line) in align.TASKS.items():
        assert f"  {name} " in outcome.out and line in outcome.out
    outcome = command("align")
    assert (outcome.code, outcome.out) == (2, "")
    assert "evaluate" in outcome.err


def test_a_group_imports_what_is_called_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []

    def import_module(name: str) -> Any:
        imported.append(name)
        module: Any = types.ModuleType(name)
        module.command = lambda: print(name)
        return module

    monkeypatch.setattr("phraseloom.cli.group.importlib.import_module", import_module)
    table = {"one": ("first", "The first."), "two": ("second", "The second.")}
    group: Any = typer.main.get_command(lazy_group(table, help="Both."))
    assert list(group.commands) == ["one", "two"] and len(group.commands) == 2 and "one" in group.commands
    imported.clear()
    group.main(["two"], standalone_mode=False)
    assert set(imported) == {"phraseloom.cli.second"}
    with pytest.raises(Exception, match="No such command 'three'"):  # without a default, no word is an argument
        group.main(["three"], standalone_mode=False)
