"""The command line as a whole: verbs, help, start-up, exit codes, one line for every error, quiet ends."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.helpers import HANGS

from phraseloom import __version__, errors
from phraseloom.cli import main as cli
from phraseloom.cli.document import commands, document

from .conftest import Command, phraseloom

EXIT_CODES = {
    errors.PhraseloomError: 1,
    errors.DataError: 1,
    errors.FileProblem: 1,
    errors.CorruptError: 1,
    errors.ModelError: 1,
    errors.UsageError: 2,
    errors.ConfigError: 2,
    errors.InterruptedRun: 3,
    errors.DivergedError: 4,
}


def commands_of(name: str) -> dict[str, Any]:
    """The command of a verb, or each of its subcommands under its full name."""
    return {full: command for full, command in commands() if full.split()[0] == name}


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_has_help_for_everything(name: str, command: Command) -> None:
    for full, verb in commands_of(name).items():
        first = (verb.help or "").strip().split("\n")[0]
        assert first.endswith((".", ":")) or len(first) > 20, f"{full}: docstring"
        for parameter in verb.params:
            assert parameter.name == "help" or getattr(parameter, "help", None), f"{full}: {parameter.name} has no help"
        outcome = command(*full.split(), "--help")
        assert outcome.code == 0
        assert outcome.out.startswith(f"Usage: phraseloom {full}")
        assert outcome.err == ""


def test_usage_lines_are_clean() -> None:
    """Capitals; brackets around what may be left out, dots behind what may be several, each once."""
    piece = r"(\[NAME=\])?[A-Z][A-Z0-9]*(=[A-Z]+)?(\.\.\.)?"
    for full, verb in commands():
        with type(verb).context_class(verb, info_name=f"phraseloom {full}") as context:
            usage = " ".join(verb.get_usage(context).split())
        head = f"Usage: phraseloom {full} [OPTIONS]"
        assert usage.startswith(head)
        for argument in usage.removeprefix(head).split():
            assert re.fullmatch(rf"{piece}|\[{piece}\]", argument), usage


def test_the_page_of_commands_is_what_the_commands_say(root: Path) -> None:
    text = (root / "docs" / "commands.md").read_bytes().decode()
    again = "python -m phraseloom.cli.document > docs/commands.md"
    assert text == document(), f"a command and its page differ: {again}"
    assert again in text
    assert all(f"## phraseloom {name}" in text for name in cli.VERBS)


def test_the_table_is_the_folder() -> None:
    for name, (module, line) in cli.VERBS.items():
        loaded = importlib.import_module(f"phraseloom.cli.{module}")
        assert hasattr(loaded, "command") != hasattr(loaded, "app"), name
        assert line.endswith(".")
        assert len(line) < 66


def test_help_lists_every_verb(command: Command) -> None:
    outcome = command("--help")
    assert outcome.code == 0
    for name, (_, line) in cli.VERBS.items():
        assert f"  {name} " in outcome.out
        assert line in outcome.out


def test_help_is_fast_and_light(tmp_path: Path) -> None:
    code = (
        "import sys; from phraseloom.cli.main import run; run(['--help']); "
        "print({'torch', 'numpy', 'sacrebleu', 'phraseloom.recipe'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.stderr.decode().strip() == "set()"
    times = []
    for _ in range(3):
        start = _time_of_children()
        assert phraseloom("--help", cwd=tmp_path).returncode == 0
        times.append(_time_of_children() - start)
    assert min(times) < 0.5


def _time_of_children() -> float:
    """Seconds of processor time, which other work on the machine does not change much."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_version_and_nothing(command: Command) -> None:
    for flag in ("-V", "--version"):
        assert command(flag).out == f"phraseloom {__version__}\n"
    outcome = command()
    assert (outcome.code, outcome.out) == (2, "")
    assert "VERB" in outcome.err


@pytest.mark.parametrize("words", ["analyse heatmap", "convert to-marian", "phrases extract", "translate"])
def test_a_wrong_option_names_the_help_of_its_command(words: str, command: Command) -> None:
    assert f"; try phraseloom {words} --help\n" in command(*words.split(), "--qqqq").err


@pytest.mark.parametrize("name", cli.VERBS)
def test_a_verb_with_a_typo_names_the_verb(name: str, command: Command) -> None:
    outcome = command(name[:-1] + "x", "--help")
    assert outcome.code == 2
    assert f"did you mean {name}?" in outcome.err
    assert outcome.err.startswith("phraseloom: no verb")
    assert outcome.err.count("\n") == 1


def test_strange_verbs(command: Command) -> None:
    for name in ("qqqq", "../x", "os.system", "__class__", "", "\x1b[31m"):
        outcome = command(name)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert "\x1b" not in outcome.err


@pytest.mark.parametrize("name", cli.VERBS)
def test_an_option_with_a_typo_is_refused(name: str, command: Command) -> None:
    for full, verb in commands_of(name).items():
        for option in (o for p in verb.params for o in p.opts if o.startswith("--") and o != "--help"):
            outcome = command(*full.split(), option + "x", "1")
            assert outcome.code == 2, option
            assert outcome.is_one_line_of(name), outcome.err


def fake(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def command() -> None:
        """Fail."""
        raise error

    app = typer.Typer(add_completion=False)
    app.command("schema")(command)
    monkeypatch.setattr(cli, "load_verb", lambda name: typer.main.get_command(app))


@pytest.mark.parametrize("kind", EXIT_CODES)
def test_every_error_is_one_line_with_its_exit_code(
    kind: type[errors.PhraseloomError], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, kind("it\nbroke \x1b[1m", file="a.txt", line=3, hint="mend it"))
    outcome = command("schema")
    assert outcome.code == EXIT_CODES[kind] == kind.exit_code
    assert outcome.err == "phraseloom schema: a.txt:3: it\\nbroke \\x1b[1m; mend it\n"


def test_the_table_of_exit_codes_is_complete() -> None:
    tree = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.PhraseloomError)}
    assert tree == set(EXIT_CODES)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError(), 1, "out of memory"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (PermissionError(13, "Permission denied", "x/y"), 1, "x/y: Permission denied"),
        (ZeroDivisionError("1/0"), 1, "internal error: ZeroDivisionError: 1/0"),
        (typer.BadParameter("no such thing"), 2, "no such thing"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_other_errors(
    error: BaseException, code: int, text: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, error)
    outcome = command("schema")
    assert outcome.code == code
    assert text in outcome.err
    assert outcome.err.count("\n") == (1 if text else 0)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    fake(monkeypatch, errors.DataError("broken"))
    with pytest.raises(errors.DataError):
        command("--debug", "schema")
    monkeypatch.setenv("PHRASELOOM_DEBUG", "1")
    with pytest.raises(errors.DataError):
        command("schema")


def test_schema_describes_recipes(command: Command, tmp_path: Path) -> None:
    outcome = command("schema")
    assert outcome.code == 0
    assert set(json.loads(outcome.out)["$defs"]["Recipe"]["required"]) == {"name", "data"}
    assert command("schema", "-o", "recipe.json").code == 0
    assert (tmp_path / "recipe.json").read_bytes().decode() == outcome.out


def test_pipe_into_head_is_quiet(tmp_path: Path) -> None:
    """`phraseloom schema | head -c 1`: the reader leaves while we write (reliability O1)."""
    with subprocess.Popen(
        [sys.executable, "-m", "phraseloom", "schema"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "phraseloom", "schema"]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.decode() == "phraseloom schema: No space left on device\n"


def test_ctrl_c_is_quiet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phraseloom", "evaluate", "-r", str(tmp_path / "ref"), "-"]
    (tmp_path / "ref").write_bytes(b"a\n")
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it otherwise
    ) as process:
        _wait_until_it_waits(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANGS)
    assert (process.returncode, out, err) == (130, b"", b"")


def _wait_until_it_waits(pid: int) -> None:
    """Until a process has slept through half a second: it is started up, and reads its input."""
    asleep = 0
    while asleep < 10:
        time.sleep(0.05)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0


def test_the_same_bytes_in_every_locale(tmp_path: Path) -> None:
    (tmp_path / "réf").write_bytes("ein Mädchen schläft hier\n".encode())
    runs = [
        phraseloom("evaluate", "-r", "réf", "réf", "--metrics", "bleu", cwd=tmp_path, **variables)
        for variables in ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"})
    ]
    assert {r.returncode for r in runs[:2]} == {0}, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert "réf" in runs[0].stdout.decode()
    assert runs[2].returncode in (0, 1)
    assert b"Traceback" not in runs[2].stderr


def test_file_names_are_readable_in_every_locale(tmp_path: Path) -> None:
    words = ["align", "train", "-s", "süß.txt", "-t", "b", "-o", "c"]
    for locale in ({"PYTHONUTF8": "1"}, {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}):
        process = phraseloom(*words, cwd=tmp_path, **locale)
        assert process.stderr.decode() == "phraseloom align: süß.txt: text file not found\n", locale
    escaped = os.fsdecode("ß".encode() + b"\xff\xc2\x85\xc3") + "\ud800"
    assert errors.escape_controls(escaped) == "ß\\udcff\\x85\\udcc3\\ud800"


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).parent / "phraseloom"
    if not script.exists():
        pytest.skip("the package is not installed as a command")
    done = subprocess.run([script, "-V"], capture_output=True, check=False, env=dict(os.environ))
    assert done.stdout.decode() == f"phraseloom {__version__}\n"
