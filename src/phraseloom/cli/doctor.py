"""`phraseloom doctor`: check this machine and installation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.options import ReportForm, check_form

if TYPE_CHECKING:
    from phraseloom.report.run.machine import Finding


def command(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the speed test, which imports torch.")] = False,
    output: ReportForm = "text",
) -> int:
    """Check Python, packages and their versions, extras, cores, memory, disk, locale, the speed of matrix products,
    the cost of bf16, the compiled library for search, whether a new model tells tokens apart, and from which length on
    fused attention is faster.

    The exit code is 1 if something that phraseloom needs is missing or broken. A ! marks advice.
    """
    from phraseloom.report.run.machine import examine, render

    check_form(output)
    findings = examine(probe=not quick)
    if not quick and all(f.state != "fail" for f in findings):
        findings += [bf16(), native_kernels(), start_of_training(), attention_backend()]
    if output == "json":
        print(json.dumps([vars(f) for f in findings], ensure_ascii=False))
    else:
        print(render(findings), end="")
    return 1 if any(f.state == "fail" for f in findings) else 0


def bf16() -> Finding:
    """Whether `training.precision: bf16` pays on this CPU."""
    from phraseloom.models.device import SLOW, bf16_cost
    from phraseloom.report.run.machine import Finding

    cost = bf16_cost()
    text = f"a product takes {cost:.2g} times as long as in fp32"
    if cost > SLOW:
        return Finding("bf16", "note", f"{text}: train with training.precision=fp32 on this CPU")
    return Finding("bf16", "ok", text)


def start_of_training() -> Finding:
    """Whether a new model with source phrases, the mechanism that collapses most easily, tells tokens apart."""
    import torch

    from phraseloom.models.build import build_model
    from phraseloom.options.model import ModelConfig
    from phraseloom.report.run.machine import Finding
    from phraseloom.training.start import measure_start

    config = ModelConfig.model_validate({"preset": "tiny", "norm": "post", "phrases": {}})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        report = measure_start(build_model(config, 1000, 1000), source_size=1000, target_size=1000)
    text = f"{report} (model.init: {config.init}, source phrases)"
    if report.collapsed:
        text += f"; collapsed ({', '.join(report.collapsed)}): see model.init in docs/training.md"
        return Finding("start of training", "note", text)
    return Finding("start of training", "ok", text)


def native_kernels() -> Finding:
    """Whether the compiled library is there, for which instruction sets, and whether it finds rivals by bytes."""
    from phraseloom.native.library import VARIANTS, load, variants
    from phraseloom.report.run.machine import Finding

    if (library := load()) is not None:
        names = [VARIANTS[number] for number in variants()]
        rivals = "by products of bytes" if library.pl_has_farthest() else "in eager torch (no AVX-512 VNNI)"
        text = f"{', '.join(names)}; kernels: auto takes {names[-1]}; rivals of max-margin losses are found {rivals}"
        return Finding("native kernels", "ok", text)
    text = "not built, so search runs in eager torch, several times slower; reinstall where a C++ compiler (g++) is at hand"
    return Finding("native kernels", "note", text)


def attention_backend() -> Finding:
    """From how many tokens on fused attention is faster here, and from how many `attention.backend: auto` takes it."""
    from phraseloom.layers.attention.backend import FUSED_FROM
    from phraseloom.layers.attention.crossover import measure_crossover
    from phraseloom.report.run.machine import Finding

    ratios = measure_crossover()
    measured = ", ".join(f"{length} tokens {ratio:.2f}" for length, ratio in ratios.items())
    text = f"time of fused / explicit attention: {measured}; backend: auto is fused from {FUSED_FROM} tokens on"
    slower = [length for length, ratio in ratios.items() if length >= 2 * FUSED_FROM and ratio > 1.05]
    if slower:
        return Finding("attention", "note", f"{text}; set attention.backend to explicit for up to {max(slower)} tokens")
    return Finding("attention", "ok", text)
