"""Looking into models: what their attention does, and what their translations get right."""
