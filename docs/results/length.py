"""BLEU of stored tables, the length of the translations, and BLEU without the brevity penalty exp(1 - 1 / length).

Run: python docs/results/length.py FOLDER ...      each FOLDER holds the table.json of a table that `reproduce` wrote
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path


def without_penalty(bleu: float, length: float) -> float:
    """BLEU / the brevity penalty; `length` is that of the translations over that of the reference."""
    return bleu / min(1.0, math.exp(1 - 1 / length))


def main(folders: list[str]) -> None:
    """Print a line for each row and BLEU (`mwt`: of its multi-word subset): means over seeds, then each seed without the
    penalty."""
    for folder in folders:
        for row in json.loads((Path(folder) / "table.json").read_bytes())["rows"]:
            for name, metric in row["metrics"].items():
                lengths = metric.get("length_ratio", {})
                seeds = [(metric["seeds"][seed], length) for seed, length in lengths.items()]
                if seeds:
                    freed = [without_penalty(*seed) for seed in seeds]
                    means = [statistics.fmean(values) for values in zip(*seeds, strict=True)]
                    shown = f"{name:4}  {means[0]:.2f}  length {means[1]:.3f}  without penalty {statistics.fmean(freed):.2f}"
                    print(f"{Path(folder).name:18} {row['row']:16} {shown}  ({', '.join(f'{x:.2f}' for x in freed)})")


if __name__ == "__main__":
    main(sys.argv[1:])
