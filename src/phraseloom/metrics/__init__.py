"""Scores of translations: pure text and numbers. No torch in this package."""
