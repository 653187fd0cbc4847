"""`phraseloom prepare`: text files → a dataset folder."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phraseloom.cli.options import Overrides
from phraseloom.cli.streams import warn
from phraseloom.errors import DataError, UsageError, escape_controls, plural

if TYPE_CHECKING:
    from phraseloom.options.data import DataConfig
    from phraseloom.recipe import AnyRecipe
    from phraseloom.reproduce.phrase_data import PhraseData

DataRoot = Annotated[
    Path, typer.Option(envvar="PHRASELOOM_DATA", help="Folder that contains the files named in the recipe.")
]
Processes = Annotated[int | None, typer.Option(min=1, max=512, help="Worker processes. Default: the recipe's value.")]
Part = Annotated[
    str | None, typer.Option(metavar="I/N", help="Only encode part I of N, on one of N machines (docs/data.md).")
]
Merge = Annotated[
    list[Path] | None,
    typer.Option(metavar="FOLDER", help="Use the parts of another machine (its data.folder.parts); repeatable."),
]


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe (YAML). Only its data section is used.")],
    overrides: Overrides = None,
    data_root: DataRoot = Path(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")] = False,
    processes: Processes = None,
    part: Part = None,
    merge: Merge = None,
) -> None:
    """Turn the text files of RECIPE into a dataset folder (data.folder): pairs, or lines for a language model.

    The command learns subwords on the training files, and counts everything that it leaves out or changes. With
    data.target_phrases, it first finds and joins the phrases of the target and learns vectors. If it is killed, run it
    again: it continues, and repeats nothing that is finished.
    """
    from phraseloom.data.prepare import DATASET, ignored_keys, prepare
    from phraseloom.data.tally import table
    from phraseloom.options.data import DataConfig
    from phraseloom.recipe import find_recipe, load_recipe
    from phraseloom.replace import check_folder

    changes = [*(overrides or []), *([] if processes is None else [f"data.processes={processes}"])]
    recipe = find_recipe(recipe)
    chosen = None if part is None else _part(part)
    loaded = load_recipe(recipe, changes)
    config = loaded.data
    started = time.monotonic()
    progress, made = _Progress(), None
    if isinstance(config, DataConfig) and config.target_phrases is not None:
        if chosen is not None:
            raise UsageError("--part cannot find the phrases of data.target_phrases", hint="leave --part out")
        if merge:
            raise UsageError("--merge has no parts of data.target_phrases to use", hint="leave --merge out")
        check_folder(config.folder, DATASET, overwrite=overwrite, inputs=[recipe])
        made = _phrase_data(config, data_root, progress)
        config = made.config
    for text in ignored_keys(config):
        warn("prepare", text)
    try:
        if chosen is not None:
            if merge:
                raise UsageError("--part and --merge exclude each other", hint="merge after all parts are encoded")
            _prepare_part(loaded, chosen, data_root=data_root, overwrite=overwrite, progress=progress, recipe=recipe)
            return
        options: dict[str, Any] = {} if made is None else {"line_numbers": made.kept}
        options |= {"overwrite": overwrite, "progress": progress, "recipe": recipe, "merge": merge or ()}
        report = prepare(config, data_root=data_root, **options)
    except DataError as error:
        if made is None:
            raise
        raise made.in_own_file(error, data_root) from error
    finally:
        progress.clear()
    index = report.index if made is None else made.in_own_files(report.index)
    print(table(index, learned=made is not None))
    if made is not None:
        print(made.summary())
    print(f"dataset in {report.folder}, {time.monotonic() - started:.1f} s")
    if made is not None:
        _print_evaluation(loaded, made)


def _phrase_data(config: DataConfig, data_root: Path, progress: _Progress) -> PhraseData:
    """The text, phrases and vectors that data.target_phrases asks for."""
    from phraseloom.reproduce.phrase_data import make_phrase_data

    try:
        made = make_phrase_data(config, data_root=data_root, say=progress.say, progress=progress)
    finally:
        progress.clear()
    progress.say(f"[{made.steps}/{made.steps}] dataset: {made.config.folder}")
    return made


def _prepare_part(loaded: AnyRecipe, chosen: tuple[int, int], *, progress: _Progress, **options: Any) -> None:
    """Encode one part of the training text, and say how much it is. `options` are those of `prepare_part`."""
    from phraseloom.data.prepare import prepare_part

    started = time.monotonic()
    done = prepare_part(loaded.data, *chosen, progress=progress, **options)
    progress.clear()
    pairs = plural(done.total, "line" if loaded.task == "language_model" else "pair")
    number, parts = chosen
    seconds = time.monotonic() - started
    print(f"part {number}/{parts} of {pairs}: {done.pairs:,} in {done.folder}, {seconds:.1f} s")


def _print_evaluation(recipe: AnyRecipe, made: PhraseData) -> None:
    """Print the commands that use what the steps made of the test text."""
    has_gate = recipe.training.fertility is not None
    model = f"runs/{recipe.name}/fertility" if has_gate else f"runs/{recipe.name}"
    translations = f"{recipe.name}.test.{recipe.data.target_language}"
    commands = made.evaluation(model, has_gate=has_gate, translations=translations)
    if commands:
        print("after phraseloom train, score the test text; --lines: only its lines with a phrase for one source word:")
    for command in commands:
        print(f"    {command}")


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,4})/([1-9]\d{0,4})", text)
    if match is None:
        raise UsageError(f"--part {text!r} is not I/N", hint="write 2/4 for the second of four parts")
    return int(match[1]), int(match[2])


class _Progress:
    """One line on the terminal that is written over; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()
        self.last = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.on and (now - self.last > 0.2 or not done):
            share = f" {100 * done / total:5.1f} %" if total and done else ""
            print(f"\r\x1b[K{escape_controls(stage)}{share}", end="", file=sys.stderr, flush=True)
            self.last = now

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(escape_controls(text), file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self.on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
