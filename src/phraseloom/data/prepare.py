"""Prepare raw text as a dataset folder, with any number of processes and constant memory.

`survey` reads every file once and checks counts, hashes and encoding; an error stops here, before anything is written. Then
the subwords are learned on a sample, and worker processes encode chunks of 20,000 pairs, which are stored in `FOLDER.parts`
(`parts.py`): the next call resumes from there after a kill, and several machines can encode different parts. At the end the
parts are read in order, so the bytes depend neither on the number of processes nor on the machines. The dataset is written
into `FOLDER.partial/new`, the manifest last, and the complete folder is renamed (`replace.py`): a killed run leaves nothing
that looks like a dataset.

Text of one language, for language models, is encoded as pairs with an empty source side. With `data.phrases`, the segmenter
cuts every source sentence into phrases (`phrases/`) and is stored with the tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phraseloom import __version__
from phraseloom.data.encode import Chunk, Coder, EncodedChunk, Encoder, RawChunk
from phraseloom.data.parts import FORMAT as PART_FORMAT
from phraseloom.data.parts import PART_CHUNKS, Bits, PartFolder, StoredChunk, bits_of, repeated_pairs
from phraseloom.data.sample import Sample, count, learn
from phraseloom.data.shards import (
    FORMAT,
    INDEX,
    REASONS,
    SPLITS,
    TEXT_REASONS,
    FileInfo,
    Index,
    ShardWriter,
    SplitInfo,
    SubwordInfo,
    VectorInfo,
    WordInfo,
    as_stored,
)
from phraseloom.data.survey import Progress, locate, parallel, read_through, readings, survey
from phraseloom.data.tally import Tally
from phraseloom.data.workers import Workers
from phraseloom.errors import CorruptError, DataError, FileProblem, UsageError
from phraseloom.files import atomic_write_json, disk, require_folder, sha256_file, write_manifest
from phraseloom.options.data import AnyDataConfig, TextDataConfig, valid_tokens
from phraseloom.options.text import SubwordsConfig, TextConfig, WordsConfig
from phraseloom.phrases.source import Segmenter, build_segmenter
from phraseloom.replace import FolderKind, check_folder, new_folder
from phraseloom.text.extension import add_tags, extend
from phraseloom.text.held_out import HeldOut
from phraseloom.text.lines import read_lines, write_lines
from phraseloom.text.normalize import Normaliser
from phraseloom.text.sentencepiece import named_size
from phraseloom.text.subwords import Subwords
from phraseloom.text.tokenizer import FILE as TOKENIZER_FILE
from phraseloom.text.tokenizer import Tokenizer, learns_from_lines
from phraseloom.text.truecase import Truecaser
from phraseloom.text.vector_check import LINES, check_tables, has_contexts, problems, random_rows
from phraseloom.text.vocabulary import SPECIALS, UNK
from phraseloom.text.words import Words

CHUNK_PAIRS = 20_000
SMALL_CHUNKS = 4
SMALL_BYTES = 2**24  # read in less time than another process needs to start
EXAMPLES, SEARCHED_LINES = 5, 20  # words that a reused tokenizer cannot spell, and lines of a chunk searched for them
TOKENIZER = "tokenizer"
AGAIN = "run the same command again"
DATASET = FolderKind("dataset", needs=(INDEX,))


@dataclass(frozen=True)
class PartReport:
    """The result of `prepare_part`: the folder of parts, the training pairs encoded by it, and those of the corpus."""

    folder: Path
    pairs: int
    total: int


@dataclass(frozen=True)
class Report:
    """The result of `prepare`: the folder and its index."""

    folder: Path
    index: Index


def prepare(
    config: AnyDataConfig,
    *,
    data_root: str | Path = ".",
    overwrite: bool = False,
    progress: Progress | None = None,
    recipe: str | Path | None = None,
    merge: Sequence[str | Path] = (),
    line_numbers: Path | None = None,
) -> Report:
    """Write the dataset that `config` describes to `config.folder`.

    Parts that a killed call or `prepare_part` has stored are not encoded again; `merge` names folders of parts of other
    machines. `progress(stage, done, total)` is called from time to time and counts lines. `recipe` is the file of `config`; it
    is protected from being overwritten, like all inputs. `line_numbers`: a file with the number of each training pair, from 1,
    where the text is a part of another one. Raises DataError, FileProblem, UsageError.
    """
    with Workers(config.processes) as workers:
        folder, inputs, work = _begin(config, Path(data_root), overwrite, progress, recipe, workers)
        if line_numbers is not None:
            work.line_numbers = np.array([int(line) - 1 for line in read_lines(line_numbers)], np.int64)
        try:
            with new_folder(folder, DATASET, overwrite=overwrite, inputs=inputs) as work.folder:
                work.parts.begin()
                with work.parts.lock():
                    for other in merge:
                        work.parts.merge(Path(other))
                    index = work.write()
        except DataError:  # the parts are of input that cannot be used
            work.parts.remove()
            raise
        work.parts.remove()
        return Report(folder, index)


def prepare_part(
    config: AnyDataConfig,
    number: int,
    of: int,
    *,
    data_root: str | Path = ".",
    overwrite: bool = False,
    progress: Progress | None = None,
    recipe: str | Path | None = None,
) -> PartReport:
    """Encode the share `number` (1 … `of`) of the training pairs into `config.folder` + `.parts`, for one of `of` machines.

    `prepare` then writes the dataset. All arguments as there. Raises DataError, FileProblem, UsageError.
    """
    if not 1 <= number <= of:
        raise UsageError(f"no part {number} of {of}", hint=f"number the parts from 1 to {of}")
    with Workers(config.processes) as workers:
        _, _, work = _begin(config, Path(data_root), overwrite, progress, recipe, workers)
        work.parts.begin()
        with work.parts.lock(f"{number}/{of}"):
            pairs = work.write_part(number, of)
        try:
            work.check_unchanged()
        except DataError:  # the parts are of two texts
            work.parts.remove()
            raise
    return PartReport(work.parts.folder, pairs, work.lines("train"))


def _begin(
    config: AnyDataConfig,
    root: Path,
    overwrite: bool,
    progress: Progress | None,
    recipe: str | Path | None,
    workers: Workers,
) -> tuple[Path, list[Path], _Work]:
    """Check the folder and all inputs, before anything is written; the folder, the inputs and the work."""
    if not isinstance(config, TextDataConfig) and config.target_phrases is not None:
        raise UsageError("data.target_phrases needs steps before this one: reproduce.phrase_data.make_phrase_data")
    folder = Path(config.folder)
    inputs = [*_inputs(config, root), *([] if recipe is None else [Path(recipe)])]
    if config.tokenizer is not None:
        inputs.append(find_tokenizer(config.tokenizer))
    real = check_folder(folder, DATASET, overwrite=overwrite, inputs=inputs)
    work = _Work(config, root, progress or (lambda stage, done, total: None), workers)
    work.survey()
    work.parts = PartFolder(real, work.identity(), inputs)
    return folder, inputs, work


def _inputs(config: AnyDataConfig, root: Path) -> list[Path]:
    """Every file that `prepare` reads."""
    names = [name for split in SPLITS for files in config.files(split) for name, _ in files.all_files.values()]
    if isinstance(config.subwords, WordsConfig) and isinstance(config.subwords.vectors, str):
        names.append(config.subwords.vectors)
    if not isinstance(config, TextDataConfig) and config.phrases is not None and config.phrases.kind == "table":
        names.append(config.phrases.file)
    return [root / name for name in names]


def _checked(root: Path, name: str, sha256: str | None) -> Path:
    """The path of the file of vectors. Raises FileProblem, and CorruptError if its SHA-256 differs."""
    path = locate(root, name)
    if sha256 is not None and (actual := sha256_file(path)) != sha256:
        hint = "fetch the file again, or correct data.subwords.vectors_sha256 if this is the right file"
        raise CorruptError(f"SHA-256 is {actual}, but the recipe has {sha256}", file=path, hint=hint)
    return path


def find_tokenizer(path: str | Path) -> Path:
    """The tokenizer folder of a dataset, model or run folder, or `path` itself. Raises FileProblem."""
    folder = require_folder(path, "data.tokenizer")
    for candidate in (folder, *(folder / part / TOKENIZER for part in (".", "best", "last"))):
        if (candidate / TOKENIZER_FILE).is_file():
            return candidate
    hint = "name a dataset folder, a model folder or a run folder with a checkpoint"
    raise FileProblem(f"data.tokenizer: this folder has no {TOKENIZER}/{TOKENIZER_FILE}", file=folder, hint=hint)


def read_tokenizer(config: AnyDataConfig) -> Tokenizer | None:
    """The tokenizer of `data.tokenizer`, or None.

    Raises FileProblem, CorruptError, and UsageError for other languages or another kind of subwords than in `config`.
    """
    if config.tokenizer is None:
        return None
    folder = find_tokenizer(config.tokenizer)
    tokenizer = Tokenizer.load(folder)
    languages = (tokenizer.source.language, tokenizer.target.language)
    expected = (config.source_language, config.target_language)
    if languages != expected:
        what = f"data.tokenizer: its languages are {' → '.join(languages)}, the data are {' → '.join(expected)}"
        raise UsageError(what, file=folder, hint="name one of the same languages, or remove data.tokenizer")
    kinds = {tokenizer.source.kind, tokenizer.target.kind}
    if isinstance(config.subwords, WordsConfig) != ("words" in kinds):
        raise UsageError(
            f"data.tokenizer: its subwords are {' and '.join(sorted(kinds))}, data.subwords is {config.subwords.kind}",
            file=folder,
            hint="set data.subwords.kind to that of the tokenizer",
        )
    return tokenizer


def ignored_keys(config: AnyDataConfig) -> list[str]:
    """A warning for each key of `text` and `subwords` that was set to another value than `data.tokenizer` has.

    Raises as `read_tokenizer`.
    """
    tokenizer = read_tokenizer(config)
    if tokenizer is None:
        return []
    given: dict[str, Any] = {}
    has: dict[str, Any] = {}
    for key in sorted(config.text.model_fields_set if "text" in config.model_fields_set else ()):
        given[f"text.{key}"], has[f"text.{key}"] = getattr(config.text, key), getattr(tokenizer.text, key)
    kinds = sorted({tokenizer.source.kind, tokenizer.target.kind})
    theirs: dict[str, Any] = {"kind": " and ".join(kinds), "joint": tokenizer.joint}
    if config.subwords.kind == "sentencepiece" and kinds == ["sentencepiece"]:
        sizes = {len(side.vocabulary) - len(side.tag_ids) for side in (tokenizer.source, tokenizer.target)}
        theirs["size"] = " and ".join(map(str, sorted(sizes))) if len(sizes) > 1 else sizes.pop()
    if isinstance(config.subwords, WordsConfig):
        del theirs["kind"]  # `read_tokenizer` has checked it
    for key in sorted(
        config.subwords.model_fields_set & theirs.keys() if "subwords" in config.model_fields_set else ()
    ):
        given[f"subwords.{key}"], has[f"subwords.{key}"] = getattr(config.subwords, key), theirs[key]
    return [
        f"data.{key}: {_written(value)} is ignored, because data.tokenizer has {_written(has[key])}"
        for key, value in given.items()
        if value != has[key]
    ]


def _written(value: Any) -> str:
    """A value as a recipe has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unspelled(tokenizer: Tokenizer, chunk: Chunk, encoded: EncodedChunk) -> Iterator[str]:
    """Words with an unknown piece, from the first lines of a chunk that have some."""
    for side, lines, ids, lengths in zip(
        (tokenizer.source, tokenizer.target),
        (chunk.source, chunk.target),
        encoded.tokens,
        encoded.lengths,
        strict=False,
    ):
        rows = np.unique(np.searchsorted(np.cumsum(lengths), np.flatnonzero(ids == UNK), side="right"))
        for row in rows[:SEARCHED_LINES]:
            line = lines[int(encoded.lines[row])]
            pieces, words = side.pieces(line), side.words(line)
            spans = side.words_of_piece(side.encode(line), begun=pieces)
            for piece, span in zip(pieces, spans, strict=True):
                if piece not in side.vocabulary:
                    yield from (words[number] for number in span if number < len(words))


def _stamp(path: Path) -> tuple[int, ...]:
    """What is different if a file was written to."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _hashes(file: FileInfo) -> list[str | None]:
    """What identifies the content of the files of a corpus."""
    return [file.source_sha256, file.target_sha256, file.trees_sha256, file.links_sha256]


def _coverage(subwords: Subwords) -> WordInfo | None:
    coverage = subwords.coverage if isinstance(subwords, Words) else None
    return None if coverage is None else WordInfo(**coverage._asdict())


def _checked_vectors(subwords: Subwords, lines: Iterator[str]) -> VectorInfo | None:
    """The figures of the vectors of a vocabulary on training lines; None where it has no vectors."""
    if not isinstance(subwords, Words) or subwords.vectors is None:
        return None
    rows_VM, first = subwords.vectors[len(SPECIALS) :], len(SPECIALS)
    ids = [[max(number - first, -1) for number in subwords.encode(line)] for line in lines]
    tables = {"used": rows_VM, "random": random_rows(rows_VM)}
    found = check_tables(tables, ids if has_contexts(ids) else None)
    used, random = found["used"], found["random"]
    return VectorInfo(
        mean_cosine=used.mean_cosine,
        nearest_cosine=used.nearest_cosine,
        effective_rank=used.effective_rank,
        share_of_64=used.share_of_64,
        likeliest=used.likeliest,
        random_likeliest=random.likeliest,
        problems=problems(used, random),
    )


class _Work:
    """The shared state of the steps of a preparation."""

    folder: Path
    parts: PartFolder

    def __init__(self, config: AnyDataConfig, root: Path, progress: Progress, workers: Workers) -> None:
        self.config, self.root, self.progress, self.workers = config, root, progress, workers
        self.files: dict[str, list[FileInfo]] = {}
        self.names: list[str] = []
        self.token_type = "uint16"
        self.is_text = isinstance(config, TextDataConfig)
        self.segmenter: Segmenter | None = None
        self.held_out: HeldOut | None = None
        self.joined = isinstance(config.subwords, WordsConfig) and config.subwords.joined
        self.vectors: str | None = None
        self.tokenizer: Tokenizer | None = None
        self.line_numbers: npt.NDArray[np.int64] | None = None

    def survey(self) -> None:
        """Read every file once, before anything is written. Raises DataError, FileProblem."""
        self.stamps = {path: _stamp(path) for path in self._texts()}
        self.tokenizer = read_tokenizer(self.config)
        if self.tokenizer is not None:
            self.config = self.config.model_copy(update={"text": self.tokenizer.text})
        for language in (self.config.source_language, self.config.target_language):
            Normaliser(self.config.text, language)  # raises now if a package is missing
        if not isinstance(self.config, TextDataConfig) and self.config.phrases is not None:
            self.segmenter = build_segmenter(self.config.phrases, self.root)
        subwords = self.config.subwords
        if self.tokenizer is None and isinstance(subwords, WordsConfig) and isinstance(subwords.vectors, str):
            self.vectors = str(_checked(self.root, subwords.vectors, subwords.vectors_sha256))
        tags = () if isinstance(self.config, TextDataConfig) else self.config.tags
        corpora = [(split, files) for split in SPLITS for files in self.config.files(split)]
        jobs = [job for _, files in corpora for job in readings(files, self.root, tags)]
        small = sum(path.stat().st_size for path, *_ in jobs) < SMALL_BYTES
        results = (result for _, result in self.workers.run(read_through, jobs, here=small))
        self.files = {split: [] for split in SPLITS}
        for split, files in corpora:
            self.progress(f"reading {next(iter(files.sides.values()))[0]}", 0, 0)
            self.files[split].append(survey(files, self.root, islice(results, len(files.all_files))))
        for split in SPLITS:
            if self.config.files(split) and not self.lines(split):
                raise DataError(f"the {split} files are empty", file=self.root / self.files[split][0].name)
        if self.config.filter.decontaminate is not None:
            self.held_out = HeldOut.of(self.config.filter.decontaminate, self._held_out_lines())

    def _texts(self) -> Iterator[Path]:
        """The files of all splits, in the order of `hashes`."""
        for split in SPLITS:
            for files in self.config.files(split):
                yield from (locate(self.root, name) for name, _ in files.all_files.values())

    def check_unchanged(self) -> None:
        """Raise DataError if a file no longer has the content that the survey read."""
        hashes = [sha for split in SPLITS for file in self.files[split] for sha in _hashes(file) if sha]
        for path, sha256 in zip(self._texts(), hashes, strict=True):
            if _stamp(path) != self.stamps[path] and sha256_file(path) != sha256:
                raise DataError("this file changed while it was prepared", file=path, hint="run the command again")

    def _held_out_lines(self) -> dict[str, Iterator[str]]:
        """The lines of valid and test, by side."""
        files = [files for split in ("valid", "test") for files in self.config.files(split)]

        def lines(side: str) -> Iterator[str]:
            for pair in files:
                yield from read_lines(locate(self.root, pair.sides[side][0]))

        return {side: lines(side) for side in self.config.train[0].sides}

    def lines(self, split: str) -> int:
        """The number of pairs in the files of a split."""
        return sum(f.lines for f in self.files[split])

    def identity(self) -> Any:
        """Everything that the stored parts depend on, as plain data."""
        return {
            "format": PART_FORMAT,
            "phraseloom": __version__,
            "config": self.config.model_dump(
                mode="json", exclude={"folder", "processes", "shard_pairs", "train", "valid", "test", "tokenizer"}
            ),
            "corpora": [[list(files.tags) for files in self.config.files(split)] for split in SPLITS],
            "files": [[_hashes(file) for file in self.files[split]] for split in SPLITS],
            "tokenizer": None if self.tokenizer is None else self.tokenizer.sha256,
            "segmenter": None if self.segmenter is None else self.segmenter.sha256,
            "vectors": None if self.vectors is None else sha256_file(self.vectors),
            "pairs": [self.chunk_pairs, PART_CHUNKS],
        }

    @property
    def chunk_pairs(self) -> int:
        """The largest number of pairs of a chunk."""
        return min(CHUNK_PAIRS, self.config.shard_pairs)

    def start(self) -> tuple[Tokenizer, SubwordInfo]:
        """The tokenizer, learned or stored by an earlier call; it is stored with the segmenter for the worker processes."""
        stored = self.parts.tokenizer()
        if stored is None:
            stored = self.learn()
            self.parts.store_tokenizer(*stored)
        if self.segmenter is not None:
            self.parts.store_segmenter(self.segmenter)
        if self.held_out is not None:
            self.held_out.save(self.parts.here)
        tokenizer = stored[0]
        sizes = len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary)
        self.token_type = "uint16" if max(sizes) < 2**16 else "uint32"
        return stored

    @property
    def small(self) -> bool:
        """Whether the corpus is so small that to start a process, in half a second, is not worth while."""
        return self.lines("train") <= SMALL_CHUNKS * CHUNK_PAIRS

    def encoder(self, tokenizer: Tokenizer) -> Encoder:
        """The encoder."""
        coder = Coder(tokenizer, self.token_type, self.segmenter, self.held_out)
        return Encoder(coder, self.parts.here, self.workers, here=self.small)

    def write_part(self, number: int, of: int) -> int:
        """Encode the share `number` of `of` of the training pairs; return how many they are."""
        tokenizer, _ = self.start()
        total = len(self.part_pairs("train"))
        wanted = range((number - 1) * total // of, number * total // of)
        self.encode("train", self.encoder(tokenizer), wanted)
        return sum(self.part_pairs("train")[part] for part in wanted)

    def write(self) -> Index:
        """Write the whole dataset into `folder`; return its index."""
        tokenizer, subwords = self.start()
        encoder = self.encoder(tokenizer)
        for split in SPLITS:
            self.encode(split, encoder, range(len(self.part_pairs(split))))
        disk.mkdir(self.folder / "tokenizer")
        self.names = [f"tokenizer/{name}" for name in tokenizer.save(self.folder / "tokenizer")]
        if self.segmenter is not None:
            self.names += [f"segmenter/{name}" for name in self.segmenter.save(self.folder / "segmenter")]
        splits = {split: self.assemble(split, tokenizer) for split in SPLITS if self.files[split]}
        index = Index.model_validate(
            {
                "format": FORMAT,
                "config": as_stored(self.config.model_dump(exclude={"folder", "processes", "tokenizer", "new_pieces"})),
                "token_type": self.token_type,
                "tokenizer_sha256": tokenizer.sha256,
                "segmenter_sha256": None if self.segmenter is None else self.segmenter.sha256,
                "subwords": subwords,
                "splits": splits,
            }
        )
        self.check_unchanged()
        atomic_write_json(self.folder / INDEX, as_stored(index.model_dump()))
        write_manifest(self.folder, [*self.names, INDEX])
        return index

    def learn(self) -> tuple[Tokenizer, SubwordInfo]:
        """Learn the subwords on a sample of the training pairs; text without a source has one vocabulary.

        The subwords of `data.tokenizer` are used instead if it is set, with `data.new_pieces` after them.
        """
        if self.tokenizer is not None:
            return self._reused(self.tokenizer)
        config, truecasers = self.config, self._truecasers()
        if config.subwords.joint:
            samples = [self._sample(side, truecasers) for side in config.train[0].sides]
            source = target = self.learned([(samples, config.subwords)])[0]
        else:
            options: tuple[SubwordsConfig, SubwordsConfig] = (config.subwords, config.subwords)
            if isinstance(config.subwords, WordsConfig):
                located = {} if self.vectors is None else {"vectors": self.vectors}
                options = config.subwords.of_source(), config.subwords.model_copy(update=located)
            source, target = self.learned(
                [
                    ([self._sample(side, truecasers, side_options.sample_lines)], side_options)
                    for side, side_options in zip(("source", "target"), options, strict=True)
                ]
            )
        sides, tags = self._tagged(source, target)
        tokenizer = Tokenizer(
            config.text, config.source_language, config.target_language, *sides, truecasers=truecasers, tags=tags
        )
        sample_pairs = min(self.lines("train"), config.subwords.sample_lines)
        return tokenizer, SubwordInfo(
            sample_pairs=sample_pairs,
            source_vocabulary=len(sides[0].vocabulary),
            target_vocabulary=len(sides[1].vocabulary),
            source_words=_coverage(source),
            target_words=_coverage(target),
            target_vectors=_checked_vectors(target, self._sampled(["target"], truecasers, min(sample_pairs, LINES))),
        )

    def _truecasers(self) -> dict[str, Truecaser]:
        """The truecaser of each side, learned if the recipe asks for them. Joined text has none."""
        if not self.config.text.truecase:
            return {}
        self.progress("learning truecasers", 0, 0)
        cased = [side for side in self.config.train[0].sides if not (side == "target" and self.joined)]
        forms = self.counted([([self._sample(side, {})], None) for side in cased])
        languages = {"source": self.config.source_language, "target": self.config.target_language}
        truecasers = {side: Truecaser(counts, languages[side]) for side, counts in zip(cased, forms, strict=True)}
        return dict.fromkeys(("source", "target"), truecasers["target"]) if self.is_text else truecasers

    def _reused(self, old: Tokenizer) -> tuple[Tokenizer, SubwordInfo]:
        """The tokenizer of `data.tokenizer`, with `data.new_pieces` after its subwords."""
        config, sides = self.config, (old.source.subwords, old.target.subwords)
        if config.new_pieces and old.joint:
            texts = self._sampled(config.train[0].sides, old.truecasers)
            sides = (extend(sides[0], texts, config.new_pieces),) * 2
        elif config.new_pieces:
            source, target = (
                extend(subwords, self._sampled([side], old.truecasers), config.new_pieces)
                for side, subwords in zip(("source", "target"), sides, strict=True)
            )
            sides = (source, target)
        sides, tags = self._tagged(*sides, old.tags)
        tokenizer = Tokenizer(
            config.text, config.source_language, config.target_language, *sides, truecasers=old.truecasers, tags=tags
        )
        sizes = {id(subwords): len(subwords.vocabulary) for subwords in sides}
        old_sizes = {id(side.subwords): len(side.vocabulary) for side in (old.source, old.target)}
        return tokenizer, SubwordInfo(
            sample_pairs=min(self.lines("train"), config.subwords.sample_lines) if config.new_pieces else 0,
            source_vocabulary=len(sides[0].vocabulary),
            target_vocabulary=len(sides[1].vocabulary),
            reused=True,
            new_pieces=sum(sizes.values()) - sum(old_sizes.values()) if config.new_pieces else None,
        )

    def _sample(self, side: str, truecasers: dict[str, Truecaser], most: int | None = None) -> Sample:
        """The sample of one side: of at most `most` pairs, or of `sample_lines`."""
        config, total = self.config, self.lines("train")
        text = TextConfig() if side == "target" and self.joined else config.text  # joined text is already tokenised
        language = config.source_language if side == "source" else config.target_language
        paths = tuple(locate(self.root, files.sides[side][0]) for files in config.train)
        size = min(total, config.subwords.sample_lines if most is None else most)
        return Sample(paths, total, size, text, language, truecasers.get(side))

    def _sampled(
        self, sides: Iterable[str], truecasers: dict[str, Truecaser], most: int | None = None
    ) -> Iterator[str]:
        for side in sides:
            sample = self._sample(side, truecasers, most)
            self.progress(f"learning subwords ({side})", 0, sample.size)
            yield from sample.lines()

    def learned(self, wanted: Sequence[tuple[list[Sample], SubwordsConfig]]) -> list[Subwords]:
        """The subwords of each text (samples and options), all learned at the same time. Raises DataError."""
        self.progress("learning subwords", 0, 0)
        counts = iter(self.counted([text for text in wanted if not learns_from_lines(text[1])]))
        jobs = [
            (samples, options, None) if learns_from_lines(options) else ([], options, next(counts))
            for samples, options in wanted
        ]
        try:
            return [subwords for _, subwords in self.workers.run(learn, jobs, here=self.small or len(jobs) == 1)]
        except DataError as error:
            if isinstance(self.config.subwords, WordsConfig):  # only its source has a size to change
                raise named_size(error, "data.subwords.source.size") from error
            raise

    def counted(self, wanted: Sequence[tuple[list[Sample], SubwordsConfig | None]]) -> list[Counter[str]]:
        """What `sample.count` counts in each text (samples and options)."""
        jobs: list[tuple[Sample, SubwordsConfig | None]] = []
        owners: list[int] = []
        for number, (samples, options) in enumerate(wanted):
            parts = [part for one in samples for part in one.parts()]
            jobs += [(part, options) for part in parts]
            owners += [number] * len(parts)
        totals: list[Counter[str]] = [Counter() for _ in wanted]
        for number, (_, counts) in zip(owners, self.workers.run(count, jobs, here=self.small), strict=True):
            totals[number].update(counts)
        return totals

    def _tagged(
        self, source: Subwords, target: Subwords, old: tuple[str, ...] = ()
    ) -> tuple[tuple[Subwords, Subwords], tuple[str, ...]]:
        """The subwords with the tags of the corpora in the vocabulary of the source, and all tags; `old` are there already."""
        declared = () if isinstance(self.config, TextDataConfig) else self.config.tags
        new = [tag for tag in declared if tag not in old]
        if not new:
            return (source, target), old
        tagged = add_tags(source, new)
        return (tagged, tagged if source is target else target), (*old, *new)

    def part_pairs(self, split: str) -> list[int]:
        """The number of pairs of each part of a split."""
        size = self.chunk_pairs
        chunks = [min(size, file.lines - first) for file in self.files[split] for first in range(0, file.lines, size)]
        return [sum(chunks[first : first + PART_CHUNKS]) for first in range(0, len(chunks), PART_CHUNKS)]

    def encode(self, split: str, encoder: Encoder, wanted: range) -> None:
        """Encode and store those of the `wanted` parts of a split that are not stored already."""
        tokenizer = encoder.coder.tokenizer
        missing = [part for part in wanted if self.parts.load(split, part, tokenizer) is None]
        if not missing:
            return
        filters = self.config.filter if split == "train" else None
        reused = self.tokenizer is not None and not isinstance(self.config.subwords, WordsConfig)

        def chunks() -> Iterator[RawChunk]:
            left = set(missing)
            for chunk in self.chunks(split):
                if chunk.part > missing[-1]:
                    return
                if chunk.part in left:
                    yield chunk

        results = groupby(encoder.run(chunks(), filters), key=lambda pair: pair[0].part)
        for part, of_part in results:
            stored, examples = [], 0
            for chunk, encoded in of_part:
                words: dict[str, None] = {}
                if reused and examples < EXAMPLES:
                    words = dict.fromkeys(_unspelled(tokenizer, chunk.read(), encoded))
                    examples += len(words)
                stored.append(StoredChunk(replace(chunk, texts={}), chunk.pairs, encoded, tuple(words)[:EXAMPLES]))
                self.progress(f"encoding {split}", chunk.base + chunk.pairs, self.lines(split))
            self.parts.store(split, part, stored, tokenizer)

    def stored(self, split: str, tokenizer: Tokenizer) -> Iterator[StoredChunk]:
        """The chunks of all parts of a split, in order. Raises CorruptError if a part is missing or damaged by now."""
        for part in range(len(self.part_pairs(split))):
            chunks = self.parts.load(split, part, tokenizer)
            if chunks is None:
                raise CorruptError("a part was removed or damaged during the work", file=self.parts.here, hint=AGAIN)
            yield from chunks

    def repeated(self, split: str, tokenizer: Tokenizer) -> Bits | None:
        """Which of the remaining training pairs came before (`repeated_pairs`); None if duplicates stay."""
        if split != "train" or not self.config.filter.deduplicate:
            return None
        self.progress("finding duplicates", 0, 0)
        total = sum(len(chunk.encoded.lines) for chunk in self.stored(split, tokenizer))
        keys = (chunk.encoded.keys for chunk in self.stored(split, tokenizer))
        return repeated_pairs((k for k in keys if k is not None), total, self.parts.duplicates_folder())

    def assemble(self, split: str, tokenizer: Tokenizer) -> SplitInfo:
        """Write the shards of a split, and for valid and test its raw text."""
        phrases, words = self.segmenter is not None, isinstance(self.config.subwords, WordsConfig)
        source_words = isinstance(self.config.subwords, WordsConfig) and self.config.subwords.source is None
        reused = self.tokenizer is not None and not words
        links = split == "train" and any(file.links for file in self.files[split])
        examples: dict[str, None] = {}
        writer = ShardWriter(self.folder, split, self.token_type, self.config.shard_pairs, phrases=phrases, links=links)
        filters = self.config.filter if split == "train" else None
        tally = Tally(self.files[split], filters, longest=valid_tokens(self.config.filter))
        unknown = [0, 0]
        pairs_of_file = [0] * len(self.files[split])
        repeated, place = self.repeated(split, tokenizer), 0
        try:
            for stored in self.stored(split, tokenizer):
                chunk, encoded = stored.chunk, stored.encoded
                end = place + len(encoded.lines)
                encoded = tally.count(chunk, encoded, None if repeated is None else bits_of(repeated, place, end))
                place = end
                unknown = [n + int((ids == UNK).sum()) for n, ids in zip(unknown, encoded.tokens, strict=False)]
                examples.update(dict.fromkeys(stored.unspelled))
                pairs_of_file[chunk.file] += len(encoded.lines)
                lines = encoded.lines + chunk.base
                if split == "train" and self.line_numbers is not None:
                    lines = self.line_numbers[lines]
                writer.add(encoded.tokens, encoded.lengths, lines)
                self.progress(f"writing {split}", chunk.base + stored.pairs, self.lines(split))
            shards = writer.finish()
        finally:
            writer.abandon()
        self.names += [f"{shard.name}.{name}" for shard in shards for name in shard.sha256]
        pairs = sum(s.pairs for s in shards)
        if not pairs:
            unit, reasons = ("line", TEXT_REASONS) if self.is_text else ("pair", REASONS)
            raise DataError(
                f"no {split} {unit} is left: " + ", ".join(f"{d.pairs} {reasons[r]}" for r, d in tally.dropped.items()),
                file=self.root / self.files[split][0].name,
                hint="see data.filter",
            )
        return SplitInfo(
            read=self.lines(split),
            pairs=pairs,
            source_tokens=sum(s.source_tokens for s in shards),
            target_tokens=sum(s.target_tokens for s in shards),
            source_phrases=sum(s.source_phrases or 0 for s in shards) if phrases else None,
            links=sum(s.links or 0 for s in shards) if links else None,
            source_unknown=unknown[0] if (source_words or reused) and not self.is_text else None,
            target_unknown=unknown[1] if words or reused else None,
            unknown_words=list(examples)[:EXAMPLES] if reused else None,
            dropped=tally.dropped,
            files=self._counted(split, pairs_of_file),
            shards=shards,
            text_sha256={} if split == "train" else self.keep_text(split),
            no_tree=tally.no_tree,
            blank=tally.blank,
            long=tally.long,
        )

    def _counted(self, split: str, pairs: list[int]) -> list[FileInfo]:
        """The files of a split; those of `train` with the pairs that remain, if its corpora have weights."""
        config, files = self.config, self.files[split]
        if split != "train" or (config.temperature is None and not any(f.weight for f in config.train)):
            return files
        return [file.model_copy(update={"pairs": n}) for file, n in zip(files, pairs, strict=True)]

    def chunks(self, split: str) -> Iterator[RawChunk]:
        """The raw pairs of a split in chunks; no chunk spans two files."""
        size, chunks = self.chunk_pairs, 0
        base, has_links = 0, any(file.links for file in self.files[split])
        for number, files in enumerate(self.config.files(split)):
            first = 1
            paths = {name: locate(self.root, file) for name, (file, _) in files.all_files.items()}
            for pairs, texts in parallel(paths, size):
                part, chunks = chunks // PART_CHUNKS, chunks + 1
                yield RawChunk(number, first, base, pairs, texts, paths, files.tags, has_links, part)
                first, base = first + pairs, base + pairs

    def keep_text(self, split: str) -> dict[str, str]:
        """Write the raw lines of each side and the trees, if any, as one file each; return their hashes."""
        hashes = {}
        for side in self.config.files(split)[0].all_files:
            paths = [locate(self.root, f.all_files[side][0]) for f in self.config.files(split)]
            name = f"{split}/{side}.txt"
            write_lines(self.folder / name, (line for path in paths for line in read_lines(path)))
            hashes[side] = sha256_file(self.folder / name)
            self.names.append(name)
        return hashes
