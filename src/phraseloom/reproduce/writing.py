"""A result as files: `table.md` for people, `table.json` with the same numbers and every seed. Nothing is left out silently.

The sentences that the numbers come from (sentences.py) are stored beside them; stored.py rebuilds a table from them.

The plot of a table: numbers here beside those of the paper, row by row; series as lines by label. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError, PhraseloomError, UsageError, plural
from phraseloom.files import (
    atomic_write_json,
    atomic_write_text,
    read_json,
    sha256_file,
)
from phraseloom.metrics.seeds import TWO_SEEDS, SeedDifference
from phraseloom.report.charts import picture as charts
from phraseloom.report.charts.chart import Axes, Chart, Series
from phraseloom.report.markup import markdown
from phraseloom.reproduce.records import commit_names
from phraseloom.reproduce.result import NOT_DONE, PARAMETERS, UNFINISHED, Result, mean_and_deviation
from phraseloom.reproduce.sentences import SENTENCES, write_sentences
from phraseloom.reproduce.table import SCALES, FloorConfig, TableConfig

Content = Mapping[str, Any]


def _place(scale: str) -> int:
    return SCALES.index(scale) if scale in SCALES else len(SCALES)


def stored_tables(folder: Path) -> list[Path]:
    """Every SCALE/TABLE/table.json of a folder, by scale and name. Raises UsageError if there is none."""
    paths = sorted(folder.glob(f"*/*/{JSON}"), key=lambda path: (_place(path.parent.parent.name), path.parent.name))
    if not paths:
        raise UsageError(
            f"no SCALE/TABLE/{JSON} there", file=folder, hint="reproduce TABLE --folder FOLDER writes them"
        )
    return paths


def read_table(path: Path) -> Content:
    """The content of a `table.json`. Raises CorruptError if it is none of this format."""
    content = read_json(path, "table")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptError(f"not a table of format {FORMAT}", file=path, hint="reproduce writes it anew")
    if not isinstance(content.get("table"), str):
        raise CorruptError("not a whole table (no name)", file=path, hint="reproduce writes it anew")
    return content


ROW_HEIGHT, WIDTH = 0.34, 9.0


def draw(result: Result, path: Path) -> bool:
    """Draw the first metric that has numbers here, for each task, as SVG; False where there is nothing to draw (with)."""
    if not charts.has_matplotlib():
        return False
    key = next((k for k in result.table.metrics if _has(result, k)), None)
    if key is None:
        return False
    metric = result.table.metrics[key]
    tasks = [task for task in (list(result.table.tasks) or [""]) if _has(result, key, task)]
    title = f"{result.table.title} — scale {result.scale}"
    if metric.is_series:
        charts.draw([_lines(result, task, key) for task in tasks], path, title=title, columns=2)
        return True
    height = max(2.0, 1.1 + ROW_HEIGHT * max(len(_rows(result, task, key)) for task in tasks))
    with charts.figure(len(tasks), 1, title, size=(WIDTH, height * len(tasks))) as (drawn, axes):
        for task, ax in zip(tasks, axes[:, 0], strict=True):
            _dots(ax, result, task, key)
            ax.set_title(f"{task}: {metric.title}".removeprefix(": "))
        charts.save(drawn, path)
    return True


def _has(result: Result, key: str, task: str | None = None) -> bool:
    """Whether there is a number here, of a task or of any."""
    cells = (cell for cell in result.measured if cell[2] == key and task in (None, cell[0]))
    return any(result.numbers(cell) or result.series(cell) for cell in cells)


def _rows(result: Result, task: str, key: str) -> list[str]:
    """The rows of a task with a number here or in the paper."""
    found = []
    for t, row in result.places():
        cell = (task, row, key)
        told = result.table.paper_of(row, task).get(key) if t == task else None
        if t == task and (result.numbers(cell) or result.series(cell) or told is not None):
            found.append(row)
    return found


def _dots(ax: Any, result: Result, task: str, key: str) -> None:
    """Rows from top to bottom; here with its deviation over seeds, the paper's on an axis of its own above."""
    rows = _rows(result, task, key)
    places = list(range(len(rows)))
    ax.set_yticks(places, [result.table.rows[row].label for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    for place, row in zip(places, rows, strict=True):
        found = mean_and_deviation(result.numbers((task, row, key)))
        if found is not None:
            ax.errorbar(
                found[0], place, xerr=found[1] or 0, color=charts.COLOURS[0], marker=charts.MARKERS[0], capsize=3
            )
    ax.set_xlabel("here", color=charts.COLOURS[0])
    told = [(place, result.table.paper_of(row, task).get(key)) for place, row in zip(places, rows, strict=True)]
    points = [(place, value) for place, value in told if isinstance(value, float | int)]
    if points:
        above = ax.twiny()
        above.grid(visible=False)
        above.spines["top"].set_visible(True)
        above.plot(
            [v for _, v in points],
            [p for p, _ in points],
            color=charts.COLOURS[1],
            marker=charts.MARKERS[1],
            linestyle="none",
        )
        above.set_xlabel("paper", color=charts.COLOURS[1])


def _lines(result: Result, task: str, key: str) -> Chart:
    """One line a row over the labels, and a pale one of the paper where it gives numbers."""
    values: dict[str, tuple[int, dict[str, float], dict[str, float]]] = {}
    for number, row in enumerate(_rows(result, task, key)):
        here = {label: sum(v) / len(v) for label, v in result.series((task, row, key)).items()}
        told = result.table.paper_of(row, task).get(key)
        values[result.table.rows[row].label] = (number, here, told if isinstance(told, dict) else {})
    labels = list(dict.fromkeys(label for _, *both in values.values() for one in both for label in one))
    series = []
    for name, (number, here, told) in values.items():
        for found, of_paper in ((here, False), (told, True)):
            points = [(float(labels.index(label)), value) for label, value in found.items()]
            series.append(Series(name, points, number, faint=of_paper))
    title = f"{task}: {result.table.metrics[key].title}".removeprefix(": ")
    pale = "; pale: the paper" if any(told for _, _, told in values.values()) else ""
    return Chart(title, series, Axes("", result.table.metrics[key].title + pale, places=list(enumerate(labels))))


FORMAT = 2
OLD_FORMATS = (1,)
MARKDOWN, JSON, PICTURE, BUDGET = "table.md", "table.json", "table.svg", "budget.svg"


CAPTION = (
    "Learning curves (mean over seeds, band ± one standard deviation), gain over the baseline at the same update (band ± one "
    "standard error), and score by parameters, as far as they are stored"
)


def check_place(folder: Path) -> None:
    """Raise UsageError if a table would replace files that do not belong to a reproduced table."""
    there = [name for name in (MARKDOWN, JSON, PICTURE, BUDGET, SENTENCES) if (folder / name).exists()]
    if not there:
        return
    try:
        content = read_json(folder / JSON, "table")
    except PhraseloomError:
        content = None
    known = isinstance(content, dict) and content.get("format") in (FORMAT, *OLD_FORMATS)
    if not known or "claims" not in content:
        hint = "move it away, or choose another --folder"
        raise UsageError(
            "this file is not part of a reproduced table, and would be replaced", file=folder / there[0], hint=hint
        )


def write(result: Result, folder: Path, *, pictures: Sequence[str] = ()) -> None:
    """Write a table and its sentences into a folder; `pictures`: those of PICTURE and BUDGET that the page shows."""
    stored = write_sentences(folder / SENTENCES, result.name, result.scale, result.measured)
    sentences = {"file": SENTENCES, "sha256": sha256_file(folder / SENTENCES)} if stored else None
    atomic_write_json(folder / JSON, {**as_json(result), "sentences": sentences})
    atomic_write_text(folder / MARKDOWN, as_markdown(result, pictures=pictures))


def as_markdown(result: Result, *, pictures: Sequence[str] = ()) -> str:
    """The table as a page: numbers beside the paper's, the plot, failures, claims, how it was measured."""
    table, config = result.table, result.table.scales[result.scale]
    parts = [f"# {table.title}", table.says.strip(), f"**Scale {result.scale}.** {config.says.strip()}", _made(result)]
    for task in list(table.tasks) or [""]:
        parts += [f"## {task}"] if task else []
        parts += [_scalars(result, task), _series(result, task)]
    parts += [f"![{table.title}]({PICTURE})"] if PICTURE in pictures else []
    parts += [f"![{CAPTION}]({BUDGET})\n\n{CAPTION}."] if BUDGET in pictures else []
    parts += [_not_there(result), _claims(result), _signatures(result)]
    parts += ["## Notes\n\n" + "\n".join(f"* {note.strip()}" for note in table.notes)] if table.notes else []
    return "\n\n".join(filter(None, parts)) + "\n"


def _made(result: Result) -> str:
    where = result.machine
    threads = f", OMP_NUM_THREADS={where['threads']}" if where.get("threads") else ""
    seeds = ", ".join(map(str, result.seeds))
    number = "mean ± standard deviation over seeds" if len(result.seeds) > 1 else "one seed, no deviation"
    return (
        f"Seeds {seeds} ({number}); phraseloom {', '.join(sorted(result.versions))}{_commits(result)}; {where['processor']}, "
        f"{plural(where['cores'], 'core')}{threads}, Python {where['python']}."
    )


def _commits(result: Result) -> str:
    """The commits in a few digits, such as `, commit 0123456789 with changes`."""
    if not result.commits:
        return ""
    return f", commit{'s' * (len(result.commits) > 1)} {commit_names(result.commits)}"


def _scalars(result: Result, task: str) -> str:
    table = result.table
    metrics = {k: m for k, m in table.metrics_at(result.scale).items() if not m.is_series}
    rows = [row for t, row in result.places() if t == task]
    if not metrics and not any(result.fact(task, row, "updates") for row in rows):
        return ""
    compared = [k for k in metrics if any((task, row, k) in result.against for row in rows)]
    told = [k for k in metrics if any(k in table.paper_of(row, task) for row in rows)]
    counts = any(PARAMETERS in table.paper_of(row, task) for row in rows)
    of_length = next((k for k in metrics if any(result.length_ratios((task, row, k)) for row in rows)), None)
    headers = ["row", "parameters", *(["paper's"] if counts else []), "updates", "minutes"]
    for key, metric in metrics.items():
        headers += [metric.title, *(["length"] if key == of_length else []), *(["paper's"] if key in told else [])]
        headers += [f"− {table.baseline} (95 %; p)"] if key in compared else []
    lines = []
    for row in rows:
        paper = table.paper_of(row, task)
        cells: list[object] = [table.rows[row].label, _parameters(result, task, row)]
        cells += [_paper(paper.get(PARAMETERS), 0)] if counts else []
        cells += [_mean(result.fact(task, row, "updates"), 0), _mean(_minutes(result, task, row), 1)]
        for key, metric in metrics.items():
            cells.append(_mean(result.numbers((task, row, key)), metric.decimals) or _reason(result, task, row))
            if key == of_length:
                cells.append(_mean([*result.length_ratios((task, row, key)).values()], 3))
            cells += [_paper(paper.get(key), metric.decimals)] if key in told else []
            cells += [_difference(result.against.get((task, row, key)), metric.decimals)] if key in compared else []
        lines.append(cells)
    return markdown(headers, lines)


def _reason(result: Result, task: str, row: str) -> str:
    """Why a number is not there, in two words: the whole reason stands below the table."""
    if _not_run_because(result, task, row):
        return "not run"
    reasons = result.failures.get((task, row), [])
    if reasons and all(text.endswith(tuple(f": {NOT_DONE[state]}" for state in UNFINISHED)) for text in reasons):
        return "unfinished"
    return "failed" if reasons else "–"


def _series(result: Result, task: str) -> str:
    table, found = result.table, []
    metrics = {k: m for k, m in table.metrics_at(result.scale).items() if m.is_series}
    labels: list[str] = []
    for key in metrics:
        for row in table.rows:
            told = table.paper_of(row, task).get(key, {}) if task in table.tasks_of(row) else {}
            for label in [*result.series((task, row, key)), *(told if isinstance(told, dict) else {})]:
                labels += [label] if label not in labels else []
    for row in table.rows:
        for key, metric in metrics.items():
            here = result.series((task, row, key))
            told = table.paper_of(row, task).get(key, {}) if task in table.tasks_of(row) else {}
            if here:
                cells = [_mean(here.get(label, []), metric.decimals) for label in labels]
                found.append([table.rows[row].label, metric.title, "here", *cells])
            if isinstance(told, dict) and told:
                cells = [_paper(told.get(label), metric.decimals) for label in labels]
                found.append([table.rows[row].label, metric.title, "paper", *cells])
    return markdown(["row", "measure", "of", *labels], found) if found else ""


def _not_there(result: Result) -> str:
    lines = [f"{row.label}: not run at this scale: {row.not_run[result.scale]}" for row in _not_run(result)]
    no_task = {task: why[result.scale] for task, why in result.table.no_task.items() if result.scale in why}
    lines += [f"{task}: not run at this scale: {why}" for task, why in no_task.items()]
    lines += [f"{row} {task}".strip() + f": {text}" for (task, row), some in result.failures.items() for text in some]
    lines += result.left_out
    missing = {
        f"{result.table.rows[row].label} {task}".strip() + f", {metric}, seed {seed}: {measured.missing}"
        for (task, row, metric), seeds in result.measured.items()
        for seed, measured in seeds.items()
        if measured.missing and not result.failures.get((task, row))
    }
    lines += sorted(missing)
    return "## Not there\n\n" + "\n".join(f"* {line}" for line in lines) if lines else ""


def _not_run(result: Result) -> list[Any]:
    return [row for row in result.table.rows.values() if result.scale in row.not_run]


LEGEND = {
    "held": "Held, did not hold: p after Holm's correction for the claims of this table is below 0.05, for every comparison or "
    "against one. Undecided: it is not.",
    "with two seeds": TWO_SEEDS,
    "between": "Between these two runs, in this run: one seed, so other trainings may come out otherwise; yes, no and "
    "undecided are about the sentences of the test set alone.",
    "not learned": "Not learned: a row is below the floor that this table states, and there is nothing to compare.",
    "path only": "Path only: this scale shows that every part works; its numbers say nothing about the claim.",
}


def _claims(result: Result) -> str:
    if not result.judged:
        return ""
    rows = []
    for judged in result.judged:
        where = f" ({judged.claim.where})" if judged.claim.where else ""
        details = "; ".join(f"{c.says}: {_difference(c.difference, 2) or 'not measured'}" for c in judged.comparisons)
        verdict = f"{judged.verdict}: {judged.reason}" if judged.reason else judged.verdict
        rows.append([judged.claim.says + where, verdict, p_in_words(judged.p_holm), details])
    text = markdown(["claim of the paper", "here", "p after Holm", "differences (95 %; two-sided p)"], rows)
    verdicts = {judged.verdict for judged in result.judged}
    two_seeds = any(verdict.startswith("with two seeds") for verdict in verdicts)
    said = [LEGEND["held"]] if two_seeds or verdicts & {"held", "did not hold", "undecided"} else []
    said += [LEGEND["with two seeds"]] if two_seeds else []
    said += [LEGEND["between"]] if any(v.startswith(("between", "in this run")) for v in verdicts) else []
    said += [LEGEND[verdict] for verdict in ("not learned", "path only") if verdict in verdicts]
    floors = {f"of the claim *{judged.claim.says}* alone": judged.claim.floor for judged in result.judged}
    said += [_floor(result, floor, of) for of, floor in ({"": result.table.floor} | floors).items()]
    return f"## Claims\n\n{text}\n\n" + " ".join(filter(None, said))


def _floor(result: Result, floor: FloorConfig | None, of: str) -> str:
    """What the baseline has to reach before there are verdicts."""
    bound = None if floor is None else floor.bound(result.scale)
    if floor is None or bound is None:
        return ""
    table, side = result.table, "at least" if floor.at_least else "at most"
    label = f" [{floor.label}]" if floor.label else ""
    number = f"{table.metrics[floor.metric].title}{label} of {floor.row or table.baseline}"
    return f"Floor {of}".rstrip() + f": {number} is {side} {bound:g}."


def p_in_words(p: float | None) -> str:
    """Three decimals, or `< 0.001`."""
    return "" if p is None else f"{p:.3f}" if p >= 0.001 else "< 0.001"


LENGTH = (
    "* length: tokens of the translations over tokens of the reference, as the first BLEU counts them. Below 1, BLEU is "
    "multiplied by exp(1 − 1 / length)."
)


def _signatures(result: Result) -> str:
    lines = {
        f"* {result.table.metrics[metric].title}: `{measured.signature}`"
        for (_, _, metric), seeds in result.measured.items()
        for measured in seeds.values()
        if measured.signature
    }
    if any(result.length_ratios(cell) for cell in result.measured):
        lines.add(LENGTH)
    hows = {f"* Differences: {d.how}." for d in result.against.values()}
    return "## How it was measured\n\n" + "\n".join(sorted(lines) + sorted(hows)) if lines or hows else ""


def _parameters(result: Result, task: str, row: str) -> str:
    known = result.fact(task, row, PARAMETERS)
    number = round(known[0]) if known else result.counted.get((task, row))
    return f"{number:,}" if number is not None else ""


def _minutes(result: Result, task: str, row: str) -> list[float]:
    return [seconds / 60 for seconds in result.fact(task, row, "seconds")]


def _mean(values: Sequence[float], decimals: int) -> str:
    found = mean_and_deviation(values)
    if found is None:
        return ""
    mean, deviation = found
    text = f"{mean:,.{decimals}f}"
    return text if deviation is None or (decimals == 0 and not deviation) else f"{text} ± {deviation:,.{decimals}f}"


def _paper(value: Any, decimals: int) -> str:
    if value is None or isinstance(value, dict):
        return ""
    return f"{value:,.{decimals}f}" if isinstance(value, float) else f"{value:,}"


def _difference(found: SeedDifference | None, decimals: int) -> str:
    if found is None:
        return ""
    text = f"{found.mean:+,.{decimals}f}"
    if found.exact:
        return text
    if found.low is None or found.high is None:
        return f"{text} ({found.how})"
    p = "" if found.p is None else f"; p {p_in_words(found.p)}"
    return f"{text} ({found.low:+,.{decimals}f} … {found.high:+,.{decimals}f}{p})"


def as_json(result: Result) -> dict[str, Any]:
    """The result as plain data: all seeds, means, the paper's numbers, differences, claims, failures."""
    table = result.table
    rows = []
    for task, row in result.places():
        known = result.fact(task, row, PARAMETERS)
        rows.append(
            {
                "task": task,
                "row": row,
                "label": table.rows[row].label,
                "not_run": _not_run_because(result, task, row),
                "failures": result.failures.get((task, row), []),
                PARAMETERS: round(known[0]) if known else result.counted.get((task, row)),
                "paper": table.paper_of(row, task),
                **_stored_curves(result, (task, row)),
                "run": {str(seed): facts for seed, facts in result.facts.get((task, row), {}).items()},
                "metrics": {m: _metric(result, (task, row, m)) for t, r, m in result.measured if (t, r) == (task, row)},
            }
        )
    return {
        "format": FORMAT,
        "table": result.name,
        "definition": definition(table),
        "title": table.title,
        "paper": table.paper,
        "scale": result.scale,
        "seeds": list(result.seeds),
        "phraseloom": sorted(result.versions),
        "commits": sorted(result.commits),
        "machine": result.machine,
        "left_out": result.left_out,
        "baseline": table.baseline,
        "rows": rows,
        "claims": [
            {
                "says": judged.claim.says,
                "where": judged.claim.where,
                "verdict": judged.verdict,
                "reason": judged.reason,
                "p": judged.p,
                "p_holm": judged.p_holm,
                "comparisons": [asdict(c) for c in judged.comparisons],
            }
            for judged in result.judged
        ],
    }


def _stored_curves(result: Result, place: tuple[str, str]) -> dict[str, Any]:
    curves = result.curves.get(place)
    return {} if not curves else {"validation": {str(seed): of_run for seed, of_run in curves.items()}}


def definition(table: TableConfig) -> dict[str, Any]:
    """What of the file of a table is needed to judge its claims again: no recipes, steps or variables."""
    content = table.model_dump(mode="json", exclude_unset=True)
    if table.tasks:
        content["tasks"] = {task: {} for task in table.tasks}
    for row in content["rows"].values():
        for key in ("recipe", "overrides", "variables"):
            row.pop(key, None)
    content["scales"] = {
        scale: {key: value for key, value in content["scales"][scale].items() if key in ("says", "not_done")}
        for scale in SCALES
    }
    return content


def _not_run_because(result: Result, task: str, row: str) -> str | None:
    table = result.table
    return table.rows[row].not_run.get(result.scale) or table.no_task.get(task, {}).get(result.scale)


def _metric(result: Result, cell: tuple[str, str, str]) -> dict[str, Any]:
    seeds = result.measured[cell]
    numbers = mean_and_deviation(result.numbers(cell))
    signature = next((m.signature for m in seeds.values() if m.signature), None)
    against, ratios = result.against.get(cell), result.length_ratios(cell)
    return {
        "title": result.table.metrics[cell[2]].title,
        "seeds": {str(seed): m.value for seed, m in seeds.items()},
        "missing": {str(seed): m.missing for seed, m in seeds.items() if m.missing},
        "mean": None if numbers is None else numbers[0],
        "deviation": None if numbers is None else numbers[1],
        "signature": signature,
        **({"length_ratio": {str(seed): ratio for seed, ratio in ratios.items()}} if ratios else {}),
        "against_baseline": None if against is None else asdict(against),
    }
