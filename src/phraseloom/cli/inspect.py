"""`phraseloom inspect`: what a folder holds, and whether it is whole."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from phraseloom.cli.options import ReportForm, check_form


def command(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A model, checkpoint, run or dataset folder.")],
    depth: Annotated[
        int, typer.Option(metavar="N", min=1, help="Group parameters by this many parts of their names.")
    ] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the checksums, which need every file to be read.")
    ] = False,
    output: ReportForm = "text",
) -> int:
    """Describe a model, dataset or run folder, and check that it is complete.

    Models: languages, configuration, vocabularies, parameters by part. Runs: progress, validations, checkpoints.
    Datasets: pairs kept and left out, sentence lengths. The exit code is 1 if something is damaged.
    """
    from phraseloom.report.run.description import render
    from phraseloom.report.run.folders import describe

    check_form(output)
    found = describe(folder, verify=not quick, depth=depth)
    print(json.dumps(found, ensure_ascii=False) + "\n" if output == "json" else render(found), end="")
    return 1 if found["problems"] else 0
