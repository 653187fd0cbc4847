"""`phraseloom phrases`: a table of subcommands, each imported when it is called, as `main.py` does with verbs.

A subcommand is a module `phraseloom.cli.<module>` with a function `command` that has typer annotations, and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import typer.core

TASKS: dict[str, tuple[str, str]] = {
    "parse": ("phrases_parse", "Parse English text with link-grammar: one tree a line."),
}

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
HELP = "Make phrases: parse trees of source text."


def load_task(name: str) -> Any:
    """The click command of a subcommand, its module imported now."""
    module_name, line = TASKS[name]
    module = importlib.import_module(f"phraseloom.cli.{module_name}")
    inner = typer.Typer(add_completion=False, rich_markup_mode=None)
    inner.command(name, context_settings=SETTINGS, short_help=line)(module.command)
    return typer.main.get_command(inner)


class _Commands(Mapping[str, Any]):
    """The subcommands by name, made when they are looked up."""

    def __getitem__(self, name: str) -> Any:
        return load_task(name)

    def __iter__(self) -> Iterator[str]:
        return iter(TASKS)

    def __len__(self) -> int:
        return len(TASKS)


class LazyTasks(typer.core.TyperGroup):
    """A command group that knows its subcommands by `TASKS`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(
    cls=LazyTasks,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help=HELP,
    context_settings=SETTINGS,
)


@app.callback(help=HELP)
def _group() -> None:
    """Make phrases."""
