"""The matrix-product FLOP of an update and of a search; `phraseloom.models.flops` counts them and says how."""

from phraseloom.models.flops import Pair, decoding_flop, padded, training_flop

__all__ = ["Pair", "decoding_flop", "padded", "training_flop"]
