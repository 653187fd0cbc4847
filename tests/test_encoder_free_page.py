"""docs/encoder_free.md says what the code does: keys and defaults, what goes with what, systems, commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from phraseloom.cli import analyse
from phraseloom.cli.main import load_verb
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig, RecurrentDecoderConfig, RecurrentEncoderConfig
from phraseloom.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "encoder_free.md").read_bytes().decode()
SIZES = {"width": 16, "heads": 4, "ffn_width": 24}
KINDS: dict[str, dict[str, Any]] = {
    "transformer": {"layers": 2},
    "none": {"kind": "none"},
    "recurrent": {"kind": "recurrent", "layers": 2},
    "columns": {"kind": "columns", "layers": 2, "width": 8},
}


def rows_under(title: str) -> list[list[str]]:
    """The cells of the first table below a title, without its head."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in text.split("\n") if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_keys_and_defaults() -> None:
    text = PAGE.split("\n## The keys\n")[1].split("\n## ")[0]
    tables = text.split("`model.decoder`, of kind")
    for table, options in zip(tables, (RecurrentEncoderConfig, RecurrentDecoderConfig), strict=True):
        found = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))
        default = options().model_dump(exclude={"kind"})
        assert found == {key: v if isinstance(v, str) else json.dumps(v) for key, v in default.items()}


def changes(encoder: str, decoder: str) -> dict[str, dict[str, Any]]:
    """What a column of the table adds to a model of these kinds."""
    own, multihead = {"encoder": KINDS[encoder], "decoder": KINDS[decoder]}, {"attention": "multihead"}
    queryk = "queryk heterogeneous 1-2"
    return {
        "encoder_self": {**own, "attention": {"encoder_self": queryk}},
        "decoder_self": {**own, "attention": {"decoder_self": queryk}},
        "cross": {**own, "attention": {"cross": queryk}},
        "multihead": {**own, "decoder": KINDS[decoder] | multihead, "attention": {"cross": queryk}},
        "final": {**own, "decoder": KINDS[decoder] | {"initial": "final"}},
        "phrases": {**own, "phrases": {}},
    }


@pytest.mark.parametrize("cells", rows_under("What goes with what"), ids=lambda cells: f"{cells[0]}-{cells[1]}")
def test_what_goes_with_what(cells: list[str]) -> None:
    encoder, decoder, *said = cells
    columns = ["encoder_self", "decoder_self", "cross", "final", "phrases"]
    assert len(said) == len(columns)
    asked = changes(encoder, decoder)
    for column, word in zip(columns, said, strict=True):
        if word == "multihead":
            build_model(ModelConfig.model_validate(SIZES | asked["multihead"]), 20, 20)
        if word == "yes":
            build_model(ModelConfig.model_validate(SIZES | asked[column]), 20, 20)
        else:
            with pytest.raises(ValidationError):
                ModelConfig.model_validate(SIZES | asked[column])


@pytest.mark.parametrize("cells", rows_under("The systems of the paper"), ids=lambda cells: cells[0])
def test_systems_are_the_recipes(cells: list[str]) -> None:
    """A line of the table, with the paper's width, is the model of its recipe."""
    name, encoder, decoder, positions = cells
    stems = {"Transformer": "transformer", "fewer encoder layers (Table 4)": "../table4_fi-en_encoder_1"}
    stem = stems.get(name, name.removeprefix("Trans-").replace("RNNS2S", "rnn").replace("-", "_").lower())
    file = f"{stem.removeprefix('../')}.yaml" if stem.startswith("..") else f"table1_fi-en_{stem}.yaml"
    recipe = load_recipe(ROOT / "recipes" / "paper004" / file)
    given = {"encoder": encoder, "decoder": decoder, **({"positions": positions} if positions else {})}
    parts = {key: yaml.safe_load(text.strip("`")) for key, text in given.items()}
    rest = recipe.model.model_dump(exclude={"encoder", "decoder", "positions", "preset"})
    assert ModelConfig.model_validate({**rest, **parts}) == recipe.model


@pytest.mark.parametrize("line", re.findall(r"^    (phraseloom .+)$", PAGE, re.MULTILINE))
def test_commands_exist(line: str) -> None:
    _, verb, *rest = line.split()
    command = analyse.load_analysis(rest[0]) if verb == "analyse" else load_verb(verb)
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"(?<= )--?[a-z][\w-]*", line)) <= known
    for word in rest:
        if word.startswith("recipes/"):
            assert (ROOT / word).is_file()


def test_what_recurrent_layers_add_is_what_the_page_says() -> None:
    """4·D parameters a layer are the second biases of the gates, that torch's LSTM has as Sockeye's."""
    model = build_model(ModelConfig.model_validate(SIZES | {"encoder": KINDS["recurrent"]}), 20, 20)
    own = sum(p.numel() for p in model.encoder.parameters())
    torchs = [torch.nn.LSTM(16, 8, bidirectional=True), torch.nn.LSTM(16, 16)]
    assert sum(p.numel() for layer in torchs for p in layer.parameters()) - own == 2 * 4 * 16
