"""What a plan counts with where no dataset is there yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.recipe import load_recipe
from phraseloom.reproduce.plan import SPECIALS, pair_flop, vocabularies
from phraseloom.reproduce.table import LengthsConfig, ScaleConfig

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "continuous" / "tr-en_pconmt.yaml"


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ([], SPECIALS + 50_000),
        (["data.subwords.source_size=20000"], SPECIALS + 20_000),
        (["data.subwords.source={kind: sentencepiece, size: 8000}"], 8_000),
        (["data.subwords.source={kind: subword_nmt, merges: 6000}"], 6_000),
    ],
)
def test_the_source_of_a_target_of_words_has_the_types_of_its_own_options(
    changes: list[str], source: int, tmp_path: Path
) -> None:
    recipe = load_recipe(RECIPE, [*changes, f"data.folder={tmp_path}/none"])
    remarks: list[str] = []
    assert vocabularies(recipe, ScaleConfig(), remarks) == (source, SPECIALS + 50_000 + 50_000)
    assert remarks == ["vocabularies counted as full"]


def test_a_small_text_has_no_more_phrases_than_words(tmp_path: Path) -> None:
    """A recipe asks for 50,000 phrases at most; captions have 6,000 words and 3,000 phrases."""
    recipe = load_recipe(RECIPE, [f"data.folder={tmp_path}/none"])
    remarks: list[str] = []
    assert vocabularies(recipe, ScaleConfig(vocabulary=6_000), remarks) == (6_000, 6_000 + 6_000)
    assert remarks == ["6,000 types in each vocabulary", "6,000 phrases, no more than words"]


def test_few_rivals_on_a_small_text_are_counted_with_its_words(tmp_path: Path) -> None:
    """`frequent_rivals: words` looks at half of a table that is smaller than the phrases that the recipe asks for."""
    changes = ["model.output.loss=max_margin", "model.output.rivals=10", f"data.folder={tmp_path}/none"]
    words, frequent = (
        pair_flop(
            load_recipe(RECIPE, [*changes, f"model.output.frequent_rivals={first}"]),
            (6_000, 12_000),
            LengthsConfig(source=5, target=5),
            0,
            [],
        )
        for first in ("words", 6_000)
    )
    assert words == pytest.approx(frequent, rel=0.001)


def test_the_work_of_few_rivals_is_counted_with_the_phrases_of_the_recipe(tmp_path: Path) -> None:
    def flop(*changes: str) -> float:
        recipe = load_recipe(RECIPE, ["model.output.loss=max_margin", *changes, f"data.folder={tmp_path}/none"])
        return pair_flop(recipe, (54, 50_054 + 50_000), LengthsConfig(source=5, target=5), 0, [])

    every, frequent, words = (
        flop(),
        *(flop("model.output.rivals=10", f"model.output.frequent_rivals={first}") for first in (50_054, "words")),
    )
    assert words == pytest.approx(frequent, rel=0.001) and words < 0.6 * every
