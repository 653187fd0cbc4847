"""Fixtures shared by all tests: one thread a worker, the optional shared material, small worlds and models."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# The gate draws the same examples every time, so that equal code gets an equal verdict; `make test-full` explores.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("gate")

ROOT = Path(__file__).resolve().parents[1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests unless they are asked for with `-m full` (or `-m ""`)."""
    if config.getoption("-m") or config.getoption("-k"):
        return
    chosen = [i for i in items if i.get_closest_marker("full") is None]
    config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("full") is not None])
    items[:] = chosen


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared(root: Path) -> Path:
    """The folder of shared material beside the checkout; the test is skipped where there is none."""
    folder = Path(os.environ.get("PHRASELOOM_SHARED", root.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared material, which is not at {folder}")
    return folder


@pytest.fixture(scope="session")
def golden(root: Path) -> Path:
    """The folder of golden vectors (PHRASELOOM_GOLDEN, default ../shared/golden)."""
    folder = Path(os.environ.get("PHRASELOOM_GOLDEN", root.parent / "shared" / "golden"))
    if not folder.is_dir():
        pytest.skip(f"needs golden vectors, none at {folder}")
    return folder
