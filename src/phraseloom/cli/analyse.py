"""`phraseloom analyse`: a table of subcommands, each imported when it is called, as `main.py` does with verbs.

A subcommand is a module `phraseloom.cli.<module>` with a function `command` that has typer annotations, and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer
import typer.core

ANALYSES: dict[str, tuple[str, str]] = {
    "activation": ("analyse_activation", "How much attention goes to tokens and how much to phrases, per layer."),
    "heatmap": ("analyse_heatmap", "Draw the attention of one sentence."),
    "phenomena": ("analyse_phenomena", "Accuracy on idioms, compounds, … of translations of the built-in world."),
    "contrastive": ("analyse_contrastive", "How often is a correct translation likelier than one with an error?"),
    "phrases": ("analyse_phrases", "How a model with source phrases cuts a sentence, and what counts in each phrase."),
    "coverage": ("analyse_coverage", "Do the phrase slots that fire cover the gold phrases?"),
}

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def load_analysis(name: str) -> Any:
    """The click command of a subcommand, its module imported now."""
    module_name, line = ANALYSES[name]
    module = importlib.import_module(f"phraseloom.cli.{module_name}")
    inner = typer.Typer(add_completion=False, rich_markup_mode=None)
    inner.command(name, context_settings=SETTINGS, short_help=line)(module.command)
    return typer.main.get_command(inner)


class _Commands(Mapping[str, Any]):
    """The subcommands by name, made when they are looked up."""

    def __getitem__(self, name: str) -> Any:
        return load_analysis(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ANALYSES)

    def __len__(self) -> int:
        return len(ANALYSES)


class LazyAnalyses(typer.core.TyperGroup):
    """A command group that knows its subcommands by `ANALYSES`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]


app = typer.Typer(
    cls=LazyAnalyses,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Look into a model: what its attention does with tokens and phrases.",
    context_settings=SETTINGS,
)


@app.callback()
def _group() -> None:
    """Look into a model: what its attention does with tokens and phrases."""
