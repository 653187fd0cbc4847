"""Ways to compute phrasal attention, measured against each other: scores and softmax, value convolution.

Run: python benchmarks/formulations.py [--parts queryk convkv values] [--lengths 15 30 60 120] [--orders 1 2]
Every way starts from the same projected tensors and ends with the same contexts (B, Q, D), forward and backward, padding and
causal mask included; all are compared in float64 before any is timed. In slots named by their last token:

    queryk   A_n[i,j] = (n·E)^-½ Σ_k q_i^(n,k) · key_{j-n+1+k}          one softmax over all orders
    convkv   A_n[i,j] = E^-½ q_i · K_n[j]                               one softmax over all orders
    values   V_n[j] = Σ_k x_{j-n+1+k} W_n[k]                            a window before the sentence has zeros
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from common import finish, interleave, parser, table, take_cores
from formulations_scores import CONVKV, QUERYK, Shape, convkv_inputs, queryk_inputs
from formulations_values import VALUES, stored, value_inputs

QUICK = {"lengths": [15], "tokens": 30, "seconds": 0.1}

HEADS, SIZE = 8, 64
TOLERANCE = 1e-10  # in float64, relative to the largest number


def check(functions: dict[str, Callable[..., Tensor]], inputs: list[Tensor], rest: list[Any]) -> None:
    """All functions give the same output and the same gradients as the first, in float64."""
    wide = [t.detach().double().requires_grad_() for t in inputs]
    found: dict[str, list[Tensor]] = {}
    for name, function in functions.items():
        for t in wide:
            t.grad = None
        output = function(*wide, *rest)
        weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device=output.device).view(output.shape)
        (output * weight).sum().backward()
        found[name] = [output.detach(), *(t.grad.clone() for t in wide if t.grad is not None)]
    first = next(iter(found))
    for name, tensors in found.items():
        for a, b in zip(found[first], tensors, strict=True):
            difference = float((a - b).abs().max() / a.abs().max())
            if not difference < TOLERANCE:
                raise SystemExit(f"{name} and {first} do not compute the same: {difference:.1e}")


def timed(
    functions: dict[str, Callable[..., Tensor]], inputs: list[Tensor], rest: list[Any], seconds: float
) -> dict[str, tuple[float, float]]:
    """For each way the median seconds of forward alone and of forward and backward."""
    gradient = torch.randn_like(next(iter(functions.values()))(*inputs, *rest))
    given = {name: stored(name, inputs) if name in VALUES else inputs for name in functions}
    synchronize = torch.cuda.synchronize if gradient.is_cuda else (lambda: None)

    def forward(name: str) -> Callable[[], None]:
        def run() -> None:
            with torch.no_grad():
                functions[name](*given[name], *rest)
            synchronize()

        return run

    def both(name: str) -> Callable[[], None]:
        def run() -> None:
            functions[name](*given[name], *rest).backward(gradient)
            for t in given[name]:
                t.grad = None
            synchronize()

        return run

    alone = interleave({name: forward(name) for name in functions}, seconds=seconds / 3)
    together = interleave({name: both(name) for name in functions}, seconds=2 * seconds / 3)
    return {name: (alone[name], together[name]) for name in functions}


def part_of(options: argparse.Namespace, part: str, length: int) -> tuple[dict[str, Any], list[Tensor], list[Any]]:
    """The ways of one part, their inputs, and what else they take."""
    sentences = max(1, options.tokens // length)
    orders = tuple(options.orders)
    shape = Shape(sentences, length, HEADS, SIZE, orders, options.causal, options.device)
    if part == "values":
        return VALUES, value_inputs(shape), [shape]
    if part == "convkv":
        return CONVKV, convkv_inputs(shape), [shape]
    return QUERYK, queryk_inputs(shape, shared=part == "queryk"), [shape]


def main() -> None:
    arguments = parser(__doc__, quick=QUICK)
    parts = ["queryk", "queryk-per-order", "convkv", "values"]
    arguments.add_argument("--parts", nargs="+", choices=parts, default=parts)
    arguments.add_argument("--lengths", type=int, nargs="+", default=[15, 30, 60, 120])
    arguments.add_argument("--orders", type=int, nargs="+", default=[1, 2])
    arguments.add_argument("--tokens", type=int, default=1024, help="tokens of a batch at every length")
    arguments.add_argument("--causal", action="store_true", help="use the masks of a decoder")
    arguments.add_argument("--threads", type=int, default=1, help="1 as in training with one process a core")
    arguments.add_argument("--seconds", type=float, default=10.0, help="seconds for each part and length")
    arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = arguments.parse_args()
    take_cores(options.cores)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    ratios, figures = {}, []
    for part in options.parts:
        rows = []
        for length in options.lengths:
            functions, inputs, rest = part_of(options, part, length)
            check(functions, inputs, rest)
            times = timed(functions, inputs, rest, options.seconds)
            best = min(t for _, t in times.values())
            for name, (alone, together) in times.items():
                rows.append([length, name, 1e3 * alone, 1e3 * (together - alone), 1e3 * together, together / best])
                ratios[f"{part}, length {length}: {name} / best"] = together / best
        print(
            f"{part}, orders {options.orders}, {options.tokens} tokens, {options.threads} thread(s), {options.device}"
        )
        table(["length", "way", "forward ms", "backward ms", "both ms", "/ best"], rows)
        figures.append({"part": part, "rows": rows})
    finish("formulations", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
