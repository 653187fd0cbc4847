"""No page names a command that is not there: every command of every page goes through the real parser.

Verbs, options and their values, arguments; recipes, with the changes given on the command line; make targets; scripts and
their options; extras to install. Pages whose commands are also run, in their order, stand in `RUN`; why those of the
others are not, in `NOT_RUN`.
"""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from typing import Any

import pytest
from tests.docs.pages import OURS, PAGES, ROOT, THEIRS, Command, commands, simple_commands

from phraseloom.cli.main import VERBS, ClickError, ClickUsageError, load_verb
from phraseloom.errors import PhraseloomError
from phraseloom.recipe import load_recipe

RUN = {
    "README.md": "tests/docs/test_own_pair.py",
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/own_pair.md": "tests/docs/test_own_pair.py",
    "docs/add_a_mechanism.md": "tests/docs/test_add_a_mechanism.py",
    "docs/phrases.md": "tests/test_phrases_page.py",
    "docs/continuous_output.md": "tests/test_continuous_page.py",
    "docs/encoder_free.md": "tests/test_encoder_free_page.py",
    "docs/phrase_representations.md": "tests/test_phrase_page.py",
    "docs/bridges.md": "tests/bridges/test_page.py",
    "docs/synthetic_data.md": "tests/test_synthetic_page.py",
}
NEEDS_CORPORA = "corpora that are not part of the project, and hours"
EXAMPLES = "single examples on files that a reader has; each verb is run by its tests in tests/cli"
NOT_RUN = {
    "benchmarks/README.md": "minutes each, and programs of other people",
    "docs/alignment.md": EXAMPLES,
    "docs/analysis.md": EXAMPLES,
    "docs/cluster.md": "several machines, or a Slurm",
    "docs/data.md": EXAMPLES,
    "docs/decoding.md": EXAMPLES,
    "docs/evaluation.md": EXAMPLES,
    "docs/explain.md": EXAMPLES,
    "docs/fertility.md": EXAMPLES,
    "docs/file_formats.md": EXAMPLES,
    "docs/fine_tuning.md": NEEDS_CORPORA,
    "docs/language_models.md": NEEDS_CORPORA,
    "docs/log.md": NEEDS_CORPORA,
    "docs/map.md": EXAMPLES,
    "docs/phrasal_attention.md": NEEDS_CORPORA,
    "docs/report.md": EXAMPLES,
    "docs/reproduce.md": "minutes a table",
    "docs/word_vectors.md": EXAMPLES,
    "docs/results.md": "tests/reproduce/test_evidence.py runs its command",
    "docs/results/README.md": "minutes a table",
    "docs/results/claims.md": "tests/reproduce/test_evidence.py runs its command",
    "docs/results/baselines.md": NEEDS_CORPORA,
    "docs/results/continuous.md": NEEDS_CORPORA,
    "docs/results/npmt.md": NEEDS_CORPORA,
    "docs/results/performance.md": "minutes each, and programs of other people",
    "docs/experiments/001-phrasal-attention.md": NEEDS_CORPORA,
    "docs/experiments/002-continuous-output.md": NEEDS_CORPORA,
    "docs/experiments/003-source-phrases.md": NEEDS_CORPORA,
    "docs/experiments/004-recurrent.md": NEEDS_CORPORA,
    "docs/experiments/005-long-sentences.md": NEEDS_CORPORA,
    "docs/experiments/006-learning-rate.md": NEEDS_CORPORA,
    "docs/experiments/007-ladder.md": NEEDS_CORPORA,
    "docs/experiments/008-tatoeba.md": NEEDS_CORPORA,
    "docs/experiments/009-french.md": NEEDS_CORPORA,
    "docs/experiments/010-phrase-attention.md": NEEDS_CORPORA,
    "docs/experiments/011-short-phrases.md": NEEDS_CORPORA,
    "docs/experiments/012-dropout.md": NEEDS_CORPORA,
    "docs/experiments/013-drawn-rivals.md": NEEDS_CORPORA,
    "docs/experiments/014-layers.md": NEEDS_CORPORA,
    "docs/experiments/015-frequent-rivals.md": NEEDS_CORPORA,
    "docs/experiments/024-word-rivals.md": NEEDS_CORPORA,
    "docs/experiments/025-glorot-recurrent.md": NEEDS_CORPORA,
    "docs/experiments/026-half-rate.md": NEEDS_CORPORA,
    "docs/experiments/027-regularised-phrases.md": NEEDS_CORPORA,
    "docs/experiments/028-converged.md": NEEDS_CORPORA,
    "docs/experiments/029-more-updates.md": NEEDS_CORPORA,
    "docs/experiments/030-annealed.md": NEEDS_CORPORA,
    "docs/experiments/031-new-seeds.md": NEEDS_CORPORA,
    "docs/experiments/032-tempered-gate.md": NEEDS_CORPORA,
    "docs/experiments/033-tatoeba-seeds.md": NEEDS_CORPORA,
    "docs/experiments/034-french-seeds.md": NEEDS_CORPORA,
    "docs/experiments/035-tatoeba-long.md": NEEDS_CORPORA,
    "docs/experiments/036-random-vectors.md": NEEDS_CORPORA,
    "docs/experiments/037-ted.md": NEEDS_CORPORA,
    "docs/experiments/038-mixed-vectors.md": NEEDS_CORPORA,
    "docs/experiments/039-glorot-softmax.md": NEEDS_CORPORA,
    "docs/experiments/040-ted-glorot.md": NEEDS_CORPORA,
    "docs/experiments/041-npmt-connect.md": NEEDS_CORPORA,
    "docs/experiments/042-connect-beam.md": NEEDS_CORPORA,
    "docs/experiments/043-more-text.md": NEEDS_CORPORA,
    "docs/experiments/016-post-norm.md": NEEDS_CORPORA,
    "docs/experiments/017-language-model.md": NEEDS_CORPORA,
    "docs/experiments/018-phrase-choices.md": NEEDS_CORPORA,
    "docs/experiments/019-relative.md": NEEDS_CORPORA,
    "docs/experiments/020-two-starts.md": NEEDS_CORPORA,
    "docs/experiments/021-npmt.md": NEEDS_CORPORA,
    "docs/experiments/022-orders.md": NEEDS_CORPORA,
    "docs/experiments/023-recurrent-starts.md": NEEDS_CORPORA,
    "docs/segments.md": EXAMPLES,
    "docs/serving.md": "a server that does not end; tests/serving runs it",
    "docs/training.md": NEEDS_CORPORA,
    "docs/trees.md": EXAMPLES,
    "docs/world.md": EXAMPLES,
    "recipes/README.md": EXAMPLES,
    "recipes/continuous/ladder/README.md": "vectors and a training, minutes each",
    **{f"docs/{page}00{n}.md": NEEDS_CORPORA for n in range(5) for page in ("papers/", "results/paper_")},
    **{f"recipes/paper00{n}/README.md": NEEDS_CORPORA for n in range(5)},
}
MADE = {"tests/layers/test_biased.py"}  # by the reader, as docs/add_a_mechanism.md says
COMMANDS = [command for page in PAGES for command in commands(page) if command.words[0] not in THEIRS]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_bytes().decode())


def verb(words: tuple[str, ...]) -> tuple[Any, str, list[str]]:
    """The parser of a command, its name, and the words that are left for it."""
    name, rest = words[0], list(words[1:])
    if name not in VERBS:
        raise ValueError(f"no verb {name!r}; verbs: {', '.join(VERBS)}")
    command = load_verb(name)
    if not hasattr(command, "list_commands"):
        return command, name, rest
    if not rest:
        return None, name, rest
    inner, found, rest = command.resolve_command(command.context_class(command, info_name=name), rest)
    return found, f"{name} {inner}", rest


def check_phraseloom(command: Command) -> None:
    words = tuple(word for word in command.words[1:] if word not in ("--help", "-h"))
    if words and words[0] == "--debug":
        words = words[1:]
    if not words or words[0] in ("--version", "-V", "VERB"):
        return
    parser, name, rest = verb(words)
    if parser is None or len(words) < len(command.words) - 1 or (command.inline and not rest):
        return
    if command.elided:
        known = {option for parameter in parser.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options = {re.match(r"\[?(-[\w-]*)", word)[1] for word in rest if re.match(r"\[?-\D", word)}  # type: ignore[index]
        if options - known:
            raise ValueError(f"{name} has no option {', '.join(sorted(options - known))}")
    else:
        try:
            with contextlib.redirect_stdout(io.StringIO()), parser.make_context(name, list(rest)):
                pass
        except ClickUsageError as error:  # between backticks a command is often named with what matters of it
            if not command.inline or type(error).__name__ != "MissingParameter":
                raise
    tables = [word for word in rest if name == "reproduce" and re.match(r"\d{3}-", word)]
    missing = [table for table in tables if not (ROOT / "recipes" / "tables" / f"{table}.yaml").is_file()]
    if missing:
        raise ValueError(f"no table {missing[0]}")
    recipes = [word for word in rest if re.fullmatch(r"recipes/.*\.yaml", word)]
    for recipe in recipes:
        changes = [word for word in rest if re.match(r"[a-z_]+(\.[a-z_0-9]+)*=", word)]
        load_recipe(ROOT / recipe, changes)


def check_python(command: Command) -> None:
    words = command.words[1:]
    if words[0] == "-m":
        if words[1].startswith("phraseloom"):
            assert (ROOT / "src" / words[1].replace(".", "/")).with_suffix(".py").is_file() or words[1] == "phraseloom"
        if words[1] == "phraseloom":
            check_phraseloom(Command(command.page, command.line, words[1:], command.elided, command.inline))
        return
    if not words[0].endswith(".py"):
        return  # -c, or a file of the reader's
    script = ROOT / words[0]
    assert script.is_file(), f"{words[0]} is not there"
    options = {word.strip("[]") for word in words[1:] if word.startswith(("--", "[--"))}
    texts = [path.read_bytes().decode() for path in (ROOT / "benchmarks").glob("*.py")]
    missing = {option for option in options if not any(f'"{option}"' in text for text in texts)}
    assert not missing, f"no benchmark has {sorted(missing)}"


def check(command: Command) -> None:
    words = command.words
    first = words[0]
    if first == "phraseloom":
        check_phraseloom(command)
    elif first == "make":
        targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_bytes().decode()))
        wanted = {word for word in words[1:] if "=" not in word and not word.startswith("-")}
        assert wanted <= targets, f"no target {wanted - targets}"
    elif first == "python":
        check_python(command)
    elif first == "torchrun":
        start = words.index("-m")
        check_python(Command(command.page, command.line, ("python", *words[start:]), command.elided, command.inline))
    elif first == "pip":
        for extra in re.findall(r"phraseloom\[([\w,]+)\]", " ".join(words)):
            assert set(extra.split(",")) <= set(PYPROJECT["project"]["optional-dependencies"]), f"no extra {extra}"
    elif first in ("pytest", "bash"):
        named = [word for word in words[1:] if re.match(r"(tests|demo\.sh)", word) and word not in MADE]
        assert all((ROOT / word.partition("::")[0]).exists() for word in named), f"not there: {named}"
    else:
        raise ValueError(f"no command that this test knows: {first}")


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_command_is_one_of_ours(command: Command) -> None:
    try:
        check(command)
    except (ClickUsageError, ClickError) as error:
        pytest.fail(f"{command}: {error.format_message()}")  # type: ignore[attr-defined]
    except (ValueError, AssertionError, PhraseloomError) as error:
        pytest.fail(f"{command}: {error}")


def test_every_page_with_commands_is_run_or_says_why_not() -> None:
    with_commands = {command.page for command in COMMANDS if not command.inline}
    assert not RUN.keys() & NOT_RUN.keys()
    assert with_commands <= RUN.keys() | NOT_RUN.keys(), sorted(with_commands - RUN.keys() - NOT_RUN.keys())
    assert all((ROOT / test).is_file() for test in RUN.values())
    assert not [page for page in RUN.keys() | NOT_RUN.keys() if not (ROOT / page).is_file()]


WRONG = [
    ("phraseloom trian recipes/own/small.yaml", "no verb"),
    ("phraseloom train recipes/own/small.yaml --nope", "No such option"),
    ("phraseloom train recipes/own/tiny.yaml", "tiny.yaml"),
    ("phraseloom train recipes/own/small.yaml model.widht=3", "width"),
    ("phraseloom translate runs/mine --beam five", "valid integer"),
    ("phraseloom evaluate out.de", "reference"),
    ("phraseloom analyse entropi runs/mine -s a", "entropi"),
    ("phraseloom analyse activation runs/mine … --nope", "--nope"),
    ("phraseloom reproduce 002-table9 --scale tiny", "002-table9"),
    ("make everything", "everything"),
    ("python benchmarks/nope.py", "nope.py"),
    ("python benchmarks/run.py --nope", "--nope"),
    ("pip install 'phraseloom[nope]'", "nope"),
    ("bahs demo.sh", "bahs"),
]


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_command_is_seen(line: str, said: str) -> None:
    (words,) = simple_commands(line)
    with pytest.raises((ValueError, AssertionError, PhraseloomError, ClickError)) as raised:
        check(Command("page.md", 1, tuple(words), "…" in line))
    error: Any = raised.value
    assert said in (error.format_message() if isinstance(error, ClickError) else str(error))


def test_commands_are_found_wherever_they_stand() -> None:
    """In pipes, loops and continued lines, behind variables, with redirections and comments."""
    line = 'for p in a; do phraseloom tokenize -l de < $p > $p.t 2> err; done; X=1 python x.py | phraseloom score "m n" # why'
    found = [["phraseloom", "tokenize", "-l", "de"], ["python", "x.py"], ["phraseloom", "score", "m n"]]
    assert simple_commands(line) == found
    assert simple_commands("phraseloom score m --beam 1 < a") == [["phraseloom", "score", "m", "--beam", "1"]]
    assert set(OURS) <= {c.words[0] for c in COMMANDS} | {"torchrun", "pytest", "bash"}
    assert len(COMMANDS) > 200
