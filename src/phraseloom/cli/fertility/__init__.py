"""`phraseloom fertility`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

TASKS: dict[str, tuple[str, str]] = {
    "train": ("fertility.train", "Train the fertility module of a word-or-phrase model."),
    "evaluate": ("fertility.evaluate", "Precision, recall and F1 of the module, by class."),
}

app = lazy_group(
    TASKS, help="Train and evaluate the fertility module, the gate that chooses between a word and a phrase."
)
