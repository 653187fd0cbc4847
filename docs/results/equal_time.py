"""Validation BLEU of two rows after equal seconds of training, from the learning curves of stored tables.

Run: python docs/results/equal_time.py A,B FOLDER ...      each FOLDER holds the table.json of a table that `reproduce` wrote

A column is a share of the seconds that row A took with the same seed. Between two validations, BLEU is interpolated.
The seconds are those of the machine, with all that ran beside the training.
"""

from __future__ import annotations

import json
import statistics
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


def bleu_after(curve: list[list[float]], seconds: float) -> float | None:
    """BLEU after `seconds`; `curve` has [update, seconds, BLEU]. None before the first validation; after the last, its BLEU."""
    times = [point[1] for point in curve]
    if seconds < times[0]:
        return None
    if seconds >= times[-1]:
        return curve[-1][2]
    after = bisect_right(times, seconds)
    (_, start, low), (_, end, high) = curve[after - 1], curve[after]
    return low + (high - low) * (seconds - start) / (end - start)


def compare(first: dict[str, list[Any]], second: dict[str, list[Any]]) -> list[tuple[float, float, float]]:
    """Print and return the mean seconds of `first` and the mean BLEU of both at every share of them, over the seeds of both."""
    shown = []
    for share in SHARES:
        pairs = []
        for seed in first.keys() & second.keys():
            seconds = share * first[seed][-1][1]
            pairs.append((seconds, bleu_after(first[seed], seconds), bleu_after(second[seed], seconds)))
        whole = [pair for pair in pairs if None not in pair]
        if whole:
            seconds, a, b = (statistics.fmean(values) for values in zip(*whole, strict=True))  # type: ignore[arg-type]
            ahead = sum(pair[2] > pair[1] for pair in whole)  # type: ignore[operator]
            print(f"  {share:4.0%}  {seconds:6.0f} s  {a:6.2f}  {b:6.2f}  second ahead in {ahead} of {len(whole)}")
            shown.append((seconds, a, b))
    return shown


def main(rows: str, folders: list[str]) -> None:
    """Print, for each folder, the mean BLEU of both rows at shares of the seconds of the first."""
    names = rows.split(",")
    if len(names) != 2:
        raise SystemExit(f"{rows}: two rows are compared, such as attn,conmt")
    for folder in folders:
        table = json.loads((Path(folder) / "table.json").read_bytes())
        curves = {
            row["row"]: {
                seed: curve["bleu"] for seed, curve in (row.get("validation") or {}).items() if "bleu" in curve
            }
            for row in table["rows"]
        }
        if missing := [name for name in names if not curves.get(name)]:
            raise SystemExit(f"{folder}: no curve of validation BLEU of row {missing[0]}")
        print(f"{Path(folder).name}: {names[0]}, {names[1]}")
        compare(curves[names[0]], curves[names[1]])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
