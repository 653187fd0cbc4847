"""Start-up: `phraseloom --help`, `--version` of Python alone, and one line through `phraseloom translate`.

Run: python benchmarks/startup.py [--model FOLDER]
Bounds: help under 0.5 s, a translation under 2 s (given in seconds because they are promises to a user at a keyboard).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import finish, parser, table, take_cores

QUICK = {"repeats": 1}

BOUNDS = {"phraseloom --help": 0.5, "phraseloom translate, one line": 2.0}


def seconds(command: list[str], text: str, repeats: int) -> float:
    """The median wall time of a command."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run(command, input=text, stdout=subprocess.DEVNULL, text=True, check=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--model", type=Path, help="model or run folder; without it nothing is translated")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    take_cores(options.cores)
    program = [sys.executable, "-m", "phraseloom"]
    commands = {"python -c pass": [sys.executable, "-c", "pass"], "phraseloom --help": [*program, "--help"]}
    commands["python -c 'import torch'"] = [sys.executable, "-c", "import torch"]
    if options.model is not None:
        commands["phraseloom translate, one line"] = [*program, "translate", str(options.model)]
    else:
        print("translate is left out: give --model")
    times = {name: seconds(command, "A man is here .\n", options.repeats) for name, command in commands.items()}
    rows = [[name, t, BOUNDS.get(name), None if name not in BOUNDS else t < BOUNDS[name]] for name, t in times.items()]
    table(["command", "seconds", "bound", "kept"], rows)
    ratios = {f"{name} / bound": times[name] / bound for name, bound in BOUNDS.items() if name in times}
    finish("startup", options, ratios=ratios, figures=times)


if __name__ == "__main__":
    main()
