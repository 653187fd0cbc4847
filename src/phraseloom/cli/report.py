"""`phraseloom report`: one page on one or more runs, with every number also as JSON."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from phraseloom.cli.options import Device, grouped
from phraseloom.cli.outputs import Overwrite, check_outputs
from phraseloom.cli.report_input import ReportInputs, files_with_checksums, is_page, read_inputs
from phraseloom.cli.streams import first_sign, note
from phraseloom.files import atomic_write_json, atomic_write_text


@grouped
def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="RUN, NAME=RUN, or NAME=RUN,RUN for several seeds; the first is the baseline."
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page, an .html file.")],
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the data of the page as JSON.")] = None,
    *,
    inputs: ReportInputs,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Heading of the page.")] = "Report on runs",
    overwrite: Overwrite = False,
    device: Device = "cpu",
) -> None:
    """Compare runs on one page: learning curves, scores with intervals and paired tests, attention, speed, recipes.

    The page shows everything that the runs contain, and everything that can be measured with the given texts. It
    ends with a list of what is missing. Models translate --test-source unless --outputs gives their translations.
    Runs given as NAME=RUN,RUN count as one system: means with deviations. The page needs no network and can be
    printed. docs/report.md describes the measurements.

    Example: phraseloom report runs/base phrases=runs/p1,runs/p2 -o report.html -s test.de -r test.en

    Example: phraseloom report runs/base -o report.html --add base=activation.json
    """
    from phraseloom.report.run.measured import measure_systems, measured_parts
    from phraseloom.report.run.page import report_page
    from phraseloom.report.run.report import build
    from phraseloom.report.run.runs import parse_systems

    is_page(output)
    systems = parse_systems(runs)
    check_outputs({"-o": output, "--json": json}, inputs=inputs.files(systems), overwrite=overwrite)
    first_sign("report", f"reading {', '.join(runs)}")
    given = read_inputs(inputs, systems)
    say = partial(note, "report")
    measured, lacks = measure_systems(
        systems, given.systems, given.material, given.translations, device=device, say=say
    )
    parts, unlike = measured_parts(
        measured,
        [system.name for system in systems],
        given.translations,
        given.test,
        given.material,
        edges=given.edges,
        gold=given.text.gold_name,
        say=say,
    )
    about = files_with_checksums(inputs) | ({"tags": ", ".join(inputs.tags)} if inputs.tags else {})
    lacks += unlike
    document = build(given.systems, parts + given.added, lacks=lacks, about=about, title=title, options=inputs.given())
    if json is not None:
        atomic_write_json(json, document.as_json())
    atomic_write_text(output, report_page(document))
