"""Token and relative attention equal the loop version in float64 and float32."""

from __future__ import annotations

import pytest
import torch
from tests.reference import attention as reference

from phraseloom.layers.attention import RelativeScore, build_attention
from phraseloom.layers.attention.masks import Visibility


@pytest.mark.parametrize("kind", ["token", "relative", "relative-keys"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_the_loops(kind: str, causal: bool, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(1)
    width, heads = 8, 2
    options = {} if kind == "token" else {"clip": 2, "on_values": kind == "relative"}
    block = build_attention(width=width, heads=heads, score=kind.removesuffix("-keys"), **options).to(dtype)
    score = block.score
    lengths = torch.tensor([5, 2, 1])
    x = torch.randn(3, 5, width, dtype=dtype)
    output, weights = block(x, None, Visibility(key_length=5, lengths_B=lengths, causal=causal, query_length=5))
    w_q, w_k, w_v = (w.T.double().detach().numpy() for w in score.weight.split(width))
    tables = {}
    if isinstance(score, RelativeScore):
        tables["key_table"] = score.key_table.detach().double().numpy()
        if score.value_table is not None:
            tables["value_table"] = score.value_table.detach().double().numpy()
    for b, length in enumerate(lengths.tolist()):
        expected, expected_weights = reference.attention(
            x[b].double().numpy(), x[b].double().numpy(), w_q=w_q, w_k=w_k, w_v=w_v,
            w_o=block.arrangement.weight.T.double().detach().numpy(), heads=heads, length=length, causal=causal, **tables,
        )  # fmt: skip
        got = output[b, :length].double().detach()
        torch.testing.assert_close(got, torch.from_numpy(expected[:length]), rtol=0, atol=tolerance)
        shares = weights[b, :, :length].double().detach()
        torch.testing.assert_close(shares, torch.from_numpy(expected_weights[:, :length]), rtol=0, atol=tolerance)
