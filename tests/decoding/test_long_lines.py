"""Lines longer than a model takes: cropped, counted, reported; the others are not touched (docs/decoding.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Command, command  # noqa: F401
from tests.helpers import tiny_tokenizer

from phraseloom.analysis.activation import activation_shares
from phraseloom.analysis.alignment import align_pairs
from phraseloom.analysis.attention import forced_attention
from phraseloom.analysis.entropy import attention_entropy
from phraseloom.analysis.heatmap import heat_map
from phraseloom.data.tensors import Batch
from phraseloom.decoding.long_lines import CroppedLines, crop, encode
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.store import change_generation
from phraseloom.models.translation import TranslationModel
from phraseloom.options.decoding import DecodingConfig, LengthConfig

LONG = "the old man sleeps " * 30
SHORT = ["the old man sleeps .", "a cow is small ."]


@pytest.fixture
def small(translator: Translator) -> Translator:
    """Takes sources of 20 subwords, and so targets of 25."""
    return translator.with_options(max_input_tokens=20, max_length={"factor": 1.0, "constant": 5})


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The longest side of each batch that a model is given."""
    lengths: list[int] = []
    whole = Batch.to

    def to(batch: Batch, device: object) -> Batch:
        lengths.append(max(batch.source_BS.shape[1], batch.target_in_BT.shape[1]))
        return whole(batch, device)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "to", to)
    return lengths


def test_a_target_is_as_long_as_the_longest_output() -> None:
    assert DecodingConfig().max_target_tokens == 2 * 1024 + 20
    assert DecodingConfig(max_input_tokens=50, max_length=LengthConfig(constant=5)).max_target_tokens == 50


def test_crop() -> None:
    assert crop([[1, 2, 3], [4], []], 2) == ([[1, 2], [4], []], [True, False, False])


def test_the_report_names_the_first_line() -> None:
    lines = CroppedLines("pair")
    assert lines.warnings(DecodingConfig()) == []
    for cropped in (False, True, True):
        lines.note(cropped)
    expected = "2 of 3 pairs longer than 1024 source or 2068 target subwords: the end was left out (first: line 2)"
    assert lines.warnings(DecodingConfig()) == [expected]


def test_score_crops_both_sides_and_leaves_the_others_alone(small: Translator, longest: list[int]) -> None:
    sources, targets = [SHORT[0], LONG, SHORT[1], "a cow"], [SHORT[1], SHORT[0], LONG, "a cow"]
    found = small.score(sources, targets)
    assert [score.cropped for score in found] == [False, True, True, False]
    assert len(found[2].tokens) == 25 and max(longest) == 26
    for n in (0, 3):
        (alone,) = small.score([sources[n]], [targets[n]])
        assert found[n].log_prob == pytest.approx(alone.log_prob, abs=1e-4)


def test_every_verb_that_forces_a_target_crops_it(small: Translator, longest: list[int]) -> None:
    sources, targets = [*SHORT, SHORT[0], LONG], [*SHORT, LONG, SHORT[0]]
    attended = list(forced_attention(small, sources, targets))
    assert [a.layers[0].shape[-2] for a in attended][2] == 26
    assert attention_entropy(small, sources, targets).cropped == 2
    assert activation_shares(small, sources, targets).cropped == 2
    aligned = list(align_pairs(small, sources, targets))
    assert [a.cropped for a in aligned] == [False, False, True, True] and all(a.links for a in aligned)
    assert heat_map(small, SHORT[0], LONG).weights.shape[0] == 26
    assert max(longest) == 26


def test_a_long_prefix_is_refused_by_its_line(small: Translator) -> None:
    with pytest.raises(DataError, match=r"prefixes:2: a prefix of \d+ subwords; this model takes at most 25"):
        small.translate(SHORT, prefixes=["", LONG])


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    import shutil

    copy = tmp_path / "m"
    shutil.copytree(model_folder, copy)
    change_generation(copy, {"max_input_tokens": 20, "max_length": {"factor": 1.0, "constant": 5}})
    return copy


def test_one_line_out_for_each_pair(command: Command, folder: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "s").write_text("the old man\na cow is small\nwe invite them\n")
    (tmp_path / "t").write_text(f"a cow\n{LONG}\nthe old man\n")
    warning = (
        "warning: 1 of 3 pairs longer than 20 source or 25 target subwords: the end was left out (first: line 2)\n"
    )
    done = command("score", folder, "s", "t", "--summary")
    assert done.code == 0 and done.out.count("\n") == 3
    assert warning in done.err and "2 lines" in done.err  # the perplexity leaves the cropped pair out
    done = command("align", folder, "-s", "s", "-t", "t")
    assert done.code == 0 and done.out.count("\n") == 3 and warning in done.err
    for verb in ("entropy", "activation"):
        done = command("analyse", verb, folder, "-s", "s", "-t", "t")
        assert done.code == 0 and "1 pair of more than 20 source or 25 target subwords: cropped" in done.err
    (tmp_path / "p").write_text(f"\n\n{LONG}\n")
    done = command("translate", folder, "--prefixes", "p", stdin=b"a\nb\nc\n")
    assert done.code == 1 and "p:3: a prefix of" in done.err


def test_a_heat_map_says_that_its_sentence_is_cropped(command: Command, folder: Path) -> None:  # noqa: F811
    pytest.importorskip("matplotlib")
    done = command("analyse", "heatmap", folder, "--sentence", LONG, "-o", "map.svg")
    assert done.code == 0 and "longer than 20 source" in done.err


def test_a_language_model_scores_the_line_up_to_its_limit(tmp_path: Path) -> None:
    from phraseloom.decoding.generator import TextGenerator
    from phraseloom.models.tasks import build
    from phraseloom.options.language_model import LanguageModelConfig

    tokenizer = tiny_tokenizer(tmp_path)
    model = build(LanguageModelConfig.model_validate({"width": 8, "heads": 2, "ffn_width": 16}), tokenizer)
    assert isinstance(model, LanguageModel) and not isinstance(model, TranslationModel)
    generator = TextGenerator(model, tokenizer)
    found = generator.score([SHORT[0], LONG], max_input_tokens=9)
    assert [s.cropped for s in found] == [len(found[0].tokens) == 9, True] and len(found[1].tokens) == 9
    assert json.dumps(found[1].log_prob)


def test_of_a_line_of_megabytes_only_the_beginning_is_encoded(small: Translator) -> None:
    class Counting:
        subwords = small.tokenizer.source.subwords
        characters = 0

        def encode_batch(self, lines: list[str]) -> list[list[int]]:
            self.characters += sum(map(len, lines))
            return small.tokenizer.source.encode_batch([" ".join(line.split()) for line in lines])

        def encode(self, line: str) -> list[int]:
            return self.encode_batch([line])[0]

    side, long = Counting(), LONG * 1000
    ids = encode(side, [SHORT[0], long], 20)
    assert side.characters < 10_000 and len(ids[1]) > 20
    assert ids[0] == small.tokenizer.source.encode(SHORT[0])
    assert ids[1][:20] == small.tokenizer.source.encode(long)[:20]
    (spaces,) = encode(side, ["a" + " " * 50_000 + "cow"], 20)  # normalisation makes it short: nothing of it is lost
    assert spaces == small.tokenizer.source.encode("a cow")


@pytest.mark.parametrize(("factor", "size", "bound"), [(1.15, 100, 115), (2.3, 50, 115), (0.29, 100, 29), (1.5, 3, 4)])
def test_a_bound_of_length_is_the_floor_of_the_decimal_product(factor: float, size: int, bound: int) -> None:
    assert LengthConfig(factor=factor).of(size) == bound
    assert LengthConfig(factor=factor, constant=7).of(size) == bound + 7
