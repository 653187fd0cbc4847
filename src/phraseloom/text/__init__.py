"""Lines, normalisation, subwords and vocabularies; no torch here.

raw line → Normaliser (Moses, jieba, lower case) → words → Subwords (sentencepiece or subword-nmt) → ids, and back.
"""
