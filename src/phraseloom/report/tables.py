"""Tables for people: Markdown, and aligned columns for a terminal.

Cells are strings or numbers that the caller has rounded; None is an empty cell. A column of numbers is aligned right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from phraseloom.errors import escape_controls

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
    return [[_text(c) for c in line] for line in (headers, *rows)]


def _text(value: object) -> str:
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
