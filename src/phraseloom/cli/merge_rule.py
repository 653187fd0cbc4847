"""The rules by which words of aligned text are joined, as an option (`phrases/merge.py`)."""

from __future__ import annotations

from typing import Literal

Rule = Literal["released", "aligned"]
