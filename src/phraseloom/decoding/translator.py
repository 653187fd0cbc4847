"""Translate lines: `Translator.from_pretrained(folder).translate([...])`.

Long lines are cropped or split. Pieces are sorted by length, translated in batches by one thread per core, and returned in
their order. A translation does not depend on the lines around it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from operator import or_
from pathlib import Path
from typing import Any

import torch

from phraseloom.align.lexicon import read_lexicon
from phraseloom.config import validate
from phraseloom.decoding.added_phrases import Added, add_phrases
from phraseloom.decoding.batching import cut_line, map_batches, num_workers, plan_batches
from phraseloom.decoding.cancellation import ShouldCancel
from phraseloom.decoding.long_lines import crop_targets, encode, refuse_long_prefixes
from phraseloom.decoding.parts import PieceResult, join_parts
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.piece_search import search_pieces, with_prefixes
from phraseloom.decoding.scoring import Score, score_pairs
from phraseloom.decoding.search import writer_of
from phraseloom.decoding.sentences import SentenceSplitter, join_sentences
from phraseloom.decoding.source_phrases import cropped_sources, needs_phrases, phrases_of, require_trees, with_phrases
from phraseloom.decoding.translation import BLANK, BLANK_ALIGNED, Translation, TranslationReport
from phraseloom.errors import ConfigError, ModelError, UsageError, plural
from phraseloom.files import require_file
from phraseloom.layers.packed import pack_for_inference
from phraseloom.options.decoding import DecodingConfig
from phraseloom.phrases.source import Segmenter
from phraseloom.text.lines import list_of_lines

__all__ = ["Score", "Translation", "TranslationReport", "Translator"]

logger = logging.getLogger(__name__)


class Translator:
    """A model with its tokenizer and decoding options, and a segmenter if the model needs source phrases.

    `config` has the defaults; every method takes the fields of `DecodingConfig` as keywords that override them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: DecodingConfig | None = None,
        *,
        device: str | torch.device | None = None,
        segmenter: Segmenter | None = None,
    ) -> None:
        self.model = model.eval() if device is None else model.to(device).eval()
        self.tokenizer, self.config = tokenizer, config or DecodingConfig()
        self.device = next(model.parameters()).device
        self.segmenter = segmenter if needs_phrases(model) else None
        self._lexicons: dict[str, dict[str, str]] = {}
        self._splitter: SentenceSplitter | None = None

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | torch.device = "cpu", **options: Any) -> Translator:
        """Load a model folder, a run folder (its best checkpoint) or a checkpoint; every file is verified.

        `options` override the `generation_config.json` of the model. Raises FileProblem, CorruptError, ModelError,
        ConfigError.
        """
        from phraseloom.models.store import GENERATION, find_model, load_model, load_segmenter_of

        folder = find_model(folder)
        model, tokenizer, generation = load_model(folder, device)
        pack_for_inference(model)
        config = validate(DecodingConfig, generation, file=folder / GENERATION)
        return cls(model, tokenizer, _with(config, options), segmenter=load_segmenter_of(folder))

    def with_options(self, **options: Any) -> Translator:
        """A translator with the same model and other default options."""
        return Translator(self.model, self.tokenizer, _with(self.config, options), segmenter=self.segmenter)

    def add_phrases(self, path: str | Path) -> Added:
        """Add the phrases of a file to the output (`decoding/added_phrases.py`); returns their numbers."""
        self.tokenizer, added = add_phrases(self.model, self.tokenizer, path)
        return added

    @property
    def can_align(self) -> bool:
        """Whether the model can align words: it attends to source tokens or emits segments."""
        return writer_of(self.model).can_align(self.model)

    def lexicon(self, config: DecodingConfig | None = None) -> dict[str, str] | None:
        """The lexicon for unknown words: empty if the options name none, None if unknown words are not replaced.

        Raises ModelError if the model has no attention, FileProblem, DataError (file, line).
        """
        config = config or self.config
        if config.unknown != "replace":
            return None
        if not self.can_align:
            raise ModelError(
                "unknown words cannot be replaced: this model attends to no source tokens",
                hint="choose unknown: keep or forbid",
            )
        if config.lexicon is None:
            return {}
        if config.lexicon not in self._lexicons:
            self._lexicons[config.lexicon] = read_lexicon(require_file(config.lexicon, "lexicon"))
        return self._lexicons[config.lexicon]

    def check(self, config: DecodingConfig | None = None, *, alignments: bool = False) -> dict[str, str] | None:
        """Check that `config` fits the model and return its lexicon. Raises as `lexicon`, and UsageError for an attention
        or a tag that the model lacks."""
        config = config or self.config
        lexicon = self.lexicon(config)
        self.tokenizer.tag_ids(config.tags)
        writer_of(self.model).check(self.model, config, aligned=alignments or lexicon is not None)
        return lexicon

    def require_trees(self, given: bool) -> None:
        """Raise UsageError if parse trees are missing for a model that needs them, or given for one that does not."""
        require_trees(self.model, self.segmenter, given)

    def phrases_of(
        self, lines: Sequence[str], ids: list[list[int]], trees: Sequence[str] | None = None
    ) -> list[list[int]] | None:
        """The sizes of the source phrases of each line, from its subword ids; None for a model that needs none.

        Raises UsageError (see `require_trees`), DataError if a tree does not fit its line (line from 1).
        """
        self.require_trees(trees is not None)
        return phrases_of(self.segmenter, self.tokenizer.source, lines, ids, trees)

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Sequence[str] | None = None,
        trees: Sequence[str] | None = None,
        alignments: bool = False,
        report: TranslationReport | None = None,
        should_cancel: ShouldCancel | None = None,
        **options: Any,
    ) -> list[Translation]:
        """The translation of each line, in order; a blank line gives a blank translation without the model.

        `prefixes`: the forced prefix of each translation ("" for none); it may have unknown words. `trees`: the bracketed parse
        tree of each line ("" for none), for a model that needs trees. `alignments`: also link words and phrases. `report`:
        collects counts; without one, warnings for cropped, split and cut lines are logged. `should_cancel`: every thread calls
        it at each step of the search; if it returns True, the search raises Cancelled.

        Raises UsageError, ConfigError, ModelError; DataError if a tree does not fit its line (line from 1).
        """
        lines = list_of_lines(lines, "lines to translate")
        prefixes = None if prefixes is None else list_of_lines(prefixes, "prefixes")
        trees = None if trees is None else list_of_lines(trees, "trees")
        config = _with(self.config, options)
        if prefixes is not None and len(prefixes) != len(lines):
            raise UsageError(f"{plural(len(lines), 'line')}, but {len(prefixes)} prefixes")
        counts = TranslationReport() if report is None else report
        if config.split_sentences:
            if prefixes is not None or trees is not None or config.n_best > 1:
                raise UsageError("split_sentences: not with prefixes, trees or n_best above 1")
            result = self._translate_sentences(lines, config, alignments, should_cancel)
        else:
            result = self._translate(lines, prefixes, trees, config, alignments, should_cancel)
        for translation in result:
            counts.add(translation)
        if report is None:
            for warning in counts.warnings(config.max_input_tokens):
                logger.warning(warning)
        return result

    def sentence_splitter(self) -> SentenceSplitter:
        """Splits lines of the source language into sentences. Raises UsageError if that is impossible."""
        if self._splitter is None:
            self._splitter = SentenceSplitter(self.tokenizer.source.language)
        return self._splitter

    def _translate_sentences(
        self, lines: list[str], config: DecodingConfig, alignments: bool, should_cancel: ShouldCancel | None
    ) -> list[Translation]:
        """The translation of each line, sentence by sentence."""
        split = list(map(self.sentence_splitter(), lines))
        sentences = [sentence for own, _ in split for sentence in own]
        translations = iter(self._translate(sentences, None, None, config, alignments, should_cancel))
        side = self.tokenizer.source
        return [join_sentences(side, own, gaps, list(islice(translations, len(own)))) for own, gaps in split]

    def stream(
        self, lines: Iterable[str], *, trees: Iterable[str] | None = None, **options: Any
    ) -> Iterator[Translation]:
        """Translations of a stream of lines in bounded memory, `window` lines at a time; see `translate`."""
        for name, value in (("lines to translate", lines), ("trees", trees)):
            if value is not None and (isinstance(value, str | bytes) or not isinstance(value, Iterable)):
                list_of_lines(value, name)  # raises now, not at the first line
        size = _with(self.config, {k: v for k, v in options.items() if k in DecodingConfig.model_fields}).window
        return self._stream(iter(lines), None if trees is None else iter(trees), size, options)

    def _stream(
        self, lines: Iterator[str], trees: Iterator[str] | None, size: int, options: dict[str, Any]
    ) -> Iterator[Translation]:
        while window := list(islice(lines, size)):
            window_trees = None if trees is None else list(islice(trees, len(window)))
            yield from self.translate(window, trees=window_trees, **options)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, trees: Sequence[str] | None = None, **options: Any
    ) -> list[Score]:
        """The log-probability of each target given its source, computed as `translate` does for the same subwords.

        A line above the limit is cropped, and its score has `cropped` (`decoding/long_lines.py`). `trees`: see `translate`.
        Raises UsageError if the numbers of lines differ, ConfigError, ModelError, DataError.
        """
        config = _with(self.config, options)
        sources, targets = list_of_lines(sources, "sources"), list_of_lines(targets, "targets")
        trees = None if trees is None else list_of_lines(trees, "trees")
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
        translator = Translator(self.model, self.tokenizer, config, segmenter=self.segmenter)
        source_ids, phrases, cropped_source = cropped_sources(translator, sources, trees)
        target_ids, cropped_target = crop_targets(translator, targets)
        cropped = map(or_, cropped_source, cropped_target)
        pairs = list(zip(source_ids, target_ids, strict=True))
        log_probs = score_pairs(self.model, pairs, config, self.device, phrases)
        piece, penalty = self.tokenizer.target.vocabulary.piece, build_penalty(config.length_penalty)
        return [
            Score.of(token_log_probs, [piece(i) for i in ids], penalty, is_cropped)
            for token_log_probs, (_, ids), is_cropped in zip(log_probs, pairs, cropped, strict=True)
        ]

    def _translate(
        self,
        lines: list[str],
        prefixes: Sequence[str] | None,
        trees: Sequence[str] | None,
        config: DecodingConfig,
        alignments: bool,
        should_cancel: ShouldCancel | None,
    ) -> list[Translation]:
        side, limit = self.tokenizer.source, config.max_input_tokens
        lexicon = self.check(config, alignments=alignments)
        needs_whole_lines = self.segmenter is not None or config.long_lines == "split"
        ids = side.encode_batch(lines) if needs_whole_lines else encode(side, lines, limit)
        cut = [cut_line(n, i, side.word_of_piece, limit=limit, how=config.long_lines) for n, i in enumerate(ids)]
        phrases = self.phrases_of(lines, ids, trees)
        if phrases is not None:
            cut = [with_phrases(line, sizes) for line, sizes in zip(cut, phrases, strict=True)]
        if prefixes is not None:
            cut = with_prefixes(self.tokenizer.target, cut, prefixes)
            refuse_long_prefixes([line[0].prefix if line else () for line in cut], config.max_target_tokens)
        if tags := self.tokenizer.tag_ids(config.tags):
            cut = [[replace(piece, ids=[*tags, *piece.ids], tags=len(tags)) for piece in line] for line in cut]
        pieces = [piece for line in cut for piece in line]
        workers = num_workers(config.workers, self.device)
        batches = plan_batches(
            [len(p.ids) + 1 for p in pieces],
            sentences=config.sentences_together,
            tokens=config.batch_tokens,
            workers=workers,
        )

        def work(batch: list[int]) -> list[PieceResult]:
            return search_pieces(
                self.model,
                self.tokenizer,
                [pieces[i] for i in batch],
                config,
                device=self.device,
                alignments=alignments,
                should_cancel=should_cancel,
            )

        results: dict[int, list[PieceResult]] = {}
        done: dict[int, PieceResult] = {}
        for batch, part in zip(batches, map_batches(work, batches, workers=workers), strict=True):
            done.update(zip(batch, part, strict=True))
        for number, piece in enumerate(pieces):
            results.setdefault(piece.line, []).append(done[number])
        blank = BLANK_ALIGNED if alignments else BLANK
        blank = blank if lexicon is None else replace(blank, replaced=[])
        return [
            join_parts(
                self.tokenizer,
                line,
                cut[n],
                results[n],
                cropped=len(ids[n]) > limit and config.long_lines == "crop",
                lexicon=lexicon,
            )
            if n in results
            else blank
            for n, line in enumerate(lines)
        ]


def _with(config: DecodingConfig, options: dict[str, Any]) -> DecodingConfig:
    """`config` with some fields replaced, validated. Raises ConfigError for an unknown field or a bad value.

    A head belongs to its layer: a new `alignment_layer` without a head means the mean over its heads. If both bounds of length
    are given, they must allow an output.
    """
    if not options:
        return config
    if "alignment_layer" in options:
        options = {"alignment_head": None, **options}
    changed = validate(DecodingConfig, {**config.model_dump(), **options})
    if {"min_length", "max_length"} <= options.keys():
        try:
            changed.check_lengths()
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return changed
