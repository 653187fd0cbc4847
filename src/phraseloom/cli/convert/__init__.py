"""`phraseloom convert`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from phraseloom.cli.group import lazy_group

FORMATS: dict[str, tuple[str, str]] = {
    "from-marian": ("convert.from_marian", "A folder of MarianMT or Marian (OPUS-MT) as a model folder."),
    "to-ctranslate2": ("convert.to_ctranslate2", "A plain Transformer as a folder of CTranslate2."),
    "to-marian": ("convert.to_marian", "A plain post-norm Transformer as a MarianMT folder of Hugging Face."),
}

app = lazy_group(FORMATS, help="Convert models from and to other programs.")
