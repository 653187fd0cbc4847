"""nn.Modules without text, configuration or training; they take plain values and built sub-modules.

For your own models: `PhraseAttention`, `replace_attention` (docs/phrase_attention.md), imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phraseloom.layers.phrase_attention import PhraseAttention
    from phraseloom.layers.replacement import replace_attention

__all__ = ["PhraseAttention", "replace_attention"]

_HOMES = {"PhraseAttention": "phrase_attention", "replace_attention": "replacement"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
