"""Whether a device that somebody names is there."""

from __future__ import annotations

import torch

from phraseloom.errors import UsageError

KINDS = ("cpu", "cuda")


def usable(device: str | torch.device) -> torch.device:
    """The device that is meant; UsageError for a name of none, and for a GPU that is not there."""
    try:
        found = torch.device(device)
    except RuntimeError:
        found = None
    if found is None or found.type not in KINDS:
        raise UsageError(f"there is no device {str(device)!r}", hint="cpu, cuda or cuda:0")
    count = torch.cuda.device_count() if found.type == "cuda" else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        there = "no usable GPU" if not count else f"only GPU 0 to {count - 1}" if count > 1 else "only GPU 0"
        raise UsageError(f"device {device} is asked for, but there is {there}", hint="--device cpu")
    return found
