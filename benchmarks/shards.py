"""The time of a training batch by the number of shards: a hundred million pairs are 200 of 500,000.

The shards of `many` are hard links to those of `few`, so both read the same bytes; pairs are drawn at random, as in training.
`cold`: the first batches after the system was told to forget the files, opening included; `warm`: the median of later ones.

Run: python benchmarks/shards.py [--few 2] [--many 200] [--shard-pairs 500000]
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common import WORK, finish, interleave, parser, table
from phraseloom.data.shards import ShardInfo, ShardWriter, SplitFiles

QUICK = {"seconds": 0.1, "many": 20, "shard_pairs": 200}
SIDES = 2
COLD = 20  # batches


def write(folder: Path, shards: int, pairs: int) -> list[ShardInfo]:
    """Shards of random sentences of 5 to 40 tokens."""
    random = np.random.default_rng(1)
    writer = ShardWriter(folder, "train", "uint16", pairs)
    for _ in range(shards):
        lengths = [random.integers(5, 41, pairs) for _ in range(SIDES)]
        tokens = [random.integers(4, 8000, int(n.sum())) for n in lengths]
        writer.add(tuple(tokens), tuple(lengths), np.arange(pairs))
    return writer.finish()


def repeat(folder: Path, shards: list[ShardInfo], count: int) -> list[ShardInfo]:
    """`count` shards that are hard links to the first ones, in turn."""
    result = []
    for number in range(count):
        shard = shards[number % len(shards)]
        name = f"train/{number + 10_000:05}"
        for suffix in shard.sha256:
            os.link(folder / f"{shard.name}.{suffix}", folder / f"{name}.{suffix}")
        result.append(shard.model_copy(update={"name": name}))
    return result


def forget(folder: Path) -> None:
    """Have the system drop the files from its memory; it keeps those that are mapped."""
    for path in (path for path in folder.rglob("*") if path.is_file() and hasattr(os, "posix_fadvise")):
        handle = os.open(path, os.O_RDWR)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--few", type=int, default=2, help="shards of the small corpus")
    arguments.add_argument("--many", type=int, default=200, help="shards of the large corpus")
    arguments.add_argument("--shard-pairs", type=int, default=500_000)
    arguments.add_argument("--batch", type=int, default=130, help="pairs of a batch")
    arguments.add_argument("--seconds", type=float, default=20.0)
    options = arguments.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="shards-", dir=WORK))
    try:
        few = write(folder, options.few, options.shard_pairs)
        splits = {"few": few, "many": repeat(folder, few, options.many)}
        small = SplitFiles(folder, few, "uint16", (8000, 8000))
        lengths = [small.lengths(side) for side in range(SIDES)]
        del small

        def reader(shards: list[ShardInfo]) -> Callable[[], None]:
            files, random = SplitFiles(folder, shards, "uint16", (8000, 8000)), np.random.default_rng(2)

            def batch() -> None:
                owners = random.integers(0, len(shards), options.batch)
                pairs = random.integers(0, options.shard_pairs, options.batch)
                numbers = owners % options.few * options.shard_pairs + pairs  # of the same pairs in the small corpus
                for side in range(SIDES):
                    files.gather(side, owners, pairs, lengths[side][numbers].astype(np.int64), 0)

            return batch

        reader(few)()  # what the first batch of a process costs is not counted
        cold = {}
        for name, shards in splits.items():
            forget(folder)
            begin = time.perf_counter()
            read = reader(shards)
            for _ in range(COLD):
                read()
            cold[name] = (time.perf_counter() - begin) / COLD
            del read
        times = interleave({name: reader(shards) for name, shards in splits.items()}, seconds=options.seconds, warm=20)
        rows = [[name, len(splits[name]), 1e3 * cold[name], 1e3 * times[name]] for name in splits]
        table(["corpus", "shards", "ms a batch, cold", "warm"], rows)
        ratios = {
            "many / few (bar 1.2)": times["many"] / times["few"],
            "many / few, cold (bar 1.2)": cold["many"] / cold["few"],
        }
        figures = {name: 1e3 * t for name, t in times.items()} | {f"{name}, cold": 1e3 * t for name, t in cold.items()}
        finish("shards", options, ratios=ratios, figures=figures)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
