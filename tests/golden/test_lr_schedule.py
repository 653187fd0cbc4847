"""The inverse-square-root schedule against a run of the reference implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phraseloom.training.optimization import inverse_sqrt
from tests.golden.folder import golden_files


@pytest.mark.parametrize("path", golden_files("lr_schedule_inverse_sqrt*.npz"), ids=lambda p: p.name)
def test_lr_schedule(path: Path) -> None:
    with np.load(path, allow_pickle=False) as data:
        scale, width, warmup = float(data["scale"]), int(data["model_width"]), int(data["warmup_steps"])
        rates = [inverse_sqrt(int(s), factor=scale, width=width, warmup=warmup) for s in data["steps"]]
        np.testing.assert_allclose(rates, data["expected_lr"], rtol=1e-9)
