"""The models that are served: who they are, and the work on a batch of texts. No HTTP here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from phraseloom.analysis.explain.model import describe
from phraseloom.analysis.explain.sentence import MAX_MODELS, explain
from phraseloom.decoding.batching import cut_line
from phraseloom.decoding.translation import TranslationReport
from phraseloom.errors import UsageError
from phraseloom.options.serving import ServingConfig
from phraseloom.serving.batcher import POSTPONED
from phraseloom.serving.message import Problem, Reply, json_reply, plain


class TranslateKey(NamedTuple):
    """What texts that are translated together have in common."""

    model: str
    beam: int
    n_best: int
    long_lines: Literal["crop", "split"]
    alignments: bool


class ExplainKey(NamedTuple):
    """An explanation; `number` keeps two of them apart."""

    models: tuple[str, ...]
    beam: int | None
    number: int


class RequestText(NamedTuple):
    """A text to translate, what its translation begins with ("": anything), and its parse tree ("": none)."""

    text: str
    prefix: str
    tree: str


class Measure(NamedTuple):
    """Subwords of a prefix, and steps that the search may take: its beam times the longest output, over all parts."""

    prefix_tokens: int
    steps: int


class Sources(NamedTuple):
    """Texts to explain, and what may stand beside them."""

    texts: list[str]
    targets: list[str] | None
    references: list[str] | None
    prefixes: list[str] | None
    trees: list[str] | None


class Models:
    """Translators by name, the first one being the default. Raises UsageError where their own options pass a limit."""

    def __init__(self, translators: Mapping[str, Any], config: ServingConfig) -> None:
        self.config = config
        self._translators = dict(translators)
        for name, translator in self._translators.items():
            for option, limit in (("beam", config.max_beam), ("n_best", config.max_n_best)):
                if (own := getattr(translator.config, option)) > limit:
                    raise UsageError(
                        f"{name}: its {option} {own} is above the limit {limit}",
                        hint=f"serve with --max-{option.replace('_', '-')} {own}",
                    )
        self.names = list(self._translators)
        self._about = [self._describe(name) for name in self.names]

    def __getitem__(self, name: str) -> Any:
        return self._translators[name]

    @property
    def most_explained(self) -> int:
        """How many models an explanation can show side by side."""
        return min(MAX_MODELS, len(self.names))

    def needs_trees(self, name: str) -> bool:
        """Whether the source phrases of a model are made of parse trees."""
        segmenter = self[name].segmenter
        return segmenter is not None and segmenter.needs_trees

    def about(self) -> list[dict[str, Any]]:
        """Every model: name, parameters, what it is, languages, options unless told otherwise, what it can do."""
        return self._about

    def _describe(self, name: str) -> dict[str, Any]:
        translator = self[name]
        return {
            "name": name,
            "parameters": sum(p.numel() for p in translator.model.parameters()),
            "description": describe(translator.model),
            "languages": [translator.tokenizer.source.language, translator.tokenizer.target.language],
            "beam": translator.config.beam,
            "n_best": translator.config.n_best,
            "max_tokens": min(translator.config.max_input_tokens, self.config.max_tokens),
            "long_lines": translator.config.long_lines,
            "alignments": translator.can_align,
            "trees": self.needs_trees(name),
        }

    def warm_up(self) -> None:
        """One translation with each model, so that a model that cannot translate is found before anybody asks."""
        for name in self.names:
            if not self.needs_trees(name):
                self[name].translate(["a"], max_length={"factor": 0.0, "constant": 2}, report=TranslationReport())

    def work(
        self, key: TranslateKey | ExplainKey, items: Sequence[Any], cancelled: Callable[[], bool]
    ) -> Sequence[Any]:
        """The translation of each `RequestText` as plain data, or the explanation of each `Sources` as a reply.

        Raises Cancelled soon after `cancelled` is true.
        """
        if isinstance(key, ExplainKey):
            return [self._explain(key, sources, cancelled) for sources in items]
        return self._translate(key, items, cancelled)

    def _measure(self, key: TranslateKey, texts: Sequence[RequestText]) -> list[Measure]:
        """How long each prefix is, and how many steps each text may take."""
        translator = self[key.model]
        source, target, config = translator.tokenizer.source, translator.tokenizer.target, translator.config
        limit = min(config.max_input_tokens, self.config.max_tokens)
        prefixes = target.encode_batch([t.prefix for t in texts])
        result = []
        for number, ids in enumerate(source.encode_batch([t.text for t in texts])):
            prefix = len(prefixes[number])
            pieces = cut_line(number, ids, source.word_of_piece, limit=limit, how=key.long_lines)
            lengths = [config.max_length.of(len(piece.ids)) for piece in pieces]
            if lengths:
                lengths[0] = max(lengths[0], prefix)
            result.append(Measure(prefix, key.beam * sum(lengths)))
        return result

    def _translate(self, key: TranslateKey, texts: Sequence[RequestText], cancelled: Callable[[], bool]) -> list[Any]:
        """As many of the texts as `batch_steps` allows, the first one in any case unless it alone is above that."""
        results: list[Any] = [POSTPONED] * len(texts)
        chosen, left, most = [], self.config.batch_steps, self.config.batch_steps
        for number, (prefix, steps) in enumerate(self._measure(key, texts)):
            if prefix > self.config.max_prefix_tokens:
                results[number] = UsageError(f"prefix: {self._too_long(prefix)}")
            elif steps > most:
                results[number] = UsageError(
                    f"{steps} steps of search ({key.beam} hypotheses of up to {steps // key.beam} subwords) are above the "
                    f"limit of this server, batch_steps = {most}: send a shorter text or ask for a narrower beam"
                )
            elif steps <= left:
                chosen.append(number)
                left -= steps
        if chosen:
            found = self._translate_all(key, [texts[n] for n in chosen], cancelled)
            for number, translation in zip(chosen, found, strict=True):
                results[number] = translation
        return results

    def _too_long(self, count: int) -> str:
        return (
            f"{count} subwords are above the limit of this server, max_prefix_tokens = {self.config.max_prefix_tokens}"
        )

    def _translate_all(
        self, key: TranslateKey, texts: Sequence[RequestText], cancelled: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        translator = self[key.model]
        found = translator.translate(
            [t.text for t in texts],
            prefixes=[t.prefix for t in texts] if any(t.prefix for t in texts) else None,
            trees=[t.tree for t in texts] if self.needs_trees(key.model) else None,
            alignments=key.alignments,
            report=TranslationReport(),
            should_cancel=cancelled,
            beam=key.beam,
            n_best=key.n_best,
            long_lines=key.long_lines,
            max_input_tokens=min(translator.config.max_input_tokens, self.config.max_tokens),
        )
        return [plain(translation.as_dict()) for translation in found]

    def _explain(self, key: ExplainKey, sources: Sources, cancelled: Callable[[], bool]) -> Reply:
        """The reply is made here and not in the thread of the server: a document may be megabytes."""
        for name in key.models if sources.prefixes else ():
            for number, ids in enumerate(self[name].tokenizer.target.encode_batch(sources.prefixes), 1):
                if len(ids) > self.config.max_prefix_tokens:
                    return Problem(400, f"prefix {number}: {self._too_long(len(ids))}").reply()
        beam = {} if key.beam is None else {"beam": key.beam, "n_best": 1}
        document = explain(
            {name: self[name].with_options(**beam) for name in key.models},
            sources.texts,
            sources.targets,
            references=sources.references,
            prefixes=sources.prefixes,
            trees=sources.trees,
            max_tokens=min(self.config.explain_tokens, self.config.max_tokens),
            should_cancel=cancelled,
        )
        return json_reply(document)
