"""The served models: their descriptions, and the work on a batch of texts. No HTTP here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from phraseloom.analysis.explain.model import describe
from phraseloom.analysis.explain.sentence import MAX_MODELS, explain
from phraseloom.decoding.batching import cut_text
from phraseloom.decoding.cancellation import ShouldCancel, raise_if_cancelled
from phraseloom.decoding.constraint_tracker import beam_width
from phraseloom.decoding.constraints import Constraints
from phraseloom.decoding.terms import Terms
from phraseloom.decoding.translation import TranslationReport
from phraseloom.errors import DataError, UsageError
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.batcher import POSTPONED
from phraseloom.serving.message import Problem, Reply, json_reply, plain


class TranslateKey(NamedTuple):
    """What all texts of a batch have in common."""

    model: str
    beam: int
    n_best: int
    long_lines: Literal["crop", "split"]
    alignments: bool
    options: tuple[tuple[str, Any], ...] = ()
    """Further fields of `DecodingConfig` that the request has."""
    tags: tuple[str, ...] = ()
    split_sentences: bool = False


class StreamKey(NamedTuple):
    """A translation that is streamed, alone in its batch; `number` tells two of them apart."""

    translate: TranslateKey
    number: int


class ExplainKey(NamedTuple):
    """An explanation; `number` tells two of them apart."""

    models: tuple[str, ...]
    beam: int | None
    number: int
    tags: tuple[str, ...] = ()


class RequestText(NamedTuple):
    """A text to translate, the forced prefix of its translation ("" for none), its parse tree ("" for none), its constraints
    and its terms.

    Samples depend on `seed` (None: the model's) and on `number`, that of the text in its request.
    """

    text: str
    prefix: str
    tree: str
    constraints: Constraints | None = None
    seed: int | None = None
    number: int = 0
    terms: Terms | None = None


class StreamText(NamedTuple):
    """A text whose translation goes to `send`, called in the worker thread, piece by piece."""

    text: RequestText
    send: Callable[[str], None]


class Measure(NamedTuple):
    """Subwords of a prefix, and the most steps of the search: `rows` searched together times longest output, over all parts."""

    prefix_tokens: int
    steps: int
    rows: int = 1


class Sources(NamedTuple):
    """Texts to explain, with their translations, references, prefixes and trees."""

    texts: list[str]
    targets: list[str] | None
    references: list[str] | None
    prefixes: list[str] | None
    trees: list[str] | None


def _description(translator: Any) -> str:
    """The model in one line; of an ensemble, its first model."""
    text = describe(translator.first_model().model)
    return f"an ensemble of {len(translator.model.models)} models: {text}" if translator.is_ensemble else text


class Models:
    """Translators by name; the first is the default. `terms`: by name, the table of requests that have none of their own.

    Raises UsageError if the options of a model are above a limit, or do not go with its terms.
    """

    def __init__(
        self, translators: Mapping[str, Any], config: ServingConfig, *, terms: Mapping[str, Terms] | None = None
    ) -> None:
        self.config = config
        self._translators = dict(translators)
        self._terms = dict(terms or {})
        for name, translator in self._translators.items():
            limits = (("beam", config.max_beam), ("n_best", config.max_n_best), ("mbr", config.max_mbr))
            for option, limit in limits:
                if (own := getattr(translator.config, option)) > limit:
                    raise UsageError(
                        f"{name}: its {option} {own} is above the limit {limit}",
                        hint=f"serve with --max-{option.replace('_', '-')} {own}",
                    )
            if name in self._terms and translator.config.split_sentences:
                raise UsageError(f"{name}: it splits sentences (split_sentences), and terms need whole texts")
        self.names = list(self._translators)
        self._about = [self._describe(name) for name in self.names]

    def __getitem__(self, name: str) -> Any:
        return self._translators[name]

    def terms(self, name: str) -> Terms | None:
        """The server's own terms for a model."""
        return self._terms.get(name)

    @property
    def most_explained(self) -> int:
        """The most models that an explanation shows side by side."""
        return min(MAX_MODELS, len(self.names))

    def needs_trees(self, name: str) -> bool:
        """Whether a model takes its source phrases from parse trees."""
        return self[name].needs_trees

    def cannot_split(self, name: str) -> str | None:
        """Why a model cannot split texts into sentences; None if it can."""
        try:
            self[name].sentence_splitter()
        except UsageError as error:
            return error.what
        return None

    def about(self) -> list[dict[str, Any]]:
        """Every model: name, parameters, description, languages, default options, abilities."""
        return self._about

    def _describe(self, name: str) -> dict[str, Any]:
        translator = self[name]
        return {
            "name": name,
            "parameters": sum(p.numel() for p in translator.model.parameters()),
            "description": _description(translator),
            "models": len(translator.model.models) if translator.is_ensemble else 1,
            "languages": [translator.tokenizer.source.language, translator.tokenizer.target.language],
            "beam": translator.config.beam,
            "n_best": translator.config.n_best,
            "max_tokens": min(translator.config.max_input_tokens, self.config.max_tokens),
            "long_lines": translator.config.long_lines,
            "alignments": translator.can_align,
            "trees": self.needs_trees(name),
            "joined": translator.tokenizer.target.joined,
            "tags": list(translator.tokenizer.tags),
            "terms": len(self._terms[name].terms) if name in self._terms else 0,
        }

    def warm_up(self) -> None:
        """Translate once with each model, so that a broken model fails at the start."""
        for name in self.names:
            if not self.needs_trees(name):
                self[name].translate(["a"], max_length={"factor": 0.0, "constant": 2}, report=TranslationReport())

    def work(
        self, key: TranslateKey | StreamKey | ExplainKey, items: Sequence[Any], should_cancel: ShouldCancel
    ) -> Sequence[Any]:
        """The translation of each `RequestText` or `StreamText` as plain data, or the explanation of each `Sources` as a reply.

        Raises Cancelled soon after `should_cancel` returns true.
        """
        if isinstance(key, ExplainKey):
            return [self._explain(key, sources, should_cancel) for sources in items]
        if isinstance(key, StreamKey):
            return [self._stream(key.translate, item, should_cancel) for item in items]
        return self._translate(key, items, should_cancel)

    def _measure(
        self, key: TranslateKey, texts: Sequence[RequestText], should_cancel: ShouldCancel | None = None
    ) -> list[Measure]:
        """The length of each prefix, and the most steps of each text. Raises Cancelled between two texts."""
        translator = self[key.model]
        source, target, config = translator.tokenizer.source, translator.tokenizer.target, translator.config
        limit = min(config.max_input_tokens, self.config.max_tokens)
        result = []
        splitter = translator.sentence_splitter() if key.split_sentences else None
        for number, text in enumerate(texts):
            raise_if_cancelled(should_cancel)
            prefix = len(target.encode(text.prefix))
            parts = [text.text] if splitter is None else splitter(text.text)[0]
            pieces = [
                piece
                for part, ids in zip(parts, source.encode_batch(parts), strict=True)
                for piece in cut_text(number, part, ids, source, limit=limit, how=key.long_lines)
            ]
            lengths = [config.max_length.of(len(key.tags) + len(piece.ids)) for piece in pieces]
            if lengths:
                lengths[0] = max(lengths[0], prefix)
            rows = self._rows(key, text)
            result.append(Measure(prefix, rows * sum(lengths), rows))
        return result

    def _rows(self, key: TranslateKey, text: RequestText) -> int:
        """The hypotheses or samples of a text that are searched together; more of them with constraints."""
        config, options = self[key.model].config, dict(key.options)
        mbr, sample = options.get("mbr", config.mbr), options.get("sample", config.sample)
        rows = int(mbr or (key.n_best if sample else key.beam))
        tokenizer, matches = self[key.model].tokenizer, []
        if text.terms is not None:
            matches = text.terms.fitted(tokenizer).matches(tokenizer.source.characters(text.text))
        if text.constraints is None and not matches:
            return rows
        own = text.constraints or Constraints()
        encode = tokenizer.target.encode
        required = {*own.include, *(term.target for term in matches)}
        return beam_width(rows, sum(len(encode(phrase)) for phrase in required), own)

    def _translate(self, key: TranslateKey, texts: Sequence[RequestText], should_cancel: ShouldCancel) -> list[Any]:
        """Translate the texts that fit into `batch_steps`; the first always runs, unless it exceeds the limit alone."""
        results: list[Any] = [POSTPONED] * len(texts)
        chosen, left = [], self.config.batch_steps
        for number, measure in enumerate(self._measure(key, texts, should_cancel)):
            if problem := self._refusal(measure):
                results[number] = problem
            elif measure.steps <= left:
                chosen.append(number)
                left -= measure.steps
        if chosen:
            translations = self._translate_all(key, [texts[n] for n in chosen], should_cancel)
            for number, translation in zip(chosen, translations, strict=True):
                results[number] = translation
        return results

    def _refusal(self, measure: Measure) -> UsageError | None:
        """The error of a text above a limit."""
        if measure.prefix_tokens > self.config.max_prefix_tokens:
            return UsageError(f"prefix: {self._too_long(measure.prefix_tokens)}")
        if measure.steps > self.config.batch_steps:
            return UsageError(
                f"{measure.steps} steps of search ({measure.rows} hypotheses of up to {measure.steps // measure.rows} subwords)"
                f" are above the limit of this server, batch_steps = {self.config.batch_steps}: send a shorter text or ask for"
                " a narrower beam"
            )
        return None

    def _stream(self, key: TranslateKey, item: StreamText, should_cancel: ShouldCancel) -> dict[str, Any]:
        """Send the translation piece by piece, and return the whole."""
        translator, text = self[key.model], item.text
        [measure] = self._measure(key, [text], should_cancel)
        if problem := self._refusal(measure):
            raise problem
        pieces = translator.stream(
            text.text,
            prefix=text.prefix,
            tree=text.tree if self.needs_trees(key.model) else None,
            number=text.number,
            alignments=key.alignments,
            should_cancel=should_cancel,
            long_lines=key.long_lines,
            max_input_tokens=min(translator.config.max_input_tokens, self.config.max_tokens),
            tags=list(key.tags),
            split_sentences=key.split_sentences,
            **({} if text.seed is None else {"seed": text.seed}),
            **dict(key.options),
        )
        while True:
            try:
                item.send(next(pieces))
            except StopIteration as end:
                translation: dict[str, Any] = plain(end.value.as_dict())
                return translation

    def _too_long(self, count: int) -> str:
        return (
            f"{count} subwords are above the limit of this server, max_prefix_tokens = {self.config.max_prefix_tokens}"
        )

    def _translate_all(
        self, key: TranslateKey, texts: Sequence[RequestText], should_cancel: ShouldCancel
    ) -> list[dict[str, Any]]:
        translator = self[key.model]
        beside: dict[str, Any] = {"constraints": [t.constraints for t in texts], "terms": [t.terms for t in texts]}
        translations = translator.translate(
            [t.text for t in texts],
            prefixes=[t.prefix for t in texts] if any(t.prefix for t in texts) else None,
            trees=[t.tree for t in texts] if self.needs_trees(key.model) else None,
            **{name: values for name, values in beside.items() if any(value is not None for value in values)},
            alignments=key.alignments,
            seeds=[translator.config.seed if t.seed is None else t.seed for t in texts],
            numbers=[t.number for t in texts],
            report=TranslationReport(),
            should_cancel=should_cancel,
            beam=key.beam,
            n_best=key.n_best,
            long_lines=key.long_lines,
            tags=list(key.tags),
            split_sentences=key.split_sentences,
            max_input_tokens=min(translator.config.max_input_tokens, self.config.max_tokens),
            **dict(key.options),
        )
        return [plain(translation.as_dict()) for translation in translations]

    def _explain(self, key: ExplainKey, sources: Sources, should_cancel: ShouldCancel) -> Reply:
        """The reply is made here and not in the server thread, because a document may take megabytes."""
        is_single = len(sources.texts) == 1
        for name in key.models if sources.prefixes else ():
            for number, ids in enumerate(self[name].tokenizer.target.encode_batch(sources.prefixes), 1):
                if len(ids) > self.config.max_prefix_tokens:
                    place = "prefix" if is_single else f"prefix {number}"
                    return Problem(400, f"{place}: {self._too_long(len(ids))}").reply()
        try:
            document = explain(
                {name: self._explained(name, key, sources) for name in key.models},
                sources.texts,
                sources.targets,
                references=sources.references,
                prefixes=sources.prefixes,
                trees=sources.trees,
                max_tokens=min(self.config.explain_tokens, self.config.max_tokens),
                should_cancel=should_cancel,
            )
        except (UsageError, DataError) as error:
            place = "" if is_single or error.line is None else f"text {error.line}: "
            return Problem(400, place + error.what).reply()
        return json_reply(document)

    def _explained(self, name: str, key: ExplainKey, sources: Sources) -> Any:
        """The translator of an explanation. As in `/translate`, it translates texts with a prefix or a tree as a whole."""
        options: dict[str, Any] = {} if key.beam is None else {"beam": key.beam, "n_best": 1}
        if key.tags:
            options["tags"] = list(key.tags)
        if sources.prefixes is not None or (sources.trees is not None and self.needs_trees(name)):
            options["split_sentences"] = False
        return self[name].with_options(**options)
