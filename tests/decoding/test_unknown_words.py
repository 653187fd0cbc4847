"""Unknown words in the output: forbidden, kept, or replaced by the source word that was attended to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.decoding.conftest import lines_of_words
from tests.helpers import bpe_tokenizer

from phraseloom.decoding.alignment import attention_of, choose
from phraseloom.decoding.parts import Replacement, choose_source, replacements, unknown_words
from phraseloom.decoding.translation import Translation
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError, DataError, FileProblem, ModelError
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.phrases.source import word_of_piece
from phraseloom.text.subwords import UNKNOWN
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import SPECIALS, UNK, Vocabulary
from phraseloom.text.words import Words

WORDS = ["das", "alte", "Boot", ",", "am", "Ufer", "."]


def attention(*largest: int, size: int = len(WORDS)) -> np.ndarray:
    """Weights with the given words in this order, largest first."""
    weights = np.full(size, 0.01)
    for rank, word in enumerate(largest):
        weights[word] = 0.5 - 0.1 * rank
    return weights


@pytest.mark.parametrize(
    ("largest", "place", "expected"),
    [
        ((2, 5), 2, 2),
        ((3, 5), 3, 5),  # a comma is passed over
        ((6, 4), 6, 4),  # and a full stop
        ((3, 6), 3, 6),  # the second is taken whatever it is
        ((0, 5), 3, 0),  # |0 - 3| ≤ 7 / 2
        ((0, 5), 4, 5),  # |0 - 4| > 7 / 2
        ((5, 1), 1, 1),
        ((5, 0), 2, 5),
        ((5, 0), 40, 0),  # the second is taken however far it is
    ],
)
def test_which_source_word_is_taken(largest: tuple[int, int], place: int, expected: int) -> None:
    assert choose_source(attention(*largest), WORDS, place) == expected


def test_half_the_source_length_is_not_more_than_half() -> None:
    assert choose_source(attention(3, 0, size=4), list("abcd"), 1) == 3
    assert choose_source(attention(3, 0, size=4), list("abcd"), 0) == 0
    assert choose_source(attention(3, 0, size=4), list("abcd"), 5) == 3
    assert choose_source(attention(3, 0, size=4), list("abcd"), 6) == 0


def test_equal_attention_and_a_source_of_one_word() -> None:
    assert choose_source(np.array([0.2, 0.4, 0.4]), list("abc"), 1) == 1
    assert choose_source(np.array([0.4, 0.4, 0.2]), [",", "b", "c"], 0) == 1
    assert choose_source(np.array([1.0]), ["."], 9) == 0


def test_pieces_become_words_on_both_sides() -> None:
    """Source pieces of words 0 0 1 2, target pieces of words 0 1 1 2; the last row and column are EOS."""
    weights_TS = np.array(
        [
            [0.0, 0.1, 0.9, 0.0, 0.0],
            [0.3, 0.3, 0.4, 0.0, 0.0],  # word 0 has 0.6 in two pieces
            [0.1, 0.1, 0.2, 0.0, 0.6],  # EOS does not count
            [0.0, 0.0, 0.5, 0.5, 0.0],
            [0.0, 0.0, 0.0, 1.0, 0.0],
        ]
    )
    numbers = [range(1), range(1, 2), range(1, 2), range(2, 3)]
    (found,) = unknown_words(weights_TS, [9, UNK, 9, 8], [0, 0, 1, 2], numbers)
    assert (found.number, found.place, found.source) == (1, 1, [0, 1, 2])
    assert found.weights_S == pytest.approx([0.4, 0.3, 0.0])
    first, second = unknown_words(weights_TS, [UNK, 9, UNK, 8], [0, 0, 1, 2], numbers)
    assert (first.number, second.number) == (0, 1)
    assert unknown_words(weights_TS, [9, 9, 9, 9], [0, 0, 1, 2], numbers) == []
    assert unknown_words(weights_TS, [UNK, 9, 9, 9], [], numbers) == []


def test_a_phrase_before_the_unknown_word_counts_as_one_place() -> None:
    weights_TS = np.eye(4)[:, [0, 1, 2, 3]]
    numbers = [range(3), range(3, 4), range(4, 5)]
    (found,) = unknown_words(weights_TS, [70, UNK, 8], [0, 1, 2], numbers)
    assert (found.number, found.place) == (3, 1)


def test_the_lexicon_translates_and_other_words_are_copied() -> None:
    weights_TS = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0]])
    unknown = unknown_words(weights_TS, [UNK, UNK], [0, 1], [range(1), range(1, 2)])
    assert replacements(unknown, ["Boot", "Ufer"], {"Ufer": "shore", "boot": "no"}) == [
        Replacement(0, 0, "Boot", "Boot", False),
        Replacement(1, 1, "Ufer", "shore", True),
    ]


# Whole translations, by a random model that likes UNK.


def liking_unknown(tokenizer: Tokenizer, bias: float = 4.0) -> Translator:
    config = ModelConfig.model_validate(
        {
            "width": 32,
            "heads": 4,
            "ffn_width": 64,
            "encoder": {"layers": 1},
            "decoder": {"layers": 2},
            "output": {"kind": "softmax", "bias": True},
            "tied": "none",
        }
    )
    torch.manual_seed(5)
    model = build_model(config, len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary))
    with torch.no_grad():
        model.output.weight.mul_(1.5)
        model.output.bias[UNK] = bias
    return Translator(model, tokenizer).with_options(max_length={"factor": 1.0, "constant": 3}, workers=1)


@pytest.fixture(scope="module")
def model(translator: Translator) -> Translator:
    return liking_unknown(translator.tokenizer)


def word_model(target: list[str], *, joined: bool = False, text: TextConfig | None = None) -> Translator:
    """A model of whole words that gives six or more; the source has nine words, all others are unknown to it."""
    source = Words(Vocabulary([*SPECIALS, *"abcdefghi"]))
    words = Words(Vocabulary([*SPECIALS, *target]), joined=joined)
    tokenizer = Tokenizer(text or TextConfig(), "en", "de", source, words)
    config = ModelConfig.model_validate(
        {
            "width": 16,
            "heads": 2,
            "ffn_width": 32,
            "encoder": {"layers": 1},
            "decoder": {"layers": 2},
            "output": {"kind": "softmax", "bias": True},
            "tied": "none",
            "init": "xavier_uniform",
        }
    )
    torch.manual_seed(1)
    model = build_model(config, len(source.vocabulary), len(words.vocabulary))
    with torch.no_grad():
        model.output.bias[UNK] = 1.0
        model.output.bias[words.first_phrase :] = 0.8
    bounds = {"min_length": {"constant": 6}, "max_length": {"factor": 1.0, "constant": 6}}
    return Translator(model, tokenizer).with_options(**bounds, workers=1)


LINES = [*lines_of_words(12, seed=3), "", "sleeps"]


def by_hand(translator: Translator, line: str, found: Translation, lexicon: dict[str, str]) -> list[str]:
    """The words of a translation, unknown ones replaced, from the attention of the model to one line, in loops."""
    side = translator.tokenizer.target
    names = list(side.vocabulary)
    tokens = [UNK if token == "<unk>" else names.index(token) for token in found.tokens]
    ids = translator.tokenizer.source.encode(line)
    source = translator.tokenizer.source.words(line)
    source_word, target_word = word_of_piece(translator.tokenizer.source, line, ids), side.word_of_piece(tokens)
    memory = translator.model.encode(torch.tensor([[*ids, 3]]), None)
    choice = choose(translator.config, translator.model.decoder.cross_structures)
    with torch.inference_mode():
        (look,) = attention_of(translator.model, memory, [0], [tokens], choice)
    words = side.words_of(tokens)
    for number in {w for w, t in zip(target_word, tokens, strict=True) if t == UNK}:
        rows = [look.tokens_TS[i] for i, w in enumerate(target_word) if w == number]
        mass = [0.0] * len(source)
        for row in rows:
            for piece, word in enumerate(source_word):
                mass[word] += row[piece] / len(rows)
        first, *others = sorted(range(len(source)), key=lambda s: (-mass[s], s))
        place = sorted(set(target_word)).index(number)
        if (source[first] in (",", ".") or abs(first - place) > len(source) / 2) and others:
            first = others[0]
        words[number] = lexicon.get(source[first], source[first])
    return words


@pytest.mark.parametrize("beam", [1, 3])
def test_replaced_words_are_those_of_the_rule(model: Translator, tmp_path: Path, beam: int) -> None:
    lexicon = {
        "cow": "Kuh",
        "the": "die",
        ".": "Punkt",
        "sleeps": "schläft",
        "garden": "Garten",
        "we": "wir",
        "a": "ein",
    }
    (tmp_path / "lexicon").write_bytes("".join(f"{s}\t{t}\t7\n" for s, t in lexicon.items()).encode())
    options: dict[str, Any] = {"beam": beam, "n_best": beam}
    kept = model.translate(LINES, unknown="keep", **options)
    copied = model.translate(LINES, unknown="replace", **options)
    looked_up = model.translate(LINES, unknown="replace", lexicon=str(tmp_path / "lexicon"), **options)
    assert sum(UNKNOWN in t.text for t in kept) > 8
    count = translated = 0
    for line, *three in zip(LINES, kept, copied, looked_up, strict=True):
        for keep, copy, look_up in zip(*(t.n_best for t in three), strict=True):
            assert keep.tokens == copy.tokens == look_up.tokens
            assert keep.replaced is None
            if not line:
                assert copy.replaced == []
                continue
            for found, known in ((copy, {}), (look_up, lexicon)):
                assert found.words == by_hand(model, line, found, known)
                assert found.text == " ".join(found.words)
                assert found.replaced is not None
                assert [r.target for r in found.replaced] == [n for n, w in enumerate(keep.words) if UNKNOWN in w]
                assert [r.word for r in found.replaced] == [found.words[r.target] for r in found.replaced]
                assert [r.original for r in found.replaced] == [line.split()[r.source] for r in found.replaced]
                assert [r.from_lexicon for r in found.replaced] == [r.original in known for r in found.replaced]
                count += len(found.replaced)
                translated += sum(r.from_lexicon for r in found.replaced)
    assert count > 20
    assert 0 < translated < count


def test_by_default_there_is_no_unknown_word(model: Translator) -> None:
    assert model.config.unknown == "forbid"
    for found in model.translate(LINES, beam=2):
        assert "<unk>" not in found.tokens
        assert UNKNOWN not in found.text
        assert found.replaced is None


def test_the_other_lines_and_alignments_change_nothing(model: Translator) -> None:
    alone = [model.translate([line], unknown="replace", beam=2)[0] for line in LINES]
    assert any(t.replaced for t in alone)
    for batch, aligned in ((3, False), (64, True)):
        together = model.translate(LINES, unknown="replace", beam=2, batch_sentences=batch, alignments=aligned)
        assert [(t.text, t.replaced) for t in together] == [(t.text, t.replaced) for t in alone]
        assert all((t.alignment is not None) == aligned for t in together)
    of_kept = model.translate(LINES, unknown="keep", beam=2, alignments=True)
    assert [t.alignment for t in together] == [t.alignment for t in of_kept]


def test_parts_of_a_long_line_are_counted_on(model: Translator) -> None:
    line = " ".join(lines_of_words(3, longest=12, seed=8))
    options: dict[str, Any] = {"beam": 1, "max_input_tokens": 12, "long_lines": "split", "unknown": "replace"}
    (whole,) = model.translate([line], **options)
    assert whole.parts > 2
    assert whole.replaced is not None
    assert max(r.source for r in whole.replaced) > 12
    source = line.split()
    for one in whole.replaced:
        assert (whole.words[one.target], source[one.source]) == (one.word, one.original)
    assert whole.text == " ".join(whole.words)


def test_a_word_that_no_vocabulary_knows_comes_through() -> None:
    """Unknown to both sides: the model sees UNK, and the output has the word of the line."""
    model = word_model(list("uvwxyz"))
    lines = ["Quux b Xyzzy", "a Plugh", "don't do"]
    found = model.translate(lines, unknown="replace", beam=1)
    assert any(t.replaced for t in found)
    for line, one in zip(lines, found, strict=True):
        words = model.tokenizer.source.words(line)
        assert UNKNOWN not in one.text
        assert one.words == by_hand(model, line, one, {})
        for r in one.replaced or []:
            assert (r.original, r.word) == (words[r.source], words[r.source])


def test_an_unknown_character_tears_no_source_word() -> None:
    model = liking_unknown(bpe_tokenizer(), bias=30.0)
    lines = ["sl★★ps", "the old m★n ", " a  cow★ sl★★ps", "★ ★ the"]
    found = model.translate(lines, unknown="replace", beam=1, alignments=True)
    for line, one in zip(lines, found, strict=True):
        assert one.replaced and one.words == by_hand(model, line, one, {})
        assert {s for s, _ in one.alignment or []} <= set(range(len(line.split())))
    line = " ".join(lines)
    (whole,) = model.translate([line], unknown="replace", beam=1, long_lines="split", max_input_tokens=8)
    assert whole.parts > 2
    for one in whole.replaced or []:
        assert line.split()[one.source] == one.original == whole.words[one.target]
    assert max(one.source for one in whole.replaced or []) == len(line.split()) - 1
    (cropped,) = model.translate(["sl★★ps the old man"], unknown="replace", beam=1, max_input_tokens=3)
    assert set(cropped.words) == {"sl★★ps"}


def test_an_underscore_of_the_source_is_not_taken_for_a_phrase(tmp_path: Path) -> None:
    model = word_model([*"uvwx", "u_v", "w_x_u"], joined=True)
    lines = ["my_file x_y b_", "a_b", "a&#95;b c d e f g", "a b x_1 c", "x_1 i h g"]
    (tmp_path / "lexicon").write_bytes(b"x_y\tz_z\n")
    found = model.translate(lines, unknown="replace", beam=1, lexicon=str(tmp_path / "lexicon"), alignments=True)
    phrases = 0
    for line, one in zip(lines, found, strict=True):
        assert one.words == by_hand(model, line, one, {"x_y": "z_z"})
        assert one.text == " ".join(one.words)
        phrases += sum("_" in token for token in one.tokens)
    assert any("_" in r.word for one in found for r in one.replaced or [])
    assert phrases


def test_the_tokenisation_of_a_replaced_text_is_undone() -> None:
    model = word_model(["u", ",", "v"], text=TextConfig(tokenize="moses"))
    lines = [f"{a} , {b} ." for a in "abcdef" for b in "ghi"]
    found = model.translate(lines, unknown="replace", beam=1)
    with_comma = [t for t in found if t.replaced and "," in t.words[1:]]
    assert with_comma
    for one in with_comma:
        assert " ," not in one.text
        assert one.text.replace(" ", "") == "".join(one.words)


def test_what_cannot_be_done_is_refused(model: Translator, tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="no-such-file: lexicon not found"):
        model.translate(["a"], unknown="replace", lexicon="no-such-file")
    (tmp_path / "bad").write_bytes(b"a\tb\nc\n")
    with pytest.raises(DataError, match="bad:2: the row has one column"):
        model.translate(["a"], unknown="replace", lexicon=str(tmp_path / "bad"))
    assert model.translate(["a"], unknown="keep", lexicon="no-such-file")
    with pytest.raises(ConfigError, match="unknown"):
        model.translate(["a"], unknown="sometimes")


def test_a_model_without_attention_is_refused(translator: Translator) -> None:
    config = ModelConfig.model_validate(
        {
            "width": 16,
            "encoder": {"kind": "recurrent", "layers": 1},
            "decoder": {"kind": "recurrent", "layers": 1, "attention": "fixed"},
        }
    )
    size = len(translator.tokenizer.source.vocabulary)
    blind = Translator(build_model(config, size, size), translator.tokenizer)
    with pytest.raises(
        ModelError, match="cannot be replaced: this model attends to no source tokens; choose unknown: keep"
    ):
        blind.translate(["a cow"], unknown="replace")
    assert blind.translate(["a cow"], unknown="keep", max_length={"constant": 3})[0].replaced is None
