"""Fixed vectors of target tokens, for a continuous output and the decoder's embeddings (P003).

    x_p = √D · (E_fixed[token_p] Wᵀ + b) + sinusoid(p)        W (D, m) and b are trained, E_fixed is not

The factor √D is there if `scaled`, as in trained embeddings (`embeddings.py`).
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from phraseloom.layers.embeddings import Sinusoid
from phraseloom.layers.feedforward import dropout
from phraseloom.layers.initialisation import Draw


class TargetTable(nn.Module):
    """One unit vector per target token, (V, m): words, then phrases from row `first_phrase` on. No parameters.

    The table belongs to the tokenizer and is stored with it, not with the weights of a model.
    """

    def __init__(self, rows_VM: Tensor, first_phrase: int | None = None) -> None:
        super().__init__()
        self.rows_VM: Tensor
        self.register_buffer("rows_VM", rows_VM, persistent=False)
        self.first_phrase = len(rows_VM) if first_phrase is None else first_phrase

    @property
    def width(self) -> int:
        """m."""
        return self.rows_VM.shape[1]

    def __len__(self) -> int:
        return len(self.rows_VM)


class TableEmbedding(nn.Module):
    """An embedding of target tokens: rows of a table through a trained linear layer, plus positions."""

    def __init__(
        self,
        table: TargetTable,
        *,
        width: int,
        positions: Sinusoid | None,
        dropout: float = 0.0,
        norm: nn.LayerNorm | None = None,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.table = table
        self.linear = nn.Linear(table.width, width)
        nn.init.normal_(self.linear.weight, std=width**-0.5)
        nn.init.zeros_(self.linear.bias)
        self.positions, self.dropout, self.norm = positions, dropout, norm
        self.scale = math.sqrt(width) if scaled else 1.0

    def initialise(self, draw: Draw) -> None:
        """Keep the linear layer, which is initialised like an embedding."""

    @property
    def weight(self) -> Tensor:
        """The fixed vectors of the tokens, (V, m)."""
        return self.table.rows_VM

    def forward(self, tokens_BS: Tensor, *, first: int = 0) -> Tensor:
        """(B, S) ids → (B, S, D); `first` is the position of column 0."""
        x = self.linear(F.embedding(tokens_BS, self.table.rows_VM)) * self.scale
        if self.positions is not None:
            x = x + self.positions(first, tokens_BS.shape[1])
        x = dropout(x, self.dropout, self.training)
        return x if self.norm is None else self.norm(x)
