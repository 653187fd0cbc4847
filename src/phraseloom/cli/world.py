"""`phraseloom world`: write the built-in language pair."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from phraseloom.cli.streams import first_sign
from phraseloom.text.lines import group_sizes


def command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; must be new or empty.")],
    seed: Annotated[int, typer.Option(help="Random seed. The same seed and sizes give the same bytes.")] = 1,
    train: Annotated[int, typer.Option(help="Training pairs.")] = 20_000,
    valid: Annotated[int, typer.Option(help="Validation pairs.")] = 1_000,
    test: Annotated[int, typer.Option(help="Test pairs.")] = 1_000,
    contrastive: Annotated[int, typer.Option(min=0, help="Contrastive items for each phenomenon.")] = 210,
    join: Annotated[
        str, typer.Option(metavar="N", help="Sentences per line of train, valid and test: 3, or 2-3 in turn.")
    ] = "1",
    processes: Annotated[
        int, typer.Option(help="Processes that generate training pairs. The output does not depend on it.")
    ] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing world.")] = False,
) -> None:
    """Write the built-in synthetic language pair with its gold annotations (docs/world.md)."""
    from phraseloom.world.writer import write_world

    first_sign("world", f"writing {train:,} training pairs to {out}")
    counts = {"train": train, "valid": valid, "test": test, "contrastive": contrastive}
    summary = write_world(out, seed=seed, **counts, processes=processes, join=group_sizes(join), overwrite=overwrite)
    pairs = ", ".join(f"{name} {count}" for name, count in summary["pairs"].items())
    typer.echo(f"{out}: {pairs}; {summary['lemmas']} lemmas; {len(summary['sha256'])} files")
