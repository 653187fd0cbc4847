"""`phraseloom convert`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

FORMATS: dict[str, tuple[str, str]] = {
    "from-marian": ("convert_from_marian", "A MarianMT folder of Hugging Face (OPUS-MT) as a model folder."),
}

app = lazy_group(FORMATS, help="Read models of other programs, and write ours for them.")
