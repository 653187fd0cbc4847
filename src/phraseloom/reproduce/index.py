"""A page that lists tables: FOLDER/README.md, from each existing FOLDER/SCALE/TABLE/table.json and the claims of the tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from phraseloom.errors import CorruptError, UsageError, plural
from phraseloom.files import atomic_write_text, require_folder
from phraseloom.report.markup import markdown
from phraseloom.reproduce.claims import Verdict
from phraseloom.reproduce.stored import judged_table
from phraseloom.reproduce.table import SCALES
from phraseloom.reproduce.writing import MARKDOWN, Content, stored_tables

INDEX = "README.md"
HEADING = "# Reproduced tables: results"
HEADINGS = (HEADING.encode(), b"# Tables made ")  # the second is that of earlier versions
VERDICTS = get_args(Verdict)
STATES = ("run", "failed", "not run")
HEADERS = ("table", "rows", "claims", "seeds", "minutes", "sentences")
INDEX_LEGEND = """Rows: each row of a table counts once for each language pair. A row has failed if one of its steps failed or
has not ended; its table gives the reason. Whether a claim held is decided by Welch's t over at least three seeds, after
Holm's correction for the claims of a table. With two seeds, yes and no are preliminary. With one seed, they are only about
these two runs, not about training. Not learned: the baseline is below the floor of its table. Path only: scale tiny shows
that every part works, and says nothing about a claim. Minutes: training time, on the machine that the table names. Tables
share trainings; each table counts its trainings once. Sentences: whether what the sentences contribute to each number is
stored, so that anybody can recompute the intervals (`reproduce --recompute`)."""


PRECISION = re.compile(r"All trainings in (fp32|bf16) \(--precision\)")  # what --precision adds to the scale


def write_index(folder: str | Path, recipes: Path | None = None) -> Path:
    """Write the page of a folder of tables; its path. Claims are judged as `stored.judged_table` does.

    Raises UsageError where there is no table, or another README.md; CorruptError for a table.json that is not one.
    """
    folder = require_folder(folder)
    path = folder / INDEX
    if path.is_file() and not path.read_bytes().startswith(HEADINGS):
        raise UsageError("a page that is no list of tables is there", file=path, hint="move it, or name another folder")
    atomic_write_text(path, index_page(folder, recipes))
    return path


def index_page(folder: Path, recipes: Path | None = None) -> str:
    """The page as Markdown."""
    paths = stored_tables(folder)
    lines: dict[str, list[list[object]]] = {}
    commands: dict[str, list[str]] = {}
    verdicts: Counter[str] = Counter()
    for path in paths:
        content = judged_table(path, recipes)
        scale = path.parent.parent.name
        try:
            line, command = _line(content, path.relative_to(folder).with_name(MARKDOWN).as_posix()), _command(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"not a whole table ({type(error).__name__}: {error})", file=path) from error
        lines.setdefault(scale, []).append(line)
        commands.setdefault(scale, []).append(command)
        verdicts.update(claim["verdict"] for claim in content["claims"])
    parts = [
        HEADING,
        f"{plural(len(paths), 'table')}; claims, registered or not: {_counted(verdicts, VERDICTS)}.",
        INDEX_LEGEND,
    ]
    for scale, some in lines.items():
        parts += [f"## Scale {scale}", markdown(HEADERS, some), _block(commands[scale])]
    return "\n\n".join(parts) + "\n"


def _line(content: Content, link: str) -> list[object]:
    rows = Counter(map(_state, content["rows"]))
    verdicts = Counter(claim["verdict"] for claim in content["claims"])
    seeds = ", ".join(map(str, content["seeds"])) if rows["run"] or rows["failed"] else ""
    minutes = _whole_minutes(content["rows"])
    shown = "" if minutes is None else f"{minutes:.1f}"
    title = f"[{content['title']}]({link})"
    stored = "stored" if content.get("sentences") else "no"
    return [title, _counted(rows, STATES), _counted(verdicts, VERDICTS), seeds, shown, stored]


def _counted(counts: Counter[str], names: Sequence[str]) -> str:
    """Such as 2 run, 1 failed; all else is 0."""
    return ", ".join(f"{counts[name]} {name}" for name in names if counts[name]) or "none"


def _state(row: Content) -> str:
    if row["failures"]:
        return "failed"
    return "run" if row["metrics"] or row["run"] else "not run"


def _whole_minutes(rows: Sequence[Content]) -> float | None:
    """Minutes of training; rows with the very same figures are rows of one training."""
    facts = {tuple(sorted(run.items())) for row in rows for run in row["run"].values() if "seconds" in run}
    return sum(dict(of)["seconds"] for of in facts) / 60 if facts else None


def _command(content: Content) -> str:
    """The command, with the options that decide the contents of the table."""
    words = ["phraseloom reproduce", content["table"], "--scale", content["scale"]]
    if any(_state(row) != "not run" for row in content["rows"]):
        words += ["--seeds", ",".join(map(str, content["seeds"]))]
    if any(text.endswith("(--rows)") for text in content["left_out"]):
        some = [row for row in content["rows"] if _state(row) != "not run"]
        words += ["--rows", ",".join(f"{row['task']}/{row['row']}".strip("/") for row in some)]
    says = content.get("definition", {}).get("scales", {}).get(content["scale"], {}).get("says") or ""
    if precision := PRECISION.search(says):
        words += ["--precision", precision[1]]
    return " ".join(words + (["--data-root", "corpora"] if content["scale"] != SCALES[0] else []))


def _block(commands: Sequence[str]) -> str:
    return "\n".join(f"    {command}" for command in commands)
