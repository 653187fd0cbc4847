"""What a report measures of a model is what the single analyses say, and what a model cannot have is a lack with its reason."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.explain_kinds import CONTINUOUS, joined_tokenizer
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.align.links import Gold
from phraseloom.analysis.activation import activation_shares
from phraseloom.analysis.alignment import measure
from phraseloom.analysis.contrastive import judge
from phraseloom.analysis.contrastive_items import Item
from phraseloom.analysis.entropy import attention_entropy
from phraseloom.analysis.measurements import Lack, Material, measure_model, translate_and_score
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError
from phraseloom.metrics.ratio import plain
from phraseloom.models import tasks
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.phrases.segmenters import TreeSegmenter
from phraseloom.text.tokenizer import Tokenizer

SIZES = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 2}}
MODELS: dict[str, dict[str, Any]] = {
    "token": {},
    "slots": {"attention": "queryk heterogeneous 1-2"},
    "fixed": {"decoder": {"kind": "recurrent", "layers": 1, "cell": "lstm", "attention": "fixed"}},
    "trees": {"phrases": {"segments": {"kind": "dataset"}}},
}
TREES = ["(S (DT the) (X (JJ old) (NN man)) (VP (VBZ sleeps) (. .)))", "", "", ""]
TARGETS = list(reversed(LINES))
GOLD = [Gold(frozenset({(0, 0)}), frozenset({(0, 0)})) for _ in LINES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and a file of fertilities."""
    out = tmp_path_factory.mktemp("measured")
    tokenizer = tiny_tokenizer(out / "tokenizer")
    size = len(tokenizer.source.vocabulary)
    for name, variant in MODELS.items():
        torch.manual_seed(3)
        config = ModelConfig.model_validate({**SIZES, **variant})
        segmenter = TreeSegmenter(max_tokens=4, min_chunks=1, floor=1) if name == "trees" else None
        generation = {"max_length": {"constant": 4}}
        model = build_model(config, size, size)
        save_model(out / name, model, config, tokenizer, generation=generation, segmenter=segmenter)
    (out / "labels").write_bytes(b"1\n")
    return out


def material(folder: Path) -> Material:
    items = [Item(s, t, t + " a", file="items", line=n) for n, (s, t) in enumerate(pairs(), 1)]
    files = {"labelled": folder / "labels", "labels": folder / "labels"}
    return Material(LINES, TARGETS, gold=GOLD, items=items, most=3, **files)


def pairs() -> list[tuple[str, str]]:
    return list(zip(LINES, TARGETS, strict=True))


def quiet(_: str) -> None:
    pass


def test_every_number_is_that_of_the_single_analysis(folder: Path) -> None:
    given = material(folder)
    found = measure_model(folder / "slots", given, say=quiet)
    translator = Translator.from_pretrained(folder / "slots")
    assert found["translation"].lines == [t.text for t in translator.translate(LINES)]
    assert found["translation"].seconds > 0
    assert found["contrastive"] == judge(translator, given.items or [])
    measured = measure(translator, LINES, TARGETS, GOLD)
    assert found["alignment"]["settings"] == [plain(m.as_dict()) for m in measured]
    assert found["alignment"]["cropped"] == 0
    entropy = plain(asdict(attention_entropy(translator, LINES[:3], TARGETS[:3])))
    assert {k: found["entropy"][k] for k in entropy} == entropy
    assert found["activation"] == plain(asdict(activation_shares(translator, LINES[:3], TARGETS[:3])))
    assert isinstance(found["fertility"], Lack)


def test_pairs_above_the_limits_of_a_model_are_counted(tmp_path: Path) -> None:
    """Their gold links count as missed."""
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    size = len(tokenizer.source.vocabulary)
    config = ModelConfig.model_validate(SIZES)
    save_model(
        tmp_path / "short", build_model(config, size, size), config, tokenizer, generation={"max_input_tokens": 4}
    )
    found = measure_model(tmp_path / "short", Material(LINES, TARGETS, gold=GOLD, translate=False), say=quiet)
    sizes = [len(tokenizer.source.encode(line)) for line in LINES]
    assert found["alignment"]["cropped"] == sum(size > 4 for size in sizes) > 0


def test_what_a_model_cannot_have_is_a_lack(folder: Path) -> None:
    token = measure_model(folder / "token", material(folder), say=quiet)
    assert {kind for kind, value in token.items() if isinstance(value, Lack)} == {"activation", "fertility"}
    fixed = measure_model(folder / "fixed", material(folder), say=quiet)
    lacks = {kind for kind, value in fixed.items() if isinstance(value, Lack)}
    assert lacks == {"alignment", "entropy", "activation", "fertility"}
    assert "attends to no source tokens" in fixed["entropy"].why


def test_only_what_was_asked_for(folder: Path) -> None:
    assert Material().is_empty
    assert set(measure_model(folder / "token", Material(LINES), say=quiet)) == {"translation"}
    given = Material(LINES, TARGETS, translate=False)
    assert set(measure_model(folder / "token", given, say=quiet)) == {"entropy", "activation"}


def test_trees_go_to_the_models_that_read_them(folder: Path) -> None:
    given = material(folder)
    without = measure_model(folder / "trees", given, say=quiet)
    assert {kind for kind, value in without.items() if not isinstance(value, Lack)} == set()
    assert "--trees" in without["translation"].why
    whole = replace(given, trees=TREES, trees_file=folder / "t.trees")
    found = measure_model(folder / "trees", whole, say=quiet)
    assert not isinstance(found["translation"], Lack)
    assert not isinstance(found["entropy"], Lack)
    assert measure_model(folder / "token", whole, say=quiet)["translation"].lines
    broken = replace(whole, trees=["(S (DT a))", *TREES[1:]])
    with pytest.raises(DataError) as caught:
        measure_model(folder / "trees", broken, say=quiet)
    assert (caught.value.file, caught.value.line) == (folder / "t.trees", 1)


def test_phrases_have_the_words_that_the_model_counts(folder: Path) -> None:
    """Tokenised by Moses, a line has more words than the parts between its blanks."""
    tokenizer = Tokenizer.load(folder / "token" / "tokenizer")
    sides = tokenizer.source.subwords, tokenizer.target.subwords
    moses = Tokenizer(TextConfig(tokenize="moses"), "en", "de", *sides)
    size = len(moses.source.vocabulary)
    config = ModelConfig.model_validate({**SIZES, **MODELS["token"]})
    save_model(
        folder / "moses", build_model(config, size, size), config, moses, generation={"max_length": {"constant": 9}}
    )
    line = "the man, the old, sleeps."
    found = translate_and_score(folder / "moses", [line], None, alignments=True).phrases
    assert found is not None
    (one,) = Translator.from_pretrained(folder / "moses").translate([line], alignments=True)
    words = ["the", "man", ",", "the", "old", ",", "sleeps", "."]
    assert one.phrases
    assert [part.split(" → ")[0] for part in found[0].split("; ")] == [
        " ".join(words[slice(*p.source)]) for p in one.phrases
    ]


def test_translations_scores_and_links(folder: Path) -> None:
    translator = Translator.from_pretrained(folder / "token")
    found = translate_and_score(folder / "token", LINES, TARGETS, alignments=True)
    assert found.lines == [t.text for t in translator.translate(LINES)]
    assert found.log_probs == [s.log_prob for s in translator.score(LINES, TARGETS)]
    assert found.phrases is not None
    assert len(found.phrases) == len(LINES)
    own = translate_and_score(folder / "token", LINES, None)
    assert own.phrases is None
    assert own.log_probs == [s.log_prob for s in translator.score(LINES, own.lines)]
    given = translate_and_score(folder / "token", LINES, None, TARGETS, alignments=True)
    assert (given.lines, given.phrases) == (TARGETS, None)
    assert "given" in given.why
    assert "no source tokens" in translate_and_score(folder / "fixed", LINES, None, alignments=True).why


def test_own_translations_of_a_model_that_writes_phrases(tmp_path: Path) -> None:
    """Their log P is that of what it wrote; the text alone does not tell which words were a phrase."""
    tokenizer = joined_tokenizer()
    config = ModelConfig.model_validate(CONTINUOUS["words or phrases"])
    torch.manual_seed(0)
    save_model(tmp_path, tasks.build(config, tokenizer), config, tokenizer, generation={"max_length": {"constant": 3}})
    lines = ["the old man sleeps .", "the cow", "old man"]
    translator = Translator.from_pretrained(tmp_path)
    made = translator.translate(lines)
    assert any("_" in token for one in made for token in one.tokens)
    joined = [" ".join(one.tokens) for one in made]
    found = translate_and_score(tmp_path, lines, None)
    assert found.log_probs == [s.log_prob for s in translator.score(lines, joined)]
    assert found.log_probs != [s.log_prob for s in translator.score(lines, found.lines)]
    given = translate_and_score(tmp_path, lines, None, found.lines)
    assert (given.lines, given.log_probs) == (found.lines, None)


def test_plain_references_of_a_model_that_writes_phrases_are_not_forced(tmp_path: Path) -> None:
    """Their phrases are not known, and they are not tokenised. A gate that reads trees is a part that is missing."""
    tokenizer = joined_tokenizer()
    config = ModelConfig.model_validate({**CONTINUOUS["gate"], "phrases": {"segments": {"kind": "dataset"}}})
    model = tasks.build(config, tokenizer)
    options: dict[str, Any] = {"generation": {"max_length": {"constant": 3}}}
    save_model(
        tmp_path / "gate",
        model,
        config,
        tokenizer,
        segmenter=TreeSegmenter(max_tokens=4, min_chunks=1, floor=1),
        **options,
    )
    config = ModelConfig.model_validate(CONTINUOUS["words or phrases"])
    save_model(tmp_path / "net", tasks.build(config, tokenizer), config, tokenizer, **options)
    lines, references = ["the old man sleeps .", "the cow"], ["the old man sleeps .", "the cow"]
    assert translate_and_score(tmp_path / "net", lines, references).log_probs is None
    (tmp_path / "s").write_text("the cow\n")
    (tmp_path / "labels").write_text("1 2\n")
    given = Material(
        lines, references, gold=GOLD[:2], labelled=tmp_path / "s", labels=tmp_path / "labels", trees=[TREES[0], ""]
    )
    for name, missing in (
        ("net", {"alignment", "entropy", "activation", "fertility"}),
        ("gate", {"alignment", "entropy", "activation", "fertility"}),
    ):
        found = measure_model(tmp_path / name, given, say=quiet)
        assert {kind for kind, value in found.items() if isinstance(value, Lack)} == missing
    assert "plain text does not tell" in found["entropy"].why and "parse trees" in found["fertility"].why
