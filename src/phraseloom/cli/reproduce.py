"""`phraseloom reproduce`: reproduce a table or figure of a paper at tiny, small or the paper's scale."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phraseloom.cli.options import grouped
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.errors import PhraseloomError, UsageError

if TYPE_CHECKING:
    from phraseloom.reproduce.table_run import TableOptions

ScaleName = Literal["tiny", "small", "paper"]


@dataclass(frozen=True)
class RunOptions:
    """What is reproduced, and how."""

    scale: Annotated[
        ScaleName,
        typer.Option(
            help="tiny: the built-in pair, minutes, shows that the path works; small: corpora under --data-root, hours; "
            "paper: counts only."
        ),
    ] = "tiny"
    rows: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these rows, comma-separated: base, en-de/base, en-de/.")
    ] = None
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="Seeds of each row. Default: the table's. One seed gives no verdict on training, only on two runs.",
        ),
    ] = None
    plan: Annotated[bool, typer.Option("--plan", help="Print the steps and their estimated cost; run nothing.")] = False
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Only check the corpora under --data-root that the table reads, and say where to get those that are "
            "missing or different.",
        ),
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="With --plan or --data: as JSON, with every step and its identity, or file.")
    ] = False
    step: Annotated[
        str | None, typer.Option(metavar="ID", help="Run only this step of the plan, and write no table.")
    ] = None
    merge: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="First copy the finished steps of this output folder of another machine."),
    ] = None
    rows_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Take the rows, and the seeds of rows, that are not chosen from the table stored in FOLDER (table.json and "
            "its sentences). Its tasks, metrics and description of the scale must be the same, but it may have more metrics; "
            "it may be another table with rows of the same names and labels.",
        ),
    ] = None
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Number of parallel steps. On one machine each gets its share of the cores, and one GPU.",
        ),
    ] = 1
    on: Annotated[
        Literal["here", "local", "slurm"],
        typer.Option(
            help="Who runs the steps: here; jobs of submitit on this machine (local) or of Slurm (docs/cluster.md)."
        ),
    ] = "here"
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Option of sbatch for each job, such as partition=gpu, gpus_per_node=1, time=720."
        ),
    ] = None
    folder: Annotated[Path, typer.Option(help="Output folder for steps and tables.")] = Path("reproduced")
    data_root: Annotated[
        Path, typer.Option(envvar="PHRASELOOM_DATA", help="Folder that contains the corpora named in the recipes.")
    ] = Path()
    recipes: Annotated[
        Path | None,
        typer.Option(help="The recipe folder, with tables/. Default: recipes, or the one of the checkout."),
    ] = None
    flops: Annotated[
        float | None, typer.Option(metavar="N", min=1e6, help="Training speed in FLOP/s, for estimates: 1e11.")
    ] = None
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Estimate for this GPU: V100, A100, H100, H200, RTX4090.")
    ] = None
    precision: Annotated[
        Literal["fp32", "bf16"] | None,
        typer.Option(help="Precision of all trainings, in place of the recipes'. The table then says so."),
    ] = None
    train_paper: Annotated[
        bool, typer.Option("--train-paper", help="With --scale paper: really train, which takes GPU-days.")
    ] = False

    def table_options(self) -> TableOptions:
        """What the library needs of them. Raises UsageError."""
        from phraseloom.reproduce.table_run import TableOptions

        return TableOptions(
            scale=self.scale,
            rows=None if self.rows is None else _names(self.rows, "--rows"),
            seeds=None if self.seeds is None else _seeds(self.seeds),
            jobs=self.jobs,
            folder=self.folder,
            root=str(self.data_root),
            flops=self.flops,
            gpu=self.gpu,
            train_paper=self.train_paper,
            on=self.on,
            slurm=_slurm(self.slurm or [], self.on),
            step=self.step,
            rows_from=self.rows_from,
            precision=self.precision,
        )


@dataclass(frozen=True)
class StoredOptions:
    """What is done with tables that exist; nothing is reproduced."""

    index: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Only write FOLDER/README.md, the list of its tables.")
    ] = None
    pictures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only draw budget.svg for each table in FOLDER: learning curves with bands over seeds, gain by "
            "budget, score by parameters, from table.json alone.",
        ),
    ] = None
    recompute: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only compute the intervals and claims of FOLDER/table.json again, from its own sentences and by the claims "
            "of its definition in the recipe folder.",
        ),
    ] = None
    evidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Only print the evidence table: each claim, the paper's difference, ours, and the verdict, from the "
            "tables in FOLDER, without those of scale tiny.",
        ),
    ] = None
    short: Annotated[
        bool,
        typer.Option(
            "--short",
            help="With --evidence: only claims with a short wording whose rows have several seeds, under the names of their "
            "papers.",
        ),
    ] = False
    tables: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="With --evidence: only tables whose names begin with one of these, separated by commas, such as 001.",
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --evidence: draw the claims on BLEU of the short table into this file (.svg, .png or .pdf).",
        ),
    ] = None
    pool: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Only compare two rows (--compare) in several stored tables with the same test sentences, such as one at "
            "each schedule, and print the mean of the differences. Repeat for each table.",
        ),
    ] = None
    compare: Annotated[
        str | None, typer.Option(metavar="ROW,ROW", help="With --pool: the first row minus the second.")
    ] = None
    overwrite: Overwrite = False
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="PAGE",
            help="With --evidence: write the table into this Markdown page, between <!-- evidence --> and "
            "<!-- end of evidence -->.",
        ),
    ] = None

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of these tables, by option; usually one or none."""
        options = {
            "--index": self.index,
            "--pictures": self.pictures,
            "--recompute": self.recompute,
            "--evidence": self.evidence,
            "--pool": self.pool[0] if self.pool else None,
        }
        return {name: folder for name, folder in options.items() if folder is not None}

    def check(self) -> None:
        """Raise UsageError for options of --evidence or --pool without it, and for two of these options."""

        if len(self.folders) > 1:
            raise UsageError(f"{' and '.join(self.folders)} are two commands", hint="call one after the other")
        if not self.pool and self.compare is not None:
            raise UsageError("--compare names rows for --pool", hint="give --pool FOLDER for each table too")
        if self.evidence is None and self.short:
            raise UsageError("--short is about the table of --evidence", hint="give --evidence FOLDER too")
        if self.evidence is None and self.tables is not None:
            raise UsageError("--tables chooses tables for --evidence", hint="give --evidence FOLDER too")
        if self.evidence is None and self.plot is not None:
            raise UsageError("--plot draws the claims of --evidence", hint="give --evidence FOLDER too")
        if self.evidence is None and self.into is not None:
            raise UsageError("--into says where the table of --evidence goes", hint="give --evidence FOLDER too")


@grouped
def command(
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="A table such as 002-table1, or a file. Default: list the tables."),
    ] = None,
    *,
    options: RunOptions,
    stored: StoredOptions,
) -> None:
    """Reproduce a table of a paper: train and measure its rows, show the paper's numbers next to them, and check
    each claim.

    Finished steps are not repeated, even if another table ran them, unless a corpus that they read has changed.
    After an interruption, the same command resumes. Several commands, also on several machines, may share a folder:
    a step runs once. A row that fails is shown as failed and does not stop the
    others. The command writes table.md, .json and .svg to FOLDER/SCALE/TABLE, and the sentences that the numbers come
    from.

    Welch's t over seeds and sentences decides whether a claim holds, after Holm's correction for the claims of a table
    (docs/reproduce.md). A verdict takes three seeds. With two, the table says "with two seeds: yes" or "no", with one "between
    these two runs"; at scale tiny it says "path only".

    Example: phraseloom reproduce 002-table1 --scale tiny --plan

    Example: phraseloom reproduce 002-table1 --scale small --data-root corpora --data

    Example: phraseloom reproduce 002-table1 --scale small --seeds 1,2,3 --data-root corpora

    Example: phraseloom reproduce --evidence docs/results --tables 001 --into docs/papers/001.md

    Example: phraseloom reproduce --evidence docs/results --short --into docs/results/claims.md
    """
    from phraseloom.recipe import recipes_folder

    place = options.recipes or recipes_folder()
    stored.check()
    if stored.folders:
        _read_stored(table, stored, place)
    elif table is None:
        _list_tables(place)
    elif options.data:
        _check_data(table, place, options)
    else:
        _run(table, place, options)


def _read_stored(table: str | None, stored: StoredOptions, place: Path) -> None:
    """Do what --index, --pictures, --recompute, --pool or --evidence asks for, by the claims of the tables in `place`."""

    if table is not None:
        option = next(iter(stored.folders))
        raise UsageError(f"{option} only reads existing tables; {table} is not reproduced", hint="call it alone")
    if stored.index is not None:
        from phraseloom.reproduce.index import write_index

        print(write_index(stored.index, place))
    elif stored.pictures is not None:
        from phraseloom.reproduce.stored import draw_pictures

        print("".join(f"{path}\n" for path in draw_pictures(stored.pictures)), end="")
    elif stored.recompute is not None:
        from phraseloom.reproduce.stored import recompute

        recompute(stored.recompute, place)
        print(stored.recompute / "table.md")
    elif stored.pool:
        from phraseloom.reproduce.pool import pool, pool_text

        names = _names(stored.compare or "", "--compare")
        if len(names) != 2:
            raise UsageError(
                f"--compare {stored.compare}: two rows are expected", hint="such as --compare pconmt,conmt"
            )
        print(pool_text(pool(stored.pool, *names), *names), end="")
    elif stored.evidence is not None:
        from phraseloom.reproduce.evidence import evidence_table, short_claims, write_evidence

        if stored.plot is not None and stored.into is not None:
            raise UsageError("--plot and --into are two outputs", hint="give one of them, then the other")
        check_outputs({"--plot": stored.plot}, overwrite=stored.overwrite, inputs=[stored.evidence])
        names = [name for name in (stored.tables or "").split(",") if name]
        if stored.plot is not None:
            from phraseloom.reproduce.forest import draw_claims

            print(draw_claims(short_claims(stored.evidence, tables=names, recipes=place), stored.plot))
        elif stored.into is None:
            print(evidence_table(stored.evidence, short=stored.short, tables=names, recipes=place), end="")
        else:
            write_evidence(stored.evidence, stored.into, short=stored.short, tables=names, recipes=place)
            print(stored.into)


def _check_data(table: str, place: Path, options: RunOptions) -> None:
    """Check the corpora of a table. Raises UsageError, and CorruptError after the list if one is missing or different."""
    from phraseloom.reproduce.table_run import check_table_data

    table_options = options.table_options()
    if options.plan or options.step is not None or options.merge is not None:
        raise UsageError("--data runs nothing; --plan, --step and --merge are other work", hint="give --data alone")
    checked = check_table_data(table, place, table_options)
    as_json = options.as_json
    print(json.dumps(checked.data(), ensure_ascii=False) if as_json else checked.text(), end="\n" * as_json)
    checked.require()


def _run(table: str, place: Path, options: RunOptions) -> None:
    """Print the plan of a table, or run one of its steps, or all and write the table. Raises PhraseloomError if some fail."""
    from phraseloom.reproduce import table_run

    if options.merge is not None and options.plan:
        raise UsageError("--plan runs nothing, and --merge copies steps", hint="give --merge first, then --plan")
    table_options = options.table_options()
    say = partial(typer.echo, err=True)
    if not options.plan:
        table_run.check_writable(table_options)
    plan = table_run.open_plan(table, place, table_options)
    if options.merge is not None:
        table_run.merge(plan, options.merge, table_options, say)
        plan = table_run.open_plan(table, place, table_options)
    if options.as_json:
        if not options.plan:
            raise UsageError("--json is for --plan and --data", hint="add one of them")
        print(json.dumps(table_run.plan_data(plan, table_options), ensure_ascii=False))
        return
    if options.plan:
        print(table_run.plan_text(plan, table_options), end="")
        return
    if options.step is not None:
        record = table_run.run_step(plan, table_options, say)
        if record.state != "done":
            raise PhraseloomError(f"step {options.step} has failed: {record.message}")
        return
    say(table_run.plan_text(plan, table_options))
    result, target = table_run.reproduce(plan, table, table_options, say)
    print(target / "table.md")
    if result.failures and table_options.trains:
        names = ", ".join(f"{task}/{row}".strip("/") for task, row in result.failures)
        raise PhraseloomError(
            f"failed: {names}", file=target / "table.md", hint="the table says why; run the same command to try again"
        )


def _list_tables(place: Path) -> None:
    """Print the tables of a recipe folder. Raises UsageError if it has none."""
    from phraseloom.report.markup import terminal
    from phraseloom.reproduce.table import all_tables, load_table

    loaded = [(path.stem, load_table(path)) for path in all_tables(place)]
    if not loaded:
        raise UsageError(f"no tables in {place / 'tables'}", hint="--recipes names the folder that holds tables/")
    lines = [[name, t.title, ", ".join(s for s, c in t.scales.items() if c.not_done is None)] for name, t in loaded]
    print(terminal(["table", "what", "scales"], lines))


def _slurm(pairs: list[str], on: str) -> dict[str, str]:
    if pairs and on != "slurm":
        raise UsageError("--slurm is for --on slurm")
    wrong = next((pair for pair in pairs if not all(pair.partition("=")[::2])), None)
    if wrong is not None:
        raise UsageError(f"--slurm {wrong}: KEY=VALUE is expected", hint="such as --slurm partition=gpu")
    return dict(pair.split("=", 1) for pair in pairs)


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"{option} is empty")
    return names


def _seeds(text: str) -> list[int]:
    parts = _names(text, "--seeds")
    seeds = [int(p) for p in parts if p.isascii() and p.isdigit() and int(p) < 2**31]
    if len(set(seeds)) != len(parts):
        raise UsageError(f"--seeds {text}: whole numbers from 0, each once", hint="such as 1,2,3")
    return seeds
