"""Streams: their pieces join to the translation, byte by byte, whatever the text; closing one ends its search."""

from __future__ import annotations

import gc
import weakref
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decoding.conftest import lines_of_words
from tests.npmt.toys import ToySegmental

from phraseloom.decoding import streaming
from phraseloom.decoding.cancellation import Cancelled
from phraseloom.decoding.streaming import StreamedText
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError, UsageError
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig
from phraseloom.text.normalize import Normaliser
from phraseloom.text.tokenizer import Side, learn_subwords
from phraseloom.text.truecase import learn_truecaser
from phraseloom.text.vocabulary import UNK

TEXT = [
    "the old man 's \" garden \" is dark , but l' arbre d' or is 3 @-@ 4 .",
    "„ Büros “ : 5 % , ( EU : n ) ' cats ' !   two  spaces e' - li",
    "我们 今天 喝 茶 。 a 茶 ☃ \u00a0 x\u2028y \ue581 \u2581 @@ </s> 5 . 6",
]
LANGUAGES = ("en", "de", "fr", "it", "fi", "cs", "zh", "ga")


@cache
def subwords(kind: str) -> Any:
    configs = {
        "bytes": SentencepieceConfig(size=330, byte_fallback=True),
        "bpe": SentencepieceConfig(size=100, byte_fallback=False),
        "unigram": SentencepieceConfig(model="unigram", size=100, byte_fallback=False),
        "subword_nmt": SubwordNmtConfig(merges=40),
    }
    return learn_subwords(TEXT * 3, configs[kind])


KINDS = ("bytes", "bpe", "unigram", "subword_nmt")


def streamed(side: Side, ids: list[int]) -> list[str]:
    text = StreamedText(side)
    return [*map(text.add, ids), text.finish()]


@settings(max_examples=300)
@given(
    kind=st.sampled_from(KINDS),
    how=st.sampled_from(["none", "moses", "truecase", "jieba"]),
    language=st.sampled_from(LANGUAGES),
    data=st.data(),
)
def test_pieces_join_to_the_text(kind: str, how: str, language: str, data: st.DataObject) -> None:
    options: Any = {"tokenize": "moses", "truecase": True} if how == "truecase" else {"tokenize": how}
    truecaser = learn_truecaser(TEXT) if how == "truecase" else None
    side = Side(Normaliser(TextConfig(**options), language, truecaser), subwords(kind))
    size = len(side.vocabulary)
    ids = data.draw(st.lists(st.integers(4, size - 1) | st.just(UNK), max_size=30))
    if data.draw(st.booleans()):
        words = data.draw(st.lists(st.sampled_from(" ".join(TEXT).split(" ")), max_size=12))
        ids = side.subwords.encode(" ".join(words))
    try:
        whole = side.decode(ids).replace("\n", " ")
    except TypeError:  # sacremoses fails for "e' - li" in Czech
        return
    assert "".join(streamed(side, ids)) == whole


def test_words_come_as_soon_as_they_are_final() -> None:
    plain = Side(Normaliser(TextConfig(), "en"), subwords("bytes"))
    ids = plain.subwords.encode("the old man ☃ is")
    pieces = streamed(plain, ids)
    assert sum(map(bool, pieces)) > 5 and "☃" in "".join(pieces[:-1])
    moses = Side(Normaliser(TextConfig(tokenize="moses"), "en"), subwords("bpe"))
    pieces = [piece for piece in streamed(moses, moses.subwords.encode("the old man 's garden is dark .")) if piece]
    assert pieces == ["the", " old", " man", "'s", " garden", " is", " dark."]
    chinese = Side(Normaliser(TextConfig(), "zh"), subwords("bytes"))
    assert sum(map(bool, streamed(chinese, chinese.subwords.encode("我们今天喝茶")))) > 3
    czech = Side(Normaliser(TextConfig(tokenize="moses"), "cs"), subwords("bpe"))
    assert streamed(czech, czech.subwords.encode("the old man"))[-1] == "the old man"


def whole(pieces: Any) -> tuple[str, Any]:
    """The joined text of a stream, and its Translation."""
    text = ""
    while True:
        try:
            text += next(pieces)
        except StopIteration as end:
            return text, end.value


def test_a_stream_is_the_greedy_translation(translator: Translator) -> None:
    for line in [*lines_of_words(12, seed=3), "", " ", "tonight " * 30]:
        prefix = {"prefix": "the ünknown"} if line.strip() else {}  # a blank line takes none
        for options in ({}, prefix, {"unknown": "keep"}, {"sample": True, "seed": 3}):
            text, found = whole(translator.stream(line, alignments=True, **options))
            given = {k: v for k, v in options.items() if k != "prefix"}
            prefixes = [options["prefix"]] if "prefix" in options else None
            [expected] = translator.translate([line], prefixes=prefixes, alignments=True, beam=1, workers=1, **given)
            assert found == expected
            assert text == expected.text
    for how in ("crop", "split"):
        text, found = whole(translator.stream("cow " * 40, max_input_tokens=9, long_lines=how))
        assert (
            text
            == found.text
            == translator.translate(["cow " * 40], beam=1, max_input_tokens=9, long_lines=how)[0].text
        )
    assert len(list(translator.stream("the old man sleeps . a cow is small"))) > 2


def test_the_search_goes_on_only_while_the_stream_is_read(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, states, start = [], [], translator.model.start

    def counted(*arguments: Any, **options: Any) -> Any:
        state = start(*arguments, **options)
        states.append(weakref.ref(state))
        return state

    step = translator.model.step
    monkeypatch.setattr(translator.model, "start", counted)
    monkeypatch.setattr(translator.model, "step", lambda *a: (steps.append(1), step(*a))[1])
    sentence, shortest = "the old man sleeps , but a cow is small .", {"factor": 0.0, "constant": 15}
    stream = translator.stream(sentence, min_length=shortest, kernels="eager")
    assert not steps
    next(stream)
    taken = len(steps)
    assert 0 < taken < 15 and states[0]() is not None
    assert not torch.is_inference_mode_enabled()
    stream.close()
    gc.collect()
    assert len(steps) == taken and states[0]() is None
    with pytest.raises(Cancelled):
        list(
            translator.stream(
                "the old man", should_cancel=lambda: len(steps) > taken + 3, min_length=shortest, kernels="eager"
            )
        )
    assert len(steps) == taken + 4


def test_what_cannot_stream_is_refused(translator: Translator) -> None:
    for options, message in (
        ({"beam": 3}, "beam 3 cannot stream"),
        ({"sample": True, "n_best": 2}, "n_best 2 cannot stream"),
        ({"mbr": 4}, "mbr 4 cannot stream"),
        ({"unknown": "replace"}, "unknown: replace cannot stream"),
    ):
        with pytest.raises(UsageError, match=message):
            translator.stream("a cow", **options)
    with pytest.raises(UsageError, match="stream takes one line, not list; use translate_iterable"):
        translator.stream(["a cow"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="top_p"):
        translator.stream("a cow", sample=True, top_p=2.0)
    with pytest.raises(UsageError, match="a segmental model"):
        streaming.check_stream(ToySegmental(0), translator.config)
