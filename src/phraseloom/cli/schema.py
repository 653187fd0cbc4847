"""`phraseloom schema`: the JSON schema of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from phraseloom.cli.outputs import Overwrite, check_outputs


def command(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file. Default: standard output.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the JSON schema of a recipe, for editors that check and complete YAML."""
    from phraseloom.files import atomic_write_text
    from phraseloom.recipe import schema

    check_outputs({"-o": output}, overwrite=overwrite)
    text = json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        atomic_write_text(output, text)
