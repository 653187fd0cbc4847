"""The models that are served: who they are, and the work on a batch of texts. No HTTP here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from phraseloom.analysis.explain import MAX_MODELS, explain
from phraseloom.analysis.explain_model import describe
from phraseloom.decoding.translation import TranslationReport
from phraseloom.errors import UsageError
from phraseloom.serving.config import ServingConfig
from phraseloom.serving.message import Reply, json_reply, plain


class TranslateKey(NamedTuple):
    """What texts that are translated together have in common."""

    model: str
    beam: int
    n_best: int
    long_lines: str
    alignments: bool


class ExplainKey(NamedTuple):
    """An explanation; `number` keeps two of them apart."""

    models: tuple[str, ...]
    beam: int | None
    number: int


class Text(NamedTuple):
    """A text to translate, what its translation begins with ("": anything), and its parse tree ("": none)."""

    text: str
    prefix: str
    tree: str


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
        """The translation of each `Text` as plain data, or the explanation of each `Sources` as a reply.

        Raises Cancelled soon after `cancelled` is true.
        """
        if isinstance(key, ExplainKey):
            return [self._explain(key, sources, cancelled) for sources in items]
        return self._translate(key, items, cancelled)

    def _translate(
        self, key: TranslateKey, texts: Sequence[Text], cancelled: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        translator = self[key.model]
        found = translator.translate(
            [t.text for t in texts],
            prefixes=[t.prefix for t in texts] if any(t.prefix for t in texts) else None,
            trees=[t.tree for t in texts] if self.needs_trees(key.model) else None,
            alignments=key.alignments,
            report=TranslationReport(),
            cancelled=cancelled,
            beam=key.beam,
            n_best=key.n_best,
            long_lines=key.long_lines,
            max_input_tokens=min(translator.config.max_input_tokens, self.config.max_tokens),
        )
        return [plain(translation.as_dict()) for translation in found]

    def _explain(self, key: ExplainKey, sources: Sources, cancelled: Callable[[], bool]) -> Reply:
        """The reply is made here and not in the thread of the server: a document may be megabytes."""
        beam = {} if key.beam is None else {"beam": key.beam, "n_best": 1}
        document = explain(
            {name: self[name].with_options(**beam) for name in key.models},
            sources.texts,
            sources.targets,
            references=sources.references,
            prefixes=sources.prefixes,
            trees=sources.trees,
            max_tokens=min(self.config.explain_tokens, self.config.max_tokens),
            cancelled=cancelled,
        )
        return json_reply(document)
