"""`phraseloom embeddings`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

TASKS: dict[str, tuple[str, str]] = {
    "train": ("embeddings.train", "Train vectors for the words and phrases of joined text."),
    "check": ("embeddings.check", "Check whether vectors are fit to be targets of a continuous output."),
    "nearest": ("embeddings.nearest", "Print the nearest tokens in a file of vectors."),
}

app = lazy_group(TASKS, help="Train word and phrase vectors from joined text, and inspect them.")
