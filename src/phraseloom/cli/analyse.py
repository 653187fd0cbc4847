"""`phraseloom analyse`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from functools import partial

from phraseloom.cli.group import lazy_group, load

ANALYSES: dict[str, tuple[str, str]] = {
    "activation": ("analyse_activation", "How much attention goes to tokens and how much to phrases, per layer."),
    "entropy": ("analyse_entropy", "How spread is the attention of each decoder layer?"),
    "alignment": ("analyse_alignment", "How well does the attention of each decoder layer align words?"),
    "heatmap": ("analyse_heatmap", "Draw the attention of one sentence."),
    "phenomena": ("analyse_phenomena", "Accuracy on idioms, compounds, … of translations of the built-in world."),
    "contrastive": ("analyse_contrastive", "How often is a correct translation likelier than one with an error?"),
    "phrases": ("analyse_phrases", "How a model with source phrases cuts a sentence, and what counts in each phrase."),
    "segments": ("analyse_segments", "How a segmental model cuts sentences; are known phrases segments?"),
    "neighbours": ("analyse_neighbours", "The nearest neighbours of embeddings; do two models agree on them?"),
    "coverage": ("analyse_coverage", "Do the phrase slots that fire cover the gold phrases?"),
}

load_analysis = partial(load, ANALYSES)
app = lazy_group(ANALYSES, help="Look into a model: what its attention does with tokens and phrases.")
