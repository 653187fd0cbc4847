"""The command `phraseloom`: one table of verbs, each imported when it is called, and one line for every error.

A verb is a module `phraseloom.cli.<module>` that has either `command`, a function with typer annotations, or `app`, a
`typer.Typer` of subcommands. Nothing heavy is imported before a verb runs (`phraseloom --help` stays under 0.5 s).

Exit codes: 0 done; 1 data, file or model; 2 usage or recipe; 3 interrupted, the same command resumes; 4 diverged;
130 stopped by Ctrl-C; 141 the reader of the output closed it (`… | head`).
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.core

from phraseloom import __version__
from phraseloom.cli.group import SETTINGS, VerbCommand
from phraseloom.cli.streams import replace_closed_streams, silence
from phraseloom.errors import PhraseloomError, UsageError, escape_controls
from phraseloom.parent import end_with_parent

VERBS: dict[str, tuple[str, str]] = {
    "world": ("world", "Write the built-in parallel corpus with its gold annotations."),
    "prepare": ("prepare", "Turn text files into a dataset folder."),
    "decontaminate": ("decontaminate", "Leave out the training pairs that are in held-out text."),
    "join": ("join", "Join lines into longer ones."),
    "tokenize": ("tokenize", "Tokenise or detokenise lines."),
    "subwords": ("subwords", "Learn, apply and undo subword segmentation."),
    "phrases": ("phrases", "Phrases: parse trees, phrase tables, joined text."),
    "embeddings": ("embeddings", "Train and inspect word and phrase vectors."),
    "train": ("train", "Train a model from a recipe, or resume a run."),
    "fertility": ("fertility", "Train and evaluate the word-or-phrase gate (fertility)."),
    "average": ("average", "Average the weights of several checkpoints."),
    "translate": ("translate", "Translate lines from standard input."),
    "generate": ("generate", "Generate text from prompts with a language model."),
    "score": ("score", "Print the log-probability of translations or lines of text."),
    "evaluate": ("evaluate", "Score translations: BLEU, chrF, TER, paired bootstrap."),
    "align": ("align", "Word alignment: train, apply, symmetrise, evaluate."),
    "analyse": ("analyse", "Look inside a model: attention, phrases, phenomena."),
    "explain": ("explain", "Write a page that shows how a model translates sentences."),
    "serve": ("serve", "Serve translations over HTTP, with a live page."),
    "report": ("report", "Write a page about runs: curves, scores, attention."),
    "diff": ("diff", "Compare two runs and their translations."),
    "reproduce": ("reproduce", "Reproduce a table of a paper and compare the numbers."),
    "convert": ("convert", "Convert models from and to other programs."),
    "hub": ("hub", "Push models to the Hugging Face Hub, and pull them."),
    "inspect": ("inspect", "Describe a model, dataset or run folder, or a recipe."),
    "doctor": ("doctor", "Check this machine and installation."),
    "schema": ("schema", "Print the JSON schema of a recipe, for editors."),
}

# The errors of the copy of click that typer brings.
ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]
ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def load_verb(name: str) -> Any:
    """The click command of a verb, its module imported now."""
    module_name, line = VERBS[name]
    module = importlib.import_module(f"phraseloom.cli.{module_name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, cls=VerbCommand, context_settings=SETTINGS, short_help=line)(module.command)
    command = typer.main.get_command(app)
    command.name = name
    return command


class LazyVerbs(typer.core.TyperGroup):
    """A command group of the verbs in `VERBS` that imports only the verb that is called."""

    verb = ""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with the one-line help; `resolve_command` loads the verb itself."""
        if cmd_name not in VERBS:
            return None
        line = VERBS[cmd_name][1]
        return typer.core.TyperCommand(cmd_name, help=line, short_help=line, rich_markup_mode=None)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The verb named by the first argument. Raises UsageError with the nearest name."""
        name = args[0]
        if name not in VERBS:
            near = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"verbs: {', '.join(VERBS)}"
            raise UsageError(f"no verb {name!r}", hint=hint)
        self.verb = name
        return name, load_verb(name), args[1:]


def _print_version(requested: bool) -> None:
    if requested:
        print(f"phraseloom {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="PHRASELOOM_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Phrase-aware neural machine translation.

    phraseloom VERB --help explains a verb. Text files are UTF-8, one sentence per line, plain or .gz/.xz.
    """


def build() -> LazyVerbs:
    """The group of all verbs."""
    app = typer.Typer(
        cls=LazyVerbs,
        rich_markup_mode=None,
        no_args_is_help=False,
        subcommand_metavar="VERB [ARGUMENTS]...",
        context_settings=SETTINGS,
    )
    app.callback()(_root)
    group = typer.main.get_command(app)
    assert isinstance(group, LazyVerbs)
    return group


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error is one line on standard error."""
    group = build()
    if not arguments:
        with group.make_context("phraseloom", [], resilient_parsing=True) as context:
            print(group.get_help(context), file=sys.stderr)
        return 2
    debug = arguments[0] == "--debug" or os.environ.get("PHRASELOOM_DEBUG", "") not in ("", "0")
    try:
        code = _invoke(group, list(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        silence(sys.stdout)
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            raise
        return _report(group.verb, error)


def _invoke(group: LazyVerbs, arguments: list[str]) -> int:
    try:
        with group.make_context("phraseloom", arguments) as context:
            code = group.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return code if isinstance(code, int) else 0


def _command(error: Any) -> str:
    """The command whose options were wrong, such as `phraseloom align train`; "" if it is not known."""
    return "" if error.ctx is None else str(error.ctx.command_path)


def _report(verb: str, error: Exception) -> int:
    """Print `phraseloom VERB: what; hint` and return the exit code of the error."""
    name = f"phraseloom {verb}".rstrip()
    if isinstance(error, PhraseloomError):
        text, code = str(error), error.exit_code
    elif type(error).__name__ == "NoArgsIsHelpError":  # a verb of subcommands, called without one
        print(error, file=sys.stderr)
        return 2
    elif isinstance(error, ClickUsageError):
        hint = _other_option(error) or (
            "" if "did you mean" in str(error).lower() else f"try {_command(error) or name} --help"
        )
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        text, code = f"{message}; {hint}" if hint else message, 2
    elif isinstance(error, ClickError):
        text, code = error.format_message(), 1  # type: ignore[attr-defined]
    elif isinstance(error, MemoryError):
        text, code = "out of memory", 1
    elif isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        text, code = f"{place}{error.strerror}", 1
        _flush_or_silence_stdout()
    else:
        again = f"phraseloom --debug {verb} … shows where; please report it"
        text, code = f"internal error: {type(error).__name__}: {error}; {again}", 1
    try:
        if sys.stderr is not None:  # print would write to stdout instead
            print(f"{name}: {escape_controls(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):  # the exit code still reports it
        silence(sys.stderr)
    return code


def _other_option(error: Any) -> str | None:
    """A suggestion for an unknown option that another toolkit has."""
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if type(error).__name__ != "NoSuchOption" or name is None or context is None:
        return None
    from phraseloom.other_names import suggest_option

    parameters = context.command.params
    options = {option for parameter in parameters for option in (*parameter.opts, parameter.metavar)}
    suggestion = suggest_option(name, options, takes_keys="KEY=VALUE" in options)
    if suggestion is not None:
        error.possibilities = []  # or the message would suggest the nearest spelling too
    return suggestion


def _flush_or_silence_stdout() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def main() -> None:
    """Entry point: UTF-8 and bare line feeds on the standard streams in every locale, then `run`."""
    end_with_parent()
    replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    if "_PHRASELOOM_COMPLETE" in os.environ:
        build().main(prog_name="phraseloom")
    sys.exit(run(sys.argv[1:]))
