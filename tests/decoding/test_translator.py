from __future__ import annotations

import itertools
import json
import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.decoding.conftest import lines_of_words

from phraseloom.decoding.limits import Hypothesis
from phraseloom.decoding.parts import PieceResult
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError, DataError, FileProblem, ModelError, PhraseloomError, UsageError


def bare(translations):
    return [(t.text, t.tokens, t.words, t.alignment, t.hit_max_length) for t in translations]


def close(first, second):
    assert bare(first) == bare(second)
    assert [t.score for t in first] == pytest.approx([t.score for t in second], abs=1e-4)
    assert [t.log_prob for t in first] == pytest.approx([t.log_prob for t in second], abs=1e-4)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_does_not_depend_on_its_batch(translator: Translator, beam: int) -> None:
    lines = [*lines_of_words(30), "", " \u3000 ", "sleeps", "tonight " * 40]
    alone = [translator.translate([line], beam=beam, alignments=True, workers=1)[0] for line in lines]
    assert len({len(t.tokens) for t in alone}) > 5
    for batch, workers in ((1, 1), (2, 2), (7, 1), (64, 3), ("auto", 2)):
        together = translator.translate(lines, beam=beam, alignments=True, batch_sentences=batch, workers=workers)
        close(together, alone)
    order = random.Random(1).sample(range(len(lines)), len(lines))
    shuffled = translator.translate([lines[i] for i in order], beam=beam, alignments=True, batch_sentences=7)
    close(shuffled, [alone[i] for i in order])


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("penalty", [{"kind": "wu", "alpha": 1.0}, {"kind": "sockeye"}, {"kind": "none"}])
def test_score_of_our_own_output_is_the_score_of_translate(translator: Translator, beam: int, penalty: dict) -> None:
    from phraseloom.decoding.scoring import Score, score_pairs

    lines = lines_of_words(40, seed=beam)
    config = translator.with_options(beam=beam, length_penalty=penalty, n_best=min(beam, 3)).config
    found = Translator(translator.model, translator.tokenizer, config).translate(lines)
    id_of = translator.tokenizer.target.vocabulary.id
    pairs, expected = [], []
    for line, best in zip(lines, found, strict=True):
        for one in best.n_best:
            pairs.append((translator.tokenizer.source.encode(line), [id_of(t) for t in one.tokens]))
            expected.append(one)
    from phraseloom.decoding.penalties import build_penalty

    rows = score_pairs(translator.model, pairs, config, translator.device)
    scores = [Score.of(row, [], build_penalty(config.length_penalty)) for row in rows]
    assert [s.log_prob for s in scores] == pytest.approx([t.log_prob for t in expected], abs=1e-4)
    assert [s.score for s in scores] == pytest.approx([t.score for t in expected], abs=1e-4)


def test_score_of_text(translator: Translator) -> None:
    sources, targets = lines_of_words(30, seed=5), lines_of_words(30, seed=6)
    whole = translator.score(sources, targets)
    for batch in (1, 4):
        parts = translator.score(sources, targets, batch_sentences=batch, workers=2)
        assert [s.log_prob for s in parts] == pytest.approx([s.log_prob for s in whole], abs=1e-4)
    assert all(len(s.token_log_probs) == len(s.tokens) + 1 for s in whole)
    assert all(s.log_prob == pytest.approx(sum(s.token_log_probs)) for s in whole)
    assert translator.score(["", " "], ["", "\u3000"])[1].log_prob == 0.0
    assert translator.score(["a cow"], [""])[0].log_prob < 0.0
    with pytest.raises(UsageError, match="1 sources, but 2 targets"):
        translator.score(["a"], ["b", "c"])


@pytest.fixture
def copy(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """Answers with what it was given; the model is not called."""

    def repeat(model, tokenizer, pieces, config, **rest):
        assert all(p.ids for p in pieces)
        return [PieceResult([Hypothesis(list(p.ids), -1.0, -1.0, False)], [None]) for p in pieces]

    monkeypatch.setattr("phraseloom.decoding.translator.search_pieces", repeat)
    return translator


def test_every_pattern_of_blank_lines_in_every_window(copy: Translator) -> None:
    words, blanks = ["a cow", "the man", "dark", "we", "garden", "tonight"], ["", " ", "\t", "\u3000", "\u2028", "\x85"]
    cases = 0
    for length in range(7):
        for pattern in itertools.product([True, False], repeat=length):
            lines = [words[i] if full else blanks[i] for i, full in enumerate(pattern)]
            for size in range(1, 7):
                found = list(copy.translate_iterable(lines, window=size, batch_sentences=1 + size % 3, workers=1))
                assert [t.text for t in found] == [
                    line if full else "" for line, full in zip(lines, pattern, strict=True)
                ]
                assert [t.blank for t in found] == [not full for full in pattern]
                cases += 1
    assert cases > 500


@pytest.mark.parametrize("how", ["crop", "split"])
def test_a_very_long_line_between_two_normal_ones(
    translator: Translator, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    normal = ["a cow is small .", "we invite them tonight ."]
    long = "the old man sleeps " * 400
    options = {"beam": 1, "max_input_tokens": 64, "long_lines": how, "alignments": True}
    with caplog.at_level(logging.WARNING):
        found = translator.translate([normal[0], long, normal[1]], **options)
    assert len(found) == 3
    close([found[0], found[2]], translator.translate(normal, beam=1, alignments=True))
    assert found[1].text
    assert (found[1].cropped, found[1].parts > 1) == (how == "crop", how == "split")
    assert sum("longer than 64 subwords" in r.message for r in caplog.records) == 1
    assert "line 2" in caplog.text
    ids = translator.tokenizer.source.encode(long)
    first = translator.tokenizer.source.decode(ids[:64]) if how == "crop" else None
    if first is not None:
        close([found[1]], [replace(t, cropped=True) for t in translator.translate([first], beam=1, alignments=True)])
    else:
        assert max(s for s, _ in found[1].alignment or []) > 64
        assert len(found[1].alignment or []) == len(found[1].words)


def test_a_line_of_100_000_tokens(copy: Translator) -> None:
    line = "cow " * 50_000
    assert len(copy.tokenizer.source.encode(line)) >= 100_000
    cropped = copy.translate(["a", line, "we"])
    assert [t.cropped for t in cropped] == [False, True, False]
    assert len(cropped[1].tokens) == 1024
    whole = copy.translate(["a", line, "we"], long_lines="split")
    assert whole[1].text.split() == ["cow"] * 50_000


def test_n_best(translator: Translator) -> None:
    lines = lines_of_words(6, seed=9)
    for n_best in range(1, 5):
        for translation in translator.translate(lines, beam=4, n_best=n_best):
            scores = [t.score for t in translation.n_best]
            assert len(scores) == n_best
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(t.tokens) for t in translation.n_best}) == n_best
    with pytest.raises(ConfigError, match=r"^min_length 5,5 is above max_length 1,1 for every source"):
        translator.translate(["a"], min_length={"factor": 5, "constant": 5}, max_length={"factor": 1, "constant": 1})
    with pytest.raises(ConfigError, match=r"^n_best 5 is larger than beam 4; set beam to 5"):
        translator.translate(lines, beam=4, n_best=5)


def test_forced_prefix(translator: Translator) -> None:
    lines = lines_of_words(5, seed=2)
    prefixes = ["we invite", "", "the old man", "", "a"]
    for beam in (1, 3):
        free = translator.translate(lines, beam=beam)
        found = translator.translate(lines, beam=beam, prefixes=prefixes)
        assert all(t.text.startswith(p) for t, p in zip(found, prefixes, strict=True))
        close([found[1], found[3]], [free[1], free[3]])
    with pytest.raises(UsageError, match="5 lines, but 1 prefixes"):
        translator.translate(lines, prefixes=["x"])


def test_bounds_on_the_length(translator: Translator) -> None:
    lines = lines_of_words(20, seed=4)
    for beam in (1, 3):
        short = translator.translate(lines, beam=beam, max_length={"constant": 3})
        assert all(len(t.tokens) <= 3 for t in short)
        assert any(t.hit_max_length for t in short)
        exact = translator.translate(lines, beam=beam, max_length={"constant": 6}, min_length={"constant": 6})
        assert all(len(t.tokens) == 6 for t in exact)


def test_alignment_comes_from_the_chosen_layer(translator: Translator) -> None:
    lines = lines_of_words(10, seed=8)
    layers = [translator.translate(lines, beam=2, alignments=True, alignment_layer=n) for n in (1, 2, 3)]
    default = translator.translate(lines, beam=2, alignments=True)
    assert [t.alignment for t in default] == [t.alignment for t in layers[1]]
    assert [t.alignment for t in layers[0]] != [t.alignment for t in layers[2]]
    for line, translation in zip(lines, default, strict=True):
        assert [t for _, t in translation.alignment or []] == list(range(len(translation.words)))
        assert all(0 <= s < len(translator.tokenizer.source.words(line)) for s, _ in translation.alignment or [])
    with pytest.raises(UsageError, match="alignment_layer 4: the decoder has 3 layers"):
        translator.translate(lines, alignments=True, alignment_layer=4)


def test_plain_data(translator: Translator) -> None:
    found = translator.translate(["a cow", ""], beam=2, n_best=2, alignments=True)
    value = json.loads(json.dumps(found[0].as_dict(), allow_nan=False))
    assert value["text"] == found[0].text
    assert value["alignment"] == [list(link) for link in found[0].alignment or []]
    assert len(value["alternatives"]) == 1
    assert (found[1].text, found[1].blank, found[1].alignment, found[1].score) == ("", True, [], 0.0)
    assert found[1].pharaoh() == ""


def test_wrong_use_is_refused_in_words(translator: Translator, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not one string"):
        translator.translate("a cow")
    with pytest.raises(UsageError, match="not one string"):
        translator.translate_iterable("abc")
    with pytest.raises(UsageError, match="sources are a list of lines, not one string"):
        translator.score("abc", "abc")
    with pytest.raises(UsageError, match="prefixes are a list of lines, not one string"):
        translator.translate(["a", "b"], prefixes="xy")
    with pytest.raises(UsageError, match="ensemble is a list of models, not one"):
        Translator.from_pretrained(tmp_path, ensemble=str(tmp_path))
    for what, values in (("seeds", ["a"]), ("seeds", [1.5]), ("seeds", [-1]), ("numbers", ["a"])):
        with pytest.raises(UsageError, match=f"{what}: item 1 is .* not a whole number"):
            translator.translate(["a cow"], sample=True, **{what: values})
    with pytest.raises(UsageError, match="word_bonus 5 is for segmental models"):
        translator.score(["a cow"], ["cow"], word_bonus=5.0)
    for name in ("alignment_layer", "alignment_head"):
        with pytest.raises(UsageError, match="77"):
            translator.translate(["a cow"], **{name: 77})
    for lines in (b"ab", None, 3, [b"a"], ["a", None], [["a"]]):
        with pytest.raises(UsageError, match="lines to translate"):
            translator.translate(lines)
    with pytest.raises(ConfigError, match="unknown key beem; did you mean beam"):
        translator.translate(["a"], beem=3)
    with pytest.raises(ConfigError, match="beam"):
        translator.translate(["a"], beam=0)
    with pytest.raises(FileProblem):
        Translator.from_pretrained(tmp_path / "nothing")
    with pytest.raises(PhraseloomError):
        Translator.from_pretrained(tmp_path)
    assert translator.translate([]) == []


def test_a_broken_model_is_refused(translator: Translator, model_folder: Path) -> None:
    broken = Translator.from_pretrained(model_folder)
    with torch.no_grad():
        broken.model.output.bias[7] = float("nan")
    for beam in (1, 3):
        with pytest.raises(ModelError, match="NaN"):
            broken.translate(["a cow", "we"] * 5, beam=beam, workers=2, batch_sentences=2)


def test_workers_leave_the_number_of_threads_alone(translator: Translator) -> None:
    before = torch.get_num_threads()
    translator.translate(lines_of_words(8), beam=1, workers=2)
    assert torch.get_num_threads() == before


def test_an_iterable_takes_what_belongs_to_its_lines(translator: Translator) -> None:
    lines = ["a cow", "the man", "sleeps", "a cow", "the man"]
    prefixes = ["cow", "", "man", "garden", ""]
    constraints = [None, {"include": ["dark"]}, None, None, {"exclude": ["man"]}]
    for given in ({"prefixes": prefixes}, {"constraints": constraints}):
        whole = translator.translate(lines, **given)
        assert [t.text for t in whole] != [t.text for t in translator.translate(lines)]
        for size in (1, 2, 5, 7):
            parts = {name: iter(values) for name, values in given.items()}
            assert bare(translator.translate_iterable(iter(lines), window=size, **parts)) == bare(whole)


def test_an_iterable_warns_once_with_the_lines_of_the_whole(
    translator: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["a", "a", "the man sleeps the man sleeps", "a cow the man sleeps the man"]
    for size in (1, 2, 9):
        caplog.clear()
        with caplog.at_level("WARNING", "phraseloom"):
            list(
                translator.translate_iterable(
                    lines, window=size, max_input_tokens=3, max_length={"constant": 20}, beam=1
                )
            )
        assert [r.message for r in caplog.records if "end was left out" in r.message] == [
            "2 of 4 lines longer than 3 subwords: the end was left out (first: line 3)"
        ]


def test_an_iterable_refuses_what_does_not_fit_its_lines(translator: Translator) -> None:
    lines = ["a cow", "the man", "sleeps", "a cow"]
    for size in (2, 3, 4, 9):
        with pytest.raises(UsageError, match="2 prefixes, but there are more lines"):
            list(translator.translate_iterable(lines, prefixes=["", ""], window=size))
        with pytest.raises(UsageError, match="4 lines, but more constraints"):
            list(translator.translate_iterable(lines, constraints=[None] * 5, window=size))
        with pytest.raises(DataError, match="prefixes:4: "):
            list(translator.translate_iterable([*lines[:3], ""], prefixes=["", "", "", "cow"], window=size))
        with pytest.raises(DataError, match="constraints:4: "):
            list(translator.translate_iterable(lines, constraints=[None, None, None, {"include": [""]}], window=size))
        with pytest.raises(UsageError, match="item 3 is NoneType"):
            list(translator.translate_iterable(["a", "b", None], window=size))
    for name in ("seeds", "numbers"):
        with pytest.raises(UsageError, match=f"takes no {name}"):
            translator.translate_iterable(lines, **{name: [1, 2, 3, 4]})
    with pytest.raises(UsageError, match="one table of terms"):
        translator.translate_iterable(lines, terms=[None] * 4)


@pytest.mark.parametrize("terms", [{"a": "b"}, "terms.tsv", Path("terms.tsv"), [{"a": "b"}]])
def test_terms_are_tables_of_terms(translator: Translator, terms: Any) -> None:
    with pytest.raises(UsageError, match=r"terms (is no table|has items)"):
        translator.translate(["a cow"], terms=terms)
