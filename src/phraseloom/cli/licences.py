"""Write `docs/licences.md` from the metadata of the installed packages: `python -m phraseloom.cli.licences`."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = "phraseloom"
PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
HEAD = """\
# Licences of the dependencies

What each package that phraseloom depends on says about its licence, from its own metadata. The dependencies of these packages
are not listed; `pip show NAME` names them. This page is generated: `python -m phraseloom.cli.licences > docs/licences.md`.

| package | needed for | licence |
|---|---|---|
"""


def declared() -> dict[str, str]:
    """The dependencies in pyproject.toml: name → the extras that need it, separated by commas; empty for all."""
    project = tomllib.loads(PYPROJECT.read_bytes().decode())["project"]
    needs = {"": project["dependencies"], **project["optional-dependencies"]}
    extras: dict[str, list[str]] = {}
    for extra, requirements in needs.items():
        for name in (re.split(r"[^\w.-]", text)[0] for text in requirements):
            if name != PACKAGE:
                extras.setdefault(name, []).append(extra)
    return {name: ", ".join(filter(None, sorted(names))) for name, names in extras.items()}


def licence(name: str) -> str | None:
    """The licence of an installed package: its SPDX expression, its classifiers, or the first line of the field."""
    try:
        about: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    classifiers = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or [] if c.startswith("License :: OSI")]
    field = (about.get("License") or "").strip().split("\n")[0]
    return about.get("License-Expression") or ", ".join(classifiers) or field or "see its metadata"


def document() -> str:
    """The page."""
    rows = []
    for name, extras in sorted(declared().items(), key=lambda item: (item[1] != "", item[0].lower())):
        rows.append(
            f"| {name} | {f'extra {extras}' if extras else 'everything'} | {licence(name) or 'not installed'} |"
        )
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(document(), end="")
