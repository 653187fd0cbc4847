"""Word alignments of sentence pairs: links as data, their text forms, symmetrisation; no torch."""
