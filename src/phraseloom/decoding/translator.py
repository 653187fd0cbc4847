"""From lines to translations: the Python interface `Translator.from_pretrained(folder).translate([...])`.

Lines are cut into pieces the model can take, sorted by length, translated in batches by as many threads as there are
cores, and put back into their order. A translation does not depend on the lines around it.
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
from phraseloom.decoding.cancellation import Question
from phraseloom.decoding.long_lines import crop_targets, encode, refuse_long_prefixes
from phraseloom.decoding.parts import Found, join_parts
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.piece_search import search_pieces, with_prefixes
from phraseloom.decoding.scoring import Score, score_pairs
from phraseloom.decoding.search import writer_of
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
    """A model with its tokenizer and decoding options; a model that reads phrases of its training data also has a segmenter.

    `config` gives the defaults; every method takes the fields of `DecodingConfig` as keywords over them.
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

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str | torch.device = "cpu", **options: Any) -> Translator:
        """Load a model folder, a run folder (its best checkpoint) or a checkpoint; every file is verified.

        `options` stand over the `generation_config.json` of the model. Raises FileProblem, CorruptError, ModelError,
        ConfigError.
        """
        from phraseloom.models.store import GENERATION, find_model, load_model, load_segmenter_of

        found = find_model(folder)
        model, tokenizer, generation = load_model(found, device)
        pack_for_inference(model)
        config = validate(DecodingConfig, generation, file=found / GENERATION)
        return cls(model, tokenizer, _with(config, options), segmenter=load_segmenter_of(found))

    def with_options(self, **options: Any) -> Translator:
        """The same model with other default options."""
        return Translator(self.model, self.tokenizer, _with(self.config, options), segmenter=self.segmenter)

    def add_phrases(self, path: str | Path) -> Added:
        """Let the output also be the phrases of a file (`decoding/added_phrases.py`); how many were new."""
        self.tokenizer, added = add_phrases(self.model, self.tokenizer, path)
        return added

    @property
    def can_align(self) -> bool:
        """Whether the model attends to source tokens or emits segments, so that there are alignments."""
        return writer_of(self.model).can_align(self.model)

    def lexicon(self, config: DecodingConfig | None = None) -> dict[str, str] | None:
        """What unknown words are translated by: empty where no lexicon is named, None where they are not replaced.

        Raises ModelError where the model attends to nothing, FileProblem, DataError (file, line).
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
        """The lexicon of `config`, once it is found to fit the model. Raises as `lexicon`, and UsageError for an attention
        that the model does not have."""
        config = config or self.config
        lexicon = self.lexicon(config)
        writer_of(self.model).check(self.model, config, aligned=alignments or lexicon is not None)
        return lexicon

    def require_trees(self, given: bool) -> None:
        """UsageError unless parse trees are given exactly where the phrases of the model are made of them."""
        require_trees(self.model, self.segmenter, given)

    def phrases_of(
        self, lines: Sequence[str], ids: list[list[int]], trees: Sequence[str] | None = None
    ) -> list[list[int]] | None:
        """The sizes of the source phrases of each line, given its subword ids; None for a model that needs none.

        Raises UsageError (see `require_trees`), DataError where a tree does not fit its line (line from 1).
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
        cancelled: Question | None = None,
        **options: Any,
    ) -> list[Translation]:
        """The translation of each line, in order; a blank line gives a blank translation without the model.

        `prefixes`: text that the translation of each line must begin with ("" for none), also where the
        vocabulary does not know it. `trees`: the bracketed parse tree of
        each line ("" for none), for a model whose phrases are made of trees. `alignments`: also link words and phrases.
        `report`: counts are added to it; without one, lines that were cropped, split or cut are logged as warnings.
        `cancelled` is asked at each step of the search, by each of its threads: where it says so, Cancelled is raised.
        Raises UsageError, ConfigError, ModelError; DataError where a tree does not fit its line (line from 1).
        """
        lines = list_of_lines(lines, "lines to translate")
        prefixes = None if prefixes is None else list_of_lines(prefixes, "prefixes")
        trees = None if trees is None else list_of_lines(trees, "trees")
        config = _with(self.config, options)
        if prefixes is not None and len(prefixes) != len(lines):
            raise UsageError(f"{plural(len(lines), 'line')}, but {len(prefixes)} prefixes")
        counts = TranslationReport() if report is None else report
        result = self._translate(lines, prefixes, trees, config, alignments, cancelled)
        for translation in result:
            counts.add(translation)
        if report is None:
            for warning in counts.warnings(config.max_input_tokens):
                logger.warning(warning)
        return result

    def stream(
        self, lines: Iterable[str], *, trees: Iterable[str] | None = None, **options: Any
    ) -> Iterator[Translation]:
        """Translations of an endless supply of lines in bounded memory, `window` lines at a time; see `translate`."""
        for name, value in (("lines to translate", lines), ("trees", trees)):
            if value is not None and (isinstance(value, str | bytes) or not isinstance(value, Iterable)):
                list_of_lines(value, name)  # an error now, not at the first line
        size = _with(self.config, {k: v for k, v in options.items() if k in DecodingConfig.model_fields}).window
        return self._stream(iter(lines), None if trees is None else iter(trees), size, options)

    def _stream(
        self, remaining: Iterator[str], of_lines: Iterator[str] | None, size: int, options: dict[str, Any]
    ) -> Iterator[Translation]:
        while window := list(islice(remaining, size)):
            of_window = None if of_lines is None else list(islice(of_lines, len(window)))
            yield from self.translate(window, trees=of_window, **options)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], *, trees: Sequence[str] | None = None, **options: Any
    ) -> list[Score]:
        """The log-probability of each target given its source, as `translate` would count it for the same subwords.

        A line that is too long is cropped, and its score says so (`decoding/parts.py`).
        `trees` as in `translate`. Raises UsageError where the numbers of lines differ, ConfigError, ModelError, DataError.
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
        cancelled: Question | None,
    ) -> list[Translation]:
        side, limit = self.tokenizer.source, config.max_input_tokens
        lexicon = self.check(config, alignments=alignments)
        whole = self.segmenter is not None or config.long_lines == "split"
        ids = side.encode_batch(lines) if whole else encode(side, lines, limit)
        of_line = [cut_line(n, i, side.word_of_piece, limit=limit, how=config.long_lines) for n, i in enumerate(ids)]
        phrases = self.phrases_of(lines, ids, trees)
        if phrases is not None:
            of_line = [with_phrases(some, sizes) for some, sizes in zip(of_line, phrases, strict=True)]
        if prefixes is not None:
            of_line = with_prefixes(self.tokenizer.target, of_line, prefixes)
            refuse_long_prefixes([some[0].prefix if some else () for some in of_line], config.max_target_tokens)
        pieces = [piece for some in of_line for piece in some]
        workers = num_workers(config.workers, self.device)
        batches = plan_batches(
            [len(p.ids) + 1 for p in pieces],
            sentences=config.sentences_together,
            tokens=config.batch_tokens,
            workers=workers,
        )

        def work(batch: list[int]) -> list[Found]:
            some, device = [pieces[i] for i in batch], self.device
            return search_pieces(
                self.model, self.tokenizer, some, config, device=device, alignments=alignments, cancelled=cancelled
            )

        found: dict[int, list[Found]] = {}
        done: dict[int, Found] = {}
        for batch, part in zip(batches, map_batches(work, batches, workers=workers), strict=True):
            done.update(zip(batch, part, strict=True))
        for number, piece in enumerate(pieces):
            found.setdefault(piece.line, []).append(done[number])
        blank = BLANK_ALIGNED if alignments else BLANK
        blank = blank if lexicon is None else replace(blank, replaced=[])
        return [
            join_parts(
                self.tokenizer,
                line,
                of_line[n],
                found[n],
                cropped=len(ids[n]) > limit and config.long_lines == "crop",
                lexicon=lexicon,
            )
            if n in found
            else blank
            for n, line in enumerate(lines)
        ]


def _with(config: DecodingConfig, options: dict[str, Any]) -> DecodingConfig:
    """`config` with some fields replaced, checked again; ConfigError for an unknown or impossible one.

    A head is one of its layer: another `alignment_layer` without a head means the mean of its heads. Bounds of length given
    together have to leave room for an output.
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
