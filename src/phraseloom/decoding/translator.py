"""Translate lines: `Translator.from_pretrained(folder).translate([...])`.

Long lines are cropped or split. Pieces are sorted by length, translated in batches by one thread per core, and returned in
their order. A translation does not depend on the lines around it.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from operator import or_
from pathlib import Path
from typing import Any

import torch

from phraseloom.align.lexicon import read_lexicon
from phraseloom.config import validate
from phraseloom.decoding.added_phrases import Added, add_phrases
from phraseloom.decoding.batching import Piece, cut_text, map_batches, num_workers, plan_batches
from phraseloom.decoding.cancellation import ShouldCancel, raise_if_cancelled
from phraseloom.decoding.constrained_lines import check_model, check_terms, checked, with_constraints
from phraseloom.decoding.constraints import Constraints
from phraseloom.decoding.ensemble import Ensemble, Member, averaged, build_ensemble
from phraseloom.decoding.limits import SampleSeed
from phraseloom.decoding.long_lines import crop_targets, encode, refuse_long_prefixes
from phraseloom.decoding.parts import PieceResult, join_parts
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.piece_search import search_pieces, with_prefixes
from phraseloom.decoding.scoring import Score, score_pairs
from phraseloom.decoding.search import writer_of
from phraseloom.decoding.sentences import SentenceSplitter, join_sentences, space_of
from phraseloom.decoding.source_phrases import cropped_sources, needs_phrases, phrases_of, require_trees, with_phrases
from phraseloom.decoding.streaming import check_stream, stream_piece
from phraseloom.decoding.terms import Terms
from phraseloom.decoding.translation import BLANK, BLANK_ALIGNED, Translation, TranslationReport
from phraseloom.errors import ConfigError, DataError, ModelError, UsageError, plural
from phraseloom.files import require_file
from phraseloom.layers.fertility import Fertility
from phraseloom.layers.packed import pack_for_inference
from phraseloom.options.decoding import DecodingConfig
from phraseloom.outputs.continuous import GateScore, WordOrPhraseOutput
from phraseloom.phrases.source import Segmenter
from phraseloom.text.lines import list_of_lines, refuse_one_string

__all__ = ["Score", "Translation", "TranslationReport", "Translator"]

logger = logging.getLogger(__name__)
PARTS = 1 << 10  # more than a sentence has, so that the parts of two sentences of a line have different samples


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
        self._tokenizers, self.config = [tokenizer], config or DecodingConfig()  # a list, for copies to share
        self.device = next(model.parameters()).device
        self.segmenter = segmenter if needs_phrases(model) else None
        self._lexicons: dict[str, dict[str, str]] = {}
        self._splitter: SentenceSplitter | None = None

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        ensemble: Sequence[str | Path] = (),
        device: str | torch.device = "cpu",
        **options: Any,
    ) -> Translator:
        """Load a model folder, a run folder (its best checkpoint) or a checkpoint; every file is verified.

        `ensemble`: further models that translate together with the first (`decoding/ensemble.py`), whose tokenizer and
        options hold. `options` override the `generation_config.json` of the model. Raises FileProblem, CorruptError,
        ModelError, ConfigError; UsageError for models that cannot form an ensemble.
        """
        from phraseloom.models.store import GENERATION, find_model, load_model, load_segmenter_of

        if isinstance(ensemble, str | Path):
            raise UsageError("ensemble is a list of models, not one", hint=f"write [{str(ensemble)!r}]")
        found = find_model(folder)
        model, tokenizer, generation = load_model(found, device)
        pack_for_inference(model)
        config = validate(DecodingConfig, generation, file=found / GENERATION)
        segmenter = load_segmenter_of(found)
        if ensemble:
            members = [Member(str(folder), model, tokenizer, segmenter)]
            for other in ensemble:
                other_model, other_tokenizer, _ = load_model(other, device)
                pack_for_inference(other_model)
                other_segmenter = load_segmenter_of(find_model(other))
                members.append(Member(str(other), other_model, other_tokenizer, other_segmenter))
            model, segmenter = build_ensemble(members)
        translator = cls(model, tokenizer, config, segmenter=segmenter)
        return translator.with_options(**options) if options else translator

    def with_options(self, **options: Any) -> Translator:
        """A translator with the same model and other default options; phrases added to either are added to both."""
        translator = copy(self)
        translator.config = self._configured(options)
        return translator

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, with the phrases that were added."""
        return self._tokenizers[0]

    @property
    def is_ensemble(self) -> bool:
        """Whether several models translate together."""
        return isinstance(self.model, Ensemble)

    def first_model(self) -> Translator:
        """The first model of an ensemble alone; this translator if it has one model."""
        if not self.is_ensemble:
            return self
        first = self.model.models[0]
        segmenter = self.segmenter if needs_phrases(first) else None
        return Translator(first, self.tokenizer, self.config, segmenter=segmenter)

    def add_phrases(self, path: str | Path) -> Added:
        """Add the phrases of a file to the output (`decoding/added_phrases.py`); returns their numbers.

        Raises UsageError for an ensemble, and as `add_phrases` there.
        """
        if self.is_ensemble:
            raise UsageError(
                "phrases cannot be added to an ensemble", hint="translate with one model, without --ensemble"
            )
        self._tokenizers[0], added = add_phrases(self.model, self.tokenizer, path)
        return added

    def set_gate(
        self, *, score: GateScore | None = None, phrase_odds: float | None = None, weight: float | None = None
    ) -> None:
        """Change how the gate weighs words and phrases; None leaves it as it is.

        `score`: see `outputs/continuous.py`; it changes each model in memory that has a gate. `phrase_odds` and `weight` are
        the options `phrase_odds` and `gate_weight` of this translator. Raises ModelError for a model without a fertility
        module, ConfigError for a number out of range.
        """
        given = {"phrase_odds": phrase_odds, "gate_weight": weight}
        self._require_gate()
        if score is not None:
            for model in filter(_gate_of, _models(self.model)):
                model.output.score = score
        self.config = self._configured({name: value for name, value in given.items() if value is not None})

    def _require_gate(self) -> None:
        """Raise ModelError if no model has a gate."""
        if not any(map(_gate_of, _models(self.model))):
            hint = "phraseloom fertility train adds one to a model with output: {kind: word_or_phrase}"
            raise ModelError("this model has no gate between words and phrases", hint=hint)

    def _configured(self, options: dict[str, Any]) -> DecodingConfig:
        """The options with some replaced. Raises ConfigError, and ModelError for options of a gate that is not there."""
        if options.keys() & {"phrase_odds", "gate_weight"}:
            self._require_gate()
        return _with(self.config, options)

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

    def read_terms(self, path: str | Path) -> Terms:
        """A table of terms for `translate` (`decoding/terms.py`).

        Raises UsageError for a model that takes no constraints; FileProblem; DataError (file, line) for a bad row, and for a
        phrase that the vocabulary cannot spell.
        """
        check_model(self.model, self.config)
        return check_terms(self.tokenizer, Terms.read(path, self.tokenizer.target.normaliser.detokenise))

    def check(self, config: DecodingConfig | None = None, *, alignments: bool = False) -> dict[str, str] | None:
        """Check that `config` fits the model and return its lexicon. Raises as `lexicon`, and UsageError for an attention
        that the model lacks, for a tag that it lacks, for sampling or `no_repeat_ngram_size` with a segmental model, or for a
        word bonus with any other."""
        config = config or self.config
        lexicon = self.lexicon(config)
        self.tokenizer.tag_ids(config.tags)
        writer_of(self.model).check(self.model, config, aligned=alignments or lexicon is not None)
        return lexicon

    @property
    def needs_trees(self) -> bool:
        """Whether the source phrases of the model come from parse trees."""
        return self.segmenter is not None and self.segmenter.needs_trees

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
        constraints: Sequence[Constraints | Mapping[str, Any] | str | None] | None = None,
        terms: Terms | Sequence[Terms | None] | None = None,
        alignments: bool = False,
        seeds: Sequence[int] | None = None,
        numbers: Sequence[int] | None = None,
        report: TranslationReport | None = None,
        should_cancel: ShouldCancel | None = None,
        **options: Any,
    ) -> list[Translation]:
        """The translation of each line, in order; a blank line gives a blank translation without the model.

        `prefixes`: the forced prefix of each translation ("" for none); it may have unknown words. `trees`: the bracketed
        parse tree of each line ("" for none), for a model that needs trees. `constraints`: the phrases that each translation
        must and must not contain (`decoding/constraints.py`); `terms`: more of them, from one table (`read_terms`,
        `Terms.of`), or from a table for each line. `alignments`: also link words and phrases. `report`: collects counts;
        without one, warnings are logged. `should_cancel`: called at each step of the search by every thread, and before each
        line, or 5,000 characters of it, that is split into sentences; if it returns True, `translate` raises Cancelled. A
        sample depends on the seed of its line (`seeds`; default: the option `seed`) and its number (`numbers`; default: its
        index, or 0 with `seeds`).

        Raises UsageError, ConfigError, ModelError; DataError (line from 1) if a tree does not fit its line, for a prefix that
        is too long or belongs to a blank line, and for constraints that cannot be met.
        """
        lines = list_of_lines(lines, "lines to translate")
        prefixes = None if prefixes is None else list_of_lines(prefixes, "prefixes")
        trees = None if trees is None else list_of_lines(trees, "trees")
        seeds = None if seeds is None else list(seeds)
        config = self._configured(options)
        for what, values in (("prefixes", prefixes), ("seeds", seeds), ("numbers", numbers)):
            if values is not None and len(values) != len(lines):
                raise UsageError(f"{plural(len(lines), 'line')}, but {len(values)} {what}")
        in_input = range(len(lines)) if numbers is None else numbers
        drawn = [0] * len(lines) if numbers is None and seeds is not None else in_input
        for what, values, least in (("seeds", seeds, 0), ("numbers", numbers, None)):
            _check_integers(what, values or (), least)
        sample_seeds = list(map(SampleSeed, seeds or [config.seed] * len(lines), drawn))
        counts = TranslationReport() if report is None else report
        required = None if constraints is None and terms is None else (constraints, terms, in_input)
        if config.split_sentences:
            if prefixes is not None or trees is not None or required is not None or config.n_best > 1:
                raise UsageError("split_sentences: not with prefixes, trees, constraints, terms or n_best above 1")
            result = self._translate_sentences(lines, sample_seeds, config, alignments, should_cancel)
        else:
            result = self._translate(lines, prefixes, trees, required, sample_seeds, config, alignments, should_cancel)
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
        self,
        lines: list[str],
        sample_seeds: Sequence[SampleSeed],
        config: DecodingConfig,
        alignments: bool,
        should_cancel: ShouldCancel | None,
    ) -> list[Translation]:
        """The translation of each line, sentence by sentence."""
        splitter, split = self.sentence_splitter(), []
        for line in lines:
            split.append(splitter(line, lambda: raise_if_cancelled(should_cancel)))
        sentences = [sentence for own, _ in split for sentence in own]
        seeds = [
            seed._replace(part=number * PARTS)
            for (own, _), seed in zip(split, sample_seeds, strict=True)
            for number in range(len(own))
        ]
        translations = iter(self._translate(sentences, None, None, None, seeds, config, alignments, should_cancel))
        side, blank, language = self.tokenizer.source, _blank(config, alignments), self.tokenizer.target.language
        return [
            join_sentences(side, own, gaps, list(islice(translations, len(own))), blank, language=language)
            for own, gaps in split
        ]

    def translate_iterable(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        trees: Iterable[str] | None = None,
        constraints: Iterable[Any] | None = None,
        terms: Terms | None = None,
        **options: Any,
    ) -> Iterator[Translation]:
        """Translations of any number of lines in bounded memory, `window` lines at a time; see `translate`.

        `prefixes`, `trees` and `constraints` are read as far as the lines are. UsageError if they have fewer or more items than
        there are lines, for `seeds` and `numbers`, and for several tables of terms.
        """
        given: dict[str, Any] = {"prefixes": prefixes, "trees": trees, "constraints": constraints}
        refuse_one_string(lines, "lines to translate")
        for what, values in given.items():
            if values is not None:
                refuse_one_string(values, what)
        for name in options.keys() & {"seeds", "numbers"}:
            raise UsageError(f"translate_iterable takes no {name}: it numbers the lines", hint="use translate, or seed")
        if terms is not None and not isinstance(terms, Terms):
            raise UsageError("translate_iterable takes one table of terms for all lines", hint="use translate")
        size = _with(self.config, _of_config(options)).window
        by_line = {name: iter(value) for name, value in given.items() if value is not None}
        return self._translate_iterable(iter(lines), by_line, size, {"terms": terms, **options})

    def _translate_iterable(
        self, lines: Iterator[str], by_line: dict[str, Iterator[Any]], size: int, options: dict[str, Any]
    ) -> Iterator[Translation]:
        number, report = 0, options.get("report")
        counts = TranslationReport() if report is None else report
        options = {**options, "report": counts}
        while window := list_of_lines(islice(lines, size), "lines to translate", first=number + 1):
            own: dict[str, Any] = {name: list(islice(items, len(window))) for name, items in by_line.items()}
            for name, items in own.items():
                if len(items) < len(window):
                    raise UsageError(f"{number + len(items)} {name}, but there are more lines")
            try:
                found = self.translate(window, numbers=range(number, number + len(window)), **own, **options)
            except DataError as error:
                if error.file not in by_line or error.line is None:
                    raise
                raise DataError(error.what, file=error.file, line=number + error.line, hint=error.hint) from error
            yield from found
            number += len(window)
        for name, more in by_line.items():
            if any(True for _ in more):
                raise UsageError(f"{plural(number, 'line')}, but more {name}")
        if report is None:
            for warning in counts.warnings(_with(self.config, _of_config(options)).max_input_tokens):
                logger.warning(warning)

    def stream(
        self,
        line: str,
        *,
        prefix: str = "",
        tree: str | None = None,
        number: int = 0,
        alignments: bool = False,
        should_cancel: ShouldCancel | None = None,
        **options: Any,
    ) -> Generator[str, None, Translation]:
        """Yield the translation of one line in pieces of text while it is written, by greedy search or as one sample.

        The pieces join to the text of `translate` with `beam=1`; the generator returns the whole Translation. Closing it ends
        the search and frees its memory. The model's own `beam`, `n_best` and `mbr` do not count; `number` is the one of
        `translate`. Raises UsageError for options that need the whole output (`decoding/streaming.py`), otherwise as
        `translate`.
        """
        if not isinstance(line, str):
            raise UsageError(
                f"stream takes one line, not {type(line).__name__}", hint="use translate_iterable for several lines"
            )
        [line] = list_of_lines([line], "lines to translate")
        config = self._configured({"beam": 1, "n_best": 1, "mbr": 0, **options})
        check_stream(self.model, config)
        prefixes, trees = ([prefix] if prefix else None), None if tree is None else [tree]
        lexicon = self.check(config, alignments=alignments)
        assert lexicon is None
        ids, cut = self._cut([line], prefixes, trees, [SampleSeed(config.seed, number)], config)
        return self._stream(line, ids[0], cut[0], config, alignments, should_cancel)

    def _stream(
        self,
        line: str,
        ids: list[int],
        pieces: list[Piece],
        config: DecodingConfig,
        alignments: bool,
        should_cancel: ShouldCancel | None,
    ) -> Generator[str, None, Translation]:
        results: list[PieceResult] = []
        for piece in pieces:
            if results and (space := space_of(self.tokenizer.target.language)):
                yield space
            result = yield from stream_piece(
                self.model,
                self.tokenizer,
                piece,
                config,
                device=self.device,
                alignments=alignments,
                should_cancel=should_cancel,
            )
            results.append(result)
        if not pieces:
            return BLANK_ALIGNED if alignments else BLANK
        cropped = len(ids) > config.max_input_tokens and config.long_lines == "crop"
        return join_parts(self.tokenizer, line, pieces, results, cropped=cropped)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, trees: Sequence[str] | None = None, **options: Any
    ) -> list[Score]:
        """The log-probability of each target given its source, computed as `translate` does for the same subwords.

        A line above the limit is cropped, and its score has `cropped` (`decoding/long_lines.py`). `trees`: see `translate`.
        Raises UsageError if the numbers of lines differ, ConfigError, ModelError, DataError.
        """
        config = self._configured(options)
        if config.word_bonus:
            writer_of(self.model).check(self.model, config, aligned=False)
        sources, targets = list_of_lines(sources, "sources"), list_of_lines(targets, "targets")
        trees = None if trees is None else list_of_lines(trees, "trees")
        if len(sources) != len(targets):
            raise UsageError(f"{len(sources)} sources, but {len(targets)} targets")
        translator = Translator(self.model, self.tokenizer, config, segmenter=self.segmenter)
        source_ids, phrases, cropped_source = cropped_sources(translator, sources, trees)
        target_ids, cropped_target = crop_targets(translator, targets)
        cropped = map(or_, cropped_source, cropped_target)
        pairs = list(zip(source_ids, target_ids, strict=True))
        model = averaged(self.model, config.ensemble_mean)
        log_probs = score_pairs(model, pairs, config, self.device, phrases)
        piece, penalty = self.tokenizer.target.vocabulary.piece, build_penalty(config.length_penalty)
        return [
            Score.of(token_log_probs, [piece(i) for i in ids], penalty, is_cropped, word_bonus=config.word_bonus)
            for token_log_probs, (_, ids), is_cropped in zip(log_probs, pairs, cropped, strict=True)
        ]

    def _cut(
        self,
        lines: list[str],
        prefixes: Sequence[str] | None,
        trees: Sequence[str] | None,
        sample_seeds: Sequence[SampleSeed],
        config: DecodingConfig,
    ) -> tuple[list[list[int]], list[list[Piece]]]:
        """The subword ids of each line, and its pieces for the model, with forced prefixes, source phrases and seeds."""
        side, limit = self.tokenizer.source, config.max_input_tokens
        needs_whole_lines = self.segmenter is not None or config.long_lines == "split"
        ids = side.encode_batch(lines) if needs_whole_lines else encode(side, lines, limit)
        cut = [
            cut_text(number, line, own, side, limit=limit, how=config.long_lines)
            for number, (line, own) in enumerate(zip(lines, ids, strict=True))
        ]
        phrases = self.phrases_of(lines, ids, trees)
        if phrases is not None:
            cut = [with_phrases(line, sizes) for line, sizes in zip(cut, phrases, strict=True)]
        if prefixes is not None:
            cut = with_prefixes(self.tokenizer.target, cut, prefixes)
        cut = [
            [replace(piece, seed=seed._replace(part=seed.part + part)) for part, piece in enumerate(line)]
            for line, seed in zip(cut, sample_seeds, strict=True)
        ]
        if tags := self.tokenizer.tag_ids(config.tags):
            cut = [[replace(piece, ids=[*tags, *piece.ids], tags=len(tags)) for piece in line] for line in cut]
        if prefixes is not None:
            size = self.model.max_segment if self.model.writes == "segments" else None
            refuse_long_prefixes([line[0] for line in cut if line], config.max_target_tokens, size)
        return ids, cut

    def _translate(
        self,
        lines: list[str],
        prefixes: Sequence[str] | None,
        trees: Sequence[str] | None,
        required: tuple[Sequence[Any] | None, Terms | Sequence[Terms | None] | None, Sequence[int]] | None,
        sample_seeds: Sequence[SampleSeed],
        config: DecodingConfig,
        alignments: bool,
        should_cancel: ShouldCancel | None,
    ) -> list[Translation]:
        limit = config.max_input_tokens
        lexicon = self.check(config, alignments=alignments)
        ids, cut = self._cut(lines, prefixes, trees, sample_seeds, config)
        constraints: list[Constraints] = []
        if required is not None:
            check_model(self.model, config)
            own, terms, numbers = required
            cut, constraints = with_constraints(self.tokenizer, lines, cut, own, terms, config, numbers)
        pieces = [piece for line in cut for piece in line]
        workers = num_workers(config.workers, self.device)
        batches = _plan(pieces, config, workers)

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
        blank = _blank(config, alignments)
        translations = [
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
        return list(map(checked, translations, constraints)) if constraints else translations


def _blank(config: DecodingConfig, alignments: bool) -> Translation:
    """The translation of a blank line, with the fields of the others."""
    blank = BLANK_ALIGNED if alignments else BLANK
    return replace(blank, replaced=[]) if config.unknown == "replace" else blank


def _plan(pieces: Sequence[Piece], config: DecodingConfig, workers: int) -> list[list[int]]:
    """Batches of piece numbers. Pieces with constraints have batches of their own, with fewer sentences for a wider beam."""
    batches: list[list[int]] = []
    for is_constrained in (False, True):
        numbers = [i for i, piece in enumerate(pieces) if (piece.tracker is not None) == is_constrained]
        beams = [piece.tracker.width(config.beam) for piece in pieces if piece.tracker is not None]
        widest = max(beams, default=1) if is_constrained else config.beam
        planned = plan_batches(
            [len(pieces[i].ids) + 1 for i in numbers],
            sentences=max(1, config.sentences_together * config.beam // widest),
            tokens=config.batch_tokens,
            workers=workers,
        )
        batches += [[numbers[i] for i in batch] for batch in planned]
    return batches


def _models(model: Any) -> Sequence[Any]:
    return model.models if isinstance(model, Ensemble) else [model]


def _gate_of(model: Any) -> Fertility | None:
    """The fertility module that weighs words and phrases; None if the model has no gate."""
    is_gated = isinstance(getattr(model, "output", None), WordOrPhraseOutput)
    return getattr(model, "fertility", None) if is_gated else None


def _check_integers(what: str, values: Sequence[Any], least: int | None) -> None:
    for number, value in enumerate(values, start=1):
        if not hasattr(value, "__index__") or (least is not None and value < least):
            raise UsageError(f"{what}: item {number} is {value!r}, not a whole number" + " from 0" * (least == 0))


def _of_config(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in DecodingConfig.model_fields}


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
