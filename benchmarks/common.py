"""Shared by all benchmarks: tables, interleaved timing, peak memory, peers, and result files.

Times drift by 15 % within minutes on a shared machine, so nothing here reports a time of one run against a time of
another: candidates take turns inside one run and only ratios are kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phraseloom.files import atomic_write_json

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS = Path(__file__).resolve().parent / "peers"
# Prepared data, trained models and results.
WORK = Path(os.environ.get("PHRASELOOM_BENCH_WORK", REPOSITORY / "local" / "bench"))

# The model of all speed measurements: Transformer 3+3, 7.5 million parameters with 8,000 joint subwords.
REFERENCE: dict[str, Any] = {
    "width": 256,
    "heads": 4,
    "ffn_width": 1024,
    "encoder": {"layers": 3},
    "decoder": {"layers": 3},
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
PEER_VARIABLES = {
    "hf": "PHRASELOOM_PEER_HF",
    "onmt": "PHRASELOOM_PEER_ONMT",
    "joey": "PHRASELOOM_PEER_JOEY",
    "sockeye": "PHRASELOOM_PEER_SOCKEYE",
    "ct2": "PHRASELOOM_PEER_CT2",
    "align": "PHRASELOOM_PEER_ALIGN",
}


class BenchmarkParser(argparse.ArgumentParser):
    """An argument parser whose `--quick` replaces the defaults by `quick`; options on the command line still win."""

    def __init__(self, text: str | None, quick: Mapping[str, Any]) -> None:
        super().__init__(description=(text or "").split("\n")[0], allow_abbrev=False)
        self.quick = {"cores": 0, **quick}
        self.add_argument("--cores", type=int, default=2, help="processor cores to use; 0: one, whichever is free")
        self.add_argument("--json", type=Path, help="write the figures and ratios to this file")
        self.add_argument(
            "--quick", action="store_true", help="the smallest size, to check that it runs; the ratios mean nothing"
        )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the command line (or `args`)."""
        if "--quick" in (sys.argv[1:] if args is None else args):
            known = {action.dest for action in self._actions}
            assert known >= self.quick.keys(), f"no such options: {self.quick.keys() - known}"
            self.set_defaults(**self.quick)
        return super().parse_args(args, namespace)


def parser(text: str | None, *, quick: Mapping[str, Any]) -> BenchmarkParser:
    """An argument parser with the options of every benchmark. `quick`: the values of its options with `--quick`."""
    return BenchmarkParser(text, quick)


def reference_shape(options: argparse.Namespace) -> dict[str, Any]:
    """The shape of the reference model; with `--quick` a small one."""
    return REFERENCE | SMALL if options.quick else REFERENCE


def take_cores(count: int) -> int:
    """Keep this process and its children on `count` cores; return the number that exists. 0: one, whichever is free."""
    if count == 0:
        return 1
    if not hasattr(os, "sched_setaffinity"):
        return min(count, os.cpu_count() or 1)
    cores = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, cores)
    if len(cores) < count:
        print(f"only {len(cores)} of {count} cores exist", file=sys.stderr)
    return len(cores)


def peer(name: str) -> str | None:
    """The interpreter of a peer; None, with a message, if there is none."""
    variable = PEER_VARIABLES[name]
    found = os.environ.get(variable)
    if not found:
        print(f"{name} is left out: set {variable} to a Python that has it (benchmarks/README.md)")
        return None
    if not Path(found).is_file():
        print(f"{name} is left out: {variable}={found} is not a file")
        return None
    return found


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows in columns; numbers to the right."""
    texts = [[f"{c:,.3g}" if isinstance(c, float) and abs(c) < 1000 else show(c) for c in row] for row in rows]
    widths = [max(len(t[i]) for t in [list(headers), *texts]) for i in range(len(headers))]
    numeric = [all(not isinstance(r[i], str) for r in rows) for i in range(len(headers))]
    for line in [list(headers), *texts]:
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True)]
        print("  ".join(cells).rstrip())
    print(flush=True)


def show(value: Any) -> str:
    """A cell: thousands with commas, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def interleave(functions: dict[str, Callable[[], Any]], *, seconds: float = 4.0, warm: int = 2) -> dict[str, float]:
    """The median time of each function in seconds; they take turns for about `seconds` in all."""
    for function in functions.values():
        for _ in range(warm):
            function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 3:
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in times.items()}


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def process_tree(pid: int) -> list[int]:
    """A process and its descendants (Linux)."""
    found, rest = [], [pid]
    while rest:
        one = rest.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                rest += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def peak_bytes(pid: int) -> int:
    """The sum of the peak resident memory of a process and its descendants; 0 if the system does not report it."""
    total = 0
    for one in process_tree(pid):
        try:
            text = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.split("\n") if line.startswith("VmHWM"))
    return total


def finish(name: str, options: argparse.Namespace, *, ratios: dict[str, float], figures: Any) -> None:
    """Print the ratios, and write the result with --json."""
    table(["ratio", "value"], [[k, float(v)] for k, v in ratios.items()])
    if options.json is not None:
        rounded = {k: round(float(v), 4) for k, v in ratios.items()}
        atomic_write_json(options.json, {"benchmark": name, "ratios": rounded, "figures": figures})
