"""Usage lines: `phraseloom VERB [OPTIONS] ONE [OPTIONAL] SEVERAL...`, the same with every version of typer."""

from __future__ import annotations

from typing import Any

import typer.core


def is_argument(parameter: Any) -> bool:
    """Whether a parameter has a place instead of a name with dashes."""
    return not any(name.startswith("-") for name in parameter.opts)


def argument(parameter: Any, dots: str = "...") -> str:
    """The name of an argument, with `dots` where there may be several."""
    return f"{parameter.metavar}{dots if parameter.nargs == -1 else ''}"


class VerbCommand(typer.core.TyperCommand):
    """A command whose arguments have a metavar in capitals without dots; those that may be left out get brackets here."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands behind the name of the command."""
        given = [p for p in self.get_params(ctx) if is_argument(p)]
        return ["[OPTIONS]", *(argument(p) if p.required else f"[{argument(p)}]" for p in given)]
