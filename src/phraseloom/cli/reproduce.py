"""`phraseloom reproduce`: reproduce a table or figure of a paper at tiny, small or the paper's scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

ScaleName = Literal["tiny", "small", "paper"]


def command(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="A table such as 002-table1, or a file. Default: list the tables."),
    ] = None,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="tiny: the built-in pair, minutes, shows that the path works; small: corpora under --data-root, hours; "
            "paper: counts only."
        ),
    ] = "tiny",
    rows: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these rows, comma-separated: base, en-de/base, en-de/.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="Seeds of each row. Default: the table's. One seed gives no verdict on training, only on two runs.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the steps and their estimated cost; run nothing.")
    ] = False,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Only check the corpora under --data-root that the table reads, and say where to get those that are "
            "missing or different.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --plan or --data: as JSON, with every step and its identity, or file.")
    ] = False,
    step: Annotated[
        str | None, typer.Option(metavar="ID", help="Run only this step of the plan, and write no table.")
    ] = None,
    merge: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="First copy the finished steps of this output folder of another machine."),
    ] = None,
    rows_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Take the rows that are not chosen from the table stored in FOLDER (table.json and its sentences), with "
            "the same definition, scale and seeds.",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Number of parallel steps. On one machine each gets its share of the cores, and one GPU.",
        ),
    ] = 1,
    on: Annotated[
        Literal["here", "local", "slurm"],
        typer.Option(
            help="Who runs the steps: here; jobs of submitit on this machine (local) or of Slurm (docs/cluster.md)."
        ),
    ] = "here",
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Option of sbatch for each job, such as partition=gpu, gpus_per_node=1, time=720."
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Output folder for steps and tables.")] = Path("reproduced"),
    data_root: Annotated[
        Path, typer.Option(envvar="PHRASELOOM_DATA", help="Folder that contains the corpora named in the recipes.")
    ] = Path(),
    recipes: Annotated[
        Path | None,
        typer.Option(help="The recipe folder, with tables/. Default: recipes, or the one of the checkout."),
    ] = None,
    flops: Annotated[
        float | None, typer.Option(metavar="N", min=1e6, help="Training speed in FLOP/s, for estimates: 1e11.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Estimate for this GPU: V100, A100, H100, H200, RTX4090.")
    ] = None,
    train_paper: Annotated[
        bool, typer.Option("--train-paper", help="With --scale paper: really train, which takes GPU-days.")
    ] = False,
    index: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Only write FOLDER/README.md, the list of its tables.")
    ] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only draw budget.svg for each table in FOLDER: learning curves with bands over seeds, gain by "
            "budget, score by parameters, from table.json alone.",
        ),
    ] = None,
    recompute: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only compute the intervals and claims of FOLDER/table.json again, from its own sentences.",
        ),
    ] = None,
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only print the evidence table: each claim, the paper's difference, ours, and the verdict, from the "
            "tables in FOLDER, without those of scale tiny.",
        ),
    ] = None,
    short: Annotated[
        bool,
        typer.Option(
            "--short", help="With --evidence: only claims on BLEU whose rows have several seeds, in fewer columns."
        ),
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE",
            help="With --evidence: write the table into this Markdown page, between <!-- evidence --> and "
            "<!-- end of evidence -->.",
        ),
    ] = None,
) -> None:
    """Reproduce a table of a paper: train and measure its rows, show the paper's numbers next to them, and check
    each claim.

    Finished steps are not repeated, even if another table ran them, unless a corpus that they read has changed.
    After an interruption, the same command resumes. Several commands, also on several machines, may share a folder:
    a step runs once. A row that fails is shown as failed and does not stop the
    others. The command writes table.md, .json and .svg to FOLDER/SCALE/TABLE, and the sentences that the numbers come
    from.

    Welch's t over seeds and sentences decides whether a claim holds, after Holm's correction for the claims of a table
    (docs/reproduce.md). With one seed, the table says "between these two runs"; at scale tiny it says "path only".

    Example: phraseloom reproduce 002-table1 --scale tiny --plan

    Example: phraseloom reproduce 002-table1 --scale small --data-root corpora --data

    Example: phraseloom reproduce 002-table1 --scale small --seeds 1,2,3 --data-root corpora

    Example: phraseloom reproduce --evidence docs/results --into docs/results.md

    Example: phraseloom reproduce --evidence docs/results --short --into README.md
    """
    from phraseloom.errors import PhraseloomError, UsageError
    from phraseloom.recipe import recipes_folder

    if any(folder is not None for folder in (index, pictures, recompute, evidence)):
        _read_stored(table, index, pictures, recompute, evidence, into, short=short)
        return
    if short:
        raise UsageError("--short is about the table of --evidence", hint="give --evidence FOLDER too")
    if into is not None:
        raise UsageError("--into says where the table of --evidence goes", hint="give --evidence FOLDER too")
    place = recipes or recipes_folder()
    if table is None:
        _list_tables(place)
        return
    from phraseloom.reproduce.table_run import (
        TableOptions,
        check_writable,
        open_plan,
        plan_data,
        plan_text,
        reproduce,
        run_step,
    )
    from phraseloom.reproduce.table_run import merge as copy_steps

    options = TableOptions(
        scale=scale,
        rows=None if rows is None else _names(rows, "--rows"),
        seeds=None if seeds is None else _seeds(seeds),
        jobs=jobs,
        folder=folder,
        root=str(data_root),
        flops=flops,
        gpu=gpu,
        train_paper=train_paper,
        on=on,
        slurm=_slurm(slurm or [], on),
        step=step,
        rows_from=rows_from,
    )
    if data:
        from phraseloom.reproduce.table_run import check_table_data

        if plan or step is not None or merge is not None:
            raise UsageError("--data runs nothing; --plan, --step and --merge are other work", hint="give --data alone")
        checked = check_table_data(table, place, options)
        print(json.dumps(checked.data(), ensure_ascii=False) if as_json else checked.text(), end="\n" * as_json)
        checked.require()
        return
    if not plan:
        check_writable(options)
    table_plan = open_plan(table, place, options)
    if merge is not None:
        copy_steps(table_plan, merge, options, lambda line: typer.echo(line, err=True))
        table_plan = open_plan(table, place, options)
    if as_json:
        if not plan:
            raise UsageError("--json is for --plan and --data", hint="add one of them")
        print(json.dumps(plan_data(table_plan, options), ensure_ascii=False))
        return
    if step is not None and not plan:
        record = run_step(table_plan, options, lambda line: typer.echo(line, err=True))
        if record.state != "done":
            raise PhraseloomError(f"step {step} has failed: {record.message}")
        return
    text = plan_text(table_plan, options)
    if plan:
        print(text, end="")
        return
    typer.echo(text, err=True)
    result, target = reproduce(table_plan, table, options, lambda line: typer.echo(line, err=True))
    print(target / "table.md")
    if result.failures and options.trains:
        names = ", ".join(f"{task}/{row}".strip("/") for task, row in result.failures)
        raise PhraseloomError(
            f"failed: {names}", file=target / "table.md", hint="the table says why; run the same command to try again"
        )


def _read_stored(
    table: str | None,
    index: Path | None,
    pictures: Path | None,
    recompute: Path | None,
    evidence: Path | None,
    into: Path | None,
    *,
    short: bool,
) -> None:
    """Do what --index, --pictures, --recompute or --evidence asks for: they read stored tables and reproduce nothing."""
    from phraseloom.errors import UsageError

    if table is not None:
        options = {"--index": index, "--pictures": pictures, "--recompute": recompute, "--evidence": evidence}
        option = next(name for name, folder in options.items() if folder is not None)
        raise UsageError(f"{option} only reads existing tables; {table} is not reproduced", hint="call it alone")
    if index is not None:
        from phraseloom.reproduce.writing import write_index

        print(write_index(index))
    elif pictures is not None:
        from phraseloom.reproduce.stored import draw_pictures

        print("".join(f"{path}\n" for path in draw_pictures(pictures)), end="")
    elif recompute is not None:
        from phraseloom.reproduce.stored import recompute as recompute_table

        recompute_table(recompute)
        print(recompute / "table.md")
    elif evidence is not None:
        from phraseloom.reproduce.evidence import evidence_table, write_evidence

        if into is None:
            print(evidence_table(evidence, short=short), end="")
        else:
            write_evidence(evidence, into, short=short)
            print(into)


def _list_tables(place: Path) -> None:
    """Print the tables of a recipe folder. Raises UsageError if it has none."""
    from phraseloom.errors import UsageError
    from phraseloom.report.markup import terminal
    from phraseloom.reproduce.load import all_tables, load_table

    loaded = [(path.stem, load_table(path)) for path in all_tables(place)]
    if not loaded:
        raise UsageError(f"no tables in {place / 'tables'}", hint="--recipes names the folder that holds tables/")
    lines = [[name, t.title, ", ".join(s for s, c in t.scales.items() if c.not_done is None)] for name, t in loaded]
    print(terminal(["table", "what", "scales"], lines))


def _slurm(pairs: list[str], on: str) -> dict[str, str]:
    from phraseloom.errors import UsageError

    if pairs and on != "slurm":
        raise UsageError("--slurm is for --on slurm")
    wrong = next((pair for pair in pairs if not all(pair.partition("=")[::2])), None)
    if wrong is not None:
        raise UsageError(f"--slurm {wrong}: KEY=VALUE is expected", hint="such as --slurm partition=gpu")
    return dict(pair.split("=", 1) for pair in pairs)


def _names(text: str, option: str) -> list[str]:
    from phraseloom.errors import UsageError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} is empty")
    return names


def _seeds(text: str) -> list[int]:
    from phraseloom.errors import UsageError

    parts = _names(text, "--seeds")
    wrong = next((p for p in parts if not (p.isascii() and p.isdigit() and int(p) < 2**31)), None)
    if wrong is not None or len(set(parts)) != len(parts):
        raise UsageError(f"--seeds {text}: whole numbers from 0, each once", hint="such as 1,2,3")
    return [int(p) for p in parts]
