"""`phraseloom embeddings`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

TASKS: dict[str, tuple[str, str]] = {
    "train": ("embeddings_train", "Learn vectors for the words and phrases of joined text."),
    "nearest": ("embeddings_nearest", "The nearest tokens of a file of vectors."),
}

app = lazy_group(TASKS, help="Vectors for words and phrases: learned from joined text, and looked at.")
