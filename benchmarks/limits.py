"""The matrix-product limit of this machine: fp32 GFLOP/s of large products and of those of the reference model.

Run: python benchmarks/limits.py [--cores 2]
"""

from __future__ import annotations

from typing import Any

from common import finish, interleave, parser, table, take_cores

QUICK = {"seconds": 0.1}

# rows × inner × columns; the first two are the limit, the others are what a 256/1024-wide model asks for
SHAPES = {
    "2048 x 2048 x 2048": (2048, 2048, 2048),
    "1024 x 1024 x 1024": (1024, 1024, 1024),
    "2048 x 256 x 256": (2048, 256, 256),
    "2048 x 256 x 768": (2048, 256, 768),
    "2048 x 256 x 1024": (2048, 256, 1024),
    "2048 x 1024 x 256": (2048, 1024, 256),
    "256 x 256 x 8000": (256, 256, 8000),
}
LARGE, MODEL = list(SHAPES)[:2], list(SHAPES)[2:]


def products(seconds: float = 4.0) -> dict[str, float]:
    """GFLOP/s of each shape, with the threads that torch has now."""
    import torch

    functions: dict[str, Any] = {}
    for name, (m, k, n) in SHAPES.items():
        a, w = torch.randn(m, k), torch.randn(n, k)
        functions[name] = lambda a=a, w=w: torch.nn.functional.linear(a, w)
    times = interleave(functions, seconds=seconds)
    return {name: 2e-9 * m * k * n / times[name] for name, (m, k, n) in SHAPES.items()}


def summary(rates: dict[str, float]) -> dict[str, float]:
    """`large`: the best of the large products; `model`: the mean over those of the model, weighted by their work."""
    work = {name: SHAPES[name][0] * SHAPES[name][1] * SHAPES[name][2] for name in MODEL}
    return {
        "large": max(rates[name] for name in LARGE),
        "model": sum(work.values()) / sum(work[name] / rates[name] for name in MODEL),
    }


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    arguments.add_argument("--seconds", type=float, default=6.0)
    options = arguments.parse_args()
    cores = take_cores(options.cores)
    import torch

    torch.set_num_threads(cores)
    rates = products(options.seconds)
    table(["product", f"GFLOP/s, {cores} threads"], [[name, rate] for name, rate in rates.items()])
    short = summary(rates)
    finish("limits", options, ratios={"model shapes / large": short["model"] / short["large"]}, figures=rates | short)


if __name__ == "__main__":
    main()
