"""What the site needs beyond the pages as they are: README.md as its first page, lists as they look on other hosts, and
paths in place of links that leave docs/.

Used by mkdocs.yml (`hooks`); see https://www.mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """The decision records in the order of their numbers, at the end of the navigation."""
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{name}" for name in records]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """README.md, whose links begin with docs/, as index.md."""
    text = (ROOT / "README.md").read_bytes().decode()
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files outside docs/ become their text and path; a list after a paragraph gets the blank line it needs."""
    folder = PurePosixPath(page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        text, target = link[1], link[2].partition("#")[0]
        path = os.path.normpath(folder / target)
        if not path.startswith(".."):
            return link[0]
        inside = os.path.normpath(path.removeprefix("../"))
        return f"`{inside}`" if inside.endswith(text) else f"{text} (`{inside}`)"

    pieces = re.split(r"(?ms)(^```.*?^```$)", markdown)  # code stays as it is
    for i in range(0, len(pieces), 2):
        piece = LINK.sub(replaced, pieces[i])
        pieces[i] = re.sub(r"(?m)^(?![ |*-])(\S.*)\n(?=[*-] )", r"\1\n\n", piece)
    return "".join(pieces)
