"""Where the golden vectors are: the folder named by PHRASELOOM_GOLDEN, else ../shared/golden beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("PHRASELOOM_GOLDEN", Path(__file__).resolve().parents[3] / "shared" / "golden"))


def golden_files(pattern: str) -> list[Any]:
    """The files of a family, each one test case; a single skipped case with the reason where there are none."""
    files = sorted(FOLDER.glob(pattern)) if FOLDER.is_dir() else []
    if files:
        return list(files)
    reason = f"no golden vectors {pattern} in {FOLDER}"
    return [pytest.param(Path(pattern), marks=pytest.mark.skip(reason=reason))]
