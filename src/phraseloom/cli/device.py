"""`--device` of every verb that computes, checked before anything is read."""

from __future__ import annotations

from typing import Annotated

import typer


def _usable(device: str) -> str:
    """UsageError for a device that is not there; the default needs no torch."""
    if device != "cpu":
        from phraseloom.models.device import usable

        usable(device)
    return device


Device = Annotated[str, typer.Option("--device", callback=_usable, help="Device: cpu, cuda, cuda:1.")]
