"""One HTML page in one file: style, script and data inside, nothing fetched from anywhere."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from phraseloom import __version__

# Nothing but what is in the file: no network, no other page's frame.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)


def asset(name: str) -> str:
    """A file of `report/assets/`."""
    return (resources.files("phraseloom.report") / "assets" / name).read_bytes().decode("utf-8")


def embed(name: str, value: Any) -> str:
    """`value` as JSON in an element that a script reads with `JSON.parse(document.getElementById(name).textContent)`.

    Whatever texts it holds, none of them can end the element. ValueError for NaN and infinities.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{html.escape(name)}">{text}</script>'


def page(
    title: str,
    body: str,
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
) -> str:
    """The page: `body` is HTML, `styles` and `scripts` are files of `report/assets/`, `data` is embedded by name.

    `base.css` comes first in every page.
    """
    style = "\n".join(asset(name) for name in ("base.css", *styles))
    script = "\n".join(asset(name) for name in scripts)
    embedded = "\n".join(embed(name, value) for name, value in (data or {}).items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="generator" content="phraseloom {__version__}">
<title>{html.escape(title)}</title>
<style>
{style}
</style>
</head>
<body>
{body}
{embedded}
<script>
{script}
</script>
</body>
</html>
"""
