"""Decoding: search, length penalties, alignments, the translator and the text generator."""
