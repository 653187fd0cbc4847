"""Subwords of a Marian model: a sentencepiece model cuts the text, and a separate vocabulary numbers the pieces.

Source and target have one sentencepiece model each and share one vocabulary. sentencepiece normalises the text first (most
such models apply NFKC and merge spaces), as MarianTokenizer of transformers does. So `undo(pieces(x))` gives x up to this
normalisation, unlike the subwords that phraseloom learns. A source may begin with a target language, `>>fra<< text`: one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phraseloom.files import atomic_write_bytes
from phraseloom.reading import inside, read_bounded
from phraseloom.text.sentencepiece import FEW, MAX_MODEL_BYTES, SPACE, open_processor, word_starts
from phraseloom.text.subwords import Flat, flat, shown_pieces
from phraseloom.text.vocabulary import BOS, EOS, PAD, Vocabulary


class MarianSubwords:
    """Pieces from the bytes of a sentencepiece model, ids from `vocabulary`. Raises CorruptError if `model` is not a model."""

    endings = (".spm", ".vocab")

    def __init__(self, model: bytes, vocabulary: Vocabulary, *, file: str | Path | None = None) -> None:
        self.content, self.vocabulary = model, vocabulary
        self._processor, self._own = open_processor(model, file)
        ordinary = range(4, len(vocabulary))
        self._begins = {n for n in ordinary if vocabulary.piece(n).startswith(SPACE)}
        self._blank = {PAD, BOS, EOS} | {n for n in ordinary if not vocabulary.piece(n).strip(SPACE)}
        self.longest_piece = max((len(vocabulary.piece(n)) for n in ordinary), default=1)

    @property
    def known_share(self) -> float:
        """The fraction of the pieces of the sentencepiece model that are in the vocabulary."""
        return sum(piece in self.vocabulary for piece in self._own) / max(1, len(self._own))

    def normalised(self, text: str) -> str:
        """The line after the normalisation of sentencepiece, with plain spaces."""
        code, rest = _language(text)
        return "".join(code) + self._processor.normalize(rest).replace(SPACE, " ")

    def pieces(self, text: str) -> list[str]:
        """The pieces of a line."""
        code, rest = _language(text)
        return [*code, *self._processor.encode(rest, out_type=str)]

    def undo(self, pieces: Sequence[str]) -> str:
        """The line of pieces."""
        text: str = self._processor.decode(list(pieces))
        return text.replace(SPACE, " ").strip(" ")

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of a line."""
        return self.vocabulary.ids(self.pieces(text))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each line in one call."""
        if len(texts) <= FEW:
            return [self.encode(text) for text in texts]
        parts = [_language(text) for text in texts]
        cut = self._processor.encode([rest for _, rest in parts], out_type=str, num_threads=1)
        return [self.vocabulary.ids([*code, *pieces]) for (code, _), pieces in zip(parts, cut, strict=True)]

    def encode_flat(self, texts: list[str]) -> Flat:
        """`encode` of each line, as arrays."""
        return flat(self.encode_batch(texts))

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids; special ids are left out, an unknown piece becomes U+2047."""
        return self.undo(shown_pieces(self.vocabulary, ids))

    def word_starts(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[bool]:
        """For each id, whether a word begins with it; a space before the word belongs to it."""
        if not begun:
            return word_starts(ids, self._begins, self._blank)
        places, pieces = range(len(ids)), [*begun, *map(self.vocabulary.piece, ids[len(begun) :])]
        begins = {place for place in places if pieces[place].startswith(SPACE)}
        blank = {place for place in places if ids[place] in self._blank or not pieces[place].strip(SPACE)}
        return word_starts(places, begins, blank)

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `NAME.spm` and `NAME.vocab`."""
        atomic_write_bytes(folder / f"{name}.spm", self.content)
        self.vocabulary.save(folder / f"{name}.vocab")
        return [f"{name}.spm", f"{name}.vocab"]

    @classmethod
    def load(cls, folder: Path, name: str) -> MarianSubwords:
        """Read what `save` wrote. Raises CorruptError, FileProblem."""
        path = inside(folder, f"{name}.spm", "sentencepiece model")
        model = read_bounded(path, "sentencepiece model", MAX_MODEL_BYTES)
        return cls(model, Vocabulary.load(folder / f"{name}.vocab"), file=path)


def _language(text: str) -> tuple[list[str], str]:
    """The target language at the start of a line, as a list of one piece or none, and the rest of the line."""
    if text.startswith(">>") and (end := text.find("<<")) != -1:
        return [text[: end + 2]], text[end + 2 :]
    return [], text
