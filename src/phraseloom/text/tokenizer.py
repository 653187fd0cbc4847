"""Convert raw lines to ids and back, for both sides of a language pair. Datasets and models hold a tokenizer folder.

The folder has `tokenizer.json` (format, languages, text options, kind of subwords, SHA-256 of each file) and the files of the
subwords: `joint.*` if both sides share one vocabulary, else `source.*` and `target.*`. With `text.truecase` it also has
`source.truecase` and `target.truecase`, except for a side that is joined. Two different kinds of subwords are written as
`{"source": KIND, "target": KIND}`. `tags` lists the tags of the source, if there are any.

A side with `joined` words encodes the text that `phrases segment` wrote, without normalising it, and decodes to plain text:
phrases are split and the tokenisation is undone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeGuard

import pydantic

from phraseloom.errors import CorruptError, UsageError
from phraseloom.files import atomic_write_json, read_json, sha256_file
from phraseloom.options.text import SentencepieceConfig, SubwordsConfig, TextConfig
from phraseloom.reading import MIB, inside, limit_of
from phraseloom.replace import FolderKind
from phraseloom.text import sentencepiece, subword_nmt, words
from phraseloom.text.marian import MarianSubwords
from phraseloom.text.normalize import Normaliser
from phraseloom.text.sentencepiece import Sentencepiece
from phraseloom.text.subword_nmt import SubwordNmt
from phraseloom.text.subwords import UNKNOWN, Flat, Subwords
from phraseloom.text.truecase import ENDING, Truecaser
from phraseloom.text.vocabulary import UNK, Vocabulary
from phraseloom.text.words import Words, split_line

FORMAT = 1
FILE = "tokenizer.json"
TOKENIZER = FolderKind("tokenizer", listing=FILE)

# To add a kind of subwords, write a file with such a class, `count_words` and `learn_from_words`; add a line to both tables.
SUBWORDS: dict[str, type[Sentencepiece] | type[SubwordNmt] | type[Words] | type[MarianSubwords]] = {
    "sentencepiece": Sentencepiece,
    "subword_nmt": SubwordNmt,
    "words": Words,
    "marian": MarianSubwords,
}
# Two functions of each: words from lines, and subwords from words.
LEARNERS: dict[str, tuple[Callable[[Iterable[str]], Counter[str]], Callable[[Counter[str], Any], Subwords]]] = {
    "sentencepiece": (sentencepiece.count_words, sentencepiece.learn_from_words),
    "subword_nmt": (subword_nmt.count_words, subword_nmt.learn_from_words),
    "words": (words.count_words, words.learn_from_words),
}
# Files that a vocabulary of the kind may lack.
OPTIONAL = {"words": (words.VECTORS,)}


def learn_subwords(lines: Iterable[str], config: SubwordsConfig) -> Subwords:
    """Learn the subwords that `config` describes; the same lines give the same bytes. Raises DataError.

    For words, `config` describes one side (`WordsConfig.of_source`) and its `vectors` is a path.
    """
    if learns_from_lines(config):
        return sentencepiece.learn(lines, config)
    return learn_from_words(count_words(lines, config), config)


def learns_from_lines(config: SubwordsConfig) -> TypeGuard[SentencepieceConfig]:
    """Whether whole lines are needed to learn subwords: for unigram models. Words with counts are enough for all others."""
    return config.kind == "sentencepiece" and config.model == "unigram"


def count_words(lines: Iterable[str], config: SubwordsConfig) -> Counter[str]:
    """The words of lines with their counts, for `learn_from_words`. Counts of parts of a text can be added up."""
    return LEARNERS[config.kind][0](lines)


def learn_from_words(counts: Counter[str], config: SubwordsConfig) -> Subwords:
    """`learn_subwords` of lines with these words. Raises DataError."""
    return LEARNERS[config.kind][1](counts, config)


class _Joined:
    """The normaliser of a side with joined text: it leaves a line as it is, and undoes both steps in `detokenise`."""

    identity = True

    def __init__(self, plain: Normaliser) -> None:
        self.plain, self.language = plain, plain.language

    def __call__(self, line: str) -> str:
        return line

    def detokenise(self, line: str) -> str:
        """The line with its phrases split and the tokenisation undone."""
        return self.plain.detokenise(split_line(line))


class Side:
    """One language: normaliser and subwords.

    `tags`: pieces before a line that belong to none of its words; text is never encoded as one of them.
    """

    def __init__(self, normaliser: Normaliser, subwords: Subwords, tags: Sequence[str] = ()) -> None:
        self.joined = isinstance(subwords, Words) and subwords.joined
        self.normaliser: Normaliser | _Joined = _Joined(normaliser) if self.joined else normaliser
        self.subwords = subwords
        self.tag_ids = {tag: subwords.vocabulary.id(tag) for tag in tags}
        self._tags = frozenset(self.tag_ids.values())

    @property
    def language(self) -> str:
        """The language code, such as `en`."""
        return self.normaliser.language

    @property
    def kind(self) -> str:
        """The kind of subwords."""
        return next(name for name, kind in SUBWORDS.items() if type(self.subwords) is kind)

    @property
    def vocabulary(self) -> Vocabulary:
        """The pieces and their ids."""
        return self.subwords.vocabulary

    def encode(self, line: str) -> list[int]:
        """The ids of a raw line, without BOS and EOS; a blank line has none."""
        return self.subwords.encode(self.normaliser(line)) if line.strip() else []

    def encode_batch(self, lines: list[str]) -> list[list[int]]:
        """`encode` of each line, fast."""
        return self.subwords.encode_batch(self._normalised(lines))

    def encode_flat(self, lines: list[str]) -> Flat:
        """`encode` of each line, as arrays; the fastest."""
        return self.subwords.encode_flat(self._normalised(lines))

    def _normalised(self, lines: list[str]) -> list[str]:
        normalise = self.normaliser
        return [normalise(line) if line.strip() else "" for line in lines]

    def decode(self, ids: Sequence[int], begun: Sequence[str] = ()) -> str:
        """The detokenised text of ids; special ids are left out.

        `begun` holds the pieces of the first ids; unknown ones among them are written as they were.
        """
        return self.normaliser.detokenise(self._line(ids, begun))

    @property
    def streams_by_token(self) -> bool:
        """Whether a later token leaves the decoded text of earlier ones as it is: nothing is detokenised."""
        return isinstance(self.normaliser, Normaliser) and self.normaliser.keeps_text

    @property
    def streams_at_end(self) -> bool:
        """Whether the last words of a line may change its first ones (`Normaliser.looks_at_end`)."""
        return self._plain.looks_at_end

    def _line(self, ids: Sequence[int], begun: Sequence[str]) -> str:
        ids = [i for i in ids if i not in self._tags] if self._tags else ids
        return self.subwords.undo(self._names(ids, begun)) if begun else self.subwords.decode(ids)

    def _names(self, ids: Sequence[int], begun: Sequence[str]) -> list[str]:
        return [*begun, *(UNKNOWN if i == UNK else self.vocabulary.piece(i) for i in ids[len(begun) :])]

    def pieces(self, line: str) -> list[str]:
        """The pieces of a raw line."""
        return self.subwords.pieces(self.normaliser(line)) if line.strip() else []

    def plain(self, line: str) -> str:
        """A raw line of the data as `decode` would write it: the line itself unless it is joined text."""
        return self.normaliser.detokenise(line) if self.joined else line

    def characters(self, text: str) -> str:
        """The text with its characters normalised as those of a line are, in its own case and not tokenised."""
        return self._spelled(self._plain.characters(text))

    def written(self, phrase: str) -> str:
        """A phrase in the characters that `decode` writes, in lower case if the text is."""
        return self._plain.lower(self.characters(phrase))

    @property
    def _plain(self) -> Normaliser:
        """The normaliser of plain text."""
        return self.normaliser if isinstance(self.normaliser, Normaliser) else self.normaliser.plain

    def words(self, line: str) -> list[str]:
        """The words of a raw line after normalisation and tokenisation, phrases split. Word alignments count these, from 0."""
        return self._words(self.text(line)) if line.strip() else []

    def text(self, line: str) -> str:
        """A raw line after all normalisation and tokenisation, whose characters are those of its pieces."""
        return self._spelled(self.normaliser(line)).removeprefix(
            " " if isinstance(self.subwords, MarianSubwords) else ""
        )

    def _spelled(self, text: str) -> str:
        return self.subwords.normalised(text) if isinstance(self.subwords, MarianSubwords) else text

    def words_of(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[str]:
        """The words of decoded ids, before detokenisation; `words_of_piece` counts these. `begun`: see `decode`."""
        return self._words(self._line(ids, begun))

    def _words(self, text: str) -> list[str]:
        return [word for word in (split_line(text) if self.joined else text).split(" ") if word]

    def pieces_of(self, line: str, ids: Sequence[int]) -> list[str]:
        """The pieces of the ids of a raw line, without tags, if the vocabulary lacks one of them; else none.

        These are the `begun` of `words_of_piece`: an unknown id alone does not tell whether a word begins or ends there.
        """
        if UNK not in ids or isinstance(self.subwords, Words):
            return []
        size = sum(number not in self._tags for number in ids)
        pieces = self.pieces(line[: 4 * size * self.subwords.longest_piece])[:size]
        return pieces if len(pieces) == size else self.pieces(line)[:size]

    def word_starts(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[bool]:
        """For each id, whether a word begins with it. `begun`: see `decode`; without tags."""
        before = 0
        while before < len(ids) and ids[before] in self._tags:
            before += 1
        return [False] * before + self.subwords.word_starts(ids[before:], begun)

    def words_of_piece(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[range]:
        """For each id, the numbers of its words, from 0: one, or all words of a phrase. `begun`: see `decode`; without tags."""
        if not isinstance(self.subwords, Words):
            numbers = (max(0, n - 1) for n in accumulate(map(int, self.word_starts(ids, begun))))
            return [range(n, n + 1) for n in numbers]
        if begun:
            names = self._names(ids, begun)
            counts = [len(self._words(self.subwords.undo(names[:end]))) for end in range(1, len(names) + 1)]
            starts = [max(0, min(before, now - 1)) for before, now in zip([0, *counts], counts, strict=False)]
            return [range(start, max(now, start + 1)) for start, now in zip(starts, counts, strict=True)]
        ends = list(accumulate(self.subwords.num_words(number) for number in ids))
        return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def word_of_piece(self, ids: Sequence[int], begun: Sequence[str] = ()) -> list[int]:
        """For each id, the number of its (first) word, from 0. `begun`: see `decode`; without tags."""
        return [words.start for words in self.words_of_piece(ids, begun)]


class Tokenizer:
    """The tokenizers of both sides. `joint` is true if they share one vocabulary."""

    def __init__(
        self,
        text: TextConfig,
        source_language: str,
        target_language: str,
        source: Subwords,
        target: Subwords,
        *,
        truecasers: Mapping[str, Truecaser] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.tags = tuple(tags)
        if unknown := [tag for tag in tags if tag not in source.vocabulary]:
            raise ValueError(f"the tag {unknown[0]} is not in the vocabulary")
        self.text, self.joint, self.truecasers = text, source is target, dict(truecasers or {})
        self.source = Side(Normaliser(text, source_language, self.truecasers.get("source")), source, tags)
        self.target = Side(
            Normaliser(text, target_language, self.truecasers.get("target")), target, tags if self.joint else ()
        )
        needed = [name for name, side in (("source", self.source), ("target", self.target)) if not side.joined]
        if list(self.truecasers) != (needed if text.truecase else []):
            raise ValueError(f"truecasers of {list(self.truecasers)}: {needed if text.truecase else 'none'} are needed")

    def _description(self, files: dict[str, str]) -> dict[str, Any]:
        kinds = {"source": self.source.kind, "target": self.target.kind}
        return {
            "format": FORMAT,
            "source_language": self.source.language,
            "target_language": self.target.language,
            "text": self.text.model_dump(exclude=None if self.text.truecase else {"truecase"}),
            "subwords": kinds if len(set(kinds.values())) > 1 else self.target.kind,
            "joint": self.joint,
            "files": files,
            **({"tags": list(self.tags)} if self.tags else {}),
        }

    def tag_ids(self, tags: Sequence[str]) -> list[int]:
        """The source ids of tags. Raises UsageError for a tag that is not declared."""
        for tag in tags:
            if tag not in self.tags:
                known = f"its tags: {', '.join(self.tags)}" if self.tags else "it has no tags"
                raise UsageError(f"the tag {tag} is not known to this model", hint=known)
        return [self.source.tag_ids[tag] for tag in tags]

    @property
    def sha256(self) -> str:
        """A hash of everything that determines the ids of a line."""
        sides = [self.source.subwords] if self.joint else [self.source.subwords, self.target.subwords]
        files = {
            str(n): hashlib.sha256(side.content).hexdigest() + side.vocabulary.sha256 for n, side in enumerate(sides)
        }
        files |= {name + ENDING: hashlib.sha256(one.content).hexdigest() for name, one in self.truecasers.items()}
        return hashlib.sha256(json.dumps(self._description(files), sort_keys=True).encode()).hexdigest()

    def save(self, folder: str | Path) -> list[str]:
        """Write the tokenizer into `folder`; return the names of its files."""
        folder = Path(folder)
        sides = {"joint": self.source} if self.joint else {"source": self.source, "target": self.target}
        names = [n for name, side in sides.items() for n in side.subwords.save(folder, name)]
        for name, truecaser in self.truecasers.items():
            truecaser.save(folder / (name + ENDING))
            names.append(name + ENDING)
        atomic_write_json(folder / FILE, self._description({n: sha256_file(folder / n) for n in names}))
        return [*names, FILE]

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read what `save` wrote and check every file. Raises FileProblem, CorruptError."""
        folder = Path(folder)
        path = inside(folder, FILE, "tokenizer")
        value = read_json(path, "tokenizer", limit=MIB)
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise CorruptError(f"not a tokenizer of format {FORMAT}", file=path)
        joint, files, tags = value.get("joint"), value.get("files"), value.get("tags", [])
        kinds = _kinds(value.get("subwords"), joint is True)
        languages = [value.get("source_language"), value.get("target_language")]
        if kinds is None or not isinstance(joint, bool) or not isinstance(files, dict):
            raise CorruptError("not a tokenizer description: subwords, joint or files", file=path)
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise CorruptError("not a tokenizer description: tags", file=path)
        if not all(isinstance(name, str) for name in languages):
            raise CorruptError("not a tokenizer description: languages", file=path)
        try:
            text = TextConfig.model_validate(value.get("text"))
        except pydantic.ValidationError as error:
            raise CorruptError("not a tokenizer description: text", file=path) from error
        own = {name + ending for name, kind in kinds.items() for ending in SUBWORDS[kind].endings}
        optional = {name + ending for name, kind in kinds.items() for ending in OPTIONAL.get(kind, ())}
        of_case = {name + ENDING for name in ("source", "target") if text.truecase}
        own, optional = own | of_case, optional | of_case
        if not own - optional <= set(files) <= own:
            raise CorruptError(f"lists unexpected files: {sorted(files)}", file=path)
        for name, expected in files.items():
            if sha256_file(_checked(folder, name)) != expected:
                raise CorruptError(
                    "checksum differs from tokenizer.json: damaged, or of another run", file=folder / name
                )
        sides = [SUBWORDS[kind].load(folder, name) for name, kind in kinds.items()]
        if any(Vocabulary.load(folder / f"{n}.vocab") != s.vocabulary for n, s in zip(kinds, sides, strict=True)):
            raise CorruptError("the vocabulary file and the subword model differ", file=path)
        truecasers = {
            name: Truecaser.load(inside(folder, name + ENDING, "truecaser"), str(language))
            for name, language in zip(("source", "target"), languages, strict=True)
            if name + ENDING in files
        }
        try:
            return cls(
                text, str(languages[0]), str(languages[1]), sides[0], sides[-1], truecasers=truecasers, tags=tags
            )
        except ValueError as error:
            raise CorruptError(f"not a tokenizer description: {error}", file=path) from error


def _checked(folder: Path, name: str) -> Path:
    """The path of a tokenizer file. Raises CorruptError if it is above its size limit."""
    path, limit = inside(folder, name, "tokenizer file"), limit_of(name)
    if limit is not None and path.stat().st_size > limit:
        raise CorruptError(f"larger than {limit >> 20} MiB, which no tokenizer file is", file=path)
    return path


def _kinds(described: Any, joint: bool) -> dict[str, str] | None:
    """The kind of subwords by file name (joint, source, target), from `subwords` of `tokenizer.json`; None if it is invalid."""
    names = ("joint",) if joint else ("source", "target")
    kinds = described if isinstance(described, dict) else dict.fromkeys(names, described)
    if kinds.keys() != set(names) or not all(isinstance(kind, str) and kind in SUBWORDS for kind in kinds.values()):
        return None
    return {name: kinds[name] for name in names}
