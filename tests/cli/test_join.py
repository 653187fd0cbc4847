"""`phraseloom join`: files and standard input, and what a user can get wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.cli.conftest import Command


def test_join(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress("Ein Hund .\nZwei\nDrei\n\nFünf\n".encode()))
    assert command("join", "2-3", "a.gz").out == "Ein Hund . Zwei\nDrei Fünf\n"
    assert command("join", "2", stdin=b"a\nb\nc").out == "a b\nc\n"
    assert command("join", "2", stdin=b"").out == ""
    wrong = command("join", "3-2", stdin=b"a\n")
    assert wrong.code == 2 and "not a group size" in wrong.err
    assert command("join", "2", "none").code == 1
