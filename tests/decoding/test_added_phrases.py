"""Phrases added to a trained model: rows of the table, the words they are written as, and files that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.decoding.added_phrases import Added, add_phrases
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, UsageError
from phraseloom.layers import packed
from phraseloom.models import tasks
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig, WordsConfig
from phraseloom.outputs import continuous
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vectors import write_vectors
from phraseloom.text.vocabulary import SPECIALS, Vocabulary
from phraseloom.text.words import Words, learn

M = 6
WORDS, PHRASES = ["quality", "of", "life", "we", "a&#95;b"], ["of_life"]
SIZES: dict[str, Any] = {"width": 8, "heads": 2, "ffn_width": 8, "encoder": {"layers": 1}, "decoder": {"layers": 1}}


def tokenizer(*, joined: bool = True) -> Tokenizer:
    rows = np.random.default_rng(1).normal(size=(4 + len(WORDS) + len(PHRASES), M)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    names = [*SPECIALS, *WORDS, *(PHRASES if joined else ["x"])]
    source = Words(Vocabulary([*SPECIALS, "die", "wir"]))
    return Tokenizer(TextConfig(), "de", "en", source, Words(Vocabulary(names), joined=joined, vectors=rows))


def model(t: Tokenizer, kind: str = "word_or_phrase", tied: str = "two_way") -> Any:
    torch.manual_seed(0)
    return tasks.build(ModelConfig.model_validate({**SIZES, "output": {"kind": kind}, "tied": tied}), t).eval()


def test_an_added_phrase_is_found_by_its_vector(tmp_path: Path) -> None:
    """A row in the direction that the model predicts beats all others; it is written as its words."""
    t = tokenizer()
    translator = Translator(model(t), t)
    (before,) = translator.translate(["wir"], max_length={"factor": 0.0, "constant": 3})
    hidden = translator.model.decode(torch.tensor([[2]]), translator.model.encode(torch.tensor([[5, 3]]), None))[0]
    wanted = translator.model.output.predict(hidden[:, 0]).detach().numpy()
    known = t.target.subwords.vectors[[t.target.subwords.vocabulary.id(token) for token in ("we", "of_life")]]
    write_vectors(tmp_path / "more.vec", ["we", "of_life", "quality_of_life"], np.concatenate([known, wanted]))
    new, added = add_phrases(translator.model, t, tmp_path / "more.vec")
    assert added == Added(new=1, known=1)
    (after,) = Translator(translator.model, new).translate(["wir"], max_length={"factor": 0.0, "constant": 3})
    assert after.tokens[0] == "quality_of_life" and after.text.startswith("quality of life")
    assert before.tokens[0] != "quality_of_life"
    table = translator.model.output.table
    assert len(table) == 11 and table.first_phrase == 9
    assert torch.allclose(table.rows_VM.norm(dim=1), torch.ones(11))
    assert torch.equal(table.rows_VM[9], torch.from_numpy(t.target.subwords.vectors[9]))


def test_a_known_phrase_needs_no_vectors_of_its_words(tmp_path: Path) -> None:
    """A word that occurs only inside phrases is not in the vocabulary."""
    t = tokenizer()
    names = [*SPECIALS, *WORDS, "lots_of"]
    target = Words(Vocabulary(names), joined=True, vectors=t.target.subwords.vectors)
    known = Tokenizer(TextConfig(), "de", "en", t.source.subwords, target)
    (tmp_path / "more").write_text("lots of\nquality of\n")
    assert add_phrases(model(known), known, tmp_path / "more")[1] == Added(new=1, known=1)


def test_an_added_phrase_is_a_phrase_to_the_gate(tmp_path: Path) -> None:
    t = tokenizer()
    some = model(t)
    (tmp_path / "more.tsv").write_bytes(b"quality of life\t17\tmore\nof life\nwe_a_b ||| x\n")
    with pytest.raises(DataError, match=r"more\.tsv:3.*word 'a' has no vector"):
        add_phrases(some, t, tmp_path / "more.tsv")
    (tmp_path / "more.tsv").write_bytes(b"quality of life\t17\tmore\nof life\nwe a_b\n")
    with pytest.raises(DataError, match=r"more\.tsv:3.*word 'a' has no vector"):
        add_phrases(some, t, tmp_path / "more.tsv")
    (tmp_path / "more.tsv").write_bytes(b"quality of life\t17\tmore\nof life\nwe a&#95;b\n")
    new, added = add_phrases(some, t, tmp_path / "more.tsv")
    assert added == Added(new=2, known=1)
    words = new.target.subwords
    assert isinstance(words, Words) and words.vectors is not None and t.target.subwords.vectors is not None
    assert list(words.vocabulary)[9:] == ["of_life", "quality_of_life", "we_a&#95;b"]
    assert new.target.decode([11]) == "we a_b" and words.first_phrase == 9
    mean = t.target.subwords.vectors[[4, 5, 6]].sum(0)
    assert np.allclose(words.vectors[10], mean / np.linalg.norm(mean), atol=1e-6)
    h = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    no_phrase = torch.tensor([[1.0, 0.0]] * 3)  # λ_word = 1
    assert (some.output.candidates(h, 5, no_phrase)[1] < 9).all()


def test_phrases_are_added_where_nothing_can_be_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, and on a CPU without oneDNN."""

    def no_kernel(*_: Any) -> Any:
        raise NotImplementedError("mkldnn::_reorder_linear_weight")

    monkeypatch.setattr(continuous, "Packed", no_kernel)
    monkeypatch.setattr(packed, "_works", lambda: False)
    t = tokenizer()
    translator = Translator(model(t), t)
    (tmp_path / "more").write_bytes(b"quality of life\n")
    assert translator.add_phrases(tmp_path / "more") == Added(new=1, known=0)
    assert len(translator.model.output.table) == 11 and translator.translate(["wir"])[0].tokens


def test_searches_with_more_phrases_go_on(tmp_path: Path) -> None:
    t = tokenizer()
    some = model(t)
    (tmp_path / "more").write_bytes(b"quality of life\n")
    new, _ = add_phrases(some, t, tmp_path / "more")
    translator = Translator(some, new)
    for beam in (1, 4):
        for translation in translator.translate(["wir die", "die"], beam=beam, n_best=beam):
            (score,) = translator.score(["wir die"], [" ".join(translation.tokens)])
            assert np.isfinite(score.log_prob)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no phrases"),
        (b"quality of\n\n", "more:2.*'' is not a phrase"),
        (b"life\n", "more:1.*not a phrase of two or more words"),
    ],
)
def test_files_that_add_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    t = tokenizer()
    (tmp_path / "more").write_bytes(content)
    with pytest.raises(DataError, match=message):
        add_phrases(model(t), t, tmp_path / "more")


def test_vectors_that_add_nothing(tmp_path: Path) -> None:
    t = tokenizer()
    for rows, tokens, message in (
        (np.ones((1, M)), ["we"], "no token of these vectors is a phrase"),
        (np.zeros((1, M)), ["we_we"], "'we_we' is 0"),
        (np.ones((1, M + 1)), ["we_we"], "width 7; 6 is needed"),
    ):
        write_vectors(tmp_path / "more.vec", tokens, rows)
        with pytest.raises(DataError, match=message):
            add_phrases(model(t), t, tmp_path / "more.vec")


def of_file(folder: Path, *left_out: str, **options: Any) -> Words:
    """Words and phrases with vectors of a file that have a direction in common; text without some of its phrases."""
    draw = np.random.default_rng(0)
    words, phrases = [f"w{n}" for n in range(40)], [f"w{n}_w{n + 1}" for n in range(0, 20, 2)]
    tokens = [*words, *phrases]
    vectors = draw.normal(size=(len(tokens), M)) + 3 * draw.normal(size=M)
    write_vectors(folder / "all.vec", tokens, vectors)
    config = WordsConfig(joined=True, phrases=20, min_frequency=1, vectors=str(folder / "all.vec"), **options)
    return learn([token for token in tokens if token not in left_out], config)


MIXED = {"center": True, "random_share": 0.3}


@pytest.mark.parametrize("options", [{}, {"center": True}, {"whiten": True}, {"whiten": True, "dimensions": 4}, MIXED])
def test_vectors_of_the_file_of_the_model_become_rows_as_those_of_the_model(options: Any, tmp_path: Path) -> None:
    """Also after the tokenizer was stored: it knows what was taken off the vectors."""
    source, words = Words(Vocabulary([*SPECIALS, "x"])), of_file(tmp_path, "w18_w19", **options)
    Tokenizer(TextConfig(), "de", "en", source, words).save(tmp_path / "tokenizer")
    t = Tokenizer.load(tmp_path / "tokenizer")
    new, added = add_phrases(model(t), t, tmp_path / "all.vec")
    assert added == Added(new=1, known=9)
    whole = of_file(tmp_path, **{**options, "random_share": 0.0})  # an added row is not mixed
    row = whole.vectors[whole.vocabulary.id("w18_w19")]
    assert new.target.subwords.vectors[-1] @ row > 0.95  # the mean is that of one row less
    assert (new.target.subwords.transform is None) == (not options)


def test_vectors_that_are_not_those_of_the_model(tmp_path: Path) -> None:
    t = Tokenizer(TextConfig(), "de", "en", Words(Vocabulary([*SPECIALS, "x"])), of_file(tmp_path, "w18_w19"))
    tokens = ["w1", "w2", "w3", "w18_w19"]
    write_vectors(tmp_path / "more.vec", tokens, np.random.default_rng(3).normal(size=(4, M)))
    with pytest.raises(DataError, match="these vectors are not those of the model: 3 tokens of both have a cosine of"):
        add_phrases(model(t), t, tmp_path / "more.vec")


def test_models_without_a_table_of_phrases(tmp_path: Path) -> None:
    (tmp_path / "more").write_bytes(b"quality of life\n")
    t = tokenizer()
    with pytest.raises(UsageError, match="continuous output only"):
        add_phrases(model(t, "softmax"), t, tmp_path / "more")
    with pytest.raises(UsageError, match="trained embeddings"):
        add_phrases(model(t, tied="none"), t, tmp_path / "more")
    t = tokenizer(joined=False)
    with pytest.raises(UsageError, match="without joined phrases"):
        add_phrases(model(t, "continuous"), t, tmp_path / "more")


def test_phrases_are_added_to_translators_with_other_options_too(tmp_path: Path) -> None:
    """Both have the model in common, so a tokenizer of their own would not know its new rows."""
    t = tokenizer()
    translator = Translator(model(t), t)
    other = translator.with_options(beam=2)
    (tmp_path / "more").write_bytes(b"quality of life\n")
    other.add_phrases(tmp_path / "more")
    assert len(translator.tokenizer.target.vocabulary) == len(translator.model.output.table)
    assert translator.tokenizer is other.tokenizer and (translator.config.beam, other.config.beam) == (5, 2)
