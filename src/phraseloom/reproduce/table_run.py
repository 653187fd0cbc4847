"""Reproduce a table: plan, run, measure, write."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from phraseloom import files
from phraseloom.errors import FileProblem, UsageError, plural
from phraseloom.replace import check_marked, check_parent, move_own, remove_marked, remove_own, system_errors
from phraseloom.reproduce.budget import draw_budget
from phraseloom.reproduce.cluster import ClusterExecution
from phraseloom.reproduce.corpora import CheckedData, check_data
from phraseloom.reproduce.execute import PROGRAM, Execution, lease_path, visible_devices
from phraseloom.reproduce.lease import StepLease
from phraseloom.reproduce.plan import Plan, Speed, choose, make_plan, render, speed_here, speed_of
from phraseloom.reproduce.records import RECORD, Record, read_record
from phraseloom.reproduce.result import Result, collect
from phraseloom.reproduce.steps import DIGITS, Step, Steps, in_order
from phraseloom.reproduce.stored import measured_cells, read_rows, stored_cells, take_rows
from phraseloom.reproduce.table import Scale, find_table, load_table
from phraseloom.reproduce.writing import BUDGET, JSON, PICTURE, check_place, draw, write

STEPS, JOBS, LOCKS, ASIDE = "steps", ".jobs", ".locks", ".merge"
PAPER_GPU = "A100"
Say = Callable[[str], None]


@dataclass(frozen=True)
class TableOptions:
    """The options of `reproduce`. `flops`, `gpu`: the speed for estimates; `train_paper`: also train at scale paper.

    `on`: who runs the steps, with `slurm`, options of sbatch. `step`: the identity of the only step to run, or its beginning.
    `rows_from`: the folder of a stored table, which gives the rows and seeds that are not run here. `precision`: of all
    trainings, in place of the recipes'; the description of the scale then says so.
    """

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
    on: Literal["here", "local", "slurm"] = "here"
    slurm: Mapping[str, str] = field(default_factory=dict)
    step: str | None = None
    rows_from: Path | None = None
    precision: Literal["fp32", "bf16"] | None = None

    @property
    def trains(self) -> bool:
        """Whether steps are run; at scale paper only on request."""
        return self.scale != "paper" or self.train_paper


def open_plan(name: str, recipes: Path, options: TableOptions) -> Plan:
    """The plan of a table. Raises UsageError, with the reason in the table, if the scale cannot be reproduced."""
    steps = _open_steps(name, recipes, options)
    return make_plan(steps, options.rows, options.seeds or steps.config.seeds)


def check_writable(options: TableOptions) -> None:
    """Check that steps can be written, before the plan is made. Raises FileProblem."""
    check_parent(options.folder, options.folder.absolute() / options.scale)


def _open_steps(name: str, recipes: Path, options: TableOptions) -> Steps:
    path = find_table(name, recipes)
    table = load_table(path)
    config = table.scales[options.scale]
    if config.not_done is not None:
        raise UsageError(f"{path.stem} is not made at scale {options.scale}: {config.not_done.strip()}")
    training: tuple[str, ...] = ()
    if options.precision is not None:
        training = (f"training.precision={options.precision}",)
        says = f"{config.says.strip()} All trainings in {options.precision} (--precision)."
        table.scales[options.scale] = config.model_copy(update={"says": says.strip()})
    return Steps(table, options.scale, options.folder / options.scale / STEPS, recipes, options.root, training)


def check_table_data(name: str, recipes: Path, options: TableOptions) -> CheckedData:
    """Check the corpora that a table reads; nothing is run. Raises UsageError as `open_plan`, CorruptError."""
    steps = _open_steps(name, recipes, options)
    chosen = choose(steps.table, steps, options.rows)
    seeds = options.seeds or steps.config.seeds
    return check_data(
        in_order([s for task, row in chosen for seed in seeds for s in steps.steps_of(row, task, seed)]),
        options.root,
        recipes,
    )


def speeds(plan: Plan, options: TableOptions) -> dict[str, Speed]:
    """The speed by precision of the trainings, or one speed for all under ""."""
    if not plan.trainings:
        return {}
    if options.flops is not None or (options.gpu is None and options.trains):
        return {"": speed_here(plan.trainings, options.flops)}
    precisions = sorted({e.precision for e in plan.estimates.values()})
    return {p: speed_of(options.gpu or PAPER_GPU, p) for p in precisions}


def plan_text(plan: Plan, options: TableOptions) -> str:
    """The plan as text, with a warning if this CPU is slow in the precision of its trainings."""
    text = render(plan, speeds(plan, options))
    left = [step.identity for step in plan.trainings if plan.records[step.identity].state != "done"]
    reduced = any(plan.estimates[identity].precision == "bf16" for identity in left)
    if not reduced or not options.trains or options.on == "slurm" or visible_devices():
        return text
    from phraseloom.models.device import SLOW, bf16_cost

    if (cost := bf16_cost()) <= SLOW:
        return text
    return (
        f"{text.rstrip()}\nwarning: trainings are in bf16, and on this CPU a product in bf16 takes {cost:.0f} times as long as "
        "in fp32, which the times above do not know; --precision fp32 trains in fp32\n"
    )


def reproduce(plan: Plan, name: str, options: TableOptions, say: Say) -> tuple[Result, Path]:
    """Run the steps that are not done, measure, and write the table to FOLDER/SCALE/NAME. Scale paper runs nothing by default.

    A stored table stays as it is if this run was stopped and has less, or if it has no number at all. Raises InterruptedRun
    after a signal; the table is written first.
    """
    target = options.folder / options.scale / Path(name).stem
    check_place(target)
    stored = None
    if options.rows_from is not None:
        stored = read_rows(options.rows_from, plan.steps.table, target.name, options.scale)
        rows = dict.fromkeys(row for _, row, _ in stored.measured)
        say(f"{options.rows_from} has the rows {', '.join(rows)}; those that are not chosen are taken from there")
    with system_errors(options.folder):
        files.disk.mkdir(plan.steps.work)
        execution = _execution(plan, plan.ordered, options, say)
        ended = False
        try:
            if options.trains:
                execution.run()
            ended = True
        finally:
            plan.records.update(execution.records)
            result = measure(plan, target.name, options, stored)
            lock = plan.steps.work / LOCKS / target.name  # not in the folder, which has the table only
            with files.FolderLock(lock, wait=True):
                here = measured_cells(result)
                lost = stored_cells(target / JSON) - here
                if not lost or (ended and here):
                    pictures = [PICTURE] if draw(result, target / PICTURE) else []
                    pictures += [BUDGET] if draw_budget(result, target / BUDGET) else []
                    write(result, target, pictures=pictures)
                else:
                    numbers = plural(len(lost), "number")
                    say(f"{target / JSON} stays as it was: it has {numbers} that this run lacks")
    return result, target


def _execution(plan: Plan, steps: Sequence[Step], options: TableOptions, say: Say) -> Execution | ClusterExecution:
    if options.on == "here":
        devices = visible_devices() if options.jobs > 1 and options.trains else []
        return Execution(steps, options.jobs, say, plan.flop(), options.program, devices)
    return ClusterExecution(
        steps, options.on, options.jobs, say, plan.flop(), options.program, plan.steps.work / JOBS, options.slurm
    )


def run_step(plan: Plan, options: TableOptions, say: Say) -> Record:
    """Run the step whose identity begins with `options.step`, and no other. Raises UsageError if its needs are not done, and at
    scale paper without `train_paper`.
    """
    if not options.trains:
        raise UsageError("scale paper only counts", hint="--train-paper runs its steps")
    matches = [step for step in plan.ordered if step.identity.startswith(options.step or "-")]
    if len(matches) != 1:
        problem = "no step" if not matches else "more than one step"
        raise UsageError(f"{problem} begins with {options.step}", hint="--plan --json lists the steps of the table")
    step = matches[0]
    waiting = [need for need in in_order(step.needs) if plan.records[need.identity].state != "done"]
    if waiting:
        raise UsageError(
            f"{step.title} needs {waiting[0].title}", hint=f"run --step {waiting[0].identity[:DIGITS]} first"
        )
    files.disk.mkdir(plan.steps.work)
    return _execution(plan, [step], options, say).run()[step.identity]


def merge(plan: Plan, other: Path, options: TableOptions, say: Say) -> int:
    """Copy the steps of a plan that are done in another output folder, such as that of another machine. Returns their number.

    A copied step is complete before it has its name, so that a killed merge leaves nothing that counts.
    """
    source = files.require_folder(other / options.scale / STEPS, "steps of the other folder")
    files.disk.mkdir(plan.steps.work)
    count = 0
    for step in plan.ordered:
        if plan.records[step.identity].state == "done":
            continue
        for folder in sorted(source.glob(f"[!.]*-{step.identity[:DIGITS]}")):
            if read_record(replace(step, folder=folder)).state != "done":
                continue
            try:
                check_marked(step.folder, RECORD)
            except FileProblem as error:
                say(f"left out: {step.title}: {error}")
                break
            lease = StepLease(lease_path(step))
            if not lease.take():
                say(f"left out: another command runs {step.title}")
                break
            try:
                _copy_step(folder, step, plan.steps.work / ASIDE / step.identity[:DIGITS])
            finally:
                lease.release()
            say(f"copied: {step.title}")
            count += 1
            break
    return count


def _copy_step(folder: Path, step: Step, aside: Path) -> None:
    """Copy the folder of a finished step, by way of `aside`."""
    try:
        remove_own(aside)
        shutil.copytree(folder, aside, symlinks=True)
        remove_marked(step.folder, RECORD)
        move_own(aside, step.folder)
    except shutil.Error as error:
        raise FileProblem(f"cannot copy a step: {error.args[0][0][2]}", file=folder) from error
    finally:
        remove_own(aside)


def plan_data(plan: Plan, options: TableOptions) -> dict[str, Any]:
    """The plan as plain data: every step with its identity, needs, command line, state and cost."""
    speed = speeds(plan, options)
    steps = []
    for step in plan.ordered:
        cost, record = plan.estimates.get(step.identity), plan.records[step.identity]
        steps.append(
            {
                "id": step.identity[:DIGITS],
                "step": step.title,
                "needs": [need.identity[:DIGITS] for need in step.needs],
                "argv": list(step.argv),
                "folder": str(step.folder),
                "state": record.state,
                "spent_seconds": record.seconds,
                "parameters": cost and cost.parameters,
                "flop": cost and cost.flop,
                "seconds": cost and cost.seconds(speed.get("") or speed[cost.precision]),
                "disk_bytes": cost and cost.disk,
            }
        )
    return {"format": 1, "scale": plan.steps.scale, "speed": {p: s.says for p, s in speed.items()}, "steps": steps}


def measure(plan: Plan, name: str, options: TableOptions, stored: Result | None = None) -> Result:
    """The result of the steps that have run, with the rows of a stored one that were not chosen."""
    table = plan.steps.table
    has_results = options.trains or any(record.state == "done" for record in plan.records.values())
    chosen = plan.chosen if has_results else []  # nothing was trained, so that nothing is missing
    result = collect(plan.steps, name, plan.seeds, chosen, _all_records(plan), counted=counted(plan))
    taken = [] if stored is None else take_rows(result, stored)
    left_out = [place for place in result.places() if place not in plan.chosen and place not in taken]
    for task, row in left_out:
        if options.scale not in table.rows[row].not_run and options.scale not in table.no_task.get(task, {}):
            result.left_out.append(f"{table.rows[row].label} {task}".strip() + ": not chosen (--rows)")
    if not options.trains:
        result.left_out.append("nothing was trained: at the scale of the paper only counts are made")
    return result


def counted(plan: Plan) -> dict[tuple[str, str], int]:
    """The number of parameters of each trained (task, row)."""
    result = {}
    for task, row in plan.chosen:
        for seed in plan.seeds:
            for step in plan.steps.steps_of(row, task, seed):
                if step.name == "train" and step.identity in plan.estimates:
                    result[task, row] = plan.estimates[step.identity].parameters
    return result


def _all_records(plan: Plan) -> Mapping[str, Record]:
    missing = {s.identity: Record("new", {}) for s in in_order(plan.ordered) if s.identity not in plan.records}
    return {**plan.records, **missing}
