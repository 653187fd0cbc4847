"""Phrases: runs of adjacent subwords of source sentences, and phrases of the target from word alignments; no torch here."""
