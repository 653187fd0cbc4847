"""Files are written whole, so what is no file is refused, and what a link points to is what is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phraseloom.errors import FileProblem
from phraseloom.files import atomic_write_text


def test_a_pipe_is_refused_and_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileProblem, match="device or pipe"):
        atomic_write_text(pipe, "text")
    assert pipe.is_fifo()


def test_a_link_to_a_device_is_refused_and_left_alone(tmp_path: Path) -> None:
    link = tmp_path / "stderr"
    link.symlink_to("/dev/null")
    with pytest.raises(FileProblem, match="/dev/null"):
        atomic_write_text(link, "text")
    assert link.is_symlink()


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("old")
    atomic_write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "old").read_bytes() == b"new"
