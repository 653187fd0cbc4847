"""decoding: from a model and a source to translations (search, length penalties, translator)."""
