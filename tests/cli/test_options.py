"""Options of the command line that set fields of configuration classes: one declaration for both."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import Any

import pytest

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
