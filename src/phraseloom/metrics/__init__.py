"""Scores of translations: pure text and numbers, no torch."""
