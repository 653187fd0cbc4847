"""An attention in one line: `SCORE [ARRANGEMENT ORDERS] [shared-keys | keys-per-order] [gated]`. No torch here.

token                             ordinary attention
relative                          with clipped relative positions
queryk heterogeneous 1-2          every head sees tokens and bigrams
convkv homogeneous 44             four heads of tokens, four of bigrams
queryk interleaved 1-2 keys-per-order
queryk heterogeneous 1-2 gated    begins as ordinary attention
"""

from __future__ import annotations

from typing import Any

EXAMPLE = "queryk heterogeneous 1-2"
KEYS = {"shared-keys": True, "keys-per-order": False}
GATED = "gated"
FORM = f"SCORE [ARRANGEMENT ORDERS] [{' | '.join(KEYS)}] [{GATED}]"


def parse(text: str) -> dict[str, Any]:
    """`score`, and where they are said `arrangement`, `orders` or `split`, `share_keys`, `gated`; ValueError says what is
    wrong."""
    words = text.split()
    found: dict[str, Any] = {}
    if words and words[-1] == GATED:
        found["gated"] = bool(words.pop())
    if words and words[-1] in KEYS:
        found["share_keys"] = KEYS[words.pop()]
    if len(words) not in (1, 3):
        raise ValueError(f"{text!r} is not {FORM}, such as {EXAMPLE!r}")
    found["score"] = words[0]
    if len(words) == 3:
        found["arrangement"] = words[1]
        if words[1] == "homogeneous":
            found["split"] = parse_split(words[2])
        else:
            found["orders"] = parse_orders(words[2])
    return found


def parse_split(text: str) -> list[int]:
    """Heads of order 1, 2, …: `44` or `3-2-3` or `12-4`."""
    parts = text.split("-") if "-" in text else list(text)
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise ValueError(f"{text!r} is no division of the heads, such as 44 or 3-2-3 or 12-4")
    return [int(p) for p in parts]


def parse_orders(text: str) -> list[int]:
    """`1-2-3` → [1, 2, 3]."""
    parts = text.split("-")
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise ValueError(f"{text!r} are no orders, such as 1-2 or 1-2-3")
    return [int(p) for p in parts]
