"""The matrix-product FLOP of an update and of a search; `phraseloom.models.flops` counts them and says how."""

from phraseloom.models.flops import ModelCost, Pair, decoding_flop, padded, training_flop
from phraseloom.models.flops_parts import GATES, BlockCost, block_cost, cell_cost, phrase_count

__all__ = [
    "GATES",
    "BlockCost",
    "ModelCost",
    "Pair",
    "block_cost",
    "cell_cost",
    "decoding_flop",
    "padded",
    "phrase_count",
    "training_flop",
]
