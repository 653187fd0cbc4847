"""A group of subcommands as a table: each is imported when it is called, as `main.py` does with verbs.

The few short subcommands of `hub` and `convert` are functions of one module instead (`small_group`).

A subcommand is a module `phraseloom.cli.<module>` with a function `command` that has typer annotations, and a line
`name: (module, help)` in the table of its verb (`analyse.py`, `phrases.py`, `align.py`).

Usage lines do not depend on the version of typer: `phraseloom VERB [OPTIONS] ONE [OPTIONAL] SEVERAL...`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import typer.core

Table = Mapping[str, tuple[str, str]]

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def load(table: Table, name: str) -> Any:
    """The click command of a subcommand, its module imported now."""
    module_name, line = table[name]
    module = importlib.import_module(f"phraseloom.cli.{module_name}")
    inner = typer.Typer(add_completion=False, rich_markup_mode=None)
    inner.command(name, cls=VerbCommand, context_settings=SETTINGS, short_help=line)(module.command)
    return typer.main.get_command(inner)


class _Commands(Mapping[str, Any]):
    """The subcommands by name, loaded when they are looked up."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Any:
        return load(self._table, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def lazy_group(table: Table, *, help: str, default: str | None = None) -> typer.Typer:
    """The app of a verb whose subcommands are in `table`.

    With `default`, a first word that is neither a subcommand nor close to one is the first argument of that subcommand.
    """

    class LazyGroup(typer.core.TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = _Commands(table)  # type: ignore[assignment]

        def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
            if default is not None and _is_argument(args[0], table):
                args = [default, *args]
            return super().resolve_command(ctx, args)

    app = typer.Typer(
        cls=LazyGroup,
        add_completion=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        help=help,
        context_settings=SETTINGS,
    )

    @app.callback(help=help)
    def group() -> None:
        pass

    return app


def small_group(*, help: str) -> typer.Typer:
    """The app of a verb whose subcommands are functions of one module, each marked by `subcommand`."""
    return typer.Typer(
        add_completion=False, rich_markup_mode=None, no_args_is_help=True, help=help, context_settings=SETTINGS
    )


def subcommand(app: typer.Typer, name: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a subcommand of `app`; `help`: its line in the list of the verb."""
    return app.command(name, cls=VerbCommand, context_settings=SETTINGS, short_help=help)


def _is_argument(word: str, table: Table) -> bool:
    if word in table:
        return False
    return "/" in word or Path(word).exists() or not difflib.get_close_matches(word, table)


def is_argument(parameter: Any) -> bool:
    """Whether a parameter is positional."""
    return not any(name.startswith("-") for name in parameter.opts)


def argument(parameter: Any, dots: str = "...") -> str:
    """The name of an argument, with `dots` if it may be repeated."""
    return f"{parameter.metavar}{dots if parameter.nargs == -1 else ''}"


class VerbCommand(typer.core.TyperCommand):
    """A command that puts optional arguments in brackets; metavars are capitals without dots."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line after the name of the command."""
        arguments = [p for p in self.get_params(ctx) if is_argument(p)]
        return ["[OPTIONS]", *(argument(p) if p.required else f"[{argument(p)}]" for p in arguments)]
