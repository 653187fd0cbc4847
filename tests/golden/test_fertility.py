"""The share of the word table: logits of the fertility module and attention to λ_word, as in paper 003, §2.3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from phraseloom.layers.fertility import Fertility
from tests.golden.folder import golden_files


@pytest.mark.parametrize("classes", [4, 2])
@pytest.mark.parametrize("path", golden_files("vmf_losses_*.npz"), ids=lambda p: p.name)
def test_share_of_words(path: Path, classes: int) -> None:
    with np.load(path) as data:
        logits, attention = data[f"fertility{classes}_logits"], data["attention"]
        expected = data[f"expected_lambda_word_fertility{classes}"]
    shares = Fertility.shares(torch.from_numpy(logits))[..., 0].numpy()
    np.testing.assert_allclose((attention * shares).sum(-1), expected, rtol=1e-12)
    assert expected.std() > 0.01
