"""Time and memory of a language-model block by the backend of its attention: explicit, fused, auto; forward and backward.

Run: python benchmarks/attention_backend.py [--structures "queryk heterogeneous 1-2"] [--parts time memory] [--picture FILE]
The block is causal self-attention, 8 heads of 64, and a feed-forward layer. Times: as many texts of a length as make 2,048
tokens; the backends take turns. Peak memory: one text, forward and backward, in its own process, minus the peak of a text of
16 tokens in that process; on a GPU, what torch took there. Explicit attention is measured up to --explicit-to tokens only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from common import finish, interleave, parser, peak_bytes, table, take_cores
from phraseloom.layers.attention import build_attention
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.feedforward import FeedForward, Residual
from phraseloom.models.decoder import TransformerDecoderLayer
from phraseloom.options import attention as naming

QUICK = {
    "structures": ["queryk heterogeneous 1-2"],
    "width": 16,
    "heads": 2,
    "lengths": [16],
    "memory_lengths": [16],
    "explicit_to": 16,
    "tokens": 16,
    "seconds": 0.01,
}
BACKENDS = ("explicit", "fused", "auto")
# At the most: fused / explicit memory at 2,048 tokens; fused / explicit time from 1,024 tokens; auto / the better one.
BARS = {"memory": 0.25, "time": 0.8, "auto": 1.05}


def arguments() -> argparse.Namespace:
    options = parser(__doc__, quick=QUICK)
    options.add_argument("--structures", nargs="+", default=["queryk heterogeneous 1-2", "queryk heterogeneous 1-2-3"])
    options.add_argument("--lengths", type=int, nargs="+", default=[15, 30, 60, 120, 256, 512, 1024, 2048])
    options.add_argument("--memory-lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    options.add_argument("--explicit-to", type=int, default=2048, help="the longest text for explicit memory")
    options.add_argument("--parts", nargs="+", choices=["time", "memory"], default=["time", "memory"])
    options.add_argument("--width", type=int, default=512)
    options.add_argument("--heads", type=int, default=8)
    options.add_argument("--dropout", type=float, default=0.0, help="of the attention weights")
    options.add_argument("--tokens", type=int, default=2048, help="in a batch, for times")
    options.add_argument("--threads", type=int, help="as many as cores unless given")
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options.add_argument("--seconds", type=float, default=20.0, help="for each structure and length")
    options.add_argument("--picture", type=Path, metavar="FILE", help="draw both curves: .svg or .png (extra plot)")
    options.add_argument("--memory-of", nargs=3, metavar=("STRUCTURE", "BACKEND", "LENGTH"), help=argparse.SUPPRESS)
    return options.parse_args()


def work(options: argparse.Namespace, structure: str, backend: str, length: int, texts: int) -> Callable[[], None]:
    """A forward and backward of the block."""
    torch.manual_seed(0)
    attention = build_attention(
        width=options.width, heads=options.heads, dropout=options.dropout, backend=backend, **naming.parse(structure)
    )
    block = TransformerDecoderLayer(
        self_attention=attention,
        feed_forward=FeedForward(width=options.width, inner=4 * options.width),
        residuals=(Residual(width=options.width, norm="pre"), Residual(width=options.width, norm="pre")),
    ).to(options.device)
    x = torch.randn(texts, length, options.width, requires_grad=True, device=options.device)
    gradient = torch.randn(texts, length, options.width, device=options.device)
    synchronize = torch.cuda.synchronize if x.is_cuda else (lambda: None)

    def run() -> None:
        own = Visibility(key_length=length, causal=True, query_length=length)
        block(x, None, own, None, need_self=False)[0].backward(gradient)
        x.grad = None
        block.zero_grad()
        synchronize()

    return run


def times(options: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    rows, ratios, figures = [], {}, {}
    for structure in options.structures:
        for length in options.lengths:
            texts = max(1, options.tokens // length)
            turns = {name: work(options, structure, name, length, texts) for name in BACKENDS}
            seconds = interleave(turns, seconds=options.seconds, warm=1)
            fused = seconds["fused"] / seconds["explicit"]
            auto = seconds["auto"] / min(seconds["fused"], seconds["explicit"])
            passed = auto <= BARS["auto"] and (length < 1024 or fused <= BARS["time"])
            milliseconds = [1e3 * seconds[name] for name in BACKENDS]
            rows.append([structure, length, *milliseconds, fused, auto, "yes" if passed else "NO"])
            ratios[f"time: {structure}, {length} tokens, fused / explicit"] = fused
            ratios[f"time: {structure}, {length} tokens, auto / better"] = auto
            figures[f"{structure}, {length}"] = seconds
    print(
        f"forward + backward on {options.device}; {torch.get_num_threads()} thread(s), {options.tokens} tokens, "
        f"dropout {options.dropout}"
    )
    heads = [f"{name} ms" for name in BACKENDS]
    table(["structure", "length", *heads, "fused / explicit", "auto / better", "within bars"], rows)
    return ratios, figures


def memory_of(options: argparse.Namespace, structure: str, backend: str, length: int) -> int:
    """Bytes at the peak of a forward and backward above those before, in this process."""
    work(options, structure, backend, min(16, length // 2), 1)()  # loads the libraries
    run = work(options, structure, backend, length, 1)
    if options.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    before = peak_bytes(os.getpid())  # not ru_maxrss, which begins at the peak of the process that started this one
    run()
    return peak_bytes(os.getpid()) - before


def memories(options: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    rows, ratios, figures = [], {}, {}
    for structure in options.structures:
        peaks: dict[int, dict[str, int]] = {}
        for length in options.memory_lengths:
            names = BACKENDS if length <= options.explicit_to else BACKENDS[1:]
            for name in names:
                of = ["--memory-of", structure, name, str(length)]
                command = [sys.executable, str(Path(__file__)), *sys.argv[1:], *of]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                peaks.setdefault(length, {})[name] = json.loads(done.stdout)
            found = peaks[length]
            ratio = found["fused"] / found["explicit"] if found.get("explicit") else None
            if ratio is not None:
                ratios[f"memory: {structure}, {length} tokens, fused / explicit"] = ratio
            passed = "" if ratio is None or length < 2048 else "yes" if ratio <= BARS["memory"] else "NO"
            mebibytes = [found[name] / 2**20 if name in found else None for name in BACKENDS]
            rows.append([structure, length, *mebibytes, ratio, 2**-10 * found["fused"] / length, passed])
        first, last = min(peaks), max(peaks)
        growth = (peaks[last]["fused"] / max(1, peaks[first]["fused"])) / (last / first)
        ratios[f"memory: {structure}, growth from {first} to {last} / that of the length"] = growth
        figures[structure] = peaks
    print("peak memory of a forward and backward of one text")
    heads = [f"{name} MiB" for name in BACKENDS]
    table(["structure", "length", *heads, "fused / explicit", "fused KiB a token", f"<= {BARS['memory']}"], rows)
    return ratios, figures


def draw(path: Path, figures: dict[str, Any]) -> None:
    """Both curves by length as a picture (SVG or PNG), a column for each structure."""
    from matplotlib.figure import Figure

    seconds: dict[str, dict[int, dict[str, float]]] = {}
    for key, found in figures.get("time", {}).items():
        structure, length = key.rsplit(", ", 1)
        seconds.setdefault(structure, {})[int(length)] = {name: 1e3 * value for name, value in found.items()}
    peaks = {
        structure: {int(length): {n: size / 2**20 for n, size in found.items()} for length, found in lengths.items()}
        for structure, lengths in figures.get("memory", {}).items()
    }
    rows = [(unit, curves) for unit, curves in (("ms, a batch", seconds), ("MiB at the peak, a text", peaks)) if curves]
    structures = list(rows[0][1])
    figure = Figure(figsize=(4.2 * len(structures), 3.2 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(structures), squeeze=False)
    for (unit, curves), line in zip(rows, grid, strict=True):
        for structure, axes in zip(structures, line, strict=True):
            for name, marker in zip(BACKENDS, "osx", strict=True):
                points = [(length, found[name]) for length, found in sorted(curves[structure].items()) if name in found]
                axes.plot(*zip(*points, strict=True), marker=marker, label=name, linewidth=1, markersize=4)
            axes.set(xscale="log", yscale="log", title=structure, xlabel="tokens of a text", ylabel=unit)
            axes.set_xticks(
                ticks := sorted(curves[structure]), [f"{tick:,}" for tick in ticks], rotation=60, fontsize=7
            )
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads or take_cores(options.cores))
    if options.memory_of is not None:
        structure, backend, length = options.memory_of
        print(memory_of(options, structure, backend, int(length)))
        return
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {}
    for part, measure in (("time", times), ("memory", memories)):
        if part in options.parts:
            found, figures[part] = measure(options)
            ratios |= found
    if options.picture is not None:
        draw(options.picture, figures)
    finish("attention_backend", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
