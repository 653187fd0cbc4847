"""Phrases of source sentences: runs of adjacent subwords, from lengths, parse trees or a phrase table; no torch here."""
