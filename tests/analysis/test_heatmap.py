"""Heat maps: what stands on the axes and in the cells, and pictures that hold it."""

from __future__ import annotations

import logging
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.analysis.explain_kinds import translator_of
from tests.helpers import tiny_tokenizer

from phraseloom.analysis.attention import unpack
from phraseloom.analysis.explain.sentence import explain
from phraseloom.analysis.heatmap import HeatMap, Tokens, heat_map, make_map, tokens_of
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, UsageError
from phraseloom.layers.attention.structure import HeadGroup, Structure
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.text.vocabulary import BOS, EOS

INTERLEAVED = Structure.of_orders(2, [1, 2], query_orders=(1, 2))
HOMOGENEOUS = Structure(3, ((HeadGroup(1, 0, 1), HeadGroup(2, 1, 3)),), zero_extended=True)
PNG = b"\x89PNG\r\n\x1a\n"


def tokens(text: str) -> Tokens:
    """`the win+ ter </s>`: + joins a piece to the next."""
    pieces = text.split()
    starts = [i == 0 or not pieces[i - 1].endswith("+") for i in range(len(pieces))]

    def read(first: int, last: int) -> str:
        return " ".join(pieces[first:last]).replace("+ ", "").rstrip("+")

    return Tokens(read, starts)


def map_of(structure: Structure, rows: str, columns: str, *, use: str = "cross", head: int | None = None) -> HeatMap:
    shape = (
        1,
        structure.heads,
        len(structure.query_orders),
        len(rows.split()),
        len(structure.blocks),
        len(columns.split()),
    )
    weights = torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float64).view(shape) / 100
    weights = weights.flatten(4).flatten(2, 3)
    return make_map(weights, structure, tokens(rows), tokens(columns), use=use, layer=3, head=head)


def test_labels_and_blocks() -> None:
    found = map_of(INTERLEAVED, "alt ein </s>", "the win+ ter garden </s>")
    assert found.rows.labels == ["alt", "ein", "</s>", "alt·ein", "ein·</s>"]
    assert found.columns.labels == [
        *("the", "win", "…ter", "garden", "</s>"),
        *("the·win", "winter", "…ter·garden", "garden·</s>"),
    ]
    assert found.rows.blocks() == [(1, 0, 3), (2, 3, 5)]
    assert found.columns.blocks() == [(1, 0, 5), (2, 5, 9)]
    assert found.weights.shape == found.hidden.shape == (5, 9)
    assert not found.hidden.any()


def test_what_begins_inside_a_word() -> None:
    found = map_of(HOMOGENEOUS, "a", "ein+ kauf+ . 天+ 気")
    assert found.columns.labels[:5] == ["ein", "…kauf", ".", "天", "気"]
    assert found.columns.labels[5:] == ["∅·ein", "einkauf", "…kauf.", ".·天", "天気"]


def test_cells_are_those_of_the_structure() -> None:
    found = map_of(INTERLEAVED, "a b c", "w x y z")
    shape = (2, 2, 3, 2, 4)  # heads, query orders, queries, slot orders, slots
    cells = np.arange(1, 97, dtype=np.float64).reshape(shape) / 100
    for r, (m, i) in enumerate([(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)]):
        for c, (n, j) in enumerate([(0, 0), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]):
            assert found.weights[r, c] == pytest.approx(cells[:, m, i, n, j].mean())
    second = map_of(INTERLEAVED, "a b c", "w x y z", head=2)
    assert second.weights[4, 6] == pytest.approx(cells[1, 1, 2, 1, 3])
    assert (second.head, second.heads) == (2, 2)


def test_windows_before_the_sentence_and_heads_of_one_order() -> None:
    found = map_of(HOMOGENEOUS, "a b", "x y")
    assert found.columns.labels == ["x", "y", "∅·x", "x·y"]
    # weights 0.01 … 0.12 of three heads, two queries, two slots; a head counts as zero in the other's columns
    assert found.weights[0] == pytest.approx(np.array([0.01, 0.02, 0.05 + 0.09, 0.06 + 0.10]) / 3)
    first, last = (map_of(HOMOGENEOUS, "a b", "x y", head=h) for h in (1, 3))
    assert (first.columns.labels, last.columns.labels) == (["x", "y"], ["∅·x", "x·y"])
    assert last.weights[1] == pytest.approx([0.11, 0.12])


def test_short_sentences_have_no_phrases() -> None:
    found = map_of(Structure.of_orders(2, [1, 3]), "a", "x y")
    assert found.columns.labels == ["x", "y"]
    assert found.rows.labels == ["a"]


def test_the_future_is_hidden() -> None:
    found = map_of(INTERLEAVED, "<s> a b", "<s> a b", use="decoder-self")
    seen = [[c for c, h in zip(found.columns.labels, row, strict=True) if not h] for row in found.hidden]
    assert seen[0] == ["<s>"]
    assert seen[1] == seen[3] == ["<s>", "a", "<s>·a"]
    assert seen[2] == seen[4] == found.columns.labels


def test_no_such_head() -> None:
    for head in (0, 3):
        with pytest.raises(UsageError, match=f"head {head}: this attention has heads 1 to 2"):
            map_of(INTERLEAVED, "a", "b", head=head)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 4, "ffn_width": 32, "encoder": {"layers": 3}, "decoder": {"layers": 2}}
    uses = {
        "encoder_self": "queryk homogeneous 22",
        "decoder_self": "convkv heterogeneous 1-2",
        "cross": "queryk interleaved 1-2",
    }
    config = ModelConfig.model_validate({**sizes, "attention": uses})
    size = len(tokenizer.source.vocabulary)
    return Translator(build_model(config, size, size), tokenizer).with_options(max_length={"factor": 1, "constant": 2})


def test_labels_of_a_tokenizer(translator: Translator) -> None:
    side = translator.tokenizer.source
    ids = side.encode("the old cow .")
    found = tokens_of(side, [BOS, *ids, EOS])
    labels = [found.label(1, i) for i in range(len(ids) + 2)]
    assert (labels[0], labels[-1]) == ("<s>", "</s>")
    assert "".join(labels[1:-1]).replace("…", "").replace("▁", "") == "theoldcow."
    assert found.label(len(ids) + 2, len(ids) + 1) == "<s>·the·old·cow·.·</s>"
    unknown = tokens_of(side, [*side.encode("Ω"), EOS])
    assert all(unknown.label(1, i) for i in range(len(unknown.starts)))


@pytest.mark.parametrize(("use", "layers"), [("encoder-self", 3), ("decoder-self", 2), ("cross", 2)])
def test_maps_of_a_model(translator: Translator, use: str, layers: int) -> None:
    found = heat_map(translator, "the old man .", "ein alter Mann", use=use)
    assert found.layer == layers - 1
    assert found.weights.sum(1) == pytest.approx(np.ones(len(found.rows.labels)), abs=1e-5)
    assert found.weights[found.hidden].sum() == 0
    ends = {"encoder-self": "</s>", "cross": "</s>", "decoder-self": "<s>"}
    firsts = found.rows.labels[: found.rows.orders.count(1)]
    assert ends[use] == (firsts[0] if use == "decoder-self" else firsts[-1])
    with pytest.raises(
        UsageError, match=f"layer 4: the {'en' if use == 'encoder-self' else 'de'}coder has layers 1 to"
    ):
        heat_map(translator, "the old man .", use=use, layer=4)
    with pytest.raises(UsageError, match="head 5: this attention has heads 1 to 4"):
        heat_map(translator, "the old man .", use=use, head=5)
    with pytest.raises(UsageError, match="layer 0"):
        heat_map(translator, "the", use=use, layer=0)


@pytest.mark.parametrize("use", ["encoder-phrases", "decoder-phrases"])
def test_maps_of_source_phrases(use: str, translator: Translator) -> None:
    """The maps are those of the explain document, which has every head."""
    tokenizer = translator.tokenizer
    reads = translator_of("source phrases", tokenizer)
    document = explain({"m": reads}, ["the old man sleeps ."], ["the cow ."], uses=[use])
    entries = document["sentences"][0]["views"][0]["attention"]
    for entry in entries:
        weights = unpack(entry["weights"])
        for head, expected in ((None, weights.mean(0)), (3, weights[2])):
            found = heat_map(reads, "the old man sleeps .", "the cow .", use=use, layer=entry["layer"], head=head)
            assert np.abs(found.weights - expected).max() <= entry["weights"]["scale"] / 510 + 1e-6
            assert (found.rows.labels, found.columns.labels) == (entry["rows"]["labels"], entry["columns"]["labels"])
            assert found.columns.blocks() == [(0, 0, len(found.columns.labels))] and not found.hidden.any()
    with pytest.raises(UsageError, match="head 5: this attention has heads 1 to 4"):
        heat_map(reads, "the old man .", use=use, head=5)
    for kind, other in (
        ("token", use),
        ("no encoder", "encoder-self"),
        ("no encoder, source phrases", "encoder-phrases"),
    ):
        with pytest.raises(UsageError, match=f"this model has no {other} attention"):
            heat_map(translator_of(kind, tokenizer), "the old man .", "the cow .", use=other)


def test_the_one_attention_of_a_recurrent_decoder_is_layer_one(translator: Translator) -> None:
    reads = translator_of("recurrent general", translator.tokenizer)
    named, unnamed = (heat_map(reads, "the old man .", "the cow .", layer=layer) for layer in (1, None))
    assert named.layer == 1 and np.array_equal(named.weights, unnamed.weights)
    with pytest.raises(UsageError, match="layer 2: the decoder has layers 1 to 1"):
        heat_map(reads, "the old man .", "the cow .", layer=2)


def test_own_translation(translator: Translator) -> None:
    line = "the old man ."
    own = translator.translate([line])[0]
    found = heat_map(translator, line)
    assert found.rows.orders.count(1) == len(own.tokens) + 1
    assert np.array_equal(found.weights, heat_map(translator, line).weights)


def test_blank_and_unknown(translator: Translator) -> None:
    with pytest.raises(DataError, match="blank"):
        heat_map(translator, " \u3000")
    with pytest.raises(UsageError, match="no use 'sideways'"):
        heat_map(translator, "a", use="sideways")


# --- the pictures -----------------------------------------------------------------------------------------------------


def svg_texts(path: Path) -> list[str]:
    return [e.text or "" for e in ET.parse(path).iter() if e.tag.endswith("}text")]


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from phraseloom.report.charts.heatmap import draw

    found = map_of(INTERLEAVED, "$x^2 _y \\alpha </s>", "<the> &win+ ter \x1b[1m </s>")
    path = draw(found, tmp_path / "map.svg")
    texts = svg_texts(path)
    for label in [*found.rows.labels, *found.columns.labels]:
        assert label.replace("\x1b", "\\x1b") in texts
    assert {"tokens", "2-grams", "Cross-attention, layer 3, mean of 2 heads"} <= set(texts)
    assert texts.count("2-grams") == 2
    png = draw(found, tmp_path / "map.png", title="Mine").read_bytes()
    assert png.startswith(PNG)
    assert png.endswith(b"IEND\xaeB`\x82")
    assert png == draw(found, tmp_path / "again.png", title="Mine").read_bytes()
    one = map_of(Structure.of_orders(1, [1]), "a b", "x y", head=1)
    texts = svg_texts(draw(one, tmp_path / "one.svg"))
    assert "tokens" not in texts
    assert "Cross-attention, layer 3, head 1 of 1" in texts


def test_a_picture_of_source_phrases(translator: Translator, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from phraseloom.report.charts.heatmap import draw

    reads = translator_of("source phrases", translator.tokenizer)
    found = heat_map(reads, "the old man sleeps .", "the cow .", use="decoder-phrases")
    texts = svg_texts(draw(found, tmp_path / "map.svg"))
    assert {"phrases", "source phrases", *found.columns.labels} <= set(texts)
    assert "Decoder attention to phrases, layer 2, mean of 4 heads" in texts


def test_pictures_grow_with_the_sentence(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from phraseloom.report.charts.heatmap import draw

    def size(words: int) -> tuple[float, float]:
        line = " ".join(["word"] * words)
        found = re.search(
            r'width="([\d.]+)pt" height="([\d.]+)pt"|height="([\d.]+)pt" .*?width="([\d.]+)pt"',
            draw(map_of(INTERLEAVED, line, line), tmp_path / "x.svg").read_text(),
        )
        assert found
        return tuple(float(g) for g in found.groups() if g)  # type: ignore[return-value]

    small, large = size(10), size(30)
    assert min(large) > 59 * 12 > max(small)  # 59 columns of 12 points
    with pytest.raises(UsageError, match="cannot be read"):
        size(160)


def test_characters_without_a_font_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    from phraseloom.report.charts.heatmap import draw

    with caplog.at_level(logging.WARNING, "phraseloom"):
        draw(map_of(INTERLEAVED, "\U000e0041 b", "x y"), tmp_path / "x.png")
        draw(map_of(INTERLEAVED, "\u1cd3\U00012000 b", "x y"), tmp_path / "y.png")
    assert "characters are in no installed font" in caplog.text
    assert len(caplog.records) == 1


def test_other_endings_and_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from phraseloom.report.charts import heatmap, picture

    found = map_of(INTERLEAVED, "a", "b")
    with pytest.raises(UsageError, match=r"not 'x\.jpeg'"):
        heatmap.draw(found, tmp_path / "x.jpeg")
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"phraseloom\[plot\]"):
        heatmap.draw(found, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())
