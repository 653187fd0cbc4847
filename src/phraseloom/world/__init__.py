"""The built-in synthetic language pair: grammar, lexicon, generator with gold annotation."""
