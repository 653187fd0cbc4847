"""Tests of a real GPU. Without one they are left out, and `tests/contracts/test_device.py` has a device that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import command, project  # noqa: F401

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave this folder out where there is no GPU."""
    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=[i for i in items if HERE in i.path.parents])
        items[:] = [i for i in items if HERE not in i.path.parents]
