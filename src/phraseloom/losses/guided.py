"""Guided alignment: cross-attention is supervised by word links (Chen et al. 2016, §3; Garg et al. 2019, §4.2).

    L = - Σ_t Σ_s G_ts log A_ts        G_ts = 1 / |links of t| if t and s are linked, else 0

A_ts is the attention of target subword t (the query that predicts it) to source subword s. A target subword without links,
EOS and padding add nothing. L is summed over target subwords, and averaged over the chosen heads, each of which is supervised
on its own.

A slot of an n-gram spreads its weight evenly over the tokens of its window, as for alignments (`Structure.token_weights`), so

    A_ts = Σ_{slots that cover s} weight of the slot / tokens of its window

L ≥ the entropy of G, with equality exactly if A = G. So a bigram slot fits a target subword that is linked to both its tokens,
and no target subword that is linked to one token: a head that sees bigrams alone has a loss of at least log 2 there, and a
head that also sees tokens moves its weight to them. Of the queries, those of order 1 count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phraseloom.errors import UsageError, plural
from phraseloom.layers.attention.structure import Structure

__all__ = ["LEAST", "Guide", "guided_loss", "link_targets"]

LEAST = 1e-9  # attention below this has the loss of this much, and no gradient


def link_targets(links_BTS: Tensor) -> Tensor:
    """Links (B, T, S), 1 or 0, normalised over the source: each row sums to 1, or to 0 without links."""
    return links_BTS / links_BTS.sum(-1, keepdim=True).clamp(min=1.0)


def guided_loss(attention_BHTS: Tensor, targets_BTS: Tensor) -> Tensor:
    """The sum of L over a batch, averaged over the heads; `targets_BTS` from `link_targets`."""
    log_BHTS = attention_BHTS.to(torch.promote_types(attention_BHTS.dtype, torch.float32)).clamp(min=LEAST).log()
    return -(targets_BTS[:, None] * log_BHTS).sum() / attention_BHTS.shape[1]


class Guide:
    """Chosen heads of chosen layers of cross-attention, all from 0; the loss of an epoch is times weight · decay^epoch.

    `layers` empty: the last but one, as for alignments; `heads` empty: all. Raises UsageError for a layer or head that the
    model lacks, and for a model without attention to source tokens.
    """

    def __init__(
        self,
        structures: Sequence[Structure],
        *,
        weight: float,
        decay: float = 1.0,
        layers: Sequence[int] = (),
        heads: Sequence[int] = (),
    ) -> None:
        if not structures:
            raise UsageError("training.guided_alignment: this model attends to no source tokens")
        self.layers = list(layers) or [max(0, len(structures) - 2)]
        for layer in self.layers:
            if layer >= len(structures):
                count = plural(len(structures), "layer")
                raise UsageError(
                    f"training.guided_alignment.layers: no layer {layer + 1}: the decoder attends in {count}"
                )
            for head in heads:
                if head >= structures[layer].heads:
                    count = plural(structures[layer].heads, "head")
                    raise UsageError(
                        f"training.guided_alignment.heads: no head {head + 1}: layer {layer + 1} has {count}"
                    )
        self.structures, self.heads, self.weight, self.decay, self.epoch = structures, list(heads), weight, decay, 0

    @property
    def scale(self) -> float:
        """The factor of the loss in this epoch."""
        return self.weight * self.decay**self.epoch

    def loss(self, weights: Sequence[Tensor], links_BTS: Tensor) -> Tensor:
        """The sum of L over a batch, averaged over layers, from the weights (B, H, J·T, G·S) of all layers."""
        targets_BTS, total = link_targets(links_BTS), links_BTS.new_zeros(())
        for layer in self.layers:
            attention_BHTS = self.structures[layer].token_weights(weights[layer])
            if self.heads:
                attention_BHTS = attention_BHTS[:, self.heads]
            total = total + guided_loss(attention_BHTS, targets_BTS)
        return total / len(self.layers)
