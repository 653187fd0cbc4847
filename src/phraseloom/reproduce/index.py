"""A page that lists tables: FOLDER/README.md of the FOLDER/SCALE/TABLE/table.json that are there, and of nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from phraseloom.errors import CorruptError, UsageError
from phraseloom.files import atomic_write_text, read_json, require_folder
from phraseloom.report.tables import markdown
from phraseloom.reproduce.claims import Verdict
from phraseloom.reproduce.table import SCALES
from phraseloom.reproduce.writing import FORMAT, JSON, MARKDOWN

INDEX = "README.md"
HEADING = "# Tables made again: what came out"
VERDICTS = get_args(Verdict)
STATES = ("run", "failed", "not run")
HEADERS = ("table", "rows", "claims of the paper", "seeds", "minutes")
LEGEND = """Rows: those of a table, once for each pair of languages; of a failed one a step failed or has not ended, and its
table says why. Claims held or did not hold by Welch's t over at least two seeds, after Holm's correction for the claims of
a table. With one seed there is no verdict on training: yes and no are about these two runs. Not learned: the baseline is below
the floor of its table. Path only: scale tiny shows that every part works, and says nothing about a claim.
Minutes: of training, on the machine that the table names, each training of a table once; tables share trainings."""
Content = Mapping[str, Any]


def write_index(folder: str | Path) -> Path:
    """Write the page of a folder of tables; its path.

    Raises UsageError where there is no table, or another README.md; CorruptError for a table.json that is not one.
    """
    folder = require_folder(folder)
    path = folder / INDEX
    if path.is_file() and not path.read_bytes().startswith(HEADING.encode()):
        raise UsageError("a page that is no list of tables is there", file=path, hint="move it, or name another folder")
    atomic_write_text(path, index_page(folder))
    return path


def index_page(folder: Path) -> str:
    """The page as Markdown."""
    paths = sorted(folder.glob(f"*/*/{JSON}"), key=lambda path: (_place(path.parent.parent.name), path.parent.name))
    if not paths:
        raise UsageError(
            f"no SCALE/TABLE/{JSON} there", file=folder, hint="reproduce TABLE --folder FOLDER writes them"
        )
    lines: dict[str, list[list[object]]] = {}
    commands: dict[str, list[str]] = {}
    verdicts: Counter[str] = Counter()
    for path in paths:
        content = _read(path)
        scale = path.parent.parent.name
        try:
            line, command = _line(content, path.relative_to(folder).with_name(MARKDOWN).as_posix()), _command(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptError(f"not a whole table ({type(error).__name__}: {error})", file=path) from error
        lines.setdefault(scale, []).append(line)
        commands.setdefault(scale, []).append(command)
        verdicts.update(claim["verdict"] for claim in content["claims"])
    parts = [HEADING, f"{len(paths)} table{'s' * (len(paths) != 1)}; claims: {_counted(verdicts, VERDICTS)}.", LEGEND]
    for scale, some in lines.items():
        parts += [f"## Scale {scale}", markdown(HEADERS, some), _block(commands[scale])]
    return "\n\n".join(parts) + "\n"


def _place(scale: str) -> int:
    return SCALES.index(scale) if scale in SCALES else len(SCALES)


def _read(path: Path) -> Content:
    content = read_json(path, "table")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptError(f"not a table of format {FORMAT}", file=path, hint="reproduce writes it anew")
    return content


def _line(content: Content, link: str) -> list[object]:
    rows = Counter(map(_state, content["rows"]))
    verdicts = Counter(claim["verdict"] for claim in content["claims"])
    seeds = ", ".join(map(str, content["seeds"])) if rows["run"] or rows["failed"] else ""
    minutes = _minutes(content["rows"])
    shown = "" if minutes is None else f"{minutes:.1f}"
    title = f"[{content['title']}]({link})"
    return [title, _counted(rows, STATES), _counted(verdicts, VERDICTS), seeds, shown]


def _counted(counts: Counter[str], names: Sequence[str]) -> str:
    """Such as 2 run, 1 failed; all else is 0."""
    return ", ".join(f"{counts[name]} {name}" for name in names if counts[name]) or "none"


def _state(row: Content) -> str:
    if row["failures"]:
        return "failed"
    return "run" if row["metrics"] else "not run"


def _minutes(rows: Sequence[Content]) -> float | None:
    """Minutes of training; rows with the very same figures are rows of one training."""
    facts = {tuple(sorted(run.items())) for row in rows for run in row["run"].values() if "seconds" in run}
    return sum(dict(of)["seconds"] for of in facts) / 60 if facts else None


def _command(content: Content) -> str:
    """What was called, as far as it decides what stands in the table."""
    words = ["phraseloom reproduce", content["table"], "--scale", content["scale"]]
    if any(row["metrics"] for row in content["rows"]):
        words += ["--seeds", ",".join(map(str, content["seeds"]))]
    if any(text.endswith("(--rows)") for text in content["left_out"]):
        some = [row for row in content["rows"] if row["metrics"] or row["failures"]]
        words += ["--rows", ",".join(f"{row['task']}/{row['row']}".strip("/") for row in some)]
    return " ".join(words + (["--data-root", "corpora"] if content["scale"] != SCALES[0] else []))


def _block(commands: Sequence[str]) -> str:
    return "\n".join(f"    {command}" for command in commands)
