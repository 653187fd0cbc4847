"""`phraseloom analyse`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from functools import partial

from phraseloom.cli.group import lazy_group, load

ANALYSES: dict[str, tuple[str, str]] = {
    "activation": ("analyse.activation", "How much attention goes to tokens and how much to phrases, by layer."),
    "entropy": ("analyse.entropy", "The entropy of the attention of each decoder layer."),
    "alignment": ("analyse.alignment", "The alignment error rate of the attention of each decoder layer."),
    "heatmap": ("analyse.heatmap", "Draw the attention of one sentence."),
    "phenomena": (
        "analyse.phenomena",
        "Accuracy on idioms, compounds and more, for translations of the built-in world.",
    ),
    "contrastive": ("analyse.contrastive", "How often a model prefers a correct translation to one with an error."),
    "phrases": ("analyse.phrases", "The source phrases of a sentence, and the weights inside each phrase."),
    "segments": (
        "analyse.segments",
        "How a segmental model segments sentences, and whether known phrases are segments.",
    ),
    "neighbours": ("analyse.neighbours", "The nearest neighbours of embeddings, in one or two models."),
    "coverage": ("analyse.coverage", "How well attention to phrase slots covers gold phrases."),
}

load_analysis = partial(load, ANALYSES)
app = lazy_group(ANALYSES, help="Look inside a model: attention, phrases, phenomena.")
