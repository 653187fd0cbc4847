"""The live page as text; what it does is tested in a browser (`tests/browser/test_serve.py`)."""

from __future__ import annotations

import re

from phraseloom.report.markup import asset
from phraseloom.serving.app import live_page


def test_it_asks_nobody_else() -> None:
    page = live_page()
    assert set(re.findall(r"https?://[\w.]+", page)) <= {"http://www.w3.org"}  # the name space of SVG
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=", page)
    assert "default-src 'none'" in page


def test_the_elements_that_the_script_uses_are_there() -> None:
    script, body = asset("serve.js"), asset("serve.html")
    [listed] = re.findall(r"Object\.fromEntries\(\[([^\]]*)\]", script)
    used = {*re.findall(r'"([\w-]+)"', listed), *re.findall(r'place\("([\w-]+)"\)', script)}
    assert len(used) > 8
    assert used <= set(re.findall(r'id="([\w-]+)"', body))
    assert "innerHTML" not in script
