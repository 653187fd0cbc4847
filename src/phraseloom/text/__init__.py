"""Lines, normalisation, subwords and vocabularies. This package does not import torch.

raw line → Normaliser (Moses, jieba, lower case) → words → Subwords (sentencepiece or subword-nmt) → ids, and back.
"""
