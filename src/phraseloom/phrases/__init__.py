"""Phrases: runs of adjacent subwords of the source, and target phrases from word alignments. No torch in this package."""
