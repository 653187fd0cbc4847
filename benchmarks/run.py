"""Run the benchmarks (all, or the named ones) one after the other, and compare their ratios with the accepted ones.

Run: python benchmarks/run.py [NAME...] [--dataset FOLDER | --recipe FILE --data-root FOLDER] [--model FOLDER]
`make bench` runs all of them on the built-in world. Figures go to local/bench/results (ignored by git); the ratios of
the last accepted run are in baseline.json and are replaced by those of this run with --accept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import WORK, table
from phraseloom.files import atomic_write_json, read_json

HERE = Path(__file__).resolve().parent
BASELINE = HERE / "baseline.json"
DATA, MODEL = ("dataset", "recipe", "data_root", "vocabulary"), ("model",)
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "limits": (),
    "loss": (),
    "attention": (),
    "formulations": (),
    "scaling": (),
    "startup": MODEL,
    "training_speed": DATA,
    "decode_speed": (*DATA, *MODEL),
    "phrasal": DATA,
    "phrases": DATA,
    "align": (),
    "prepare_phrases": (),
    "recurrent": DATA,
    "forced": DATA,
    "segmental": DATA,
    "continuous": DATA,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--recipe", type=Path)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cores", type=int, help="default: 2; with --quick 1")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs; the ratios mean nothing")
    parser.add_argument("--accept", action="store_true", help="keep the ratios of this run in baseline.json")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    if options.quick and options.accept:
        parser.error("--quick measures nothing that could be accepted")
    return options


def command(name: str, options: argparse.Namespace, file: Path) -> list[str]:
    given = [sys.executable, str(HERE / f"{name}.py"), "--json", str(file)]
    if options.cores is not None:
        given += ["--cores", str(options.cores)]
    for key in BENCHMARKS[name]:
        value = getattr(options, key)
        if value is not None:
            given += ["--" + key.replace("_", "-"), str(value)]
    return given + (["--quick"] if options.quick else [])


def settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a ratio depends on; machine and paths are not told."""
    import torch

    if options.dataset is not None:
        data = options.dataset.name
    else:
        without = "stated lengths" if name in ("phrasal", "phrases", "recurrent", "forced", "continuous") else "world"
        data = options.recipe.stem if options.recipe is not None else without
    return {"cores": options.cores or 2, "data": data, "torch": torch.__version__}


def changes(name: str, ratios: dict[str, float], before: dict[str, Any]) -> list[list[Any]]:
    """One row a ratio: now, accepted, and their quotient."""
    old = before.get(name, {}).get("ratios", {})
    return [[name, key, v, old.get(key), v / old[key] if old.get(key) else None] for key, v in ratios.items()]


def main() -> None:
    options = arguments()
    before = read_json(BASELINE, "accepted ratios") if BASELINE.is_file() else {}
    results = WORK / "results"
    results.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    if load > 0.5 and not options.quick:
        print(f"the load of this machine is {load:.1f}: other work spoils what is measured here", file=sys.stderr)
    rows: list[list[Any]] = []
    done, failed = {}, []
    for name in options.names or BENCHMARKS:
        print(f"=== {name}", flush=True)
        file = results / f"{name}.json"
        file.unlink(missing_ok=True)
        code = subprocess.run(command(name, options, file)).returncode
        if code or not file.is_file():
            failed.append(name)
            continue
        ratios = json.loads(file.read_text(encoding="utf-8"))["ratios"]
        done[name] = {"ratios": ratios, "settings": settings(name, options)}
        rows += changes(name, ratios, before)
    if rows:
        print("=== against the accepted run")
        table(["benchmark", "ratio", "now", "accepted", "now / accepted"], rows)
        for name in done:
            if name in before and before[name].get("settings") != done[name]["settings"]:
                print(f"{name}: accepted with other settings: {before[name].get('settings')}")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    atomic_write_json(results / f"run-{stamp}.json", done)
    if options.accept:
        atomic_write_json(BASELINE, {**before, **done})
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
