"""Cancelling a search: the caller passes a callback, which the search calls between steps."""

from __future__ import annotations

from collections.abc import Callable

ShouldCancel = Callable[[], bool]


class Cancelled(Exception):
    """The caller cancelled the request."""


def raise_if_cancelled(should_cancel: ShouldCancel | None) -> None:
    """Raise Cancelled if `should_cancel` is a callback that returns True."""
    if should_cancel is not None and should_cancel():
        raise Cancelled
