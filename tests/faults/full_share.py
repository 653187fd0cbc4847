"""Commands on a file system that is full, then read-only, then as it should be; the folder is a mount of its own namespace.

Run by `test_full_share.py` under `unshare --map-root-user --mount`: python full_share.py MOUNT TEXT RECIPE. It prints, as JSON,
the exit code and standard error of each command, and the files that were there.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

from phraseloom.cli.main import run
from phraseloom.files import FolderLock


def mount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)


def call(*arguments: str) -> tuple[int, str]:
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = run(list(arguments))
    return code, err.getvalue()


def lock(folder: Path) -> str:
    try:
        with FolderLock(folder):
            return "locked"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(folder: Path, text: str, recipe: str) -> None:
    prepare = ("prepare", recipe, "--data-root", text)
    table = ("reproduce", "002-table1", "--folder", str(folder / "reproduced"))
    mount(folder, "size=200k")
    result: dict[str, object] = {"full": call(*prepare), "after": sorted(p.name for p in folder.iterdir())}
    (folder / "run").mkdir()
    with contextlib.suppress(OSError):
        (folder / "rest").write_bytes(bytes(2**20))
    result["full lock"] = lock(folder / "run")
    (folder / "rest").unlink()
    mount(folder, "remount,ro")
    result["read-only"] = call(*prepare)
    result["read-only table"] = call(*table)
    result["read-only lock"] = lock(folder / "run")
    mount(folder, "remount,rw,size=20m")
    result["again"] = call(*prepare)
    result["dataset"] = {
        str(p.relative_to(folder / "out")): p.read_bytes().hex() for p in (folder / "out").rglob("*") if p.is_file()
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
