"""The checks of `phraseloom doctor`: Python, packages, cores, memory, disk, locale, torch.

A finding is `ok`, `note` (advice), or `fail` (phraseloom cannot work).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import locale
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phraseloom.errors import plural
from phraseloom.files import available_cores
from phraseloom.report.markup import terminal

State = Literal["ok", "note", "fail"]
PYTHON = (3, 11)
SIDE = 768  # of the matrices whose product is measured
LITTLE_DISK, LITTLE_MEMORY = 5 * 2**30, 4 * 2**30
EXTRAS = {  # extra: (module, what it enables)
    "plot": ("matplotlib", "learning curves and other pictures"),
    "track": ("tensorboard", "TensorBoard logs (training.tensorboard)"),
    "zh": ("jieba", "Chinese word segmentation (data.text.tokenize: jieba)"),
    "embeddings": ("gensim", "vectors for words and phrases (embeddings train)"),
    "sentences": ("pysbd", "sentence splitting (translate --split-sentences)"),
    "serve": ("h11", "translations over HTTP (serve)"),
    "cluster": ("submitit", "tables as jobs (reproduce --on)"),
    "hub": ("huggingface_hub", "models from and to the Hugging Face Hub (hub)"),
    "ctranslate2": ("ctranslate2", "models for CTranslate2 (convert to-ctranslate2)"),
}


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was checked, its state, and a description."""

    what: str
    state: State
    text: str


def examine(*, probe: bool = True) -> list[Finding]:
    """Run all checks; none raises. With `probe`, also import torch and multiply matrices for half a second."""
    checks: list[Callable[[], list[Finding]]] = [_python, _packages, _extras, _cores, _memory, _disk, _locale]
    if probe:
        checks.append(_torch)
    findings: list[Finding] = []
    for check in checks:
        try:
            findings += check()
        except Exception as error:  # a failing check is a finding too
            findings.append(Finding(check.__name__.strip("_"), "note", f"could not be checked: {error}"))
    return findings


def render(findings: Sequence[Finding]) -> str:
    """The findings as text for a terminal, with a final newline."""
    marks = {"ok": "✓", "note": "!", "fail": "✗"}
    table = terminal(["", "", ""], [[marks[f.state], f.what, f.text] for f in findings])
    failed = sum(f.state == "fail" for f in findings)
    verdict = "ready for work" if not failed else f"{plural(failed, 'thing')} to mend (✗)"
    return f"{table}\n\n{verdict}\n"


def _python() -> list[Finding]:
    text = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < PYTHON:
        return [Finding("Python", "fail", f"{text}; {'.'.join(map(str, PYTHON))} or later is needed")]
    return [Finding("Python", "ok", text)]


def _packages() -> list[Finding]:
    """Every required package: is it installed, not older than its lower bound, and equal to a known pin?"""
    pins = _constraints()
    findings = []
    for requirement in importlib.metadata.requires("phraseloom") or []:
        if ";" in requirement:  # extras
            continue
        name, bound = _parse(requirement)
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding(name, "fail", f"not installed; pip install '{requirement}'"))
            continue
        pin = pins.get(_plain(name))
        if bound and _numbers(version) < _numbers(bound):
            findings.append(Finding(name, "fail", f"{version} is older than {bound}; pip install '{requirement}'"))
        elif pin and pin.split("+")[0] != version.split("+")[0]:
            findings.append(Finding(name, "note", f"{version}; tested with {pin} (constraints.txt)"))
        else:
            findings.append(Finding(name, "ok", version + (" as tested" if pin else "")))
    return findings


def _constraints() -> dict[str, str]:
    """The versions pinned in the checkout's constraints.txt; empty for an installed package."""
    path = Path(__file__).resolve().parents[3] / "constraints.txt"
    if not path.is_file():
        return {}
    from phraseloom.text.lines import read_lines

    pairs = (line.partition("#")[0].strip().partition("==") for line in read_lines(path))
    return {_plain(name): version.strip() for name, equals, version in pairs if equals}


def _parse(requirement: str) -> tuple[str, str]:
    match = re.match(r"([A-Za-z0-9._-]+)\s*(?:>=\s*([0-9][0-9.]*))?", requirement)
    return (match[1], match[2] or "") if match else (requirement, "")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:4])


def _extras() -> list[Finding]:
    findings = []
    for extra, (module, use) in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            findings.append(Finding(f"extra {extra}", "note", f"no {use}; pip install 'phraseloom[{extra}]'"))
        else:
            findings.append(Finding(f"extra {extra}", "ok", use))
    return findings


def _cores() -> list[Finding]:
    usable = available_cores()
    limit = os.environ.get("OMP_NUM_THREADS")
    if limit and limit.isdigit() and int(limit) < usable:
        return [Finding("cores", "note", f"{usable} usable, but OMP_NUM_THREADS={limit} keeps torch to {limit}")]
    return [Finding("cores", "ok", f"{usable} usable of {os.cpu_count()}")]


def _memory() -> list[Finding]:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    text = f"{size / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free"
    return [Finding("memory", "ok" if size >= LITTLE_MEMORY else "note", text)]


def _disk() -> list[Finding]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    text = f"{free / 2**30:.1f} GiB free at {here}"
    if not os.access(here, os.W_OK):
        return [Finding("disk", "note", f"{text}, which is not writable")]
    if free < LITTLE_DISK:
        return [Finding("disk", "note", f"{text}; a base-size run keeps about 4 GiB of checkpoints")]
    return [Finding("disk", "ok", text)]


def _locale() -> list[Finding]:
    encoding = locale.getpreferredencoding(do_setlocale=False)
    names = {k: os.environ[k] for k in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(k)}
    text = ", ".join(f"{k}={v}" for k, v in names.items()) or "not set"
    if encoding.lower().replace("-", "") != "utf8" or sys.getfilesystemencoding().lower() != "utf-8":
        return [Finding("locale", "note", f"{text} ({encoding}): text is read and written as UTF-8 all the same")]
    return [Finding("locale", "ok", f"{text} ({encoding})")]


def matrix_speed() -> float:
    """FLOP/s of a product of 768 × 768 matrices in fp32 with all threads of torch, measured for 0.4 s."""
    import torch

    rounds, a = 0, torch.ones(SIDE, SIDE)
    out = a @ a
    start = time.perf_counter()
    while time.perf_counter() - start < 0.4 or rounds < 3:
        torch.mm(a, a, out=out)
        rounds += 1
    return 2 * SIDE**3 * rounds / (time.perf_counter() - start)


def _torch() -> list[Finding]:
    """Import torch and measure fp32 matrix products, which bound the speed of training."""
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # a broken shared library raises OSError
        return [Finding("torch", "fail", f"cannot be imported: {error}")]
    ones = torch.ones(SIDE, SIDE)
    if (total := float((ones @ ones)[0, 0])) != SIDE:
        return [Finding("matrix product", "fail", f"1·1 summed {SIDE} times gives {total}")]
    text = f"{matrix_speed() / 1e9:.0f} GFLOP/s in fp32 with {plural(torch.get_num_threads(), 'thread')}"
    findings = [Finding("matrix product", "ok", text)]
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        findings.append(Finding("GPU", "ok", ", ".join(names)))
    else:
        findings.append(Finding("GPU", "ok", "none; training and translation use the CPU"))
    return findings
