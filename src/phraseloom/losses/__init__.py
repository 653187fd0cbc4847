"""Losses: each file states its equation and gives a pure function."""
