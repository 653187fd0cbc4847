"""Ending a search that nobody waits for any more: its caller gives a question, which is asked between two steps."""

from __future__ import annotations

from collections.abc import Callable

Question = Callable[[], bool]


class Cancelled(Exception):
    """The work was ended because nobody wants its result; no fault of anybody."""


def go_on(cancelled: Question | None) -> None:
    """Raise Cancelled where `cancelled()`; None: it never is."""
    if cancelled is not None and cancelled():
        raise Cancelled
