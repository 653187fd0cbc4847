"""Relative attention against vectors from independent sources (Shaw et al. 2018)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.layers.attention import build_attention
from phraseloom.layers.attention.masks import Visibility
from tests.golden.folder import golden_files


def load(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {name: data[name] for name in data.files}


@pytest.mark.parametrize("path", golden_files("shaw_relative_*.npz"), ids=lambda p: p.name)
def test_shaw(path: Path) -> None:
    data = load(path)
    oracle = "weight_Wq" in data
    causal = "causal" in path.name
    heads, width = int(data["num_heads"]), data["input_tokens"].shape[-1]
    names = ("weight_Wq", "weight_Wk", "weight_Wv", "weight_Wo")
    if not oracle:
        names = tuple(f"attention_{n}_weight" for n in ("query", "key", "value", "output"))
    matrices = [torch.from_numpy(data[n].T if oracle else data[n]) for n in names]
    attention = build_attention(
        width=width, heads=heads, score="relative", clip=int(data["clip_distance"]), on_values=oracle
    ).double()
    score = attention.score
    with torch.no_grad():
        score.weight.copy_(torch.cat(matrices[:3]))
        attention.arrangement.weight.copy_(matrices[3])
        score.key_table.copy_(torch.from_numpy(data["relative_key_embeddings"]))
        if score.value_table is not None:
            score.value_table.copy_(torch.from_numpy(data["relative_value_embeddings"]))
    x = torch.from_numpy(data["input_tokens"]).double()
    if "lengths" in data:
        lengths = torch.from_numpy(data["lengths"].astype(np.int64))
    else:
        lengths = torch.from_numpy((~data["padding_mask"]).sum(1).astype(np.int64))
    visibility = Visibility(key_length=x.shape[1], lengths_B=lengths, causal=causal, query_length=x.shape[1])
    output, weights = attention(x, None, visibility)
    real = torch.arange(x.shape[1])[None] < lengths[:, None]
    expected = torch.from_numpy(data["expected_output"]).double()
    torch.testing.assert_close(output[real], expected[real], rtol=0, atol=1e-9)
    if "expected_probs" in data:
        probs = torch.from_numpy(data["expected_probs"]).double()
        torch.testing.assert_close(weights.transpose(1, 2)[real], probs.transpose(1, 2)[real], rtol=0, atol=1e-9)
