"""`phraseloom schema`: the JSON schema of a recipe."""

from __future__ import annotations

import json

from phraseloom.cli.options import OutputFile
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.files import atomic_write_text


def command(
    output: OutputFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the JSON schema of a recipe, for editors that check and complete YAML."""
    from phraseloom.recipe import schema

    check_outputs({"-o": output}, overwrite=overwrite)
    text = json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        atomic_write_text(output, text)
