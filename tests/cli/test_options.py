"""Options of the command line that set fields of configuration classes: one declaration for both."""

from __future__ import annotations

import importlib
import inspect
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer

from phraseloom.cli.options import grouped
from phraseloom.config import Config, bounds, kinds, members
from phraseloom.options.decoding import (
    DecodingConfig,
    GenerationConfig,
    SockeyePenaltyConfig,
    WuPenaltyConfig,
)
from phraseloom.options.serving import ServingConfig

# Of each verb: the classes whose fields it sets, and the fields of those that it has no option for.
VERBS: dict[str, tuple[tuple[type[Config], ...], set[str]]] = {
    "translate": (
        (WuPenaltyConfig, SockeyePenaltyConfig, DecodingConfig),
        {"kind", "batch_tokens", "alignment_selection"},
    ),
    "generate": ((GenerationConfig,), {"batch_tokens"}),
    "serve": (
        (ServingConfig,),
        {
            "max_header_bytes",
            "max_prefix_characters",
            "explain_texts",
            "explain_tokens",
            "idle_seconds",
            "send_seconds",
            "linger_seconds",
            "max_buffered_bytes",
            "explain_waiting",
            "gather_seconds",
        },
    ),
}


def cases() -> list[tuple[str, type[Config], str]]:
    return [
        (verb, config, field)
        for verb, (configs, without) in VERBS.items()
        for config in configs
        for field in config.model_fields
        if field not in without
    ]


@pytest.mark.parametrize(("verb", "config", "field"), cases())
def test_an_option_has_the_help_the_bounds_and_the_choices_of_its_field(
    verb: str, config: type[Config], field: str
) -> None:
    command = importlib.import_module(f"phraseloom.cli.{verb}").command
    annotation, option = typing.get_args(typing.get_type_hints(command, include_extras=True)[field])
    default, info = inspect.signature(command).parameters[field].default, config.model_fields[field]
    assert info.description and option.help == info.description
    assert (option.min, option.max) == bounds(config, field)
    if annotation is not Any and (choices := kinds(members(annotation))):
        assert choices == kinds(members(info.annotation))
    if config is ServingConfig:
        assert default == info.default
    else:
        assert default is None and option.show_default.startswith("the model's setting")


@pytest.mark.parametrize(
    ("config", "field", "expected"),
    [
        (DecodingConfig, "beam", (1, 1000)),
        (DecodingConfig, "workers", (1, 1024)),
        (DecodingConfig, "batch_sentences", (1, 100_000)),
        (DecodingConfig, "alignment_layer", (1, None)),
        (DecodingConfig, "word_bonus", (-100.0, 100.0)),
        (DecodingConfig, "stop", (None, None)),
        (GenerationConfig, "seed", (0, None)),
        (GenerationConfig, "top_p", (None, 1.0)),
        (ServingConfig, "max_beam", (1, 1000)),
    ],
)
def test_bounds_of_a_field(config: type[Config], field: str, expected: tuple[Any, Any]) -> None:
    """Also inside a union; an excluded bound (`gt`, `lt`) is none."""
    assert bounds(config, field) == expected


def test_every_field_is_described() -> None:
    for config in (DecodingConfig, GenerationConfig, ServingConfig):
        assert all(info.description for info in config.model_fields.values())


def test_mean_is_another_name_of_no_head() -> None:
    assert DecodingConfig(alignment_head=typing.cast("Any", "mean")).alignment_head is None


@dataclass(frozen=True)
class Corner:
    base: Annotated[int, typer.Option(min=0, max=1, help="Where counting begins.")] = 0
    reverse: Annotated[bool, typer.Option("--reverse", help="Backwards.")] = False


@dataclass(frozen=True, kw_only=True)
class Shape:
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")]
    corner: Corner = field(default_factory=Corner)
    width: Annotated[int, typer.Option(help="Width.")] = 3


def test_a_command_gets_options_that_belong_together_as_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    @grouped
    def command(first: str, *, shape: Shape, last: bool = False) -> None:
        print(first, shape, last)

    assert list(inspect.signature(command).parameters) == ["first", "text", "base", "reverse", "width", "last"]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    for arguments, expected in (
        (["a", "b"], ("a", Shape(text="b"), False)),
        (["a", "b", "--base", "1", "--last", "--width", "5"], ("a", Shape(text="b", corner=Corner(1), width=5), True)),
    ):
        app(arguments, standalone_mode=False)
        assert capsys.readouterr().out == " ".join(map(str, expected)) + "\n"
    with pytest.raises(SystemExit) as end:
        app(["a", "b", "--base", "2"])
    assert end.value.code == 2
