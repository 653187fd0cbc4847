"""The header of a safetensors file: see `phraseloom/reading.py`."""

from __future__ import annotations

from phraseloom.reading import MAX_HEADER, TensorInfo, read_header

__all__ = ["MAX_HEADER", "TensorInfo", "read_header"]
