"""The lower bounds of pyproject.toml as constraints of pip, for `make lowest`.

python tests/lowest.py                       # NAME==VERSION of every dependency and extra
python tests/lowest.py torch=2.13.0          # but this torch, where an older one is not at hand
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

TOOLS = {
    "ruff",
    "mypy",
    "types-PyYAML",
    "setuptools",
    "mkdocs",
}  # they check and build, and do not run with the package


def constraints(pyproject: Path, instead: Sequence[str] = ()) -> list[str]:
    """NAME==VERSION of each requirement of the package and its extras, the tools of developers left out."""
    project = tomllib.loads(pyproject.read_bytes().decode())["project"]
    chosen = dict(text.split("=", 1) for text in instead)
    bounds: dict[str, str] = {}
    extras = project["optional-dependencies"].values()
    for requirement in (*project["dependencies"], *(text for extra in extras for text in extra)):
        match = re.match(r"([\w-]+)>=([\w.]+)", requirement)
        if match and match[1] not in TOOLS:
            bounds[match[1]] = chosen.pop(match[1], match[2])
    if chosen:
        raise SystemExit(f"no dependency {', '.join(chosen)}; there are {', '.join(bounds)}")
    return [f"{name}=={version}" for name, version in bounds.items()]


if __name__ == "__main__":
    print("\n".join(constraints(Path(__file__).resolve().parents[1] / "pyproject.toml", sys.argv[1:])))
