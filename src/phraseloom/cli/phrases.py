"""`phraseloom phrases`: the table of its subcommands (`group.py`)."""

from __future__ import annotations

from functools import partial

from phraseloom.cli.group import lazy_group, load

TASKS: dict[str, tuple[str, str]] = {
    "parse": ("phrases_parse", "Parse English text with link-grammar: one tree a line."),
    "extract": ("phrases_extract", "Find candidates for phrases in word-aligned text."),
    "filter": ("phrases_filter", "Make a table of phrases of the candidates: counts, PMI, stop-words."),
    "segment": ("phrases_segment", "Join the words of phrases to one token, and take them apart."),
    "mwt": ("phrases_mwt", "The sentences of a test set in which one word becomes a phrase."),
    "sample": ("phrases_sample", "Phrases that a system wrote, on a sheet for people to judge."),
}

load_task = partial(load, TASKS)
app = lazy_group(TASKS, help="Phrases: parse trees; tables from word-aligned text; words joined by them.")
