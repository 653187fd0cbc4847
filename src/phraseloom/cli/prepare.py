"""`phraseloom prepare`: text files → a dataset folder."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe (YAML). Only its data section is used.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe.")] = None,
    data_root: Annotated[
        Path, typer.Option(envvar="PHRASELOOM_DATA", help="Folder that contains the files named in the recipe.")
    ] = Path(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing dataset.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, max=512, help="Worker processes. Default: the recipe's value.")
    ] = None,
) -> None:
    """Turn the text files of RECIPE into a dataset folder (data.folder): pairs, or lines for a language model.

    Subwords are learned on the training files. Everything that is left out or changed is counted and printed. With
    data.target_phrases, the phrases of the target are found and joined first, and vectors learned; what is done already
    is not done again.
    """
    from phraseloom.data.prepare import DATASET, prepare
    from phraseloom.data.tally import table
    from phraseloom.options.data import DataConfig
    from phraseloom.recipe import find_recipe, load_recipe
    from phraseloom.replace import check_folder
    from phraseloom.reproduce.phrase_data import make_phrase_data

    changes = [*(overrides or []), *([] if processes is None else [f"data.processes={processes}"])]
    recipe = find_recipe(recipe)
    config = load_recipe(recipe, changes).data
    started = time.monotonic()
    progress = _Progress()
    if isinstance(config, DataConfig) and config.target_phrases is not None:
        check_folder(config.folder, DATASET, overwrite=overwrite, inputs=[recipe])
        config = make_phrase_data(config, data_root=data_root, say=_say).config
    try:
        report = prepare(config, data_root=data_root, overwrite=overwrite, progress=progress, recipe=recipe)
    finally:
        progress.clear()
    print(table(report.index))
    print(f"dataset in {report.folder}, {time.monotonic() - started:.1f} s")


def _say(text: str) -> None:
    from phraseloom.errors import escape_controls

    print(escape_controls(text), file=sys.stderr, flush=True)


class _Progress:
    """One line on the terminal that is written over; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()
        self.last = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.on and (now - self.last > 0.2 or not done):
            from phraseloom.errors import escape_controls

            share = f" {100 * done / total:5.1f} %" if total and done else ""
            print(f"\r\x1b[K{escape_controls(stage)}{share}", end="", file=sys.stderr, flush=True)
            self.last = now

    def clear(self) -> None:
        """Remove the line."""
        if self.on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
