"""docs/licences.md lists every declared dependency, with the licence that its metadata names."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

from phraseloom.cli.licences import declared, licence

ROWS = dict(re.findall(r"(?m)^\| ([\w.-]+) \| .* \| (.+) \|$", (ROOT / "docs" / "licences.md").read_bytes().decode()))


def test_every_dependency_is_listed() -> None:
    assert {"torch", "numpy", "mkdocs", "h11"} <= declared().keys()
    assert ROWS.keys() - {"package"} == declared().keys()


def test_each_has_a_licence() -> None:
    assert not [name for name, text in ROWS.items() if text == "not installed"]
    assert licence("numpy") and licence("no-such-package-here") is None
