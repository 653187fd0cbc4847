"""Results as plain data, with or without the sums of each sentence that `reproduce` draws from (metrics/ratio.py)."""

from __future__ import annotations

from typing import Any

KEY = "by_sentence"


def plain(value: Any, by_sentence: bool = False) -> Any:
    """Plain data without what stands under `by_sentence`, at any depth, unless it is wanted."""
    if isinstance(value, dict):
        return {name: plain(inner, by_sentence) for name, inner in value.items() if by_sentence or name != KEY}
    if isinstance(value, list) and not by_sentence:
        return [plain(inner) for inner in value]
    return value
