"""`phraseloom fertility`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

TASKS: dict[str, tuple[str, str]] = {
    "train": ("fertility_train", "Give a model of words and phrases the module."),
    "evaluate": ("fertility_evaluate", "Precision, recall and F1 of the module by class."),
}

app = lazy_group(
    TASKS, help="How many target words does a source word give? The module that tells, and so chooses word or phrase."
)
