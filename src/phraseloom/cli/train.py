"""`phraseloom train`: train a model from a recipe; the same command goes on with an interrupted run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe.")] = None,
    run: Annotated[Path | None, typer.Option(help="The run folder; default runs/<name of the recipe>.")] = None,
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Go on with a run although the recipe or the data has changed.")
    ] = False,
) -> None:
    """Train a model from RECIPE. KEY=VALUE changes a key, such as training.max_updates=500.

    Ctrl-C or SIGTERM saves and leaves with exit code 3; the same command goes on from there, to the same result.
    """
    from phraseloom.errors import DivergedError, InterruptedRun
    from phraseloom.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    from phraseloom.training.distributed import LostProcess, is_child
    from phraseloom.training.run import run_recipe

    try:
        run_recipe(loaded, run or Path("runs") / loaded.name, allow_changed=allow_changed)
    except (DivergedError, InterruptedRun, LostProcess) as error:
        if is_child():  # the first process says it
            raise typer.Exit(error.exit_code) from None
        raise
