"""subword-nmt BPE (Sennrich et al. 2016): pieces inside a word end in `@@`, the last one does not.

The library cuts words at spaces and has no escape, so a line is escaped first: U+E581 → U+E581 `0`; in `@@` the second `@`
gets U+E581 `1` before it; an empty word (a run of spaces, or one at an end) is U+E581 `1` alone. Then no word holds `@@`, no
word is empty, and joining the pieces gives the line back.

The vocabulary is closed: it has every character of the sample and every merge, each inside a word (`x@@`) and at its end
(`x`). So text made of those characters has no unknown piece.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from phraseloom.errors import CorruptError, DataError, ModelError
from phraseloom.files import atomic_write_bytes
from phraseloom.options.text import SubwordNmtConfig
from phraseloom.reading import inside, read_bounded
from phraseloom.text.subwords import ESCAPE, Flat, flat, shown_pieces
from phraseloom.text.vocabulary import SPECIALS, Vocabulary

SEPARATOR = "@@"
END = "</w>"
HEADER = "#version: 0.2"
MAX_CODES_BYTES = 2**26
EMPTY_WORD = ESCAPE + "1"
# Number of words whose pieces are cached; the cache of the library has no limit.
CACHED_WORDS = 200_000
_DOUBLE = re.compile("@(?=@)")
_ESCAPED = re.compile(f"{ESCAPE}[01]")


def _escape(text: str) -> str:
    if ESCAPE in text:
        text = text.replace(ESCAPE, ESCAPE + "0")
    if "@@" in text:
        text = _DOUBLE.sub(f"@{ESCAPE}1", text)
    return text


def _words(text: str) -> list[str]:
    return [word or EMPTY_WORD for word in _escape(text).split(" ")] if text else []


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda m: ESCAPE if m[0][1] == "0" else "", text) if ESCAPE in text else text


class SubwordNmt:
    """Subwords from the text of a codes file and a vocabulary. Raises CorruptError if `codes` is not a codes file."""

    endings = (".codes", ".vocab")

    def __init__(self, codes: str, vocabulary: Vocabulary, *, file: str | Path | None = None) -> None:
        from subword_nmt.apply_bpe import BPE

        lines = codes.split("\n")
        if lines[0] != HEADER or lines[-1] != "":
            raise CorruptError(f"a codes file begins with {HEADER!r} and ends with a line end", file=file)
        for number, line in enumerate(lines[1:-1], start=2):
            if len(pair := line.split(" ")) != 2 or not all(pair) or "\r" in line:
                raise CorruptError("a merge is two symbols with a space between", file=file, line=number)
        self.content, self.vocabulary = codes.encode("utf-8"), vocabulary
        # Without merges the library would read an empty line as a merge, so it gets one that never applies.
        body = codes if len(lines) > 2 else f"{HEADER}\n{END} {END}\n"
        self._bpe = BPE(io.StringIO(body, newline="\n"), separator=SEPARATOR)
        self._names = list(vocabulary)
        self.longest_piece = max(map(len, self._names[len(SPECIALS) :]), default=1)
        self._known: dict[str, tuple[str, ...]] = {}
        self._known_ids: dict[str, list[int]] = {}

    def _cut(self, word: str) -> tuple[str, ...]:
        pieces = self._known.get(word)
        if pieces is None:
            if len(self._known) >= CACHED_WORDS:
                self._known.clear()
                self._known_ids.clear()
            pieces = (word,) if word == EMPTY_WORD else tuple(self._bpe.segment_tokens([word]))
            self._known[word] = pieces
            self._bpe.cache.clear()
        return pieces

    def pieces(self, text: str) -> list[str]:
        """The pieces of a line, `@@` at the end of each that does not end its word."""
        return [piece for word in _words(text) for piece in self._cut(word)]

    def undo(self, pieces: Sequence[str]) -> str:
        """The line that the pieces were cut from."""
        joined = [p[: -len(SEPARATOR)] if p.endswith(SEPARATOR) else p + " " for p in pieces]
        return _unescape("".join(joined).removesuffix(" "))

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of a line."""
        known, result = self._known_ids, []
        for word in _words(text):
            ids = known.get(word)
            if ids is None:
                pieces = self._cut(word)
                ids = known[word] = self.vocabulary.ids(pieces)
            result += ids
        return result

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each line."""
        return [self.encode(text) for text in texts]

    def encode_flat(self, texts: list[str]) -> Flat:
        """`encode` of each line, as arrays."""
        return flat(self.encode_batch(texts))

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids; special ids are left out, an unknown piece becomes U+2047."""
        return self.undo(shown_pieces(self.vocabulary, ids))

    def word_starts(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[bool]:
        """For each id, whether a word begins with it: the first, and each after a piece without `@@`."""
        starts, begins = [], True
        for piece in (*begun, *map(self._names.__getitem__, ids[len(begun) :])):
            starts.append(begins and piece != EMPTY_WORD)
            begins = not piece.endswith(SEPARATOR)
        return starts

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `NAME.codes` and `NAME.vocab`."""
        atomic_write_bytes(folder / f"{name}.codes", self.content)
        self.vocabulary.save(folder / f"{name}.vocab")
        return [f"{name}.codes", f"{name}.vocab"]

    @classmethod
    def load(cls, folder: Path, name: str) -> SubwordNmt:
        """Read what `save` wrote. Raises CorruptError, FileProblem."""
        path = inside(folder, f"{name}.codes", "codes file")
        try:
            codes = read_bounded(path, "codes file", MAX_CODES_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorruptError(f"codes file is not UTF-8 (byte {error.start})", file=path) from error
        return cls(codes, Vocabulary.load(folder / f"{name}.vocab"), file=path)


def count_words(lines: Iterable[str]) -> Counter[str]:
    """The words of lines with their counts."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_words(line.replace("\0", "")))
    return counts


def learn_from_words(counts: Counter[str], config: SubwordNmtConfig) -> SubwordNmt:
    """Learn merges and the closed vocabulary from words. The same lines give the same bytes. Raises DataError."""
    from subword_nmt.learn_bpe import learn_bpe

    if not counts:
        raise DataError("there is no text to learn subwords from")
    empty_words = counts[EMPTY_WORD]
    characters = sorted({c for word in counts if word != EMPTY_WORD for c in word})
    # The library separates words and symbols by white space, so words with another kind of it are left out. So are words with
    # its mark of a word's end: a merge of these letters would look like a last piece.
    plain = {w: n for w, n in counts.items() if ESCAPE not in w and END not in w and not any(c.isspace() for c in w)}
    out = io.StringIO()
    if config.merges and any(len(w) > 1 for w in plain):
        entries = [f"{w} {n}\n" for w, n in sorted(plain.items(), key=lambda item: (-item[1], item[0]))]
        with contextlib.redirect_stderr(io.StringIO()):
            learn_bpe(entries, out, config.merges, min_frequency=config.min_frequency, is_dict=True)
    codes = out.getvalue() or HEADER + "\n"
    names = [EMPTY_WORD] * bool(empty_words) + [c + SEPARATOR for c in characters] + characters
    for line in codes.split("\n")[1:-1]:
        symbol = line.replace(" ", "")
        names.append(symbol.removesuffix(END) if symbol.endswith(END) else symbol + SEPARATOR)
    try:
        return SubwordNmt(codes, Vocabulary([*SPECIALS, *dict.fromkeys(n for n in names if n)]))
    except ModelError as error:
        raise DataError(f"subword-nmt cannot learn from this text: {error.what}") from error
