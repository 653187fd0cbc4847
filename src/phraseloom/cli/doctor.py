"""`phraseloom doctor`: is this machine and installation fit for work?"""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the speed probe, which imports torch.")] = False,
    output: Annotated[str, typer.Option(metavar="text|json", help="Form of the report.")] = "text",
) -> int:
    """Check Python, packages and their versions, extras, cores, memory, disk, locale, and the speed of matrix products.

    Exit code 1 if something that phraseloom needs is missing or broken; what is only advice is marked with a !.
    """
    from phraseloom.errors import UsageError
    from phraseloom.report.machine import examine, render

    if output not in ("text", "json"):
        raise UsageError(f"no output form {output!r}", hint="--output text or --output json")
    findings = examine(probe=not quick)
    if output == "json":
        print(json.dumps([vars(f) for f in findings], ensure_ascii=False))
    else:
        print(render(findings), end="")
    return 1 if any(f.state == "fail" for f in findings) else 0
