"""What a preparation left out: counts and first lines by reason, and pairs that came before; and lines without a tree."""

from __future__ import annotations

import numpy as np

from phraseloom.data.config import AnyFilter
from phraseloom.data.duplicates import SeenPairs
from phraseloom.data.encode import Chunk, EncodedChunk
from phraseloom.data.index import REASONS, Dropped, FileInfo, NoTree
from phraseloom.phrases.source import has_tree


class Tally:
    """Counts what is left out or blank, and finds duplicates; chunks come in order, so the first line is the first."""

    def __init__(self, files: list[FileInfo], filters: AnyFilter | None, *, longest: int) -> None:
        self.files, self.filters, self.longest = files, filters, longest
        self.seen = SeenPairs()
        self.no_tree: NoTree | None = None
        self.blank: Dropped | None = None
        self.long: Dropped | None = None
        self._found: dict[str, Dropped] = {}

    @property
    def dropped(self) -> dict[str, Dropped]:
        """The reasons met, in their fixed order."""
        return {reason: self._found[reason] for reason in REASONS if reason in self._found}

    def count(self, chunk: Chunk, encoded: EncodedChunk) -> EncodedChunk:
        """Count the pairs that a chunk lost, and its lines without a tree; the chunk without duplicates."""
        self._count_trees(chunk)
        if self.filters is None:
            self._count_blank(chunk, encoded)
            self._count_long(chunk, encoded)
        if encoded.keys is not None:
            new = self.seen.new(encoded.keys)
            if not new.all():
                encoded.dropped["duplicate"] = [int(i) for i in encoded.lines[~new]]
                encoded = encoded.keep(new)
        for reason, places in encoded.dropped.items():
            self._found[reason] = self._more(self._found.get(reason), chunk, places)
        return encoded

    def _more(self, old: Dropped | None, chunk: Chunk, places: list[int]) -> Dropped:
        if old is None:
            old = Dropped(pairs=0, first_file=self.files[chunk.file].name, first_line=chunk.first + places[0])
        return old.model_copy(update={"pairs": old.pairs + len(places)})

    def _count_blank(self, chunk: Chunk, encoded: EncodedChunk) -> None:
        """Pairs without tokens on a side that the files have."""
        source, target = encoded.lengths[:2]
        blank = (target == 0) | ((source == 0) & bool(self.files[chunk.file].source))
        places = [int(i) for i in encoded.lines[blank]]
        if places:
            self.blank = self._more(self.blank, chunk, places)

    def _count_long(self, chunk: Chunk, encoded: EncodedChunk) -> None:
        """Pairs with a side that validation crops."""
        long = np.maximum(*encoded.lengths[:2]) > self.longest
        places = [int(i) for i in encoded.lines[long]]
        if places:
            self.long = self._more(self.long, chunk, places)

    def _count_trees(self, chunk: Chunk) -> None:
        """Lines with text and no tree, also where the pair is left out."""
        lines = zip(chunk.source, chunk.trees or (), strict=False)
        places = [i for i, (line, tree) in enumerate(lines) if line.strip() and not has_tree(tree)]
        if places:
            name = self.files[chunk.file].trees or ""
            old = self.no_tree or NoTree(lines=0, first_file=name, first_line=chunk.first + places[0])
            self.no_tree = old.model_copy(update={"lines": old.lines + len(places)})
