"""The explain page as a file: self-contained, and what it holds cannot become markup. tests/browser/ opens it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from tests.report import explain_documents

from phraseloom.errors import DataError
from phraseloom.report.explain_page import SCRIPTS, START, STYLES, explain_page
from phraseloom.report.markup import asset

HOSTILE = "</script><script>bad()</script> <img src=x onerror=bad()> &amp; \u2028 \u202e ]]>"
ASSETS = (*SCRIPTS, START, *STYLES)


class Elements(HTMLParser):
    """Names of all elements, and the texts of the scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: dict[str, str] = {}
        self._in: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag == "script":
            self._in = dict(attrs).get("id") or ""
            self.scripts[self._in] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in = None

    def handle_data(self, data: str) -> None:
        if self._in is not None:
            self.scripts[self._in] += data


def test_page_holds_the_document_as_it_is() -> None:
    document = explain_documents.two_models()
    found = Elements(explain_page(document))
    assert json.loads(found.scripts["document"]) == document
    assert found.names.count("script") == 2


def test_page_fetches_nothing() -> None:
    page = explain_page(explain_documents.small())
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}
    found = Elements(page)
    assert not {name for name, _ in found.attributes} & {"src", "srcset", "background", "action"}
    assert "link" not in found.names
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("field", ["source", "label", "token"])
def test_texts_stay_texts(field: str) -> None:
    document = explain_documents.small()
    if field == "source":
        document["sentences"][0]["source"] = HOSTILE
        document["sentences"][0]["views"][0]["target"] = HOSTILE
    elif field == "label":
        document["models"][0]["label"] = HOSTILE
    else:
        document["sentences"][0]["views"][0]["attention"][0]["rows"]["labels"][0] = HOSTILE
    found = Elements(explain_page(document))
    assert found.names.count("script") == 2
    assert "img" not in found.names
    assert json.loads(found.scripts["document"]) == document


@pytest.mark.parametrize("name", [name for name in ASSETS if name.endswith(".js")])
def test_scripts_write_no_markup_and_ask_no_one(name: str) -> None:
    """All of them, so that no text of a document can become markup and no page needs a network."""
    script = asset(name)
    banned = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\b|new Function"
        r"|fetch\(|XMLHttp|import\(|WebSocket|localStorage|sendBeacon"
    )
    assert not re.findall(banned, script)
    assert script.count("\n") <= 400


def test_what_can_be_read_without_scripts() -> None:
    page = explain_page(explain_documents.small())
    plain = page[page.index("<noscript>") : page.index("</noscript>")]
    assert explain_documents.SOURCE in plain
    assert explain_documents.TARGET in plain


def test_other_documents_are_refused() -> None:
    with pytest.raises(DataError, match=r"format 2, this version shows format 1"):
        explain_page(explain_documents.small() | {"format": 2})
    with pytest.raises(DataError, match="without sentences"):
        explain_page(explain_documents.small() | {"sentences": []})
    document = explain_documents.small()
    document["sentences"][0]["views"][0]["log_prob"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        explain_page(document)


def test_a_hundred_tokens_stay_small() -> None:
    assert len(explain_page(explain_documents.long())) < 10e6
