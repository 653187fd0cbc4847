"""Processes that must not outlive the one that started them, however that ends (Linux)."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["PARENT", "end_with_parent"]

PARENT = "PHRASELOOM_PARENT"
"""The environment variable with the number of the process that starts this one."""


def end_with_parent() -> None:
    """If `PARENT` is set, have Linux kill this process when its parent ends. Its own children do not inherit the variable."""
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != int(parent):  # it has ended already
        os._exit(1)
