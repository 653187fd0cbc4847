"""A table from beginning to end: plan, run, measure, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phraseloom import files
from phraseloom.errors import UsageError
from phraseloom.reproduce.execute import PROGRAM, Execution
from phraseloom.reproduce.load import find_table, load_table
from phraseloom.reproduce.plan import Plan, Speed, make_plan, render, speed_here, speed_of
from phraseloom.reproduce.records import Record
from phraseloom.reproduce.result import Result, collect
from phraseloom.reproduce.steps import Steps, in_order
from phraseloom.reproduce.table import Scale
from phraseloom.reproduce.writing import PICTURE, check_place, draw, write

STEPS = "steps"
PAPER_GPU = "A100"
Say = Callable[[str], None]


@dataclass(frozen=True)
class TableOptions:
    """What was asked for. `flops`, `gpu`: the speed that times are estimated with; `train_paper`: also at that scale."""

    scale: Scale = "tiny"
    rows: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    jobs: int = 1
    folder: Path = Path("reproduced")
    root: str = "."
    flops: float | None = None
    gpu: str | None = None
    train_paper: bool = False
    program: Sequence[str] = PROGRAM

    @property
    def trains(self) -> bool:
        """Whether steps are run at all: at the scale of the paper only on demand."""
        return self.scale != "paper" or self.train_paper


def open_plan(name: str, recipes: Path, options: TableOptions) -> Plan:
    """The plan of a table; UsageError where the scale cannot be done, with the reason that the table gives."""
    path = find_table(name, recipes)
    table = load_table(path)
    config = table.scales[options.scale]
    if config.not_done is not None:
        raise UsageError(f"{path.stem} is not made at scale {options.scale}: {config.not_done.strip()}")
    steps = Steps(table, options.scale, options.folder / options.scale / STEPS, recipes, options.root)
    return make_plan(steps, options.rows, options.seeds or config.seeds)


def speeds(plan: Plan, options: TableOptions) -> dict[str, Speed]:
    """The speed by precision of the trainings; under "" one for all."""
    if not plan.trainings:
        return {}
    if options.flops is not None or (options.gpu is None and options.trains):
        return {"": speed_here(plan.trainings, options.flops)}
    precisions = sorted({e.precision for e in plan.estimates.values()})
    return {p: speed_of(options.gpu or PAPER_GPU, p) for p in precisions}


def plan_text(plan: Plan, options: TableOptions) -> str:
    """The plan as text."""
    return render(plan, speeds(plan, options))


def reproduce(plan: Plan, name: str, options: TableOptions, say: Say) -> tuple[Result, Path]:
    """Run what is not done, measure, and write the table into FOLDER/SCALE/NAME; at the paper's scale only write what is known.

    Raises InterruptedRun after a signal (what is known by then is written).
    """
    target = options.folder / options.scale / Path(name).stem
    check_place(target)
    files.disk.mkdir(plan.steps.work)
    with files.FolderLock(options.folder / options.scale):
        execution = Execution(plan.ordered, options.jobs, say, plan.flop(), options.program)
        try:
            if options.trains:
                execution.run()
        finally:
            plan.records.update(execution.records)
            result = measure(plan, Path(name).stem, options)
            write(result, target, picture=draw(result, target / PICTURE))
    return result, target


def measure(plan: Plan, name: str, options: TableOptions) -> Result:
    """The result as far as the steps have been run."""
    table = plan.steps.table
    there = options.trains or any(record.state == "done" for record in plan.records.values())
    chosen = plan.chosen if there else []  # nothing was trained, so that nothing is missing
    result = collect(plan.steps, name, plan.seeds, chosen, _all_records(plan), counted=counted(plan))
    left_out = [place for place in result.places() if place not in plan.chosen]
    for task, row in left_out:
        if options.scale not in table.rows[row].not_run and options.scale not in table.no_task.get(task, {}):
            result.left_out.append(f"{table.rows[row].label} {task}".strip() + ": not chosen (--rows)")
    if not options.trains:
        result.left_out.append("nothing was trained: at the scale of the paper only counts are made")
    return result


def counted(plan: Plan) -> dict[tuple[str, str], int]:
    """Parameters of each (task, row) that is trained."""
    found = {}
    for task, row in plan.chosen:
        for seed in plan.seeds:
            for step in plan.steps.steps_of(row, task, seed):
                if step.identity in plan.estimates:
                    found[task, row] = plan.estimates[step.identity].parameters
    return found


def _all_records(plan: Plan) -> Mapping[str, Record]:
    missing = {s.identity: Record("new", {}) for s in in_order(plan.ordered) if s.identity not in plan.records}
    return {**plan.records, **missing}
