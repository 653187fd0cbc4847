"""The built-in synthetic language pair: grammar, lexicon, and a generator with gold annotation."""
