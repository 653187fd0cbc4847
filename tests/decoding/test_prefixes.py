"""A translation begins with its forced prefix as it was given, also where the vocabulary does not know it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.cli.main import run
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig, WordsConfig
from phraseloom.text.subwords import UNKNOWN
from phraseloom.text.tokenizer import Tokenizer, learn_subwords
from phraseloom.text.vocabulary import UNK

LINES = ["the old man sleeps .", "a cow is small , but a winter garden is dark .", "we invite them tonight ."]
KINDS = {
    "sentencepiece": SentencepieceConfig(size=60, byte_fallback=False),
    "subword_nmt": SubwordNmtConfig(merges=20, min_frequency=1),
    "words": WordsConfig(joint=True),
}
CONFIG = ModelConfig.model_validate(
    {
        "width": 16,
        "heads": 2,
        "ffn_width": 32,
        "encoder": {"layers": 1},
        "decoder": {"layers": 1},
        "output": {"kind": "softmax", "bias": True},
        "tied": "none",
    }
)
TEXTS = {"plain": TextConfig(), "moses": TextConfig(tokenize="moses")}


def made(kind: str, text: TextConfig) -> Translator:
    """A random model that likes the unknown piece."""
    subwords = learn_subwords(LINES, KINDS[kind])
    tokenizer = Tokenizer(text, "en", "de", subwords, subwords)
    torch.manual_seed(1)
    model = build_model(CONFIG, len(subwords.vocabulary), len(subwords.vocabulary))
    with torch.no_grad():
        model.output.bias[UNK] = 1.0  # type: ignore[union-attr, index]
    return Translator(model, tokenizer).with_options(
        beam=2, workers=1, min_length={"constant": 6}, max_length={"factor": 1.0, "constant": 6}
    )


@pytest.fixture(scope="module")
def translators() -> dict[tuple[str, str], Translator]:
    return {(kind, name): made(kind, text) for kind in KINDS for name, text in TEXTS.items()}


PREFIXES = ["Straße", "the Quux", "we Zürich the", "Ärger , a cow", "漢字", "old 漢字 man", "", "x-ray", "the old"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unknown", ["forbid", "keep", "replace"])
def test_the_prefix_stands_as_it_was_given(translators, kind: str, text: str, unknown: str) -> None:
    translator = translators[kind, text]
    lines = ["a cow sleeps"] * len(PREFIXES)
    found = translator.translate(lines, prefixes=PREFIXES, unknown=unknown, alignments=True)
    plain = found[PREFIXES.index("")]
    for prefix, one in zip(PREFIXES, found, strict=True):
        if text == "plain":
            assert one.text.startswith(prefix)
        else:
            assert one.text.replace(" ", "").startswith(prefix.replace(" ", ""))
        side = translator.tokenizer.target
        begun = side.words(prefix)
        assert one.words[: max(0, len(begun) - 1)] == begun[:-1]
        assert not begun or one.words[len(begun) - 1].startswith(begun[-1])
        assert all(t < len(one.words) for _, t in one.alignment or [])
        assert one.tokens[: len(side.encode(prefix))] == [side.vocabulary.piece(i) for i in side.encode(prefix)]
        assert all(r.target >= len(begun) for r in one.replaced or [])
        if unknown == "forbid":
            assert UNKNOWN not in one.text
    (alone,) = translator.translate(["a cow sleeps"], unknown=unknown, alignments=True)
    assert (plain.text, plain.words) == (alone.text, alone.words)


def test_the_score_of_such_a_text_is_that_of_its_translation(translators) -> None:
    """The text of the prefix is cut into the pieces that were forced."""
    for kind in KINDS:
        translator, lines, prefixes = translators[kind, "plain"], ["a cow sleeps"] * 2, ["we Zürich the", "Straße"]
        found = translator.translate(lines, prefixes=prefixes, min_length={"constant": 0}, max_length={"constant": 1})
        scores = translator.score(lines, [t.text for t in found])
        assert [t.text for t in found] == prefixes and all("<unk>" in t.tokens for t in found)
        assert [s.tokens for s in scores] == [t.tokens for t in found]
        assert [s.log_prob for s in scores] == pytest.approx([t.log_prob for t in found], abs=1e-4)


def test_the_n_best_list_and_the_parts_of_a_line(translators) -> None:
    translator = translators["sentencepiece", "plain"]
    (found,) = translator.translate(["a cow sleeps"], prefixes=["Xyz ü"], n_best=2)
    assert all(one.text.startswith("Xyz ü") for one in found.n_best) and len(found.n_best) == 2
    long = translator.translate(["a cow sleeps " * 20], prefixes=["Xyz ü"], max_input_tokens=16, long_lines="split")[0]
    assert long.parts > 2 and long.text.startswith("Xyz ü") and long.text.count("Xyz") == 1


@given(st.data())
def test_numbers_of_words_are_those_of_the_text(translators, data: st.DataObject) -> None:
    """Every word of the restored line has pieces, in order, whatever the prefix is made of."""
    kind = data.draw(st.sampled_from(list(KINDS)))
    side = translators[kind, "plain"].tokenizer.target
    prefix = data.draw(st.text(st.sampled_from(" a cowü漢ße@_\ue581\u2581."), max_size=12))
    rest = data.draw(st.lists(st.integers(UNK, len(side.vocabulary) - 1).filter(lambda i: i not in (2, 3)), max_size=5))
    ids = [*side.encode(prefix), *rest]
    begun = side.pieces(prefix)
    assert len(begun) == len(ids) - len(rest)
    if not begun:
        return
    words, numbers = side.words_of(ids, begun), side.words_of_piece(ids, begun)
    assert len(numbers) == len(ids)
    assert {n for some in numbers for n in some} >= set(range(len(words)))
    assert [some.start for some in numbers] == sorted(some.start for some in numbers)
    assert side.decode(ids, begun).startswith(prefix)
    if UNK not in ids[: len(begun)]:
        known, whole = side.decode(ids, begun), side.decode(ids)
        # The ids of whole words do not tell of blanks too many, the pieces of the prefix do.
        assert known.split() == whole.split() if kind == "words" else known == whole


def test_through_the_command(
    tmp_path: Path, translators, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    translator = translators["words", "plain"]
    save_model(tmp_path / "m", translator.model, CONFIG, translator.tokenizer)
    (tmp_path / "prefixes").write_bytes(b"Herr Quux\n\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a cow\nthe man\n")))
    assert run(["translate", str(tmp_path / "m"), "--prefixes", str(tmp_path / "prefixes")]) == 0
    first, second = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert first.startswith("Herr Quux") and UNKNOWN not in second
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\nthe man\n")))
    assert run(["translate", str(tmp_path / "m"), "--prefixes", str(tmp_path / "prefixes")]) == 1
    assert "prefixes:1: the line is blank" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["", " \u3000"])
def test_a_blank_line_takes_no_prefix(translators, line: str) -> None:
    translator = translators["words", "moses"]
    with pytest.raises(
        DataError, match=r"^prefixes:2: the line is blank, and so is its translation; remove its prefix"
    ):
        translator.translate(["a cow", line], prefixes=["", "the"])
    with pytest.raises(DataError, match=r"^prefixes:1: the line is blank"):
        translator.stream(line, prefix="the", unknown="forbid")
    assert [t.blank for t in translator.translate([line, line], prefixes=["", " "])] == [True, True]
