"""Output layers: each owns its training loss and its decode-time scores."""

from __future__ import annotations

from phraseloom.outputs.softmax import LossSums, SoftmaxOutput

OUTPUTS = {"softmax": SoftmaxOutput}

__all__ = ["OUTPUTS", "LossSums", "SoftmaxOutput"]
