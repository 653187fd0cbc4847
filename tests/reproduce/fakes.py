"""A program that stands in for phraseloom, and tables of a few tiny steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from phraseloom.reproduce.steps import Step, Steps, StepScope
from phraseloom.reproduce.table import TableConfig, load_table

# Verbs: write FILE TEXT · copy (standard input to output) · fail TEXT · translate TEXT (TEXT to standard output) ·
# device (the GPUs that it sees, to standard output) ·
# train RECIPE --run DIR …: notes each attempt, waits for DIR/go if the text of `wait=` says so, then writes the run.
PROGRAM = """
import signal, sys, time, json, pathlib
verb, *rest = sys.argv[1:]
if verb == "write":
    pathlib.Path(rest[0]).write_text(rest[1] + "\\n")
elif verb == "copy":
    sys.stdout.write(sys.stdin.read())
elif verb == "translate":
    print(rest[0])
    if "then-fail" in rest:
        sys.exit("lost the thread")
elif verb == "device":
    import os
    print(os.environ.get("CUDA_VISIBLE_DEVICES"))
elif verb == "fail":
    print("first line", file=sys.stderr)
    sys.exit(rest[0])
elif verb == "train":
    run = pathlib.Path(rest[rest.index("--run") + 1])
    run.mkdir(parents=True, exist_ok=True)
    with (run / "attempts").open("a") as handle:
        handle.write("one\\n")
    def saved(*_):
        (run / "saved").write_text("yes")
        sys.exit(3)
    signal.signal(signal.SIGTERM, saved)
    print("ready", file=sys.stderr, flush=True)
    while "wait=yes" in rest and not (run / "saved").exists():
        time.sleep(0.02)
    (run / "metrics.jsonl").write_text(json.dumps({"update": 5, "validation": {"perplexity": 7.5}}) + "\\n")
    (run / "timing.jsonl").write_text(json.dumps({"update": 5, "seconds": 2.0, "target_tokens": 100}) + "\\n")
"""


def program(folder: Path) -> list[str]:
    path = folder / "program.py"
    path.write_bytes(PROGRAM.encode())
    return [sys.executable, str(path)]


def table_data(steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A table of two rows whose tiny scale has `steps`."""
    data: dict[str, Any] = {
        "format": 1,
        "paper": "a paper",
        "title": "A table",
        "metrics": {
            "bleu": {"kind": "bleu", "title": "BLEU", "hypotheses": "{translate}/out.txt", "reference": "{data}/ref"}
        },
        "rows": {"base": {"label": "Base", "paper": {"bleu": 20.0}}, "new": {"label": "New", "paper": {"bleu": 21.0}}},
        "scales": {"tiny": {"steps": steps}, "small": {"not_done": "no data"}, "paper": {"not_done": "no need"}},
    }
    return {**data, **changes}


def make_table(folder: Path, data: dict[str, Any]) -> TableConfig:
    path = folder / "recipes" / "tables" / "table.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(yaml.safe_dump(data, sort_keys=False).encode())
    return load_table(path)


def make_steps(folder: Path, steps: dict[str, Any], **changes: Any) -> Steps:
    table = make_table(folder, table_data(steps, **changes))
    return Steps(table, "tiny", folder / "work", folder / "recipes", str(folder / "root"))


def one(steps: Steps, name: str, row: str = "base", seed: int = 1) -> Step:
    return steps.step(name, StepScope("", row, seed))
