"""`phraseloom phrases`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from functools import partial

from phraseloom.cli.group import lazy_group, load

TASKS: dict[str, tuple[str, str]] = {
    "parse": ("phrases.parse", "Parse English text with link-grammar: one tree per line."),
    "extract": ("phrases.extract", "Extract candidate phrases from word-aligned text."),
    "filter": ("phrases.filter", "Filter candidates by count, PMI and more, to make a phrase table."),
    "segment": ("phrases.segment", "Join the words of phrases to one token, or split them again."),
    "mwt": ("phrases.mwt", "Select the test sentences in which one word becomes a phrase."),
    "sample": ("phrases.sample", "Sample phrases that a system wrote, for human judgement."),
}

load_task = partial(load, TASKS)
app = lazy_group(TASKS, help="Phrases: parse trees, phrase tables from word-aligned text, joined text.")
