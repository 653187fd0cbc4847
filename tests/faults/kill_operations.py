"""Program of `test_save`: end a forked process at operation 1, 2, … of a save; each time a whole checkpoint must be there.

python kill_operations.py RUN COPY
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "training")]

import disk as faults
import torch
import toy

from phraseloom import files
from phraseloom.training import checkpoint, loop


def save_next(run: Path) -> None:
    job = toy.make(run, toy.config(max_updates=11, checkpoint_every=1, keep_last=1))
    loop.train(job)


def main(run: Path, copy: Path) -> int:
    torch.set_num_threads(1)
    for at in range(1, 500):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy, symlinks=True)
        child = os.fork()
        if child == 0:
            code = 70
            try:
                files.disk = faults.FaultyDisk("kill", at)
                save_next(copy)
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 9), code
        found = checkpoint.newest_whole(copy, print)
        assert found is not None and found[1].update in (10, 11), at
        if at % 5 == 0:
            save_next(copy)
            found = checkpoint.newest_whole(copy, print)
            assert found is not None and found[1].update == 11, at
        if code == 0:
            return at - 1
    raise AssertionError("more operations than expected")


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), Path(sys.argv[2])))
