"""The rules by which words of aligned text are joined, as an option (`phrases/merge.py`)."""

from __future__ import annotations

from enum import Enum


class Rule(Enum):
    """What `--rule` takes."""

    released = "released"
    aligned = "aligned"
