"""Programs that stand for fast_align and eflomal in tests: they align along the diagonal, and log their calls."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

COMMON = """\
#!{python}
import pathlib, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(" ".join(arguments) + "\\n")
text = open(arguments[arguments.index("-i") + 1], newline="\\n").read()
open({seen!r}, "w").write(text)
pairs = [[side.split(" ") for side in line.split(" ||| ")] for line in text.split("\\n")[:-1]]
for number, pair in enumerate(pairs, 1):
    if len(pair) != 2 or not all(word.isdigit() for side in pair for word in side):
        sys.exit(f"Error in line {{number}}")
def links(backward):
    for s, t in pairs:
        found = [(i, min(i, len(t) - 1)) for i in range(len(s))]
        if min(len(s), len(t) - 1) > 1:
            found[0] = (0, len(t) - 1)
        if not backward:
            found = [(min(j, len(s) - 1), j) for j in range(len(t))]
        yield " ".join(f"{{i}}-{{j}}" for i, j in found) + "\\n"
{rest}
"""
FAST_ALIGN = 'sys.stderr.write("ITERATION 1\\n")\nsys.stdout.write("".join(links("-r" in arguments)))'
EFLOMAL = """\
for flag in ("-f", "-r"):
    if flag in arguments:
        pathlib.Path(arguments[arguments.index(flag) + 1]).write_text("".join(links(flag == "-r")))
"""


def install(folder: Path, name: str, rest: str) -> Path:
    """A program `name` in `folder`; it appends its arguments to `NAME.log`, and `NAME.seen` is the text that it last read."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    log, seen = str(folder / f"{name}.log"), str(folder / f"{name}.seen")
    path.write_bytes(COMMON.format(python=sys.executable, log=log, seen=seen, rest=rest).encode())
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def path_with(folder: Path) -> str:
    """The PATH with `folder` before everything else."""
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
