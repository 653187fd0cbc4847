"""The live page in a browser: what is typed is translated; words are kept; a look inside; texts are never markup."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.chromium import Tab, chromium, find
from tests.decoding.conftest import model_folder, translator
from tests.serving.harness import FakeTranslator, Running, running

from phraseloom.decoding.translator import Translator
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


class Described(Models):
    def _describe(self, name: str) -> dict:
        return {
            "name": name,
            "parameters": 1234,
            "description": "a fake",
            "languages": ["fr", "it"] if name == "foreign" else ["en", "de"],
            "beam": 5,
            "n_best": 1,
            "trees": False,
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
        tab.click("#look")
        tab.wait("document.getElementById('explain').hidden", SECONDS)
        assert tab.errors == []
        tab.open("about:blank")
