"""A vocabulary of whole words and of phrases joined into one token (Park and Tsvetkov 2019, §2.2).

Ids: the four specials, the most frequent words, then the most frequent phrases. A phrase outside the vocabulary is read as
its words; a word outside it is unknown.

Joined text has one token per word or phrase, `quality of life` → `quality_of_life`:

    join     w1 … wn → e(w1)_…_e(wn)      e writes _ as &#95;, and the & of &#95; and &#38; as &#38;
    split    a token → the words between its _, with e undone

So a literal `quality_of_life` in the text becomes `quality&#95;of&#95;life` and is not a phrase. Text without _ and these two
entities stays as it is, including the entities of Moses (`&apos;`, `&#91;`). The paper also joins with _, but does not tell a
joined phrase from a token with _.

A piece is a word together with what its line has beside single spaces, written with U+E581: U+E581 → U+E581 `0`; an extra
space → U+E581 `1`, on the word after it (at the end of a line, before it); U+E581 `2` at the beginning of a piece means `_`
instead of a space. Extra spaces and `_` between words of a phrase do not change the ids, so `decode(encode(x)) == x` for
lines without them and without unknown pieces.
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
from phraseloom.options.text import RandomVectors, WordsConfig
from phraseloom.reading import MIB, inside, read_header
from phraseloom.text.subwords import ESCAPE, Flat, flat, shown_pieces
from phraseloom.text.vector_check import VectorCoverage
from phraseloom.text.vectors import read_tokens
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary
from phraseloom.text.word_vectors import RowTransform, random_table, table_of

JOINER = "_"
_ESCAPED = "&#95;"
_AMPERSAND = re.compile(r"&(?=#(?:95|38);)")
_ENTITY = re.compile(r"&#(?:95|38);")


def join(words: Sequence[str]) -> str:
    """The token of one or more words. Raises ValueError for an empty word or one with a space, which no token can hold."""
    if not words or not all(words) or any(" " in word for word in words):
        raise ValueError(f"cannot join words that are empty or hold a space: {words!r}")
    return JOINER.join(map(escape, words))


def split(token: str) -> list[str]:
    """The words of a token. A token with an empty part between _, which `join` never writes, is one word."""
    parts = token.split(JOINER)
    return [unescape(part) for part in parts] if all(parts) else [unescape(token)]


def is_phrase(token: str) -> bool:
    """Whether a token has two words or more."""
    return JOINER in token and all(token.split(JOINER))


def escape(word: str) -> str:
    """A word as part of a token."""
    if "&#" in word:
        word = _AMPERSAND.sub("&#38;", word)
    return word.replace(JOINER, _ESCAPED)


def unescape(part: str) -> str:
    """The inverse of `escape`."""
    return _ENTITY.sub(lambda entity: JOINER if entity[0] == _ESCAPED else "&", part) if "&#" in part else part


def join_line(words: Sequence[str], sizes: Sequence[int]) -> str:
    """A line of words as joined text; phrase k has `sizes[k]` words. An empty word represents an extra space."""
    tokens, start = [], 0
    for size in sizes:
        tokens.append(escape(words[start]) if size == 1 else join(words[start : start + size]))
        start += size
    return " ".join(tokens)


def split_line(line: str) -> str:
    """The inverse of `join_line`, including extra spaces."""
    if JOINER not in line and "&#" not in line:
        return line
    return " ".join(" ".join(split(token)) for token in line.split(" "))


FORMAT = 1
ABOUT, VECTORS = ".words.json", ".vectors.safetensors"
_BLANK, _JOINED = ESCAPE + "1", ESCAPE + "2"
_EXTRA_SPACES = re.compile("(?:(?<= )|^) +| +$")
_MARKS = re.compile(f"{ESCAPE}[12]")
_WRITTEN = re.compile(f" ?{_JOINED}|{ESCAPE}[01]")
_TEXT = {ESCAPE + "0": ESCAPE, _BLANK: " ", _JOINED: JOINER, f" {_JOINED}": JOINER}


class Coverage(NamedTuple):
    """Statistics of the text that a vocabulary was learned from: token types, tokens, and how many of each are unknown.

    `split_types` and `split_tokens` count the phrases outside the vocabulary, which are read as their words. `without_vector`:
    the tokens that are unknown because the file of vectors has none for them; None without a file.
    """

    types: int
    tokens: int
    unknown_types: int
    unknown_tokens: int
    split_types: int
    split_tokens: int
    without_vector: int | None = None


class Words:
    """A vocabulary of words and, if `joined`, of phrases.

    `vectors` is float32 (V, m), one unit vector per id and zeros for PAD and BOS (`text/word_vectors.py`). `first_phrase` is
    the id of the first phrase, or the size of the vocabulary if it has none. `coverage` is None unless the vocabulary was just
    learned. `transform`: what was applied to the unit vectors of the file that the vectors are from, None if nothing.

    Raises CorruptError for a word with a space, a word after the first phrase, and another number of vectors.
    """

    endings = (ABOUT, ".vocab", VECTORS)
    # An unknown word may have any length.
    longest_piece = sys.maxsize

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        joined: bool = False,
        vectors: np.ndarray | None = None,
        coverage: Coverage | None = None,
        transform: RowTransform | None = None,
        file: str | Path | None = None,
    ) -> None:
        self.vocabulary, self.joined, self.vectors, self.coverage = vocabulary, joined, vectors, coverage
        self.transform = transform
        phrases = [n >= len(SPECIALS) and joined and is_phrase(token) for n, token in enumerate(vocabulary)]
        self.first_phrase = phrases.index(True) if True in phrases else len(phrases)
        if any(" " in token for token in vocabulary):
            raise CorruptError("in this vocabulary a word holds a space", file=file)
        if not all(phrases[self.first_phrase :]):
            raise CorruptError("in this vocabulary words come after phrases", file=file)
        if vectors is not None and (vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != len(phrases)):
            what = f"vectors of {vectors.dtype} in the shape {vectors.shape} for {plural(len(phrases), 'token')}"
            raise CorruptError(what, file=file)
        digest = None if vectors is None else _digest([vectors])
        moved = {} if transform is None else {"transform": _digest([*_arrays(transform).values()])}
        # Vocabulary metadata.
        self.content = json_bytes({"format": FORMAT, "joined": joined, "vectors": digest, **moved})

    def pieces(self, text: str) -> list[str]:
        """The pieces of a line: its words and the phrases of the vocabulary."""
        if ESCAPE in text:
            text = text.replace(ESCAPE, ESCAPE + "0")
        if "  " in text or text.startswith(" ") or text.endswith(" "):
            text = _EXTRA_SPACES.sub(lambda blanks: _BLANK * len(blanks[0]), text)
        tokens = text.split(" ") if text else []
        if not self.joined or JOINER not in text:
            return tokens
        return [piece for token in tokens for piece in self._cut(token)]

    def _cut(self, token: str) -> list[str]:
        bare = _bare(token)
        if not is_phrase(bare) or bare in self.vocabulary:
            return [token]
        first, *others = token.split(JOINER)
        return [first, *(_JOINED + word for word in others)]

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

    def encode_flat(self, texts: list[str]) -> Flat:
        """`encode` of each line, as arrays."""
        return flat(self.encode_batch(texts))

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids with phrases joined; special ids are left out, an unknown word becomes U+2047."""
        return self.undo(shown_pieces(self.vocabulary, ids))

    def word_starts(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[bool]:
        """For each id, whether a word begins with it: true for all but PAD, BOS and EOS."""
        return [number not in (PAD, BOS, EOS) for number in ids]

    def num_words(self, number: int) -> int:
        """The number of words in the token of an id: 0 for PAD, BOS and EOS, 1 for UNK."""
        if number in (PAD, BOS, EOS):
            return 0
        return 1 if number < self.first_phrase else self.vocabulary.piece(number).count(JOINER) + 1

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `NAME.words.json`, `NAME.vocab` and, if there are vectors, `NAME.vectors.safetensors`."""
        atomic_write_bytes(folder / f"{name}{ABOUT}", self.content)
        self.vocabulary.save(folder / f"{name}.vocab")
        if self.vectors is None:
            return [f"{name}{ABOUT}", f"{name}.vocab"]
        atomic_write_bytes(
            folder / f"{name}{VECTORS}", safetensors.numpy.save({"vectors": self.vectors, **_arrays(self.transform)})
        )
        return [name + ending for ending in self.endings]

    @classmethod
    def load(cls, folder: Path, name: str) -> Words:
        """Read what `save` wrote. Raises CorruptError, FileProblem."""
        path = inside(folder, f"{name}{ABOUT}", "metadata of a word vocabulary")
        about = read_json(path, "metadata of a word vocabulary", limit=MIB)
        if not isinstance(about, dict) or about.get("format") != FORMAT or not isinstance(about.get("joined"), bool):
            raise CorruptError(f"not the metadata of a word vocabulary of format {FORMAT}", file=path)
        vectors_file = folder / f"{name}{VECTORS}"
        if (about.get("vectors") is not None) != vectors_file.exists():
            raise CorruptError("the file of vectors or its checksum here is missing", file=path)
        vocabulary = Vocabulary.load(inside(folder, f"{name}.vocab", "vocabulary"))
        vectors = transform = None
        if vectors_file.exists():
            vectors, transform = _load_vectors(inside(folder, vectors_file.name, "vectors"), len(vocabulary))
        words = cls(
            vocabulary,
            joined=about["joined"],
            vectors=vectors,
            transform=transform,
            file=folder / f"{name}.vocab",
        )
        if words.content != path.read_bytes():
            raise CorruptError("the vectors belong to another vocabulary", file=vectors_file)
        return words


def other_vectors(one: object, other: object) -> bool:
    """Whether two vocabularies of words differ in their vectors alone."""
    if not isinstance(one, Words) or not isinstance(other, Words) or one.content == other.content:
        return False
    return one.vocabulary == other.vocabulary and one.joined == other.joined


def _bare(piece: str) -> str:
    """The word or phrase of a piece, as it is in the vocabulary."""
    return _MARKS.sub("", piece) if ESCAPE in piece else piece


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _arrays(transform: RowTransform | None) -> dict[str, np.ndarray]:
    """A transformation as the arrays that are stored beside the vectors."""
    if transform is None:
        return {}
    arrays = {"mean": transform.mean_M} | ({} if transform.map_MK is None else {"map": transform.map_MK})
    if transform.random_share:
        arrays["random_share"] = np.array([transform.random_share])
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _load_vectors(path: Path, size: int) -> tuple[np.ndarray, RowTransform | None]:
    """The vectors of `size` tokens and their transformation. Raises CorruptError, by the header before data are read."""
    stored = {t.name: (t.dtype, t.shape) for t in read_header(path)}
    dtype, shape = stored.pop("vectors", ("", ()))
    if "mean" in stored and stored.get("random_share") == ("F64", (1,)):
        del stored["random_share"]
    width = shape[-1] if shape else 0
    of_file = stored.get("mean", ("", ()))[1]  # the width of the vectors in their file
    mean, moved = {"mean": ("F64", of_file)}, {"map": ("F64", (*of_file, width))}
    is_transform = len(of_file) == 1 and stored in ({**mean, **moved}, mean if of_file == (width,) else None)
    if dtype != "F32" or shape != (size, width) or (stored and not is_transform):
        actual = (
            ", ".join(f"{t.name[:80]} of {t.dtype} in the shape {t.shape}" for t in read_header(path)[:3]) or "nothing"
        )
        raise CorruptError(f"holds {actual}; vectors of F32, one for each of {size} tokens, are needed", file=path)
    try:
        arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"not a readable safetensors file ({error})", file=path) from error
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise CorruptError("a vector holds NaN or infinity", file=path)
    if not 0 <= (share := float(arrays.get("random_share", [0.0])[0])) < 1:
        raise CorruptError(f"random_share is {share}", file=path)
    transform = RowTransform(arrays["mean"], arrays.get("map"), share) if "mean" in arrays else None
    return arrays["vectors"], transform


def count_words(lines: Iterable[str]) -> Counter[str]:
    """The words of lines with their counts."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split(" "))
    del counts[""]
    return counts


def learn(lines: Iterable[str], config: WordsConfig) -> Words:
    """`learn_from_words` of the words of lines."""
    return learn_from_words(count_words(lines), config)


def learn_from_words(counts: Counter[str], config: WordsConfig) -> Words:
    """A vocabulary of the most frequent words and phrases, ties by code points, with vectors if `config` names a file.

    The file `config.vectors` is read twice: for its tokens, then for the vectors of the vocabulary. Words inside phrases count
    only if the phrase is not in the vocabulary. A word that holds NUL or has a zero vector is unknown.

    Raises DataError if there are no words, `phrases` is set and the text has none, no word of the text or too few have a
    vector, or the file of vectors is invalid.
    """
    if not counts:
        raise DataError("the text has no words to learn")
    parts = {t: t.split(JOINER) for t in counts if config.joined and is_phrase(t)}
    if config.phrases and not parts:
        hint = "use text that phraseloom phrases segment wrote, or set data.subwords.phrases to 0"
        raise DataError("data.subwords.phrases is set, but the target text has no joined phrase", hint=hint)
    known = {token for token in (*counts, *chain(*parts.values())) if "\0" not in token}
    if isinstance(config.vectors, str):
        known = _with_vector(config.vectors, known)
    phrases = _most_frequent({t: counts[t] for t in parts if t in known}, config.phrases, config.min_frequency)
    single = _single(counts, parts, phrases)
    chosen = _most_frequent({t: n for t, n in single.items() if t in known}, config.size, config.min_frequency)
    vectors = without_vector = transform = None
    if isinstance(config.vectors, str):
        covered = VectorCoverage.of(single + Counter({phrase: counts[phrase] for phrase in phrases}), known)
        covered.require(config.vectors)
        without_vector = covered.tokens - covered.tokens_with
        options = config.model_dump(include={"center", "whiten", "dimensions", "random_share", "random_seed"})
        chosen, phrases, vectors, transform = table_of(config.vectors, chosen, phrases, **options)
    elif isinstance(config.vectors, RandomVectors):
        vectors = random_table(len(chosen) + len(phrases), config.vectors.random, config.vectors.seed)
    names = [token.replace(ESCAPE, ESCAPE + "0") for token in (*chosen, *phrases)]
    return Words(
        Vocabulary([*SPECIALS, *names]),
        joined=config.joined,
        vectors=vectors,
        transform=transform,
        coverage=_coverage(counts, parts, chosen, phrases)._replace(without_vector=without_vector),
    )


def _single(counts: Counter[str], parts: dict[str, list[str]], phrases: Sequence[str]) -> Counter[str]:
    """The count of each word; phrases not in `phrases` count as their words."""
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
    present = read_tokens(path, tokens)
    if not present:
        raise DataError(
            f"none of the {len(tokens):,} different words of the target text has a vector other than 0 here",
            file=path,
            hint="are the vectors of this language, and tokenised and cased like the text?",
        )
    return present


def _most_frequent(counts: dict[str, int], size: int, min_frequency: int) -> list[str]:
    frequent = [token for token, count in counts.items() if count >= min_frequency]
    return sorted(frequent, key=lambda token: (-counts[token], token))[:size]
