"""`phraseloom average`: the mean of several checkpoints as one model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phraseloom.cli.outputs import OverwriteModel
from phraseloom.errors import UsageError
from phraseloom.files import MANIFEST


def command(
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The model folder to write.")],
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT", help="Checkpoints; with --last, one run folder.")
    ],
    last: Annotated[int | None, typer.Option(min=1, help="Average the newest N checkpoints of the run folder.")] = None,
    overwrite: OverwriteModel = False,
) -> None:
    """Average the parameters of several checkpoints and write the result as a model folder."""
    from phraseloom.training.checkpoint import average_checkpoints, last_checkpoints

    if last is not None:
        if len(checkpoints) != 1:
            raise UsageError("--last takes one run folder", hint="phraseloom average OUTPUT RUN --last 5")
        checkpoints = last_checkpoints(checkpoints[0], last)
    for run in checkpoints:
        if (run / "checkpoints").is_dir() and not (run / MANIFEST).exists():
            raise UsageError(f"{run} is a run, not a checkpoint", hint=f"phraseloom average {output} {run} --last 5")
    average_checkpoints(output, checkpoints, overwrite=overwrite)
    typer.echo(f"mean of {len(checkpoints)} checkpoints: {output}", err=True)
