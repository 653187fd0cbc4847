"""Arrays of weights inside JSON: one byte a weight, deflated, as text.

    value = byte / 255 · scale        byte = round(value / scale · 255),   scale = the largest weight

so no value is farther than scale / 510 from what was packed, 0 stays 0 and the largest stays itself. Attention is mostly close
to 0, which deflates well.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

LEVELS = 255
DEFLATE = 6


def pack(values: np.ndarray) -> dict[str, Any]:
    """`values` (any shape, none below 0, all finite) as plain data: shape, scale and the text of its bytes in C order."""
    exact = np.asarray(values, np.float64)
    scale = float(exact.max(initial=0.0))
    if not np.isfinite(exact).all() or float(exact.min(initial=0.0)) < 0:
        raise ValueError("only finite weights from 0 can be packed")
    levels = np.rint(exact * (LEVELS / scale)) if scale > 0 else exact
    data = zlib.compress(np.ascontiguousarray(levels, np.uint8).tobytes(), DEFLATE)
    return {"shape": list(exact.shape), "scale": scale, "data": base64.b64encode(data).decode("ascii")}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The float64 array that `pack` was given, to within scale / 510."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    exact: np.ndarray = levels.astype(np.float64).reshape(packed["shape"]) / LEVELS * packed["scale"]
    return exact
