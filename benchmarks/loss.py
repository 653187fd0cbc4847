"""The chunked cross-entropy against torch's own and against its three matrix products alone, forward and backward.

Run: python benchmarks/loss.py [--rows 925] [--width 256] [--classes 8000]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from common import finish, interleave, parser, table, take_cores
from phraseloom.losses.cross_entropy import cross_entropy

QUICK = {"seconds": 0.1, "rows": 100, "width": 16, "classes": 50}


def candidates(h: Tensor, w: Tensor, gold: Tensor, chunks: list[int]) -> dict[str, Callable[[], None]]:
    """Each computes the smoothed loss and its gradients, but for the last."""

    def plain() -> None:
        F.cross_entropy(h @ w.t(), gold, label_smoothing=0.1, reduction="sum").backward()
        h.grad = w.grad = None

    def chunked(rows: int) -> Callable[[], None]:
        def run() -> None:
            cross_entropy(h, w, None, gold, epsilon=0.1, chunk_rows=rows)[0].backward()
            h.grad = w.grad = None

        return run

    def products() -> None:
        with torch.no_grad():
            logits = h @ w.t()
            torch.mm(logits, w)
            torch.mm(logits.t(), h)

    return {"torch": plain} | {f"chunks of {n}": chunked(n) for n in chunks} | {"three products": products}


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--rows", type=int, default=925, help="target tokens of a micro-batch")
    arguments.add_argument("--width", type=int, default=256)
    arguments.add_argument("--classes", type=int, default=8000)
    arguments.add_argument("--seconds", type=float, default=8.0)
    options = arguments.parse_args()
    torch.manual_seed(0)
    h = torch.randn(options.rows, options.width, requires_grad=True)
    w = (torch.randn(options.classes, options.width) * options.width**-0.5).requires_grad_()
    gold = torch.randint(options.classes, (options.rows,))
    ratios: dict[str, float] = {}
    figures = {}
    cores = take_cores(options.cores)
    for threads in dict.fromkeys((1, cores)):
        torch.set_num_threads(threads)
        times = interleave(candidates(h, w, gold, [128, 256, 512]), seconds=options.seconds / 2)
        rows = [[name, 1e3 * t, times["torch"] / t, t / times["three products"]] for name, t in times.items()]
        table([f"{threads} thread(s)", "ms", "torch / this", "this / products"], rows)
        own = times["chunks of 256"]
        ratios |= {
            f"torch / ours, {threads} threads": times["torch"] / own,
            f"products / ours, {threads} threads": times["three products"] / own,
        }
        figures[f"{threads} threads"] = times
    finish("loss", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
