"""The explain page in a browser: what lights up and what is drawn are the document's numbers; keys, links, print, export."""

from __future__ import annotations

import base64
import time
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.browser.chromium import Tab, chromium, find
from tests.helpers import HANGS
from tests.report import explain_documents

from phraseloom.report.explain_page import explain_page

READY = "document.querySelector('.explain')?.dataset.ready"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    program = find()
    if program is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium), or its path in PHRASELOOM_CHROMIUM")
    with chromium(program, tmp_path_factory.mktemp("profile")) as tab:
        tab.size(1366, 768)
        yield tab


class Shown:
    """A document's page in the browser."""

    def __init__(self, tab: Tab, folder: Path, document: dict[str, Any], address: str = "") -> None:
        self.tab, self.document = tab, document
        path = folder / "page.html"
        path.write_text(explain_page(document), encoding="utf-8")
        tab.errors.clear()
        tab.requests.clear()
        tab.hover(0, 0)
        tab.open("about:blank")
        tab.open(f"{path.as_uri()}{address}")
        tab.wait(READY)

    def act(self, act: Any) -> None:
        """Do something that draws the page again, and wait for it."""
        before = self.tab.run(READY)
        act()
        self.tab.wait(f"{READY} !== '{before}'")

    def press(self, key: str) -> None:
        self.act(lambda: self.tab.key(key))

    def choose(self, control: str, value: str) -> None:
        code = f"""(() => {{ const node = document.querySelector("[data-control='{control}']"); node.value = "{value}";
            node.dispatchEvent(new Event("change")); }})()"""
        self.act(lambda: self.tab.run(code))

    def texts(self, selector: str) -> list[str]:
        return self.tab.run(f"[...document.querySelectorAll(`{selector}`)].map((node) => node.textContent)")

    def lit(self, side: str, model: int = 0) -> dict[int, str]:
        """Number and weight, as written, of the lit words of a side."""
        line = f".model:nth-child({model + 1}) .line.{side}"
        texts = self.texts(f"{line} .word-weight")
        return {i: text for i, text in enumerate(texts) if text}

    def page(self, name: str) -> Any:
        return self.tab.run(f"document.querySelector('.explain').explainPage.{name}")

    def state(self, name: str) -> Any:
        return self.page(f"state.{name}")

    def box(self, selector: str, number: int = 0) -> dict[str, float]:
        return self.tab.run(f"document.querySelectorAll(`{selector}`)[{number}].getBoundingClientRect().toJSON()")


@pytest.fixture
def show(browser: Tab, tmp_path: Path) -> Iterator[Any]:
    """Open a document; at the end the page must have reported no error and asked for nothing but itself."""

    def opened(document: dict[str, Any], address: str = "") -> Shown:
        return Shown(browser, tmp_path, document, address)

    yield opened
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith(("file:", "blob:", "data:", "about:"))] == []


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    return data.reshape(packed["shape"]) / 255 * packed["scale"]


def attention(view: dict[str, Any], use: str = "cross", layer: int = 2) -> dict[str, Any]:
    return next(entry for entry in view["attention"] if (entry["use"], entry["layer"]) == (use, layer))


def percent(weight: float) -> str:
    value = weight * 100
    if 0 < value < 0.1:
        return "<0.1 %"
    return "0 %" if value == 0 else f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def by_word(view: dict[str, Any], weights_ts: np.ndarray) -> np.ndarray:
    """Target words × source words: the sum over the pieces of a source word, the mean over those of a target word."""
    t_words, s_words = view["target_word"], view["source_word"]
    rows = [
        weights_ts[[t for t, w in enumerate(t_words) if w == word]].mean(0) for word in range(len(view["target_words"]))
    ]
    sums = [
        [row[[s for s, w in enumerate(s_words) if w == word]].sum() for word in range(len(view["source_words"]))]
        for row in rows
    ]
    return np.array(sums)


def near(texts: dict[int, str], weights: np.ndarray, least: float = 0.03) -> None:
    """The texts say the weights that are at least `least`, each to its last figure."""
    assert set(texts) >= {int(i) for i in np.flatnonzero(weights > least + 1e-3)}
    assert set(texts) <= {int(i) for i in np.flatnonzero(weights > least - 1e-3)}
    for i, text in texts.items():
        assert abs(float(text.removesuffix(" %")) - 100 * weights[i]) < (0.051 if "." in text else 0.51)


def test_a_target_word_lights_what_it_reads(show: Any) -> None:
    shown = show(explain_documents.small())
    view = shown.document["sentences"][0]["views"][0]
    weights = by_word(view, unpacked(attention(view)["tokens"]).mean(0))
    for word in (2, 5, 10):
        shown.tab.hover(*shown.tab.middle(".line.target .word", word))
        near(shown.lit("source"), weights[word])
        assert shown.lit("target") == {}
    assert shown.tab.run("document.querySelectorAll('path.lit').length") == len(shown.lit("source"))
    shown.tab.hover(5, 760)
    assert shown.lit("source") == {}
    shown.press("3")
    shown.tab.hover(*shown.tab.middle(".line.target .word", 2))
    near(shown.lit("source"), by_word(view, unpacked(attention(view)["tokens"])[2])[2])


def test_a_source_word_lights_who_reads_it(show: Any) -> None:
    shown = show(explain_documents.small())
    view = shown.document["sentences"][0]["views"][0]
    weights = by_word(view, unpacked(attention(view)["tokens"]).mean(0))
    shown.tab.hover(*shown.tab.middle(".line.source .word", 6))
    near(shown.lit("target"), weights[:, 6])
    assert shown.texts(".reading h3") == ["“Fahrrad” is read by"]


def test_the_list_names_the_heaviest_slots(show: Any) -> None:
    shown = show(explain_documents.small())
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view)
    row = unpacked(entry["weights"]).mean(0)[2]
    order = np.argsort(-row, kind="stable")[:5]
    shown.tab.hover(*shown.tab.middle(".line.target .word", 2))
    labels = [entry["columns"]["labels"][i] for i in order]
    assert shown.texts(".reading th") == labels
    assert shown.texts(".reading td.number") == [percent(row[i]) for i in order]
    assert shown.tab.run("document.querySelectorAll('.bracket').length") > 0
    shown.tab.hover(*shown.tab.middle(".line.target .word", 1))
    assert "phrase link: Ein alter ↔ An old (61 %)" in shown.texts(".reading p")[0]
    assert shown.tab.run("document.querySelectorAll('.phrase-frame').length") == 2


CELL = """(() => { const canvas = document.querySelectorAll(".quadrant canvas")[%d];
    return [...canvas.getContext("2d").getImageData(%d, %d, 1, 1).data]; })()"""


def test_cells_have_the_colour_of_their_weight(show: Any) -> None:
    shown = show(explain_documents.small())
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view)
    tokens = len(view["source_tokens"])
    assert shown.tab.run("document.querySelectorAll('.quadrant').length") == 4
    for key, weights in (("0", unpacked(entry["weights"]).mean(0)), ("3", unpacked(entry["weights"])[2])):
        shown.press(key)
        for row, column in (
            (1, 1),
            (2, tokens + 2),
            (len(view["target_tokens"]) + 3, 4),
            (len(view["target_tokens"]) + 1, tokens + 1),
        ):
            down, right = row >= len(view["target_tokens"]), column >= tokens
            x, y = column - tokens * right, row - len(view["target_tokens"]) * down
            share = weights[row, column] / weights.max()
            want = shown.tab.run(f"Explain.rgb({share})")
            assert np.abs(np.array(shown.tab.run(CELL % (2 * down + right, x, y))) - [*want, 255]).max() <= 4


def test_colours_darken_with_the_weight(show: Any) -> None:
    shown = show(explain_documents.small())
    light = np.array(shown.tab.run("Array.from({length: 256}, (_, i) => Explain.rgb(i / 255))")) @ [
        0.2126,
        0.7152,
        0.0722,
    ]
    assert (np.diff(light) <= 0.5).all()
    assert light[0] > 254.9
    assert light[-1] < 50


def test_weights_spread_over_tokens(show: Any) -> None:
    shown = show(explain_documents.small())
    shown.press("t")
    view = shown.document["sentences"][0]["views"][0]
    assert shown.texts(".map-columns text") == view["source_tokens"]
    assert shown.texts(".map-rows text") == view["target_tokens"]
    weights = unpacked(attention(view)["tokens"]).mean(0)
    want = shown.tab.run(f"Explain.rgb({weights[3, 3] / weights.max()})")
    assert np.abs(np.array(shown.tab.run(CELL % (0, 3, 3))) - [*want, 255]).max() <= 4


def test_the_tip_says_row_column_and_weight(show: Any) -> None:
    shown = show(explain_documents.small())
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view)
    box, cell = shown.box(".quadrant", 1), shown.page("maps[0].cell")
    shown.tab.hover(box["left"] + 2.5 * cell, box["top"] + 1.5 * cell)
    column = len(view["source_tokens"]) + 2
    weight = unpacked(entry["weights"]).mean(0)[1, column]
    labels = shown.texts(".tip bdi")
    assert labels == [entry["rows"]["labels"][1], entry["columns"]["labels"][column]]
    assert shown.texts(".tip strong") == [percent(weight)]
    assert sorted(shown.texts(".label.on")) == sorted(labels)


def test_the_map_by_keys(show: Any) -> None:
    shown = show(explain_documents.small())
    shown.tab.run("document.querySelector('.map').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        shown.tab.key(key)
    said = shown.texts(".map-frame [aria-live]")[0]
    assert said.startswith("old reads Mann: ")
    shown.tab.key("Enter")
    assert shown.state("pinned") == {"model": 0, "side": "target", "index": 1}


def test_words_by_keys(show: Any) -> None:
    shown = show(explain_documents.small())
    shown.tab.run("document.querySelector('.line.target .word').focus()")
    shown.tab.key("ArrowRight")
    shown.tab.key("ArrowRight")
    assert shown.tab.run("document.activeElement.firstChild.textContent") == "man"
    assert shown.lit("source")
    shown.tab.key("ArrowUp")
    assert shown.tab.run("document.activeElement.closest('.line').className") == "line source"
    shown.tab.key("ArrowDown")
    shown.tab.key("Enter")
    assert shown.tab.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert "word=1.target." in shown.tab.run("location.hash")
    shown.tab.run("document.activeElement.blur()")
    assert shown.lit("source")
    shown.tab.key("Escape")
    assert shown.lit("source") == {}
    assert shown.tab.run("document.querySelectorAll('.line.target [tabindex=\"0\"]').length") == 1


def test_keys_choose_what_is_shown(show: Any) -> None:
    shown = show(explain_documents.small())
    assert shown.page("columns[0].title") == "Cross-attention, layer 2, mean of 4 heads"
    shown.press("l")
    shown.press("2")
    assert shown.page("columns[0].title") == "Cross-attention, layer 3, head 2 of 4"
    shown.press("L")
    shown.press("h")
    shown.press("u")
    assert shown.page("columns[0].title") == "Encoder self-attention, layer 2, head 3 of 4"
    shown.press("0")
    shown.press("c")
    assert shown.state("scale") == "root"
    shown.press("s")
    assert shown.texts(".line.source .word-text")[:2] == ["Zwei", "Hunde"]
    assert shown.texts(".note") == ["the source was cropped to 250 subwords"]
    shown.press("S")
    assert shown.texts(".line.source .word-text")[0] == "Ein"
    shown.tab.key("?")
    assert shown.tab.run("document.querySelector('dialog').open")
    shown.tab.key("l")
    assert shown.state("layers") == [2]
    shown.tab.key("Escape")
    assert not shown.tab.run("document.querySelector('dialog').open")


def test_selects_and_thumbnails_choose_too(show: Any) -> None:
    shown = show(explain_documents.small())
    shown.choose("use", "decoder-self")
    shown.choose("layer0", "1")
    shown.choose("head0", "4")
    assert (shown.state("use"), shown.state("layers"), shown.state("heads")) == ("decoder-self", [1], [4])
    assert shown.tab.run(CELL % (0, 5, 2))[3] == 0, "what the decoder may not see is not drawn"
    shown.act(lambda: shown.tab.click(".thumb[aria-label='layer 3, head 2']"))
    assert (shown.state("layers"), shown.state("heads")) == ([3], [2])
    shown.tab.hover(*shown.tab.middle(".line.target .word", 4))
    assert set(shown.lit("target")) <= {0, 1, 2, 3, 4}
    assert shown.lit("source") == {}


def test_a_view_has_an_address(show: Any) -> None:
    shown = show(
        explain_documents.small(), "#s=1&use=cross&layer=3&head=2&weights=tokens&scale=root&word=1.target.3&cell=11"
    )
    assert shown.page("columns[0].title") == "Cross-attention, layer 3, head 2 of 4"
    assert shown.lit("source")
    address = shown.tab.run("location.hash")
    again = show(explain_documents.small(), address)
    assert again.tab.run("location.hash") == address
    assert again.page("maps[0].cell") == 11


@pytest.mark.parametrize(
    "address",
    ["#nothing", "#s=99&use=none&layer=77&head=-1&word=9.x.1&scale=constructor&cell=1e9", "#word=1.target.999"],
)
def test_addresses_that_say_nonsense_are_passed_over(show: Any, address: str) -> None:
    shown = show(explain_documents.small(), address)
    assert shown.texts(".line.source .word-text")[0] == "Ein"
    assert shown.texts(".quadrant")


def test_a_hundred_tokens(show: Any) -> None:
    began = time.monotonic()
    shown = show(explain_documents.long())
    shown.tab.wait("document.querySelectorAll('.thumb').length === 54")
    assert time.monotonic() - began < 20
    began = time.monotonic()
    shown.press("5")
    assert time.monotonic() - began < 5
    shown.tab.run("document.querySelector('.map').scrollTo(900, 700)")
    frame = shown.box(".map")
    assert abs(shown.box(".map-rows")["left"] - frame["left"]) < 3
    assert abs(shown.box(".map-columns")["top"] - frame["top"]) < 3
    assert shown.page("maps[0].scroller.scrollLeft") == 900
    assert shown.page("maps[0].scroller.scrollTop") == 700
    assert shown.tab.run("document.documentElement.scrollWidth <= innerWidth"), "the page itself has no sideways scroll"
    shown.tab.key("f")
    assert shown.page("maps[0].scroller.scrollWidth") <= shown.page("maps[0].scroller.clientWidth")


def test_two_models_side_by_side(show: Any) -> None:
    shown = show(explain_documents.two_models())
    assert shown.texts(".model h2") == ["phrasal model", "base model"]
    shown.tab.hover(*shown.tab.middle(".line.source .word", 4))
    assert shown.lit("target", 0)
    assert shown.lit("target", 1)
    shown.tab.hover(*shown.tab.middle(".line.target .word", 4))
    assert shown.lit("source", 0)
    assert not shown.lit("source", 1)
    assert len(set(shown.page("maps.map((map) => map.cell)"))) == 1
    shown.choose("layer1", "2")
    assert shown.state("layers[1]") == 2
    shown.press("l")
    assert shown.state("layers") == [3, 1]
    lefts = shown.tab.run("[...document.querySelectorAll('.model')].map((node) => node.getBoundingClientRect().left)")
    tops = shown.tab.run("[...document.querySelectorAll('.stage')].map((node) => node.getBoundingClientRect().top)")
    assert lefts[0] < lefts[1]
    assert tops[0] == tops[1]


OUTSIDE = """[...document.querySelectorAll('.explain *')].filter((node) => {
    const box = node.getBoundingClientRect();
    return box.width && !node.closest('.map, .sr') && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((node) => `${node.tagName} ${node.className}`)"""


@pytest.mark.parametrize("width", [1400, 400])
def test_two_models_in_a_wide_and_a_narrow_window(show: Any, browser: Tab, width: int) -> None:
    """Nothing leaves the window, and all columns of both maps are in sight; a map that is too wide says that it scrolls."""
    source = " ".join([explain_documents.SOURCE] * 2)
    target = " ".join([explain_documents.TARGET, "Donaudampfschifffahrtsgesellschaftskapitän"] * 2)
    label = "runs/multi30k-phrasal-queryk-heterogeneous-12/averaged"
    pages = {
        "short": explain_documents.two_models(),
        "long": explain_documents.document(
            [explain_documents.model(label=label), explain_documents.model()],
            [
                explain_documents.sentence(
                    source, explain_documents.view(source, target), explain_documents.view(source, target)
                )
            ],
        ),
    }
    browser.size(width, 900)
    try:
        for name, document in pages.items():
            shown = show(document, "#word=1.target.2")
            assert shown.tab.run("document.documentElement.scrollWidth <= innerWidth")
            assert shown.tab.run(OUTSIDE) == []
            wide = "[...document.querySelectorAll('.map')].map((map) => map.scrollWidth > map.clientWidth + 1)"
            assert set(shown.tab.run(wide)) == {name == "long" and width == 400}
            notes = shown.texts(".map-note")
            assert {"scroll sideways" in note for note in notes} == {name == "long" and width == 400}
    finally:
        browser.size(1366, 768)


def test_a_model_without_attention(show: Any) -> None:
    shown = show(explain_documents.segmental())
    assert shown.texts(".map") == []
    assert shown.texts(".seg.none .seg-source") == ["mit", "."]
    assert shown.texts(".seg:nth-child(7) .seg-target span") == ["bicycle", "through"]
    assert shown.texts(".seg:nth-child(9)") == ["den9winter garden−2.70"]
    assert shown.tab.run("document.querySelector('.controls.attention').hidden")
    shown.tab.hover(*shown.tab.middle(".line.target .word", 2))
    assert shown.lit("source") == {2: "70 %"}
    for key in "lhuc0+ft":
        shown.tab.key(key)


def test_a_word_cut_between_segments_is_shown_by_its_pieces(show: Any) -> None:
    document = explain_documents.segmental()
    view = document["sentences"][0]["views"][0]
    bicycle = view["target_tokens"].index("bicycl")
    view["segments"] = [
        {"source": 6, "target": [5, 6], "log_prob": -1.0, "source_token": 6, "target_tokens": [bicycle, bicycle + 1]},
        {
            "source": 7,
            "target": [5, 7],
            "log_prob": -1.0,
            "source_token": 7,
            "target_tokens": [bicycle + 1, bicycle + 3],
        },
    ]
    shown = show(document)
    assert shown.texts(".seg-target > span") == ["bicycl", "…e throug"]


def test_phrase_vectors_and_levels(show: Any) -> None:
    shown = show(explain_documents.phrases())
    view = shown.document["sentences"][0]["views"][0]
    weights = [w for phrase in view["phrase_vectors"][0]["phrases"] for w in phrase["weights"]]
    assert shown.texts(".phrases .column > small") == [percent(w) for w in weights]
    code = "{ const s = document.querySelector('.part .no-print select'); s.selectedIndex = 2; "
    shown.tab.run(code + "s.dispatchEvent(new Event('change')); }")
    weights = [w for phrase in view["phrase_vectors"][2]["phrases"] for w in phrase["weights"]]
    assert shown.texts(".phrases .column > small") == [percent(w) for w in weights]
    assert shown.texts(".phrases .share")[0] == "glance 40 %"
    shown.press("l")
    assert shown.tab.run("document.querySelector('.part .no-print select').selectedIndex") == 2
    assert shown.texts(".fertility td") == ["50", "20", "10", "30", "30", "20", "20", "50", "70"]


def by_phrase(view: dict[str, Any], entry: dict[str, Any], head: int | None) -> np.ndarray:
    """Row words × phrases: the mean over the tokens of a word."""
    weights = unpacked(entry["weights"])
    weights_rp = weights.mean(0) if head is None else weights[head - 1]
    words = view[f"{entry['rows']['side']}_word"]
    return np.array(
        [weights_rp[[i for i, w in enumerate(words) if w == n]].mean(0) for n in range(max(words[:-1]) + 1)]
    )


def words_of_phrases(view: dict[str, Any], entry: dict[str, Any]) -> list[set[int]]:
    """The source words that each phrase touches."""
    columns = entry["columns"]
    ranges = [range(e - n + 1, e + 1) for n, e in zip(columns["orders"], columns["ends"], strict=True)]
    return [{view["source_word"][t] for t in tokens} - {None} for tokens in ranges]


def test_a_target_word_lights_the_phrases_it_reads(show: Any) -> None:
    """Every word of a phrase has its weight, a word of two phrases that of both; a curve and a line for each phrase."""
    shown = show(explain_documents.phrases(), "#use=decoder-phrases&layer=2")
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view, "decoder-phrases")
    inside = words_of_phrases(view, entry)
    assert sum(6 in words for words in inside) == 2
    for head, word in ((None, 2), (None, 5), (3, 8)):
        shown.press("0" if head is None else str(head))
        shown.tab.hover(*shown.tab.middle(".line.target .word", word))
        read = by_phrase(view, entry, head)[word]
        near(shown.lit("source"), np.array([read[[w in words for words in inside]].sum() for w in range(11)]))
        assert shown.lit("target") == {}
        heavy = int((read > 0.03).sum())
        for shape in ("path.lit", ".bracket"):
            assert shown.tab.run(f"document.querySelectorAll('{shape}').length") == heavy
        order = np.argsort(-read, kind="stable")
        labels = [entry["columns"]["labels"][i] for i in order]
        assert shown.texts(".reading th") == labels[: int((read >= 0.003).sum())]
        assert set(shown.texts(".reading td.soft")) == {"phrase"}
        bold = [label for label, weight in zip(entry["columns"]["labels"], read, strict=True) if weight > 0.1]
        assert shown.texts(".map-columns .label.lit") == bold
        assert shown.texts(".map-rows .label.lit") == [
            t for t, w in zip(view["target_tokens"], view["target_word"], strict=True) if w == word
        ]


def test_who_reads_the_phrases_of_a_source_word(show: Any) -> None:
    shown = show(explain_documents.phrases(), "#use=decoder-phrases&layer=2")
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view, "decoder-phrases")
    read = by_phrase(view, entry, None)
    shown.tab.hover(*shown.tab.middle(".line.source .word", 1))
    near(shown.lit("target"), read[:, 0])
    assert shown.texts(".reading h3") == ["“alter” in Ein·alter·Mann is read by"]
    assert shown.texts(".map-columns .label.lit") == ["Ein·alter·Mann"]
    shown.tab.hover(*shown.tab.middle(".line.source .word", 6))
    near(shown.lit("target"), read[:, 1] + read[:, 2])


def test_source_words_read_phrases_in_the_encoder(show: Any) -> None:
    shown = show(explain_documents.phrases())
    uses = [f"{where} attention to phrases" for where in ("Encoder", "Decoder")]
    assert shown.texts("[data-control='use'] option")[-2:] == uses
    shown.choose("use", "encoder-phrases")
    shown.choose("layer0", "1")
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view, "encoder-phrases", 1)
    inside = words_of_phrases(view, entry)
    shown.tab.hover(*shown.tab.middle(".line.source .word", 9))
    read = by_phrase(view, entry, None)[9]
    near(shown.lit("source"), np.array([read[[w in words for words in inside]].sum() for w in range(11)]))
    assert shown.tab.run("document.querySelectorAll('path.lit').length") == 0
    shown.tab.hover(*shown.tab.middle(".line.target .word", 2))
    assert shown.lit("source"), "target words light their word links"
    small = show(explain_documents.small())
    assert len(small.texts("[data-control='use'] option")) == 3


def test_the_map_of_phrases(show: Any) -> None:
    """Cells, labels, tip, keys and export; one block in the order of the sentence, nothing to spread over tokens."""
    shown = show(explain_documents.phrases(), "#use=decoder-phrases&layer=2")
    view = shown.document["sentences"][0]["views"][0]
    entry = attention(view, "decoder-phrases")
    weights = unpacked(entry["weights"]).mean(0)
    assert len(shown.texts(".quadrant")) == 1
    assert shown.texts(".map-columns text") == entry["columns"]["labels"]
    assert shown.texts(".block-name")[0] == "phrases"
    assert shown.tab.run("document.querySelector('[data-control=spread]').parentNode.hidden")
    for row, column in ((0, 0), (3, 1), (7, 4)):
        want = shown.tab.run(f"Explain.rgb({weights[row, column] / weights.max()})")
        assert np.abs(np.array(shown.tab.run(CELL % (0, column, row))) - [*want, 255]).max() <= 4
    shown.tab.run("document.querySelector('.map').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        shown.tab.key(key)
    said = shown.texts(".map-frame [aria-live]")[0]
    assert said == f"rides reads fährt·mit·dem·Fahrra: {percent(weights[3, 1])}"
    assert shown.texts(".tip small") == ["token → phrase"]
    assert shown.lit("source") == dict.fromkeys((3, 4, 5, 6), percent(weights[3, 1]))
    shown.tab.key("Enter")
    assert shown.state("pinned") == {"model": 0, "side": "target", "index": 3}
    picture = shown.tab.run("Explain.exportSvg(document.querySelector('.explain').explainPage)")
    root = ElementTree.fromstring(picture)
    texts = [node.text for node in root.iter(f"{SVG}text")]
    assert {*entry["columns"]["labels"], *view["target_tokens"], "phrases"} <= set(texts)
    heavy = int((by_phrase(view, entry, None)[3] > 0.03).sum())
    assert len(list(root.iter(f"{SVG}line"))) >= heavy
    shown.press("u")
    assert shown.page("columns[0].title").startswith("Cross-attention")
    assert shown.tab.run("document.documentElement.scrollWidth <= innerWidth")


def test_the_gate_and_fertility(show: Any) -> None:
    shown = show(explain_documents.continuous())
    gate = shown.document["sentences"][0]["views"][0]["gate"]
    assert shown.texts(".strip .column > small:first-child") == [percent(p) for p in gate["word_share"]]
    assert [text == "phrase" for text in shown.texts(".strip .column > small:last-child")] == gate["is_phrase"]
    best = shown.tab.run("document.querySelectorAll('.fertility td.best').length")
    assert best == len([p for p in gate["fertility"] if p])


def test_blank_views_and_shares_of_nothing(show: Any) -> None:
    document = explain_documents.small()
    view = document["sentences"][0]["views"][0]
    blank = dict.fromkeys(view, None) | {
        key: [] for key, value in view.items() if isinstance(value, list)
    } | {"target": "", "given": False, "notes": ["the source is blank"]}  # fmt: skip
    document["sentences"][0]["views"] = [blank]
    document["sentences"][1]["views"][0]["shares"][0]["heads"][0] = None
    shown = show(document)
    assert shown.texts(".note") == ["the source is blank"]
    shown.press("s")
    assert shown.texts(".quadrant")
    shown.choose("layer0", "1")


def test_attention_without_single_tokens(show: Any) -> None:
    """Columns of 2-grams alone: spread over tokens they have the labels of the tokens."""
    document = explain_documents.small()
    view = document["sentences"][0]["views"][0]
    for entry in view["attention"]:
        keep = [i for i, order in enumerate(entry["columns"]["orders"]) if order == 2]
        weights = unpacked(entry["weights"])[:, :, keep]
        entry["columns"] = {
            key: value if key == "side" else [value[i] for i in keep] for key, value in entry["columns"].items()
        }
        entry["weights"] = explain_documents.packed(weights)
    shown = show(document)
    shown.tab.hover(*shown.tab.middle(".line.target .word", 2))
    assert shown.lit("source")
    shown.press("t")
    assert shown.texts(".map-columns text") == view["source_tokens"]
    shown.choose("use", "decoder-self")
    assert shown.texts(".map-columns text") == ["<s>", *view["target_tokens"][:-1]]


HOSTILE = "<img/src=x/onerror=bad()>"


def test_texts_are_never_markup(show: Any) -> None:
    document = explain_documents.small()
    sentence = document["sentences"][0]
    view = sentence["views"][0]
    document["models"][0] |= {"label": HOSTILE, "description": HOSTILE, "languages": [HOSTILE, HOSTILE]}
    sentence |= {"source": HOSTILE, "reference": HOSTILE}
    view |= {"notes": [HOSTILE], "target": HOSTILE}
    for key in ("source_words", "target_words", "source_tokens", "target_tokens"):
        view[key] = [HOSTILE] * len(view[key])
    for entry in view["attention"]:
        entry["kind"] = HOSTILE
        for axis in (entry["rows"], entry["columns"]):
            axis["labels"] = [HOSTILE] * len(axis["labels"])
    view["segments"] = [{"source": 0, "target": [0, 2], "log_prob": -1.0}]
    view["phrase_vectors"] = [
        {"stage": HOSTILE, "layer": None, "phrases": [{"begin": 0, "end": 2, "weights": [0.5, 0.5], "share": None}]}
    ]
    view["gate"] = explain_documents.continuous()["sentences"][0]["views"][0]["gate"] | {"classes": [HOSTILE] * 4}
    shown = show(document)
    shown.tab.run("window.bad = () => { window.wasBad = true; }")
    shown.tab.hover(*shown.tab.middle(".line.target .word", 2))
    shown.tab.run("document.querySelector('.map').focus()")
    shown.tab.key("ArrowDown")
    assert shown.tab.run("document.querySelectorAll('img').length") == 0
    assert not shown.tab.run("window.wasBad")
    picture = shown.tab.run("Explain.exportSvg(document.querySelector('.explain').explainPage)")
    assert "<img" not in picture


def test_scripts_of_the_world_and_endless_words(show: Any) -> None:
    """Right-to-left lines run from the right; nothing pushes the page sideways."""
    source = "رجل عجوز يركب دراجة عبر الحديقة ."
    document = explain_documents.document(
        [explain_documents.model(languages=["ar", "zh"], label="x" * 300)],
        [explain_documents.sentence(source, explain_documents.view(source, f"一个 老 人 {'長' * 300} 骑 车 。"))],
    )
    shown = show(document, "#word=1.target.2")
    assert shown.lit("source")
    assert shown.box(".line.source .word", 0)["left"] > shown.box(".line.source .word", 3)["left"]
    shown.tab.run("document.querySelector('.line.source .word').focus()")
    shown.tab.key("ArrowLeft")
    assert shown.tab.run("document.activeElement.firstChild.textContent") == source.split()[1]
    assert shown.box(".line.target .word", 0)["left"] < shown.box(".line.target .word", 2)["left"]
    picture = shown.tab.run("Explain.exportSvg(document.querySelector('.explain').explainPage)")
    places: dict[Any, float] = {}
    for node in ElementTree.fromstring(picture).iter(f"{SVG}text"):
        places.setdefault(node.text, float(node.get("x") or -1))  # the words, then the labels of the map
    first, second, third = (places[word] for word in source.split()[:3])
    assert first > second > third >= 0
    assert places["一个"] < places["老"]
    assert shown.tab.run("document.documentElement.scrollWidth <= innerWidth")


SVG = "{http://www.w3.org/2000/svg}"


def test_control_characters_are_not_in_a_saved_picture(show: Any) -> None:
    """XML has no such characters."""
    document = explain_documents.small()
    document["sentences"][0]["source"] = "a small\x0bdog \x1b[31m runs"
    shown = show(document)
    picture = shown.tab.run("Explain.exportSvg(document.querySelector('.explain').explainPage)")
    title = ElementTree.fromstring(picture).find(f"{SVG}title")
    assert title is not None and title.text == "a small\ufffddog \ufffd[31m runs"


def test_the_view_is_saved_as_svg(show: Any, tmp_path: Path) -> None:
    shown = show(explain_documents.two_models())
    shown.tab.click(".line.target .word", 2)
    shown.tab.downloads(tmp_path)
    shown.tab.key("e")
    path = tmp_path / "explain-1.svg"
    deadline = time.monotonic() + HANGS
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = [node.text for node in root.iter(f"{SVG}text")]
    view = shown.document["sentences"][0]["views"][0]
    for text in ("phrasal model", "base model", *view["source_words"], *view["target_tokens"], "alter·Mann"):
        assert text in texts
    weights = unpacked(attention(view)["weights"]).mean(0)
    drawn = sum(node.get("d").count("h14") for node in root.iter(f"{SVG}path"))
    assert drawn >= (np.round(weights / weights.max() * 48) > 0).sum()


def test_paper_has_its_own_layout(show: Any, tmp_path: Path) -> None:
    shown = show(explain_documents.small(), "#word=1.target.3")
    shown.tab.run("window.dispatchEvent(new Event('beforeprint'))")
    assert shown.box(".explain")["width"] == 700
    assert shown.tab.run("getComputedStyle(document.querySelector('.bar-top')).display") == "none"
    assert "Cross-attention, layer 2, mean of 4 heads" in shown.texts(".only-print")
    end = float(shown.tab.run("document.querySelector('path.lit').getAttribute('d')").split(" ")[-1].split(",")[0])
    word, pair = shown.box(".line.target .word-text", 2), shown.box(".pair")
    assert abs(end - (word["left"] + word["right"]) / 2 + pair["left"]) < 1.5, "curves end at the words as printed"
    shown.tab.run("window.dispatchEvent(new Event('afterprint'))")
    assert not shown.tab.run("document.querySelector('.printing')")
    assert shown.tab.pdf(tmp_path / "page.pdf").stat().st_size > 5000


def test_every_control_has_a_name(show: Any) -> None:
    shown = show(explain_documents.two_models())
    nodes = shown.tab.send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "combobox", "application", "dialog", "group", "region", "image", "textbox"}
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
    ]
    assert [role for role, name in found if role in named and not name] == []
    assert {"button", "combobox", "application", "main"} <= {role for role, _ in found}


def test_the_way_of_the_focus(show: Any) -> None:
    """Tab goes through controls, one word of each line, layer and head, the map, then the small maps."""
    shown = show(explain_documents.small())
    kinds = []
    for _ in range(20):
        shown.tab.key("Tab")
        kinds.append(shown.tab.run("document.activeElement.dataset.control ?? document.activeElement.className"))
    stops = {"sentence", "use", "word", "word active", "layer0", "head0", "map", "thumb"}
    assert [kind for kind in kinds if kind in stops][:9] == [
        "sentence", "use", "word active", "word active", "layer0", "head0", "map", "thumb", "thumb",
    ]  # fmt: skip


def test_pages_replace_each_other(show: Any) -> None:
    shown = show(explain_documents.small())
    shown.tab.run("""(() => { const node = document.querySelector(".explain"); delete node.dataset.ready;
        const doc = JSON.parse(document.getElementById("document").textContent);
        window.first = node.explainPage; Explain.show(doc, node, {hash: false}); })()""")
    shown.tab.wait(READY)
    assert shown.tab.run("document.querySelectorAll('.bar-top').length") == 1
    before = shown.tab.run("location.hash")
    shown.press("l")
    assert shown.tab.run("location.hash") == before
    assert shown.tab.run("window.first.state.layers[0] ?? null") is None
    shown.page("destroy()")
    assert shown.tab.run("document.querySelector('.explain').childElementCount") == 0


def test_weights_that_do_not_fit_are_told(show: Any) -> None:
    document = explain_documents.small()
    attention(document["sentences"][0]["views"][0])["weights"]["shape"] = [4, 3, 3]
    shown = show(document)
    assert "weights where 4 × 3 × 3 are expected" in shown.texts(".note")[0]
    shown.press("l")
    assert shown.texts(".quadrant")


def test_a_sentence_too_short_for_any_slot(show: Any) -> None:
    """An attention to bigrams alone has none in a source of one token."""
    document = explain_documents.small()
    found = attention(document["sentences"][0]["views"][0])
    found["columns"] = {"labels": [], "orders": [], "ends": [], "side": "source"}
    found["weights"] = explain_documents.packed(np.zeros((found["heads"], len(found["rows"]["ends"]), 0)))
    shown = show(document)
    assert shown.tab.errors == []
    shown.press("l")
    assert shown.texts(".quadrant")
