"""Names of other toolkits: every row leads to a key or option of ours, errors use it, and the page shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.cli.main import load_verb, run
from phraseloom.config import dotted, places_of
from phraseloom.errors import ConfigError, PhraseloomError
from phraseloom.models.store import find_model
from phraseloom.other_names import KEYS, OPTIONS, OtherName, markdown
from phraseloom.recipe import Recipe, load_recipe
from tests.helpers import SMALLEST_RECIPE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coming_from.md"


def names(rows: list[OtherName]) -> list[tuple[str, str]]:
    return [(row.ours, name) for row in rows for group in row.names for name in group.split()]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_bytes(SMALLEST_RECIPE.encode())
    return path


def test_every_key_exists() -> None:
    missing = [row.ours for row in KEYS if row.ours not in map(dotted, places_of(Recipe, row.ours.rpartition(".")[2]))]
    assert not missing


def test_every_option_exists() -> None:
    options = {o for verb in ("translate", "train") for p in load_verb(verb).params for o in (*p.opts, p.metavar)}
    assert not [row.ours for row in OPTIONS if row.ours not in options]


@pytest.mark.parametrize(("ours", "name"), names(KEYS))
def test_a_key_of_another_toolkit_gets_ours(ours: str, name: str, recipe: Path) -> None:
    """In the section where our key is, unless the name is one of our own keys there."""
    section = ours.partition(".")[0]
    key = f"{section}.{name.replace('-', '_')}"
    if any(dotted(place) == key for place in places_of(Recipe, key.rpartition(".")[2])):
        pytest.skip("a key of ours too")
    with pytest.raises(ConfigError) as raised:
        load_recipe(recipe, [f"{key}=3"])
    assert raised.value.hint is not None and "did you mean" in raised.value.hint and ours in raised.value.hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("translate m --beam_size 3", "No such option: --beam_size; did you mean --beam?"),
        ("translate m --num-beams 3", "No such option: --num-beams; did you mean --beam?"),
        (
            "translate m --lenpen 1",
            "did you mean --alpha (all but JoeyNMT and OpenNMT: with --length-penalty sockeye --beta 0)?",
        ),
        ("translate m --do_sample", "No such option: --do_sample; did you mean --sample?"),
        ("translate m --sampling-topk 5", "did you mean --top-k?"),
        ("translate m --nbest-size 5", "No such option: --nbest-size; did you mean --n-best?"),
        ("translate m --compute_type int8", "did you mean --precision?"),
        ("train r.yaml --max-seconds 60", "did you mean training.max_minutes=VALUE (in minutes)?"),
        ("train r.yaml --max-tokens 9", "did you mean training.batch_tokens=VALUE (target tokens of a whole update)?"),
        ("train r.yaml --save-dir x", "did you mean --run?"),
        ("translate m --beem 3", "--beam"),
        ("translate m --zzz 3", "No such option: --zzz; try phraseloom translate --help"),
    ],
)
def test_an_option_of_another_toolkit_gets_ours(line: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    message = capsys.readouterr().err
    assert hint in message and message.count("\n") == 1


def test_our_own_near_names_come_first(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key model\.head; did you mean heads\?"):
        load_recipe(recipe, ["model.head=2"])


def test_the_page_has_the_tables() -> None:
    text = PAGE.read_bytes().decode()
    assert markdown(KEYS) in text and markdown(OPTIONS) in text
    assert "| CTranslate2 |" not in markdown(KEYS) and "| CTranslate2 |" in markdown(OPTIONS)  # it does not train


def test_a_missing_base_is_named(recipe: Path, tmp_path: Path) -> None:
    recipe.write_bytes(b"base: bse.yaml\nname: mine\n")
    with pytest.raises(ConfigError, match=r"r\.yaml:1: the recipe names base bse\.yaml, which does not exist"):
        load_recipe(recipe)
    with pytest.raises(ConfigError, match=r"base=other\.yaml.*names base other\.yaml, which does not exist"):
        load_recipe(recipe, ["base=other.yaml"])


@pytest.mark.parametrize("name", ["Helsinki-NLP/opus-mt-en-de", "someone/opus-mt-tc-big-en-fr"])
def test_the_name_of_a_marian_model_says_how_to_import_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(PhraseloomError) as raised:
        find_model(name)
    assert f"phraseloom hub pull {name} " in str(raised.value) and "convert from-marian" in str(raised.value)
    with pytest.raises(PhraseloomError, match="no such folder"):
        find_model(tmp_path / "Helsinki-NLP")
