"""Slow loop versions of each mechanism, float64, written from the specification symbol by symbol."""
