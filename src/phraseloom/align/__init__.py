"""Word alignments of sentence pairs: links, file formats, symmetrisation, alignment models. No torch in this package."""
