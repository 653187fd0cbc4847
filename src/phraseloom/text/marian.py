"""The subwords of a model of Marian: a sentencepiece model that cuts, and a vocabulary of its own that numbers the pieces.

Source and target have sentencepiece models of their own and one vocabulary. What is cut is what sentencepiece normalises (most
such models apply NFKC and join spaces), as MarianTokenizer of transformers does; so, other than with the subwords that
phraseloom learns, `undo(pieces(x))` is x only up to that. A source may begin with a target language, `>>fra<< text`: one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phraseloom.errors import CorruptError
from phraseloom.files import atomic_write_bytes, require_file
from phraseloom.text.sentencepiece import MAX_MODEL_BYTES, SPACE
from phraseloom.text.subwords import UNKNOWN
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary


class MarianSubwords:
    """Pieces by a sentencepiece model (its bytes), ids by `vocabulary`. Raises CorruptError for bytes that are no model."""

    endings = (".spm", ".vocab")

    def __init__(self, model: bytes, vocabulary: Vocabulary, *, file: str | Path | None = None) -> None:
        import sentencepiece

        if not 0 < len(model) <= MAX_MODEL_BYTES:
            raise CorruptError(
                f"a sentencepiece model has 1 byte to {MAX_MODEL_BYTES >> 20} MiB, not {len(model)}", file=file
            )
        self.content, self.vocabulary = model, vocabulary
        sentencepiece.set_min_log_level(3)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)
            self._own = self._processor.id_to_piece(list(range(self._processor.get_piece_size())))
        except (RuntimeError, ValueError, IndexError, UnicodeDecodeError) as error:
            raise CorruptError("not a sentencepiece model", file=file) from error
        ordinary = range(4, len(vocabulary))
        self._begins = {n for n in ordinary if vocabulary.piece(n).startswith(SPACE)}
        self._blank = {PAD, BOS, EOS} | {n for n in ordinary if not vocabulary.piece(n).strip(SPACE)}
        self.longest_piece = max((len(vocabulary.piece(n)) for n in ordinary), default=1)

    @property
    def known_share(self) -> float:
        """How many of the pieces of the sentencepiece model, as a fraction, the vocabulary has."""
        return sum(piece in self.vocabulary for piece in self._own) / max(1, len(self._own))

    def normalised(self, text: str) -> str:
        """The line as sentencepiece sees it, with plain spaces."""
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
        parts = [_language(text) for text in texts]
        cut = self._processor.encode([rest for _, rest in parts], out_type=str, num_threads=1)
        return [self.vocabulary.ids([*code, *pieces]) for (code, _), pieces in zip(parts, cut, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids; special ids are left out, an unknown piece becomes U+2047."""
        names = [UNKNOWN if i == UNK else self.vocabulary.piece(i) for i in ids if i not in (PAD, BOS, EOS)]
        return self.undo(names)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """For each id, whether a word begins with it; a space before the word belongs to it."""
        starts = [False] * len(ids)
        pending: int | None = 0
        for i, number in enumerate(ids):
            if number in self._begins and pending is None:
                pending = i
            if number not in self._blank and pending is not None:
                starts[pending], pending = True, None
        return starts

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `NAME.spm` and `NAME.vocab`."""
        atomic_write_bytes(folder / f"{name}.spm", self.content)
        self.vocabulary.save(folder / f"{name}.vocab")
        return [f"{name}.spm", f"{name}.vocab"]

    @classmethod
    def load(cls, folder: Path, name: str) -> MarianSubwords:
        """Read what `save` wrote. Raises CorruptError, FileProblem."""
        path = require_file(folder / f"{name}.spm", "sentencepiece model")
        if path.stat().st_size > MAX_MODEL_BYTES:
            raise CorruptError(f"sentencepiece model is larger than {MAX_MODEL_BYTES >> 20} MiB", file=path)
        return cls(path.read_bytes(), Vocabulary.load(folder / f"{name}.vocab"), file=path)


def _language(text: str) -> tuple[list[str], str]:
    """The target language that a line names first, as a list of one piece or none, and the rest of the line."""
    if text.startswith(">>") and (end := text.find("<<")) != -1:
        return [text[: end + 2]], text[end + 2 :]
    return [], text
