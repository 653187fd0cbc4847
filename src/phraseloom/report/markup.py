"""Tables and sections of our HTML pages. Every text is escaped; numbers are aligned and keep their value for sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

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
        f'<th scope="col"{_number(r)}>{_button(h) if sortable and len(rows) > 1 and h else _text(h)}</th>'
        for h, r in zip(headers, right, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_td(c, r, i == 0) for i, (c, r) in enumerate(zip(row, right, strict=True))) + "</tr>"
        for row in cells
    )
    said = f"<caption>{_text(caption)}</caption>" if caption else ""
    kind = ' class="sortable"' if sortable and len(rows) > 1 else ""
    label = f' aria-label="{_text(name)}"' if name and not caption else ""
    return f'<div class="scroll"><table{kind}{label}>{said}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def section(anchor: str, title: str, *parts: str) -> str:
    """A section with its heading; "" where all parts are empty."""
    inside = "\n".join(part for part in parts if part)
    return f'<section id="{anchor}"><h2>{_text(title)}</h2>\n{inside}\n</section>' if inside else ""


def details(summary: str, *parts: str) -> str:
    """Something folded away; "" where all parts are empty."""
    inside = "\n".join(part for part in parts if part)
    return f"<details><summary>{_text(summary)}</summary>\n{inside}\n</details>" if inside else ""


def charts(*figures: str) -> str:
    """Figures beside each other where there is room."""
    there = [figure for figure in figures if figure]
    return f'<div class="charts">{"".join(there)}</div>' if there else ""


def note(text: str) -> str:
    """A sentence under a table or chart."""
    return f'<p class="soft">{_text(text)}</p>' if text else ""


def mono(text: str) -> str:
    """Such as a signature or a path, as HTML."""
    return f"<code>{_text(text)}</code>"


def _text(text: str) -> str:
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
    inside = cell.html if cell.html is not None else _text(cell.text if cell.value is None else _minus(cell.text))
    inside = f"<strong>{inside}</strong>" if cell.strong else inside
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    return f'<th scope="row"{value}>{inside}</th>' if first else f"<td{_number(right)}{value}>{inside}</td>"


def _number(right: bool) -> str:
    return ' class="number"' if right else ""


def _button(text: str) -> str:
    return f'<button type="button">{_text(text)}</button>'
