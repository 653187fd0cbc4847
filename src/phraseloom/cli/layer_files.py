"""The files that an analysis by layer writes beside its table."""

from __future__ import annotations

from pathlib import Path

from phraseloom.errors import FileProblem


def can_write(json: Path | None, plot: Path | None, num_models: int) -> None:
    """What would fail at the end is refused before the models work."""
    for path in (json, plot):
        if path is not None and path.is_dir():
            raise FileProblem("a file to write expected, but this is a folder", file=path)
    if plot is not None:
        from phraseloom.report.layers import can_draw

        can_draw(plot, num_models)
