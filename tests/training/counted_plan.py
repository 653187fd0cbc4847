"""A training that writes which plans and lengths each process made, and the shared memory it maps.

python counted_plan.py RECIPE RUN FOLDER [KEY=VALUE …]     FOLDER gets a file RANK.json for each process
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from phraseloom.data.batches import BatchPlan
from phraseloom.data.shards import SplitFiles
from phraseloom.errors import PhraseloomError
from phraseloom.recipe import load_recipe
from phraseloom.training import node
from phraseloom.training import run as runs


def mapped() -> list[str]:
    """The inodes of the shared arrays that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[4] for line in lines if node.MEMORY in line})


def main(recipe: str, run: str, folder: str, *changes: str) -> int:
    made: list[str] = []
    inner_plan, inner_lengths, inner_train = BatchPlan._make, SplitFiles.lengths, runs.train

    def make(plan: BatchPlan, epoch: int) -> Any:
        made.append(f"epoch {epoch}")
        return inner_plan(plan, epoch)

    def lengths(files: SplitFiles, sequence: int) -> Any:
        if files.shards[0].name.startswith("train/"):
            made.append(f"lengths {sequence}")
        return inner_lengths(files, sequence)

    def train(job: Any) -> str:
        reason = inner_train(job)
        order = job.plan.epoch(job.plan.position(job.state.update - 1)[0]).order
        value = {"made": made, "maps": mapped(), "order": order.tolist(), "writeable": order.flags.writeable}
        (Path(folder) / f"{job.world.rank}.json").write_text(json.dumps(value))
        return reason

    BatchPlan._make, SplitFiles.lengths, runs.train = make, lengths, train  # type: ignore[method-assign]
    torch.set_num_threads(1)
    try:
        runs.run_recipe(load_recipe(Path(recipe), list(changes)), Path(run))
    except PhraseloomError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
