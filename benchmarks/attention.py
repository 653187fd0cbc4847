"""Our attention against torch's fused one at several lengths, and our dropout against torch's; forward and backward.

Run: python benchmarks/attention.py [--lengths 16 32 64 128 256 512]
Both sides share the scores' inputs and the output projection; a sixth of the keys is padding. `dropout` is on the
attention weights. The number of tokens is the same at every length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from common import finish, interleave, parser, table, take_cores
from phraseloom.layers.attention import build_attention
from phraseloom.layers.attention.masks import Visibility, masked_softmax
from phraseloom.layers.feedforward import add_dropout, dropout

QUICK = {"lengths": [16], "tokens": 32, "seconds": 0.1}

WIDTH, HEADS = 256, 4


def attention(length: int, tokens: int, rate: float) -> dict[str, Callable[[], None]]:
    """Both ways over the same queries, keys and values."""
    sentences = max(1, tokens // length)
    q, k, v = (torch.randn(sentences, HEADS, length, WIDTH // HEADS, requires_grad=True) for _ in range(3))
    lengths = torch.full((sentences,), length)
    lengths[::2] -= length // 3
    block = build_attention(width=WIDTH, heads=HEADS)
    weight = block.arrangement.weight
    gradient = torch.randn(sentences, length, WIDTH)
    visibility = Visibility(key_length=length, lengths_B=lengths)
    visible = ~(torch.arange(length) >= lengths[:, None])[:, None, None, :]

    def back(result: Tensor) -> None:
        result.backward(gradient)
        q.grad = k.grad = v.grad = weight.grad = None

    def own_forward() -> Tensor:
        scores = block.score.scores([q * (WIDTH // HEADS) ** -0.5], [k], visibility)
        weights = dropout(masked_softmax(scores, visibility.hidden_slots(block.structure)), rate, True)
        return block.arrangement(block.score.mix(weights, [v], visibility))

    def own() -> None:
        back(own_forward())

    def fused_forward() -> Tensor:
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=rate)
        return F.linear(context.transpose(1, 2).reshape(sentences, length, -1), weight)

    def fused() -> None:
        back(fused_forward())

    if rate == 0.0:
        real = (torch.arange(length) < lengths[:, None])[..., None]
        difference = (own_forward() - fused_forward()).abs() * real
        assert difference.max() < 1e-4, "the two do not compute the same"
    return {"ours": own, "fused": fused}


def dropouts(tokens: int) -> dict[str, Callable[[], None]]:
    """x + dropout(y) both ways."""
    x, y = (torch.randn(tokens, WIDTH, requires_grad=True) for _ in range(2))
    gradient = torch.randn(tokens, WIDTH)

    def back(result: Tensor) -> None:
        result.backward(gradient)
        x.grad = y.grad = None

    return {
        "ours": lambda: back(add_dropout(x, y, 0.1, True)),
        "torch": lambda: back(x + F.dropout(y, 0.1, True)),
    }


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    arguments.add_argument("--tokens", type=int, default=1024)
    arguments.add_argument("--threads", type=int, default=1, help="1 as in training with one process a core")
    arguments.add_argument("--seconds", type=float, default=16.0)
    options = arguments.parse_args()
    take_cores(options.cores)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    ratios, rows = {}, []
    share = options.seconds / (2 * len(options.lengths) + 1)
    for rate in (0.1, 0.0):
        for length in options.lengths:
            times = interleave(attention(length, options.tokens, rate), seconds=share)
            ratio = times["fused"] / times["ours"]
            rows.append([length, rate, 1e3 * times["ours"], 1e3 * times["fused"], ratio])
            ratios[f"fused / ours, length {length}, dropout {rate}"] = ratio
    table(["length", "dropout", "ours ms", "fused ms", "fused / ours"], rows)
    times = interleave(dropouts(options.tokens), seconds=share)
    ratios["dropout: torch / ours"] = times["torch"] / times["ours"]
    finish("attention", options, ratios=ratios, figures=rows)


if __name__ == "__main__":
    main()
