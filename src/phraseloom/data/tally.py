"""What a preparation left out: counts and first lines by reason, and pairs that came before."""

from __future__ import annotations

from phraseloom.data.config import AnyFilter
from phraseloom.data.duplicates import SeenPairs
from phraseloom.data.encode import Encoded
from phraseloom.data.index import REASONS, Dropped, FileInfo
from phraseloom.data.workers import Chunk


class Tally:
    """Counts what is left out, and finds duplicates; chunks come in order, so the first line is the first."""

    def __init__(self, files: list[FileInfo], filters: AnyFilter | None) -> None:
        self.files, self.filters = files, filters
        self.seen = SeenPairs()
        self._found: dict[str, Dropped] = {}

    @property
    def dropped(self) -> dict[str, Dropped]:
        """The reasons met, in their fixed order."""
        return {reason: self._found[reason] for reason in REASONS if reason in self._found}

    def count(self, chunk: Chunk, encoded: Encoded) -> Encoded:
        """Count the pairs that a chunk lost; the chunk without duplicates."""
        if encoded.keys is not None:
            new = self.seen.new(encoded.keys)
            if not new.all():
                encoded.dropped["duplicate"] = [int(i) for i in encoded.lines[~new]]
                encoded = encoded.keep(new)
        for reason, places in encoded.dropped.items():
            old = self._found.get(reason)
            first = (
                (self.files[chunk.file].name, chunk.first + places[0])
                if old is None
                else (old.first_file, old.first_line)
            )
            pairs = len(places) + (0 if old is None else old.pairs)
            self._found[reason] = Dropped(pairs=pairs, first_file=first[0], first_line=first[1])
        return encoded
