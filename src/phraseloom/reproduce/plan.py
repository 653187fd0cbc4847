"""What a table will do before it does it: its rows, what is there already, parameters, tokens, FLOP, time, disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phraseloom.errors import UsageError
from phraseloom.report.tables import terminal
from phraseloom.reproduce.estimate import CostEstimate, Speed, estimate
from phraseloom.reproduce.execute import duration
from phraseloom.reproduce.inputs import missing
from phraseloom.reproduce.records import Record, read_record
from phraseloom.reproduce.steps import Step, Steps, in_order
from phraseloom.reproduce.table import TableConfig, runnable


@dataclass
class Plan:
    """The steps of the chosen rows in order, with the estimate of each training by identity."""

    steps: Steps
    chosen: list[tuple[str, str]]
    seeds: Sequence[int]
    ordered: list[Step] = field(default_factory=list)
    estimates: dict[str, CostEstimate] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def trainings(self) -> list[Step]:
        """The trainings among the steps."""
        return [step for step in self.ordered if step.trains]

    def flop(self) -> dict[str, float]:
        """FLOP by identity, for the records."""
        return {identity: e.flop for identity, e in self.estimates.items() if e.flop is not None}


def make_plan(steps: Steps, rows: Sequence[str] | None, seeds: Sequence[int]) -> Plan:
    """The plan of the chosen rows (all that can be run, where `rows` is None). Raises UsageError for unknown names."""
    chosen = choose(steps.table, steps, rows)
    plan = Plan(steps, chosen, seeds)
    wanted = [s for task, row in chosen for seed in seeds for s in steps.steps_of(row, task, seed)]
    plan.ordered = in_order(wanted)
    plan.records = {step.identity: read_record(step) for step in plan.ordered}
    plan.estimates = {step.identity: estimate(step, steps.config) for step in plan.trainings}
    return plan


def choose(table: TableConfig, steps: Steps, rows: Sequence[str] | None) -> list[tuple[str, str]]:
    """(task, row) of the rows that were asked for: `base`, `en-de/base`, or a task alone, `en-de/`."""
    able = [(task, row) for row, task in runnable(table, steps.scale)]
    able = sorted(able, key=lambda p: ((list(table.tasks) or [""]).index(p[0]), list(table.rows).index(p[1])))
    if rows is None:
        return able
    found: set[tuple[str, str]] = set()
    for name in rows:
        task, slash, row = name.rpartition("/")
        some = {p for p in able if (not slash or p[0] == task) and (not row or p[1] == row)}
        if not some:
            reason = table.rows[row].not_run.get(steps.scale) if row in table.rows else None
            why = f"is not run at scale {steps.scale}: {reason}" if reason else "is not there"
            hint = f"rows: {', '.join(table.rows)}" + (f"; tasks: {', '.join(table.tasks)}" if table.tasks else "")
            raise UsageError(f"row {name!r} {why}", hint=hint)
        found |= some
    return [place for place in able if place in found]


def render(plan: Plan, speeds: Mapping[str, Speed]) -> str:
    """The plan as text; `speeds` by precision, or one for all under ""."""
    table, config = plan.steps.table, plan.steps.config
    parts = [f"{table.title}\nscale {plan.steps.scale}: {config.says.strip()}"]
    rows, left, disk = [], 0.0, 0
    unknown = False
    for step in plan.trainings:
        found, record = plan.estimates[step.identity], plan.records[step.identity]
        speed = speeds.get("") or speeds[found.precision]
        seconds = found.seconds(speed)
        done = f"done, {duration(record.seconds)}"
        state = {"done": done, "stopped": "goes on", "failed": "failed before", "changed": "anew"}
        if record.state != "done":
            left += seconds or 0.0
            disk += found.disk
            unknown |= seconds is None
        rows.append(
            [
                str(step.place),
                f"{found.parameters:,}",
                "" if found.updates is None else f"{found.updates:,}",
                "" if found.target_tokens is None else f"{found.target_tokens:,}",
                "" if found.flop is None else f"{found.flop:.2e}",
                "not known" if seconds is None else duration(seconds),
                gigabytes(found.disk),
                state.get(record.state, "new"),
            ]
        )
    if rows:
        headers = ["training", "parameters", "updates", "target tokens", "FLOP", "time", "disk", ""]
        parts.append(terminal(headers, rows))
    counts = Counter(step.name for step in plan.ordered)
    ready = Counter(step.name for step in plan.ordered if plan.records[step.identity].state == "done")
    listed = ", ".join(f"{name} {ready[name]}/{number}" for name, number in counts.items())
    parts.append(f"steps done: {listed}" if listed else "nothing to run")
    parts.append("\n".join(_changes(plan)))
    remarks = sorted({r for e in plan.estimates.values() for r in e.remarks})
    lines = [f"not run: {row.label}: {row.not_run[plan.steps.scale]}" for row in _not_run(plan)]
    lines += [
        f"not run: {task}: {why[plan.steps.scale]}" for task, why in table.no_task.items() if plan.steps.scale in why
    ]
    lines += [f"assumed: {remark}" for remark in remarks]
    lines += [f"speed ({precision or 'all'}): {speed.says}" for precision, speed in speeds.items()] if rows else []
    more = " and more, see above" if unknown else ""
    if rows:
        lines.append(f"left: {duration(left)} of training{more} one after the other, {gigabytes(disk)} of disk")
        lines.append("text steps, translation and analysis come on top and are not estimated")
    parts.append("\n".join(lines))
    return "\n\n".join(filter(None, parts)) + "\n"


def _changes(plan: Plan) -> list[str]:
    """What has become of the files of the data root since steps have read them."""
    changes: Counter[tuple[str, str]] = Counter()
    for record in plan.records.values():
        changes.update(record.changed.items())
    lines = [
        f"changed: {name} ({why}): {number} step{'s are' if number != 1 else ' is'} run anew"
        for (name, why), number in changes.items()
    ]
    done = [step for step in plan.ordered if plan.records[step.identity].state == "done"]
    gone = missing(done)
    named = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
    lines += [f"not there under {plan.steps.root}: {named}; what was made of them stays as it is"] if gone else []
    return lines


def _not_run(plan: Plan) -> list[Any]:
    return [row for row in plan.steps.table.rows.values() if plan.steps.scale in row.not_run]


def gigabytes(size: float) -> str:
    """A size on disk: MB below one GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
