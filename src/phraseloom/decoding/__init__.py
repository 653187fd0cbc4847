"""Translating: from a model and a source to text (search, length penalties, the translator)."""
