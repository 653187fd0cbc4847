"""The `kl` label smoothing against a run of the reference implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from phraseloom.losses.cross_entropy import cross_entropy
from tests.golden.folder import golden_files


@pytest.mark.parametrize("path", golden_files("label_smoothing_kl_*.npz"), ids=lambda p: p.name)
def test_kl(path: Path) -> None:
    with np.load(path) as data:
        log_probs = torch.from_numpy(data["log_probs"]).double()
        targets = torch.from_numpy(data["targets"].astype(np.int64))
        padding, epsilon = int(data["padding_id"]), float(data["epsilon"])
        forbidden = torch.from_numpy(np.atleast_1d(data["forbidden_ids"]).astype(np.int64))
        expected = float(data["expected_loss_sum"])
        per_class = torch.from_numpy(data["expected_loss_per_position_and_class"]).double()
    real = targets != padding
    rows = log_probs[real]
    identity = torch.eye(rows.shape[1], dtype=torch.float64)
    objective, _ = cross_entropy(
        rows, identity, None, targets[real], epsilon=epsilon, smoothing="kl", forbidden=forbidden, chunk_rows=5
    )
    assert objective.item() == pytest.approx(expected, abs=1e-9 if per_class.dtype == torch.float64 else 1e-4)
    assert per_class[~real].abs().sum() == 0
