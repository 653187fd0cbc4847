"""Analysis of models: their attention, and what their translations get right."""
