"""The sum over all segmentations against enumeration by an independent source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.npmt.segmentations import best_segmentation, log_likelihood, segmentations
from tests.golden.folder import golden_files

FILES = golden_files("swan_segment_dp_*.npz")


def cases(path: Path) -> list[dict[str, Any]]:
    with np.load(path) as data:
        count = int(data["number_of_cases"])
        return [
            {key.removeprefix(f"case{n}_"): data[key] for key in data.files if key.startswith(f"case{n}_")}
            for n in range(count)
        ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_case(path: Path) -> None:
    assert len(cases(path)) > 0
    for case in cases(path):
        p = torch.from_numpy(case["segment_log_probs"]).double()[None].requires_grad_(True)
        lengths = torch.tensor([int(case["source_length"])]), torch.tensor([int(case["target_length"])])
        assert p.shape[3] == case["max_segment_length"] + 1
        log_p = log_likelihood(p, *lengths)
        assert log_p.item() == pytest.approx(float(case["expected_log_marginal"]), rel=1e-12)
        (gradient,) = torch.autograd.grad(log_p.sum(), p)
        expected = torch.from_numpy(case["expected_posterior"])
        torch.testing.assert_close(gradient[0], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(segmentations(p, *lengths).posterior_BSCX[0], expected, rtol=0, atol=1e-12)
        best, words = best_segmentation(p, *lengths)
        assert best.item() == pytest.approx(float(case["expected_best_log_prob"]), rel=1e-12)
        assert words[0].tolist() == case["expected_best_segment_lengths"].tolist()
