"""Check the name of a device; arithmetic of lower precision on it."""

from __future__ import annotations

import contextlib
import math
import time

import torch

from phraseloom.errors import UsageError

KINDS = ("cpu", "cuda")
REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def arithmetic(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """torch's products in bf16 or fp16 on this device; nothing for fp32 and int8. Parameters stay as they are."""
    if precision not in REDUCED:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=REDUCED[precision])


SLOW = 1.5  # a product in bf16 that takes this many times as long as in fp32 is done without instructions for it


def bf16_cost() -> float:
    """The time of a product in bf16, divided by that in fp32, on one core of this CPU: the fastest of four of each."""
    seconds, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for kind in (torch.float32, torch.bfloat16):
            a, b = torch.ones(256, 128, dtype=kind), torch.ones(128, 256, dtype=kind)
            seconds[kind] = math.inf
            for _ in range(4):
                begin = time.perf_counter()
                a @ b
                seconds[kind] = min(seconds[kind], time.perf_counter() - begin)
    finally:
        torch.set_num_threads(threads)
    return seconds[torch.bfloat16] / seconds[torch.float32]


def usable(device: str | torch.device) -> torch.device:
    """The torch device of this name. Raises UsageError for an unknown name, and for a GPU that the machine does not have."""
    try:
        result = torch.device(device)
    except RuntimeError:
        result = None
    if result is None or result.type not in KINDS:
        raise UsageError(f"there is no device {str(device)!r}", hint="cpu, cuda or cuda:0")
    count = torch.cuda.device_count() if result.type == "cuda" else 0
    if result.type == "cuda" and (result.index or 0) >= count:
        available = "no usable GPU" if not count else f"only GPU 0 to {count - 1}" if count > 1 else "only GPU 0"
        raise UsageError(f"device {device} is asked for, but there is {available}", hint="--device cpu")
    return result
