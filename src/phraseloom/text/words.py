"""Whole words as a vocabulary, and phrases joined to one token beside them (Park and Tsvetkov 2019, §2.2; spec §4.4, §4.7).

Ids: the four specials, the most frequent words, then the most frequent phrases. A phrase that is not in the vocabulary is
read as its words; a word that is not is unknown.

A piece is a word with what its line needs beside one blank between two words, written with U+E581: U+E581 → U+E581 `0`; a
blank too many → U+E581 `1`, on the word after it (at the end of a line, before it); U+E581 `2` at the beginning of a piece
says that `_` and no blank stands before it. Blanks too many and `_` between words of a phrase do not change the ids, so
`decode(encode(x)) == x` where there are none of them and no piece is unknown.

Words joined into one token, `quality of life` → `quality_of_life`, and the same words back.

    join     w1 … wn → e(w1)_…_e(wn)      e writes _ as &#95;, and the & of &#95; and &#38; as &#38;
    split    a token → the words between its _, with e undone

So a token `quality_of_life` of the text itself becomes `quality&#95;of&#95;life` and is no phrase, and all text that holds
neither _ nor those two entities stays as it is, that of Moses (`&apos;`, `&#91;`) included. Joined text is text of which every
token is of `join`. Joining with _: Park and Tsvetkov 2019, §2.2; they do not tell a joined phrase from a token with _.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from phraseloom.errors import CorruptError, DataError, plural
from phraseloom.files import atomic_write_bytes, json_bytes, read_json
from phraseloom.options.text import WordsConfig
from phraseloom.reading import MIB, inside, read_header
from phraseloom.text.subwords import ESCAPE, UNKNOWN
from phraseloom.text.vectors import read_tokens
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from phraseloom.text.word_vectors import random_table, table_of

JOINER = "_"
_ESCAPED = "&#95;"
_AMPERSAND = re.compile(r"&(?=#(?:95|38);)")
_ENTITY = re.compile(r"&#(?:95|38);")


def join(words: Sequence[str]) -> str:
    """The token of one or more words. Raises ValueError for an empty word or one with a blank, which no token could hold."""
    if not words or not all(words) or any(" " in word for word in words):
        raise ValueError(f"not words to be joined: {words!r}")
    return JOINER.join(map(escape, words))


def split(token: str) -> list[str]:
    """The words of a token; all of it is one word where a part between _ is empty, which `join` never makes."""
    parts = token.split(JOINER)
    return [unescape(part) for part in parts] if all(parts) else [unescape(token)]


def is_phrase(token: str) -> bool:
    """Whether a token is of two words or more."""
    return JOINER in token and all(token.split(JOINER))


def escape(word: str) -> str:
    """A word as part of a token."""
    if "&#" in word:
        word = _AMPERSAND.sub("&#38;", word)
    return word.replace(JOINER, _ESCAPED)


def unescape(part: str) -> str:
    """The word that `escape` was given."""
    return _ENTITY.sub(lambda entity: JOINER if entity[0] == _ESCAPED else "&", part) if "&#" in part else part


def join_line(words: Sequence[str], sizes: Sequence[int]) -> str:
    """A line of words as joined text; phrase k has `sizes[k]` words. An empty word stands for one blank too many."""
    tokens, start = [], 0
    for size in sizes:
        tokens.append(escape(words[start]) if size == 1 else join(words[start : start + size]))
        start += size
    return " ".join(tokens)


def split_line(line: str) -> str:
    """The line of which `join_line` made this one, blanks included."""
    if JOINER not in line and "&#" not in line:
        return line
    return " ".join(" ".join(split(token)) for token in line.split(" "))


FORMAT = 1
ABOUT, VECTORS = ".words.json", ".vectors.safetensors"
_BLANK, _JOINED = ESCAPE + "1", ESCAPE + "2"
_TOO_MANY = re.compile("(?:(?<= )|^) +| +$")
_MARKS = re.compile(f"{ESCAPE}[12]")
_WRITTEN = re.compile(f" ?{_JOINED}|{ESCAPE}[01]")
_TEXT = {ESCAPE + "0": ESCAPE, _BLANK: " ", _JOINED: JOINER, f" {_JOINED}": JOINER}


class Coverage(NamedTuple):
    """Of the text that a vocabulary was learned from: different tokens and tokens, as they are read, and how many are unknown.

    `split`: phrases (different ones, and how often) that are read as their words.
    """

    types: int
    tokens: int
    unknown_types: int
    unknown_tokens: int
    split_types: int
    split_tokens: int


class Words:
    """A vocabulary of words, and with `joined` of phrases: tokens of joined text with two words or more (`text/words.py`).

    `vectors`: float32 (V, m), one unit vector an id but zeros for PAD and BOS (`text/word_vectors.py`). `first_phrase`: the id
    of the first phrase, the size of the vocabulary where there is none. `coverage`: None unless it was just learned. Raises
    CorruptError for a word with a space or after the first phrase, or vectors of another number.
    """

    endings = (ABOUT, ".vocab", VECTORS)
    # An unknown word may be of any length.
    longest_piece = sys.maxsize

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        joined: bool = False,
        vectors: np.ndarray | None = None,
        coverage: Coverage | None = None,
        file: str | Path | None = None,
    ) -> None:
        self.vocabulary, self.joined, self.vectors, self.coverage = vocabulary, joined, vectors, coverage
        phrases = [n >= len(SPECIALS) and joined and is_phrase(token) for n, token in enumerate(vocabulary)]
        self.first_phrase = phrases.index(True) if True in phrases else len(phrases)
        if any(" " in token for token in vocabulary):
            raise CorruptError("in this vocabulary a word holds a space", file=file)
        if not all(phrases[self.first_phrase :]):
            raise CorruptError("in this vocabulary words come after phrases", file=file)
        if vectors is not None and (vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != len(phrases)):
            what = f"vectors of {vectors.dtype} in the shape {vectors.shape} for {plural(len(phrases), 'token')}"
            raise CorruptError(what, file=file)
        digest = None if vectors is None else hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
        # What there is to say beside the vocabulary.
        self.content = json_bytes({"format": FORMAT, "joined": joined, "vectors": digest})

    def pieces(self, text: str) -> list[str]:
        """The pieces of a line: its words, and phrases of the vocabulary."""
        if ESCAPE in text:
            text = text.replace(ESCAPE, ESCAPE + "0")
        if "  " in text or text.startswith(" ") or text.endswith(" "):
            text = _TOO_MANY.sub(lambda blanks: _BLANK * len(blanks[0]), text)
        tokens = text.split(" ") if text else []
        if not self.joined or JOINER not in text:
            return tokens
        return [piece for token in tokens for piece in self._cut(token)]

    def _cut(self, token: str) -> list[str]:
        bare = _bare(token)
        if not is_phrase(bare) or bare in self.vocabulary:
            return [token]
        first, *rest = token.split(JOINER)
        return [first, *(_JOINED + word for word in rest)]

    def undo(self, pieces: Sequence[str]) -> str:
        """The line that the pieces were cut from."""
        text = " ".join(pieces)
        return _WRITTEN.sub(lambda mark: _TEXT[mark[0]], text) if ESCAPE in text else text

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of a line."""
        return self.vocabulary.ids([_bare(piece) for piece in self.pieces(text)])

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each line."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids, phrases joined; special ids are left out, an unknown word becomes U+2047."""
        names = [UNKNOWN if i == UNK else self.vocabulary.piece(i) for i in ids if i not in (PAD, BOS, EOS)]
        return self.undo(names)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """For each id, whether a word begins with it: all but the special ones that are no word."""
        return [number not in (PAD, BOS, EOS) for number in ids]

    def num_words(self, number: int) -> int:
        """How many words of the decoded line the token of an id is; the special ones but UNK are none."""
        if number in (PAD, BOS, EOS):
            return 0
        return 1 if number < self.first_phrase else self.vocabulary.piece(number).count(JOINER) + 1

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `NAME.words.json`, `NAME.vocab` and, where there are vectors, `NAME.vectors.safetensors`."""
        atomic_write_bytes(folder / f"{name}{ABOUT}", self.content)
        self.vocabulary.save(folder / f"{name}.vocab")
        if self.vectors is None:
            return [f"{name}{ABOUT}", f"{name}.vocab"]
        atomic_write_bytes(folder / f"{name}{VECTORS}", safetensors.numpy.save({"vectors": self.vectors}))
        return [name + ending for ending in self.endings]

    @classmethod
    def load(cls, folder: Path, name: str) -> Words:
        """Read what `save` wrote. Raises CorruptError, FileProblem."""
        path = inside(folder, f"{name}{ABOUT}", "description of a word vocabulary")
        about = read_json(path, "description of a word vocabulary", limit=MIB)
        if not isinstance(about, dict) or about.get("format") != FORMAT or not isinstance(about.get("joined"), bool):
            raise CorruptError(f"not a description of a word vocabulary of format {FORMAT}", file=path)
        of_vectors = folder / f"{name}{VECTORS}"
        if (about.get("vectors") is not None) != of_vectors.exists():
            raise CorruptError("of the vectors either the file or what is said of it is missing", file=path)
        vocabulary = Vocabulary.load(inside(folder, f"{name}.vocab", "vocabulary"))
        vectors = (
            _load_vectors(inside(folder, of_vectors.name, "vectors"), len(vocabulary)) if of_vectors.exists() else None
        )
        words = cls(vocabulary, joined=about["joined"], vectors=vectors, file=folder / f"{name}.vocab")
        if words.content != path.read_bytes():
            raise CorruptError("the vectors are not those of this vocabulary", file=of_vectors)
        return words


def _bare(piece: str) -> str:
    """The word or phrase that a piece is of, as the vocabulary has it."""
    return _MARKS.sub("", piece) if ESCAPE in piece else piece


def _load_vectors(path: Path, size: int) -> np.ndarray:
    """The vectors of `size` tokens. Raises CorruptError, of a file that claims more before it is read."""
    stored = read_header(path)
    if [(t.name, t.dtype, t.shape[:1], len(t.shape)) for t in stored] != [("vectors", "F32", (size,), 2)]:
        found = ", ".join(f"{t.name[:80]} of {t.dtype} in the shape {t.shape}" for t in stored[:3])
        raise CorruptError(
            f"holds {found or 'nothing'}; vectors of F32, one for each of {size} tokens, are needed", file=path
        )
    try:
        arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"not a readable safetensors file ({error})", file=path) from error
    if not np.isfinite(arrays["vectors"]).all():
        raise CorruptError("a vector holds NaN or infinity", file=path)
    return arrays["vectors"]


def learn(lines: Iterable[str], config: WordsConfig) -> Words:
    """The most frequent words and phrases of lines, of the same count by code points, with their vectors if there are any.

    `config.vectors` names a file, read twice: for its tokens and for the vectors of the vocabulary. A word is counted where it
    stands alone and in phrases that are not in the vocabulary. A word that holds NUL or a vector of zeros is unknown.

    Raises DataError: no words; `phrases` wanted and none joined; no word with a vector; the file of vectors is none.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split(" "))
    del counts[""]
    if not counts:
        raise DataError("there is no text to learn words from")
    parts = {t: t.split(JOINER) for t in counts if config.joined and is_phrase(t)}
    if config.phrases and not parts:
        hint = "give the text that phraseloom phrases segment wrote, or set data.subwords.phrases to 0"
        raise DataError("phrases are wanted, but the target text has no joined phrase", hint=hint)
    known = {token for token in (*counts, *chain(*parts.values())) if "\0" not in token}
    if isinstance(config.vectors, str):
        known = _with_vector(config.vectors, known)
    phrases = _most_frequent({t: counts[t] for t in parts if t in known}, config.phrases, config.min_frequency)
    single = _single(counts, parts, phrases)
    chosen = _most_frequent({t: n for t, n in single.items() if t in known}, config.size, config.min_frequency)
    vectors = None
    if isinstance(config.vectors, str):
        transform = config.model_dump(include={"center", "whiten", "dimensions"})
        chosen, phrases, vectors = table_of(config.vectors, chosen, phrases, **transform)
    elif config.vectors is not None:
        vectors = random_table(len(chosen) + len(phrases), config.vectors.random, config.vectors.seed)
    names = [token.replace(ESCAPE, ESCAPE + "0") for token in (*chosen, *phrases)]
    return Words(
        Vocabulary([*SPECIALS, *names]),
        joined=config.joined,
        vectors=vectors,
        coverage=_coverage(counts, parts, chosen, phrases),
    )


def _single(counts: Counter[str], parts: dict[str, list[str]], phrases: Sequence[str]) -> Counter[str]:
    """How often each word is read: of phrases, those in `phrases` are read whole, the others as their words."""
    single = Counter({token: count for token, count in counts.items() if token not in parts})
    for phrase in parts.keys() - set(phrases):
        for word in parts[phrase]:
            single[word] += counts[phrase]
    return single


def _coverage(
    counts: Counter[str], parts: dict[str, list[str]], chosen: Sequence[str], phrases: Sequence[str]
) -> Coverage:
    single = _single(counts, parts, phrases)
    unknown, split = single.keys() - set(chosen), parts.keys() - set(phrases)
    return Coverage(
        types=len(single) + len(phrases),
        tokens=single.total() + sum(counts[phrase] for phrase in phrases),
        unknown_types=len(unknown),
        unknown_tokens=sum(single[word] for word in unknown),
        split_types=len(split),
        split_tokens=sum(counts[phrase] for phrase in split),
    )


def _with_vector(path: str, tokens: set[str]) -> set[str]:
    found = read_tokens(path, tokens)
    if not found:
        raise DataError(
            f"none of the {len(tokens):,} different words of the target text has a vector here",
            file=path,
            hint="are the vectors of this language, and tokenised and cased like the text?",
        )
    return found


def _most_frequent(counts: dict[str, int], size: int, least: int) -> list[str]:
    wanted = [token for token, count in counts.items() if count >= least]
    return sorted(wanted, key=lambda token: (-counts[token], token))[:size]
