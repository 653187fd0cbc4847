"""`Killer`: runs a function in forked children and ends them with real signals at random times until it succeeds.

The program forks from a process that has torch imported and one thread, so that a kill costs milliseconds:
    python killer.py RUN KEYS-AS-JSON KILLS SEED [SIGNAL...]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def marathon(run_once: Callable[[], int], *, kills: int, longest: float, names: list[str], seed: int) -> dict[str, int]:
    """Start, wait a random time, send a random signal, again; then let it finish. Counts of exit codes by name.

    A child that finished before its signal counts as "0"; one that handled it as "3"; a killed one as the signal's name.
    """
    dice = random.Random(seed)
    counts: dict[str, int] = {}
    for turn in range(kills + 1):
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = run_once()
            finally:
                os._exit(code)
        if turn < kills:
            time.sleep(dice.uniform(0, longest))
            os.kill(child, getattr(signal, dice.choice(names)))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        key = signal.Signals(-code).name if code < 0 else str(code)
        counts[key] = counts.get(key, 0) + 1
    return counts


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
    import torch
    import toy

    torch.set_num_threads(1)
    folder, keys, kills, seed, *names = sys.argv[1:]
    start = time.monotonic()
    marathon(lambda: toy.run_once(Path(folder + "-whole"), json.loads(keys)), kills=0, longest=0, names=[], seed=0)
    took = time.monotonic() - start
    counts = marathon(
        lambda: toy.run_once(Path(folder), json.loads(keys)),
        kills=int(kills),
        longest=took / 4,
        names=names or ["SIGKILL"],
        seed=int(seed),
    )
    print("counts " + json.dumps(counts))
    whole, found = toy.result(Path(folder + "-whole")), toy.result(Path(folder))
    different = [name for name in sorted(whole.keys() | found.keys()) if whole.get(name) != found.get(name)]
    print(f"different: {different}")
    sys.exit(1 if different else 0)
