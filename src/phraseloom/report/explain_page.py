"""The page of an explain document (`analysis/explain/sentence.py`): words that light up, heat maps, what else a model shows.

The scripts do the work: `Explain.show(document, element)`, which live pages call too.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from phraseloom.errors import DataError
from phraseloom.report.markup import page

FORMAT = 1
STYLES = ("explain.css",)
SCRIPTS = (
    "explain-data.js",
    "explain-words.js",
    "explain-map.js",
    "explain-panels.js",
    "explain-reading.js",
    "explain-column.js",
    "explain-svg.js",
    "explain-controls.js",
    "explain.js",
)
START = "explain-start.js"


def explain_page(document: Mapping[str, Any]) -> str:
    """The document as one self-contained HTML page; where scripts are off it holds the texts.

    Raises DataError for a document of another format or without sentences, ValueError for NaN and infinities.
    """
    if document.get("format") != FORMAT:
        raise DataError(f"an explain document of format {document.get('format')!r}, this version shows format {FORMAT}")
    if not document["sentences"]:
        raise DataError("an explain document without sentences: there is nothing to show")
    names = " and ".join(model["label"] for model in document["models"])
    title = f"How {names} translated"
    main = f'<main id="explain" class="explain"><noscript>{_plain(document)}</noscript></main>'
    body = f'<h1 class="page-title">{html.escape(title)}</h1>{main}'
    return page(title, body, styles=STYLES, scripts=(*SCRIPTS, START), data={"document": dict(document)})


def _plain(document: Mapping[str, Any]) -> str:
    """Sources and targets as a table: what can be read without scripts."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in ("source", *(m["label"] for m in document["models"])))
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in _texts(sentence)) + "</tr>"
        for sentence in document["sentences"]
    )
    return f"<p>The maps of this page need scripts.</p><table><tr>{heads}</tr>{rows}</table>"


def _texts(sentence: Mapping[str, Any]) -> list[str]:
    return [sentence["source"], *(view["target"] for view in sentence["views"])]
