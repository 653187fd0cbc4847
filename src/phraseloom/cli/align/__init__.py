"""`phraseloom align`: the table of its subcommands (`group.py`); `align MODEL …` is `align model MODEL …`."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

TASKS: dict[str, tuple[str, str]] = {
    "train": ("align.train", "Train a word aligner from parallel text."),
    "apply": ("align.apply", "Align sentence pairs with a model from align train."),
    "model": ("align.model", "Word alignments from the attention of a translation model."),
    "symmetrize": ("align.symmetrize", "Symmetrise the alignments of two directions."),
    "lexicon": ("align.lexicon", "The most frequent translation of each word, from aligned text."),
    "evaluate": ("align.evaluate", "Alignment error rate, precision and recall against gold links."),
}

app = lazy_group(
    TASKS,
    help="Word alignment: train an aligner, align by it or by a model's attention, "
    "symmetrise, evaluate. align MODEL … means align model MODEL …",
    default="model",
)
