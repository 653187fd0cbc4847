"""Several models on one text: what `analyse alignment`, `entropy` and `contrastive` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phraseloom.cli.options import warn_without_tag
from phraseloom.cli.streams import warn

if TYPE_CHECKING:
    from phraseloom.decoding.translator import Translator
    from phraseloom.options.decoding import DecodingConfig

NO_USE = "--trees has no effect: none of these models takes phrases from trees"


def load_models(
    models: Sequence[Path], device: str, *, trees: bool, **options: Any
) -> tuple[dict[str, Translator], set[str]]:
    """The translators by the name of their model, and which of them read trees; warns of one without its tag.

    Raises UsageError for one without its trees.
    """
    from phraseloom.decoding.translator import Translator

    translators = {str(model): Translator.from_pretrained(model, device=device, **options) for model in models}
    readers = {name for name, t in translators.items() if t.needs_trees}
    for name, translator in translators.items():
        translator.require_trees(trees and name in readers)
    warn_without_tag("analyse", translators)
    return translators, readers


def warn_without_readers(trees: bool, readers: set[str]) -> None:
    """Warn if trees are given and no model reads them."""
    if trees and not readers:
        warn("analyse", NO_USE)


def limits(config: DecodingConfig) -> str:
    """The most subwords of a pair, in words."""
    return f"{config.max_input_tokens} source or {config.max_target_tokens} target subwords"
