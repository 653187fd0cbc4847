"""What the site needs beyond the pages as they are: README.md as its first page, the notebooks as pages, lists as they look
on other hosts, and paths in place of links that leave docs/.

Used by mkdocs.yml (`hooks`); see https://www.mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """The notebooks after the papers, and the decision records at the end, in the order of their numbers."""
    names = [str(next(iter(entry))) if isinstance(entry, dict) else "" for entry in config.nav]
    config.nav.insert(names.index("Papers") + 1, {"Notebooks": [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]})
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    config.nav.append({"Decisions": [f"decisions/{name}" for name in records]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """README.md, whose links begin with docs/, as index.md; each notebook as a page with its pictures as files."""
    text = (ROOT / "README.md").read_bytes().decode()
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    for path in NOTEBOOKS:
        pictures: dict[str, bytes] = {}
        page = "\n\n".join(cells(path, pictures))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, data in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def cells(path: Path, pictures: dict[str, bytes]) -> Iterator[str]:
    """The cells of a notebook and their stored outputs as Markdown; `pictures` receives the PNG files by name."""
    for number, cell in enumerate(json.loads(path.read_bytes())["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            title = re.match(r"# .*\n", text)
            where = f"\nThis page is the notebook `notebooks/{path.name}` with its stored outputs.\n"
            text = text if title is None else f"{title[0]}{where}{text[title.end() :]}"
            yield re.sub(r"(\]\([^)#]+)\.ipynb\)", r"\1.md)", text.replace("](../docs/", "](../"))
            continue
        yield f"```python\n{text}\n```"
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        if printed:
            yield f"```text\n{printed.rstrip()}\n```"
        for k, output in enumerate(cell["outputs"]):
            picture = output.get("data", {}).get("image/png")
            if picture is not None:
                name = f"{path.stem}_{number}_{k}.png"
                pictures[name] = base64.b64decode("".join(picture))
                yield f"![The picture that this cell draws]({name})"


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
        piece = LINK.sub(replaced, pieces[i]).replace(" ± ", "\u00a0±\u00a0")  # stays on one line of a narrow cell
        pieces[i] = re.sub(r"(?m)^(?![ |*-])(\S.*)\n(?=[*-] )", r"\1\n\n", piece)
    return "".join(pieces)
