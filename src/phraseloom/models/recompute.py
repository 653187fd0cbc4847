"""Activation checkpointing: a layer keeps its inputs, and its backward pass runs it again (Chen et al. 2016).

Memory grows by one state a layer instead of all that a layer computes; time by one more forward pass. Dropout draws the same
masks again, so that gradients are the same bits. Layers that read source phrases are not checkpointed: they collect phrase
vectors as they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from phraseloom.layers.attention.masks import Visibility

__all__ = ["checkpoint_layers", "run_layer"]


def checkpoint_layers(model: nn.Module) -> None:
    """Have every Transformer layer of the model checkpointed where a gradient is needed."""
    for module in model.modules():
        if hasattr(module, "checkpoints_layers"):
            module.checkpoints_layers = True  # type: ignore[assignment]


def run_layer(layer: Callable[..., Any], *args: Any, checkpointed: bool, **options: Any) -> Any:
    """layer(…), checkpointed if that is asked for and a gradient is needed."""
    if checkpointed and torch.is_grad_enabled() and getattr(layer, "combination", None) is None:
        run = _with_own_masks(layer) if torch.compiler.is_compiling() else layer
        return checkpoint(run, *args, use_reentrant=False, **options)
    return layer(*args, **options)


def _with_own_masks(layer: Callable[..., Any]) -> Callable[..., Any]:
    """The layer with masks that it makes itself: a checkpointed part of a compiled graph must not change an object outside, as
    keeping a mask for the next layer would."""

    def run(*args: Any, **options: Any) -> Any:
        return layer(*(arg.without_masks() if isinstance(arg, Visibility) else arg for arg in args), **options)

    return run
