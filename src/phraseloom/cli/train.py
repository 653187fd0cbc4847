"""`phraseloom train`: train a model from a recipe; the same command resumes an interrupted run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.fertility_stage import add_fertility, check_labels
from phraseloom.cli.options import Overrides
from phraseloom.cli.streams import first_sign
from phraseloom.errors import DivergedError, InterruptedRun

if TYPE_CHECKING:
    from phraseloom.recipe import AnyRecipe


def command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe (YAML).")],
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "--run-folder",
            metavar="PATH",
            help="The run folder. Default: runs/<name of the recipe>. torchrun needs --run-folder.",
        ),
    ] = None,
    allow_changed: Annotated[
        bool, typer.Option("--allow-changed", help="Resume although the recipe or the data has changed.")
    ] = False,
    go_back_to: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="Resume from this checkpoint, such as step_400. Newer checkpoints are set aside.",
        ),
    ] = None,
) -> None:
    """Train a model from RECIPE. KEY=VALUE changes a key, such as training.max_updates=500.

    Ctrl-C, SIGTERM and SIGHUP save the run and exit with code 3. The same command resumes, with the same result as
    without a break.
    """
    from phraseloom.recipe import Recipe, load_recipe

    loaded = load_recipe(recipe, overrides)
    first_sign("train", f"{loaded.name}: loading torch and the dataset {loaded.data.folder}")
    from phraseloom.report.charts.curves import draw_after_training
    from phraseloom.training.distributed import LostProcess, is_child
    from phraseloom.training.run import run_recipe

    folder = run or Path("runs") / loaded.name
    _check_phrases(loaded)
    loaded = _with_lexicon(loaded)
    gated = not is_child() and check_labels(loaded)  # before a training of hours whose last stage would lack them
    try:
        run_recipe(
            loaded, folder, allow_changed=allow_changed, go_back_to=go_back_to, draw=draw_after_training, last=not gated
        )
    except (DivergedError, InterruptedRun, LostProcess) as error:
        if is_child() and not (isinstance(error, LostProcess) and error.of_first):  # the first process reports it
            raise typer.Exit(error.exit_code) from None
        if isinstance(error, DivergedError):
            raise DivergedError(
                error.what, file=error.file, hint=_retry_hint(recipe, overrides or [], folder, loaded)
            ) from error
        raise
    if isinstance(loaded, Recipe) and gated:
        add_fertility(loaded, folder)


def _check_phrases(recipe: AnyRecipe) -> None:
    """Raise UsageError if the dataset was not prepared with the phrases, vectors and text options of the recipe."""
    from phraseloom.recipe import Recipe
    from phraseloom.reproduce.phrase_data import check_prepared

    if isinstance(recipe, Recipe) and recipe.data.target_phrases is not None and Path(recipe.data.folder).is_dir():
        check_prepared(recipe.data)


def _with_lexicon(recipe: AnyRecipe) -> AnyRecipe:
    """The recipe with the lexicon that `prepare` made, for `decoding.lexicon: auto`. Raises FileProblem if there is none."""
    from phraseloom.options.decoding import AUTO
    from phraseloom.recipe import Recipe
    from phraseloom.reproduce.phrase_data import find_lexicon

    if not isinstance(recipe, Recipe) or recipe.decoding.lexicon != AUTO or not Path(recipe.data.folder).is_dir():
        return recipe
    decoding = recipe.decoding.model_copy(update={"lexicon": str(find_lexicon(recipe.data))})
    return recipe.model_copy(update={"decoding": decoding})


RATES = {"inverse_sqrt": "factor", "constant": "rate", "plateau": "rate"}


def _retry_hint(recipe: Path, overrides: list[str], run: Path, loaded: AnyRecipe) -> str:
    """How to continue a diverged run: the command with a tenth of the learning rate, and where it starts."""
    from phraseloom.training.checkpoint import list_checkpoints
    from phraseloom.training.run_folder import noted_collapse

    schedule = loaded.training.schedule
    key = RATES.get(schedule.kind, "peak")
    name = f"training.schedule.{key}"
    words = ["phraseloom", "train", str(recipe), *(o for o in overrides if o.partition("=")[0] != name)]
    words += [f"{name}={getattr(schedule, key) / 10:g}", "--run", str(run), "--allow-changed"]
    steps = [path.name for _, path in list_checkpoints(run)]
    where = f"it resumes from {steps[-1]}" if steps else "it starts over, because no checkpoint is left"
    earlier = f"; --from {steps[-2]} goes further back" if len(steps) > 1 else ""
    parts = noted_collapse(run)
    other = "begin a new run with another model.init" if steps else "choose another model.init"
    start = f", or {other}: the start was collapsed ({', '.join(parts)})" if parts else ""
    return f"lower the learning rate: {shlex.join(words)} ({where}{earlier}){start}"
