"""Several lines joined to one, by a rule that depends on line numbers alone: parallel files stay parallel.

join_lines(lines, 2, 3)     lines 1-2, 3-5, 6-7, 8-10, …: groups of 2 and 3 lines in turn, each joined by a blank
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import TypeVar

from phraseloom.errors import UsageError

T = TypeVar("T")
MOST = 100


def group_sizes(text: str) -> tuple[int, int]:
    """`2-3` as (2, 3) and `2` as (2, 2): the least and the most members of a group. Raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MOST:
        raise UsageError(f"{text!r} is no size of groups", hint=f"give a number from 1 to {MOST}, or two, such as 2-3")
    return low, high


def groups(items: Iterable[T], low: int, high: int) -> Iterator[list[T]]:
    """Groups of low, low + 1, …, high items, and again from low; the last one may be smaller."""
    rest = iter(items)
    for size in cycle(range(low, high + 1)):
        group = list(islice(rest, size))
        if not group:
            return
        yield group


def join_lines(lines: Iterable[str], low: int, high: int) -> Iterator[str]:
    """Each group of lines as one line, blank ones left out of it."""
    for group in groups(lines, low, high):
        yield " ".join(line.strip() for line in group if line.strip())
