"""phraseloom: phrase-aware neural machine translation.

Importing this package imports no torch; `phraseloom.Translator` is loaded on first use.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["Translation", "Translator", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the Python interface on first use, so that text verbs start without torch."""
    if name in ("Translation", "Translator"):
        from phraseloom.decoding import translator

        return getattr(translator, name)
    raise AttributeError(f"module 'phraseloom' has no attribute {name!r}")
