"""Lossless sentencepiece subwords (Kudo and Richardson 2018), unigram or BPE.

Normalisation is the identity, whitespace is kept and the character coverage is full. sentencepiece writes the space as
U+2581, so user text is escaped: U+E581 → U+E581 `0`, U+2581 → U+E581 `1`.
"""

from __future__ import annotations

import functools
import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from phraseloom.errors import CorruptError, DataError, ModelError
from phraseloom.files import atomic_write_bytes
from phraseloom.options.text import SentencepieceConfig
from phraseloom.reading import inside, read_bounded
from phraseloom.text.subwords import ESCAPE, UNKNOWN, Flat, flat
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

SPACE = "\u2581"
MAX_MODEL_BYTES = 2**26
SIZE_KEY = "data.subwords.size"  # in hints
# Training skips lines of more bytes, because the tables of sentencepiece grow with the longest line.
MAX_SAMPLE_BYTES = 2**14
# The trainer's own mark of unknown characters.
UNKNOWN_MARK = "\u2585"
# Batches of so many lines keep the ids of their words: of up to so many words and a batch, of up to so many characters.
LARGE_BATCH, MAX_WORDS, LONGEST_WORD = 1000, 100_000, 24
FEW = 16  # lines that are encoded one by one, because sentencepiece starts a thread for a list
_BYTE = re.compile(r"<0x([0-9A-F]{2})>\Z")
_UNESCAPE = {ESCAPE + "0": ESCAPE, ESCAPE + "1": SPACE}
_ESCAPED = re.compile(f"{ESCAPE}[01]")


def _escape(text: str) -> str:
    if SPACE not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE + "0").replace(SPACE, ESCAPE + "1")


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda m: _UNESCAPE[m[0]], text) if ESCAPE in text else text


def open_processor(model: bytes, file: str | Path | None) -> tuple[Any, list[str]]:
    """The processor and the pieces of a sentencepiece model. Raises CorruptError."""
    import sentencepiece

    if not 0 < len(model) <= MAX_MODEL_BYTES:
        what = f"a sentencepiece model has 1 byte to {MAX_MODEL_BYTES >> 20} MiB, not {len(model)}"
        raise CorruptError(what, file=file)
    sentencepiece.set_min_log_level(3)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)
        return processor, processor.id_to_piece(list(range(processor.get_piece_size())))
    except (RuntimeError, ValueError, IndexError, UnicodeDecodeError) as error:
        raise CorruptError("not a sentencepiece model", file=file) from error


def word_starts(ids: Sequence[int], begins: Collection[int], blank: Collection[int]) -> list[bool]:
    """For each id, whether a word begins with it. `begins` start with a space; `blank` have no other character."""
    starts = [False] * len(ids)
    pending: int | None = 0
    for i, number in enumerate(ids):
        if number in begins and pending is None:
            pending = i
        if number not in blank and pending is not None:
            starts[pending], pending = True, None
    return starts


class _Words(dict[str, int]):
    """The number of each word, in the order in which they are looked up first; -1 for words that are too long to keep.

    `new`: words that have no ids yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        if not 0 < len(word) <= LONGEST_WORD:
            return -1
        number = self[word] = len(self)
        self.new.append(word)
        return number


def _joined(left: Flat, right: Flat) -> Flat:
    return np.append(left[0], right[0]), np.append(left[1], right[1])


class Sentencepiece:
    """Subwords from the bytes of a sentencepiece model. Raises CorruptError for an unusable model."""

    endings = (".model", ".vocab")

    def __reduce__(self) -> tuple[Any, ...]:
        return Sentencepiece, (self.content,)

    def __init__(self, model: bytes, *, file: str | Path | None = None) -> None:
        self.content = model
        self._processor, names = open_processor(model, file)
        processor = self._processor
        special = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
        if special != [PAD, UNK, BOS, EOS] or len(names) < len(SPECIALS):
            raise CorruptError(
                f"pad, unk, bos, eos are {special} in this sentencepiece model, not [0, 1, 2, 3]", file=file
            )
        try:
            self.vocabulary = Vocabulary([*SPECIALS, *names[len(SPECIALS) :]])
        except ModelError as error:
            raise CorruptError(f"not a usable sentencepiece model: {error.what}", file=file) from error
        self._bytes = {
            n: int(m[1], 16) for n, p in enumerate(names) if self._processor.is_byte(n) and (m := _BYTE.match(p))
        }
        self._begins = {n for n, p in enumerate(names) if p.startswith(SPACE) or self._bytes.get(n) == 0x20}
        self._blank = {n for n, p in enumerate(names) if not p.strip(SPACE) or self._bytes.get(n) == 0x20}
        self._words, self._ids = _Words(), flat([])  # the ids of the words, in their order
        self.longest_piece = max(map(len, names[len(SPECIALS) :]), default=1)

    @property
    def byte_pieces(self) -> set[str]:
        """The pieces of single bytes, `<0x..>`."""
        return {self.vocabulary.piece(number) for number in self._bytes}

    @property
    def is_bpe(self) -> bool:
        """Whether the model is BPE: its scores are whole numbers, and those of a unigram model log probabilities."""
        return all(score == int(score) for score in self._scores())

    @property
    def lowest_score(self) -> float:
        """The lowest score of a piece; in BPE, that of the last merge."""
        return min(self._scores(), default=0.0)

    def _scores(self) -> list[float]:
        return [float(self._processor.get_score(number)) for number in range(len(SPECIALS), len(self.vocabulary))]

    def pieces(self, text: str) -> list[str]:
        """The pieces of a line; a character outside the vocabulary stays as it is or, with byte fallback, becomes `<0x..>`."""
        return self._processor.encode(_escape(text), out_type=str)

    def undo(self, pieces: Sequence[str]) -> str:
        """The line that the pieces were cut from."""
        parts: list[bytes] = []
        for piece in pieces:
            number = self.vocabulary.id(piece)
            value = self._bytes.get(number)
            parts.append(bytes([value]) if value is not None else piece.replace(SPACE, " ").encode("utf-8", "replace"))
        return _unescape(b"".join(parts).decode("utf-8", "replace").removeprefix(" "))

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of a line."""
        return self._processor.encode(_escape(text))

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """`encode` of each line."""
        if len(texts) <= FEW:
            return [self.encode(text) for text in texts]
        if len(texts) < LARGE_BATCH or not self._cuts_words:
            return self._processor.encode([_escape(text) for text in texts], num_threads=1)
        ids, lengths = self.encode_flat(texts)
        found, ends = ids.tolist(), np.cumsum(lengths)
        return [found[begin:end] for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]

    def encode_flat(self, texts: list[str]) -> Flat:
        """`encode` of each line, as arrays. In BPE, words of large batches that were cut before are looked up, which changes
        no id."""
        if len(texts) < LARGE_BATCH or not self._cuts_words:
            return flat(self.encode_batch(texts))
        escaped = [_escape(text) for text in texts]
        parts = [self._encode_words(escaped[begin:][:LARGE_BATCH]) for begin in range(0, len(escaped), LARGE_BATCH)]
        ids, lengths = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_words(self, texts: list[str]) -> Flat:
        """The ids of lines word by word. Lines with long words, or with more than one space between words, as a whole."""
        if len(self._words) > MAX_WORDS:
            self._words, self._ids = _Words(), flat([])
        lines = [text.split(" ") for text in texts]
        counts = np.fromiter(map(len, lines), np.int64, len(lines))
        numbers = np.fromiter(map(self._words.__getitem__, chain.from_iterable(lines)), np.int64, int(counts.sum()))
        if self._words.new:
            self._ids = _joined(self._ids, flat(self._processor.encode(self._words.new, num_threads=1)))
            self._words.new = []
        known, begins = self._ids, np.cumsum(counts) - counts
        whole = np.flatnonzero(np.minimum.reduceat(numbers, begins) < 0)
        if len(whole):  # each becomes one word, known to this batch alone
            cut = flat(self._processor.encode([texts[n] for n in whole], num_threads=1))
            numbers[begins[whole]] = np.arange(len(whole)) + len(known[1])
            stays = np.ones(len(lines), bool)
            stays[whole] = False
            kept = np.repeat(stays, counts)
            kept[begins[whole]] = True
            known, numbers, counts[whole] = _joined(known, cut), numbers[kept], 1
        ids, sizes = known
        lengths = sizes[numbers]
        places = np.repeat((np.cumsum(sizes) - sizes)[numbers] - (np.cumsum(lengths) - lengths), lengths)
        places += np.arange(len(places))
        return ids[places], np.add.reduceat(lengths, np.cumsum(counts) - counts, dtype=np.int32)

    @functools.cached_property
    def _cuts_words(self) -> bool:
        """Whether the pieces of a line are those of its words: BPE without pieces that hold an inner space.

        Merges of two words do not influence each other then. (A unigram model adds up log probabilities over the line, so
        rounding could decide between equally likely pieces.) A model with a normalisation of its own is left alone.
        """
        inner = any(SPACE in self.vocabulary.piece(n)[1:] for n in range(len(SPECIALS), len(self.vocabulary)))
        text = "\ufb01  \u3000\uff21 "
        kept = self.undo(self.pieces(text)) == text and self.pieces("x")[0].startswith(SPACE)
        return self.is_bpe and not inner and SPACE in self.vocabulary and kept

    def decode(self, ids: Sequence[int]) -> str:
        """The line of ids; special ids are left out, an unknown piece becomes U+2047."""
        ordinary = [self._checked(i) for i in ids if i not in (PAD, BOS, EOS)]
        try:
            return _unescape(self._processor.decode(ordinary))
        except UnicodeDecodeError as error:
            raise ModelError("the sentencepiece model holds pieces that are not UTF-8") from error

    def _checked(self, number: int) -> int:
        if not 0 <= number < len(self.vocabulary):
            raise ModelError(f"id {number} is not in this vocabulary of {len(self.vocabulary)} pieces")
        return int(number)

    def word_starts(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[bool]:
        """For each id, whether a word begins with it; a space before the word belongs to it."""
        return word_starts(ids, self._begins, self._blank)

    def save(self, folder: Path, name: str) -> list[str]:
        """Write `NAME.model` and `NAME.vocab`."""
        atomic_write_bytes(folder / f"{name}.model", self.content)
        self.vocabulary.save(folder / f"{name}.vocab")
        return [f"{name}.model", f"{name}.vocab"]

    @classmethod
    def load(cls, folder: Path, name: str) -> Sentencepiece:
        """Read what `save` wrote. Raises CorruptError, FileProblem."""
        path = inside(folder, f"{name}.model", "sentencepiece model")
        return cls(read_bounded(path, "sentencepiece model", MAX_MODEL_BYTES), file=path)


def learn(lines: Iterable[str], config: SentencepieceConfig) -> Sentencepiece:
    """Learn a model from lines. The same lines give the same bytes. Raises DataError."""
    return learn_from_words(count_words(lines), config) if config.model == "bpe" else learn_unigram(lines, config)


def learn_unigram(lines: Iterable[str], config: SentencepieceConfig) -> Sentencepiece:
    """Learn a unigram model, whose first pieces come from whole lines. Raises DataError."""
    return Sentencepiece(_train(_teachable(lines), config))


def count_words(lines: Iterable[str]) -> Counter[str]:
    """The words of lines with their counts; a line with extra spaces, or with `\\r`, counts as one word."""
    counts: Counter[str] = Counter()
    for text in _teachable(lines):
        if "  " in text or "\r" in text or text[0] == " " or text[-1] == " ":
            counts[text] += 1
        else:
            counts.update(text.split(" "))
    return counts


def learn_from_words(counts: Counter[str], config: SentencepieceConfig) -> Sentencepiece:
    """Learn the BPE model of the lines of `count_words`, whose order does not matter. Raises DataError.

    BPE merges inside words, so the trainer needs no lines: its model is the same, bit for bit, and learned in less time and
    memory.
    """
    if any("\t" in word for word in counts):  # the trainer has no escape for a tab before a count
        return Sentencepiece(_train(_repeated(counts), config))
    model = _train((f"{word}\t{count}" for word, count in counts.items()), config, input_format="tsv")
    return Sentencepiece(_without_format(model))


def _train(sentences: Iterable[str], config: SentencepieceConfig, **more: Any) -> bytes:
    """The model that the library's trainer learns, in one thread. Raises DataError."""
    import sentencepiece

    model = io.BytesIO()
    options: dict[str, Any] = {"hard_vocab_limit": False} if config.model == "unigram" else {}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=config.model,
            vocab_size=config.size,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            character_coverage=1.0,
            max_sentence_length=MAX_SAMPLE_BYTES,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=SPECIALS[PAD],
            unk_piece=SPECIALS[UNK],
            bos_piece=SPECIALS[BOS],
            eos_piece=SPECIALS[EOS],
            unk_surface=UNKNOWN,
            num_threads=1,
            minloglevel=4,
            **options,
            **more,
        )
    except (RuntimeError, ValueError) as error:
        raise _explain(str(error), config) from error
    return model.getvalue()


def _teachable(lines: Iterable[str]) -> Iterator[str]:
    """The escaped lines without NUL, which must never enter a vocabulary; no over-long lines.

    The trainer itself skips lines with U+2585 and drops `\\r` at the end of a line. Among counted words there are no lines, so
    both happens here.
    """
    for line in lines:
        text = _escape(line.replace("\0", "")).rstrip("\r")
        if (
            text
            and UNKNOWN_MARK not in text
            and (4 * len(text) <= MAX_SAMPLE_BYTES or len(text.encode("utf-8")) <= MAX_SAMPLE_BYTES)
        ):
            yield text


def _repeated(counts: Counter[str]) -> Iterator[str]:
    """Lines that hold each word as often as it was counted."""
    for word, count in counts.items():
        most = max(1, MAX_SAMPLE_BYTES // (len(word.encode()) + 1))
        for begin in range(0, count, most):
            yield " ".join([word] * min(most, count - begin))


def _without_format(model: bytes) -> bytes:
    """A model without the note of its trainer that words were counted, so that it is the model of the lines.

    `ModelProto.trainer_spec` is field 2, `TrainerSpec.input_format` field 7 (sentencepiece_model.proto).
    """
    place = 0
    while model[place] != 0x12:  # the pieces come before
        begin, size = _read_varint(model, place + 1)
        place = begin + size
    begin, size = _read_varint(model, place + 1)
    spec = model[begin : begin + size]
    assert spec.count(b"\x3a\x03tsv") == 1
    spec = spec.replace(b"\x3a\x03tsv", b"")
    return model[: place + 1] + varint(len(spec)) + spec + model[begin + size :]


def varint(number: int) -> bytes:
    """A number in the varint encoding of protocol buffers: seven bits per byte, lowest bits first."""
    result = bytearray()
    while number >= 0x80:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The place after a varint, and the number."""
    number, shift = 0, 0
    while True:
        byte = data[place]
        number, shift, place = number | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return place, number


def named_size(error: DataError, name: str) -> DataError:
    """The error of `learn` with another name than SIZE_KEY for the option that sets the size."""
    hint = None if error.hint is None else error.hint.replace(SIZE_KEY, name)
    return DataError(error.what, file=error.file, line=error.line, hint=hint)


def _explain(message: str, config: SentencepieceConfig) -> DataError:
    if match := re.search(r"set it to a value <= (\d+)", message):
        hint = f"set {SIZE_KEY} to at most {match[1]}"
        return DataError(f"the text is too small for {config.size} subwords", hint=hint)
    if match := re.search(r"[Vv]ocabulary size is smaller than required_chars. (\d+) vs (\d+)", message):
        hint = f"set {SIZE_KEY} to at least {int(match[2]) + 1}"
        return DataError(f"the text has more characters than {config.size} subwords can hold", hint=hint)
    return DataError(f"sentencepiece cannot learn subwords from this text ({' '.join(message.split())[-160:]})")
