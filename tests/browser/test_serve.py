"""The live page in a browser: what is typed is translated; words are kept; a look inside; texts are never markup."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.analysis.explain_kinds import joined_tokenizer, translator_of
from tests.browser.chromium import Tab, chromium, find
from tests.decoding.conftest import model_folder, translator
from tests.serving.harness import FakeModels, FakeTranslator, Running, running
from tests.serving.test_streams import SlowStream

from phraseloom.decoding.constraints import Constraints
from phraseloom.decoding.translation import Translation
from phraseloom.decoding.translator import Translator
from phraseloom.files import read_manifest, write_manifest
from phraseloom.models.store import load_tensors, save_tensors
from phraseloom.serving.app import live_page
from phraseloom.serving.models import Models

__all__ = ["model_folder", "translator"]

PROGRAM = find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (its program, or PHRASELOOM_CHROMIUM)")
SECONDS = 30.0
ROW = "#targets .live-row:not(.other)"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(str(PROGRAM), tmp_path_factory.mktemp("profile")) as found:
        found.size(1366, 768)
        yield found


@pytest.fixture
def page(tab: Tab) -> Iterator[tuple[Tab, Running, FakeTranslator]]:
    """The page of a server with two fake translators."""
    fake = FakeTranslator()
    translators = {"fake": fake, "other": FakeTranslator()}
    with running(translators=translators, models=Described, page=live_page().encode()) as server:
        tab.errors.clear()
        tab.requests.clear()
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.wait("document.body.dataset.ready", SECONDS)
        yield tab, server, fake
        tab.open("about:blank")


class Described(FakeModels):
    def _describe(self, name: str) -> dict:
        return {
            "name": name,
            "parameters": 1234,
            "description": "a fake",
            "languages": ["fr", "it"] if name == "foreign" else ["en", "de"],
            "beam": 5,
            "n_best": 1,
            "trees": False,
            "terms": 3 if name == "terms" else 0,
        }


def type_in(tab: Tab, text: str, into: str = "#source") -> None:
    tab.click(into)
    tab.run(f"document.querySelector({json.dumps(into)}).select()")
    tab.send("Input.insertText", text=text)


def texts(tab: Tab, selector: str = ROW) -> list[str]:
    code = f"""[...document.querySelectorAll({json.dumps(selector)})].map((row) =>
        [...row.children].filter((c) => c.tagName === "BUTTON").map((b) => b.textContent).join(" "))"""
    return tab.run(code)


def wait_for(tab: Tab, wanted: list[str], selector: str = ROW) -> None:
    code = f"""JSON.stringify([...document.querySelectorAll({json.dumps(selector)})].map((row) =>
        [...row.children].filter((c) => c.tagName === "BUTTON").map((b) => b.textContent).join(" ")))
        === JSON.stringify({json.dumps(wanted)}) && !document.querySelector("#targets.old")"""
    tab.wait(code, SECONDS)


def test_typing_translates_and_words_are_kept(page) -> None:
    tab, server, _ = page
    type_in(tab, "a dog runs\n\n<b>here</b>")
    wait_for(tab, ["A DOG RUNS", "<B>HERE</B>"])
    assert tab.run("document.querySelectorAll('#targets b').length") == 0
    tab.click(f"{ROW} button", 1)
    wait_for(tab, ["A DOGA DOG RUNS", "<B>HERE</B>"])  # what the fake one makes of the prefix "A DOG"
    assert tab.run("[...document.querySelectorAll('.kept')].map((b) => b.textContent)") == ["A"]
    assert tab.run("document.activeElement.textContent") == "DOGA"  # the focus stays in its place
    tab.click(f"{ROW} input")
    tab.run(f"document.querySelector('{ROW} input').setSelectionRange(1, 1)")
    tab.send("Input.insertText", text="B")
    wait_for(tab, ["AB DOGA DOG RUNS", "<B>HERE</B>"])
    assert tab.run("document.activeElement.selectionStart") == 2
    tab.click(f"{ROW} label button")
    wait_for(tab, ["A DOG RUNS", "<B>HERE</B>"])
    assert tab.errors == []
    assert all(url.startswith((f"http://127.0.0.1:{server.port}/", "about:")) for url in tab.requests)


def test_texts_from_right_to_left_and_long_ones(page) -> None:
    """Each text has the direction of its letters; the field for the source grows with what is typed."""
    tab, _, _ = page
    nodes = f"[document.querySelector('#source'), ...document.querySelectorAll('{ROW}')]"
    directions = f"{nodes}.map((n) => getComputedStyle(n).direction)"
    type_in(tab, "a dog")
    wait_for(tab, ["A DOG"])
    assert tab.run(directions) == ["ltr", "ltr"]
    height = tab.run("document.querySelector('#source').clientHeight")
    type_in(tab, "שלום עולם\na dog")
    wait_for(tab, ["שלום עולם", "A DOG"])
    assert tab.run(directions) == ["rtl", "rtl", "ltr"]
    score = f"document.querySelector('{ROW} .score').getBoundingClientRect().x"
    assert tab.run(f"{score} < document.querySelector('{ROW} button').getBoundingClientRect().x")
    type_in(tab, "a dog runs " * 60)
    wait_for(tab, [("A DOG RUNS " * 60).strip()])
    assert tab.run("document.querySelector('#source').clientHeight") > 1.5 * height
    assert tab.run("document.querySelector('#source').clientHeight <= 0.6 * innerHeight")


def test_models_of_other_languages_are_named_with_them(tab: Tab) -> None:
    translators = {name: FakeTranslator() for name in ("fake", "foreign")}
    with running(translators=translators, models=Described, page=live_page().encode()) as server:
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.wait("document.body.dataset.ready", SECONDS)
        type_in(tab, "a")
        tab.run("document.getElementById('beside').value = 'foreign'")
        tab.run("document.getElementById('beside').dispatchEvent(new Event('change'))")
        wait_for(tab, ["A", "A"])
        shown = tab.run("[...document.querySelectorAll('.live-model')].map((n) => n.textContent)")
        assert shown == ["fake", "foreign: fr → it"]
        tab.open("about:blank")


def test_two_models_and_their_names(page) -> None:
    tab, _, _ = page
    type_in(tab, "a")
    tab.run(
        "(() => { const s = document.getElementById('beside'); s.value = 'other'; s.dispatchEvent(new Event('change')); })()"
    )
    wait_for(tab, ["A", "A"])
    assert tab.run("[...document.querySelectorAll('.live-model')].map((n) => n.textContent)") == ["fake", "other"]
    assert tab.run("document.getElementById('source-name').textContent") == "en"
    controls = "[...document.querySelectorAll('select, input, textarea, button')]"
    assert tab.run(f"{controls}.filter((n) => !n.labels?.length && !n.textContent).length") == 0


def test_what_the_server_refuses_is_shown_and_a_busy_one_asked_again(page) -> None:
    tab, server, _ = page
    type_in(tab, "a")
    wait_for(tab, ["A"])
    type_in(tab, "99", "#beam")
    tab.wait("document.getElementById('problem').textContent.includes('max_beam = 10')", SECONDS)
    tab.run("document.getElementById('beam').value = ''")
    assert server.batcher is not None
    server.batcher.closed = True
    type_in(tab, "b")
    tab.wait("document.getElementById('problem').textContent.includes('Trying again in 1 s')", SECONDS)
    server.batcher.closed = False
    wait_for(tab, ["B"])
    assert tab.run("document.getElementById('problem').hidden")
    server.end()
    type_in(tab, "c")
    tab.wait("document.getElementById('problem').textContent === 'The server does not answer.'", SECONDS)


def choose(tab: Tab, field: str, value: str) -> None:
    node = f"document.getElementById({json.dumps(field)})"
    tab.run(f"{node}.value = {json.dumps(value)}")
    tab.run(f"{node}.dispatchEvent(new Event('change'))")


def wait_for_options(tab: Tab, fake: FakeTranslator, **wanted: object) -> None:
    """Until the translator has had these options."""
    end = time.monotonic() + SECONDS
    while {name: fake.options.get(name) for name in wanted} != wanted:
        assert time.monotonic() < end, (fake.options, wanted, tab.errors)
        time.sleep(0.02)


def test_samples(page) -> None:
    tab, _, fake = page
    type_in(tab, "a dog")
    wait_for(tab, ["A DOG"])
    assert tab.run("getComputedStyle(document.getElementById('sampling')).display") == "none"
    assert fake.options["sample"] is False
    choose(tab, "search", "sample")
    wait_for_options(tab, fake, sample=True, temperature=1, seeds=[1])
    assert "top_k" not in fake.options and "top_p" not in fake.options
    for value, field in (("0.7", "#temperature"), ("20", "#top-k"), ("0.9", "#top-p"), ("4", "#n-best")):
        type_in(tab, value, field)
    wait_for_options(tab, fake, sample=True, temperature=0.7, top_k=20, top_p=0.9, seeds=[1], n_best=4)
    tab.click("#again")
    wait_for_options(tab, fake, seeds=[2])
    assert tab.run("document.getElementById('seed').value") == "2"
    assert tab.run("['beam', 'constrain'].map((id) => document.getElementById(id).disabled)") == [True, True]
    choose(tab, "search", "beam")
    wait_for_options(tab, fake, sample=False)
    assert "temperature" not in fake.options
    assert tab.errors == []


def test_constraints_and_terms(page) -> None:
    tab, _, fake = page
    type_in(tab, "a dog\nruns")
    wait_for(tab, ["A DOG", "RUNS"])
    assert tab.run("document.querySelectorAll('.live-wishes').length") == 0
    tab.click("#constrain")
    tab.wait("document.querySelectorAll('.live-wishes').length === 2", SECONDS)
    tab.click(".live-wishes input")
    tab.send("Input.insertText", text="ein Hund; Katze ;")
    own = Constraints(("ein Hund", "Katze"))
    wait_for_options(tab, fake, constraints=[own, Constraints()])
    tab.wait("!document.querySelector('#targets.old')", SECONDS)
    assert tab.run("document.activeElement.value") == "ein Hund; Katze ;"  # the focus stays in its field
    tab.click(".live-wishes input", 3)
    tab.send("Input.insertText", text="<b>rennt</b>")
    wait_for_options(tab, fake, constraints=[own, Constraints((), ("<b>rennt</b>",))])
    type_in(tab, "a big dog\nruns")  # the constraints stay with their line
    wait_for_options(tab, fake, constraints=[own, Constraints((), ("<b>rennt</b>",))])
    type_in(tab, "dog = Hund\nto run\trennen", "#terms")
    expected = {("dog",): "Hund", ("to", "run"): "rennen"}
    end = time.monotonic() + SECONDS
    while not (terms := fake.options.get("terms")) or {k: t.target for k, t in terms[0].terms.items()} != expected:
        assert time.monotonic() < end, fake.options
        time.sleep(0.02)
    type_in(tab, "dog", "#terms")
    tab.wait("document.getElementById('problem').textContent === 'Terms, line 1: write source = target.'", SECONDS)
    tab.click("#constrain")
    tab.wait("document.getElementById('problem').hidden && !document.querySelector('.live-wishes')", SECONDS)
    assert "constraints" not in fake.options and "terms" not in fake.options
    assert tab.errors == []


def test_a_stream_is_shown_while_it_is_written(tab: Tab) -> None:
    """Word by word, one line after the other; a text that is typed in the meantime ends it."""
    slow = SlowStream()
    with running(translators={"terms": slow}, models=Described, page=live_page().encode()) as server:
        tab.errors.clear()
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.wait("document.body.dataset.ready", SECONDS)
        tab.click("#stream")
        type_in(tab, "a dog\n\nit runs")
        slow.permits.release(1)
        tab.wait("document.querySelector('.live-row.writing')?.textContent === 'A'", SECONDS)
        slow.permits.release(2)
        wait_for(tab, ["A DOG", "IT"])
        assert tab.run("document.querySelector('#targets').ariaBusy") == "true"
        slow.permits.release(1)
        tab.wait("!document.querySelector('.writing') && document.querySelectorAll('.score')[1]?.textContent", SECONDS)
        assert texts(tab) == ["A DOG", "IT RUNS"]
        type_in(tab, "never")
        tab.wait("document.querySelectorAll('.live-row').length === 1", SECONDS)
        type_in(tab, "poison")
        assert slow.cancelled.wait(SECONDS)
        slow.permits.release(1)
        tab.wait("document.getElementById('problem').textContent.includes('an error of the server')", SECONDS)
        tab.open("about:blank")


def test_a_look_inside_an_ensemble_is_at_its_own_translation(tab: Tab, model_folder: Path, tmp_path: Path) -> None:
    """Attention is that of the first member, for the translation on the page, which is that of both."""
    other = tmp_path / "other"
    shutil.copytree(model_folder, other)
    tensors = load_tensors(other / "model.safetensors")
    generator = torch.Generator().manual_seed(7)
    noisy = {name: x + torch.randn(x.shape, generator=generator) for name, x in tensors.items()}
    save_tensors(other / "model.safetensors", noisy)
    write_manifest(other, list(read_manifest(other)))
    both = Translator.from_pretrained(model_folder, ensemble=[other])
    with running(translators={"both": both}, models=Models, page=live_page().encode()) as server:
        tab.errors.clear()
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.wait("document.body.dataset.ready", SECONDS)
        type_in(tab, "a cow is small")
        own, alone = (t.translate(["a cow is small"])[0].text for t in (both, both.first_model()))
        assert own != alone
        wait_for(tab, [" ".join(own.split())])
        tab.click("#look")
        tab.wait("document.querySelector('#explain .model') && !document.querySelector('.old')", SECONDS)
        page_of = "document.querySelector('#explain').explainPage.doc.sentences[0].views[0].target"
        assert tab.run(page_of) == own
        assert "the first of the 2 models of both" in tab.run("document.body.innerText")
        assert tab.errors == []
        tab.open("about:blank")


def open_page(tab: Tab, server: Running) -> None:
    tab.errors.clear()
    tab.open(f"http://127.0.0.1:{server.port}/")
    tab.wait("document.body.dataset.ready", SECONDS)


DOCUMENT = "document.querySelector('#explain').explainPage?.doc"


def test_a_look_inside_shows_the_words_and_phrases_that_were_written(tab: Tab) -> None:
    """A model that writes phrases would read its own text, *the old man*, as three words."""
    writer = translator_of("words or phrases", joined_tokenizer(), seed=1)
    with running(translators={"it": writer}, models=Models, page=live_page().encode()) as server:
        open_page(tab, server)
        choose(tab, "search", "sample")
        type_in(tab, "old man\nold man")
        tab.click("#look")
        seen = set()
        for seed in range(1, 7):
            samples = writer.translate(["old man"] * 2, sample=True, seeds=[seed] * 2, numbers=[0, 1])
            wait_for(tab, [" ".join(t.tokens).replace("_", "\u00a0") for t in samples])
            shown = f"{DOCUMENT}?.sentences.map((s) => s.views[0].target_tokens)"
            wanted = json.dumps([[*t.tokens, "</s>"] for t in samples])
            tab.wait(
                f"!document.querySelector('.old') && JSON.stringify({shown}) === JSON.stringify({wanted})", SECONDS
            )
            seen |= {token for t in samples for token in t.tokens}
            tab.click("#again")
        assert {"old_man", "the_old_man"} & seen
        assert tab.errors == []
        tab.open("about:blank")


def test_more_translations_than_the_beam_widen_it(page) -> None:
    tab, _, fake = page
    type_in(tab, "a dog")
    type_in(tab, "7", "#n-best")
    wait_for_options(tab, fake, beam=7, n_best=7)
    type_in(tab, "3", "#n-best")
    wait_for_options(tab, fake, beam=5, n_best=3)
    type_in(tab, "2", "#beam")
    wait_for_options(tab, fake, beam=3, n_best=3)
    assert tab.errors == []


class CutStream(FakeTranslator):
    """A stream in one piece, cut short."""

    def stream(self, line: str, **options: object) -> Iterator[str]:
        yield line.upper()
        return Translation(line.upper(), -1.0, -2.0, [], [], hit_max_length=True)


def test_warnings_of_streams_name_their_texts(tab: Tab) -> None:
    with running(translators={"it": CutStream()}, models=Described, page=live_page().encode()) as server:
        open_page(tab, server)
        tab.click("#stream")
        type_in(tab, "a\n\nb")
        tab.wait("document.querySelectorAll('.live-warning').length === 2", SECONDS)
        warnings = tab.run("[...document.querySelectorAll('.live-warning')].map((n) => n.textContent)")
        assert ["text 1 " in warnings[0], "text 3 " in warnings[1]] == [True, True]
        tab.open("about:blank")


def test_a_look_inside(tab: Tab, translator: Translator, tmp_path: Path) -> None:
    """The page's translation and what it shows inside are those of the model."""
    with running(translators={"it": translator}, models=Models, page=live_page().encode()) as server:
        tab.errors.clear()
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.wait("document.body.dataset.ready", SECONDS)
        type_in(tab, "a cow is small")
        own = translator.translate(["a cow is small"])[0].text
        wait_for(tab, [" ".join(own.split())])
        tab.click("#look")
        tab.wait(
            "document.querySelectorAll('#explain .model').length === 1 && !document.querySelector('.old')", SECONDS
        )
        shown = tab.run("document.querySelector('#explain').explainPage.doc.sentences[0]")
        assert (shown["source"], shown["views"][0]["target"]) == ("a cow is small", own)
        tab.click("#stream")  # a greedy translation, which explain gets as it is
        greedy = translator.translate(["a cow is small"], beam=1)[0].text
        page_of = "document.querySelector('#explain').explainPage.doc.sentences[0].views[0].target"
        tab.wait(f"!document.querySelector('.old, .writing') && {page_of} === {json.dumps(greedy)}", SECONDS)
        tab.click("#look")
        tab.wait("document.getElementById('explain').hidden", SECONDS)
        assert tab.errors == []
        tab.open("about:blank")
