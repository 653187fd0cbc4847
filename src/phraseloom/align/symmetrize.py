"""One alignment from two of the same sentence pair, as (source word, target word):

    F, forward    each target word chose a source word, as fast_align does without -r
    B, backward   each source word chose a target word

    intersection          F ∩ B
    union                 F ∪ B
    grow-diag             the intersection, grown through the union by neighbours that reach a word without link
    grow-diag-final       and then each link of F, of B, of which at least one word is without link
    grow-diag-final-and   and then each link of F, of B, of which both words are without link

Koehn, Och and Marcu 2003; Koehn et al. 2005. The result depends on the order, which is that of Moses (`symal`): links are
scanned by target word, then source word; the neighbours of a link are tried in the order of `NEIGHBOURS`; a link that was
added is itself scanned in the same pass if it comes later in the order, else in the next; passes end when one adds nothing.
The last step scans F, then B, in the same order. Others differ: fast_align's `atools` scans the links that may be added, by
source word, and alignment-scripts (Zenkel et al. 2019) add a link only if both its words are without.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable

from phraseloom.align.links import Links
from phraseloom.errors import UsageError

METHODS = ("intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
# Steps (target word, source word).
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def symmetrize(forward: Links, backward: Links, method: str) -> Links:
    """The alignment that `method`, one of METHODS, makes of two, all as (source word, target word). Raises UsageError."""
    if method not in METHODS:
        raise UsageError(f"no symmetrisation {method!r}", hint=f"choose from {', '.join(METHODS)}")
    if method == "intersection":
        return forward & backward
    if method == "union":
        return forward | backward
    growth = _Growth(forward & backward)
    growth.grow(forward | backward)
    if method != "grow-diag":
        for links in (forward, backward):
            growth.finish(links, both=method == "grow-diag-final-and")
    return frozenset((s, t) for t, s in growth.links)


class _Growth:
    """Links (target word, source word) in order, and the words that they reach."""

    def __init__(self, links: Links) -> None:
        self.links = _scanned(links)
        self._targets, self._sources = {t for t, _ in self.links}, {s for _, s in self.links}

    def grow(self, allowed: Links) -> None:
        """Add allowed neighbours that reach at least one free word, until there is none."""
        grew = True
        while grew:
            grew, at = False, 0
            while at < len(self.links):
                target, source = self.links[at]
                for down, right in NEIGHBOURS:
                    t, s = target + down, source + right
                    if (s, t) in allowed and (t not in self._targets or s not in self._sources):
                        at += self._add(t, s) <= at
                        grew = True
                at += 1

    def finish(self, links: Links, *, both: bool) -> None:
        """Add those of `links` of which one word, or with `both` each word, is free."""
        for t, s in _scanned(links):
            free = (t not in self._targets) + (s not in self._sources)
            if free == 2 or (free and not both):
                self._add(t, s)

    def _add(self, target: int, source: int) -> int:
        """Put a link in its place, and return that."""
        place = bisect(self.links, (target, source))
        self.links.insert(place, (target, source))
        self._targets.add(target)
        self._sources.add(source)
        return place


def _scanned(links: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted((t, s) for s, t in links)
