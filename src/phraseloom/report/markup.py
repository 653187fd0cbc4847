"""Tables and sections of our HTML pages. Every text is escaped; numbers are aligned and keep their value for sorting.

Tables for people: Markdown, and aligned columns for a terminal.

Cells are strings or numbers that the caller has rounded; None is an empty cell. A column of numbers is aligned right.

One HTML page in one file: style, script and data inside, nothing fetched from anywhere.
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from phraseloom import __version__
from phraseloom.errors import escape_controls


@dataclass(frozen=True)
class TableCell:
    """A cell that shows `text` and is sorted by `value`; `html` stands in place of the text where it is given."""

    text: str
    value: float | None = None
    html: str | None = None
    strong: bool = False


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    sortable: bool = True,
    name: str = "",
) -> str:
    """A table in a box that scrolls. Cells: `TableCell`, text, numbers (floats with two decimals), None for an empty one."""
    cells = [[_cell(value) for value in row] for row in rows]
    right = [
        any(r[i].value is not None for r in cells)
        and all(r[i].value is not None or not r[i].text.strip("–") for r in cells)
        for i in range(len(headers))
    ]
    head = "".join(
        f'<th scope="col"{_number(r)}>{_button(h) if sortable and len(rows) > 1 and h else html_text(h)}</th>'
        for h, r in zip(headers, right, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_td(c, r, i == 0) for i, (c, r) in enumerate(zip(row, right, strict=True))) + "</tr>"
        for row in cells
    )
    said = f"<caption>{html_text(caption)}</caption>" if caption else ""
    kind = ' class="sortable"' if sortable and len(rows) > 1 else ""
    label = f' aria-label="{html_text(name)}"' if name and not caption else ""
    return f'<div class="scroll"><table{kind}{label}>{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(anchor: str, title: str, *parts: str) -> str:
    """A section with its heading; "" where all parts are empty."""
    inside = "\n".join(part for part in parts if part)
    return f'<section id="{anchor}"><h2>{html_text(title)}</h2>\n{inside}\n</section>' if inside else ""


def details(summary: str, *parts: str) -> str:
    """Something folded away; "" where all parts are empty."""
    inside = "\n".join(part for part in parts if part)
    return f"<details><summary>{html_text(summary)}</summary>\n{inside}\n</details>" if inside else ""


def charts(*figures: str) -> str:
    """Figures beside each other where there is room."""
    there = [figure for figure in figures if figure]
    return f'<div class="charts">{"".join(there)}</div>' if there else ""


def note(text: str) -> str:
    """A sentence under a table or chart."""
    return f'<p class="soft">{html_text(text)}</p>' if text else ""


def mono(text: str) -> str:
    """Such as a signature or a path, as HTML."""
    return f"<code>{html_text(text)}</code>"


def p_text(p: float) -> str:
    """A p value with four decimals."""
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def html_text(text: str) -> str:
    """Text for a page: markup and control characters are escaped."""
    return escape(escape_controls(text))


def _cell(value: object) -> TableCell:
    if isinstance(value, TableCell):
        return value
    if value is None:
        return TableCell("")
    if isinstance(value, bool):
        return TableCell("yes" if value else "no")
    if isinstance(value, int):
        return TableCell(f"{value:,}", float(value))
    if isinstance(value, float):
        return TableCell(f"{value:.2f}", value)
    return TableCell(str(value))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _td(cell: TableCell, right: bool, first: bool) -> str:
    inside = cell.html if cell.html is not None else html_text(cell.text if cell.value is None else _minus(cell.text))
    inside = f"<strong>{inside}</strong>" if cell.strong else inside
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    return f'<th scope="row"{value}>{inside}</th>' if first else f"<td{_number(right)}{value}>{inside}</td>"


def _number(right: bool) -> str:
    return ' class="number"' if right else ""


def _button(text: str) -> str:
    return f'<button type="button">{html_text(text)}</button>'


Row = Sequence[object]


def width(text: str) -> int:
    """Columns that `text` takes on a terminal: two for wide East Asian characters, none for combining marks."""
    if text.isascii():
        return len(text)
    total = 0
    for c in text:
        if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf"):
            continue
        total += 2 if unicodedata.east_asian_width(c) in "WF" else 1
    return total


def markdown(headers: Sequence[str], rows: Sequence[Row]) -> str:
    """A GitHub Markdown table, padded, without a final newline. Raises ValueError for a row of another length."""
    cells = [[c.replace("|", "\\|") for c in line] for line in _cells(headers, rows)]
    right = _numeric(cells[1:], len(headers))
    widths = [max(3, *(width(line[i]) for line in cells)) for i in range(len(headers))]
    rule = ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    lines = [_padded(line, widths, right) for line in cells]
    lines.insert(1, rule)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def terminal(headers: Sequence[str], rows: Sequence[Row], *, indent: int = 0) -> str:
    """Columns two blanks apart, without a final newline; headers are underlined, or left out if all are empty."""
    cells = _cells(headers, rows)
    right = _numeric(cells[1:], len(headers))
    if not any(headers):
        cells = cells[1:]
    widths = [max((width(line[i]) for line in cells), default=0) for i in range(len(headers))]
    lines = ["  ".join(_padded(line, widths, right)).rstrip() for line in cells]
    if any(headers):
        lines.insert(1, "  ".join("─" * w for w in widths))
    return "\n".join(" " * indent + line for line in lines)


def _cells(headers: Sequence[str], rows: Sequence[Row]) -> list[list[str]]:
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"row of {len(row)} cells in a table of {len(headers)} columns: {row!r}")
    return [[_cell_text(c) for c in line] for line in (headers, *rows)]


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2f}"
    return escape_controls(str(value))


def _numeric(rows: Sequence[Sequence[str]], columns: int) -> list[bool]:
    def is_number(text: str) -> bool:
        bare = text.lstrip("+-−<>≤≈ ").replace(",", "").replace(".", "", 1).rstrip("%×")
        return bare.isdigit()

    return [any(r[i] for r in rows) and all(is_number(r[i]) for r in rows if r[i]) for i in range(columns)]


def _padded(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    return [
        " " * (w - width(c)) + c if r else c + " " * (w - width(c)) for c, w, r in zip(line, widths, right, strict=True)
    ]


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
