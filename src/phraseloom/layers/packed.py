"""Products with constant weights, packed once for oneDNN; search on a CPU spends its time on them.

    y = f(x Wᵀ + b),  f one of none, relu, swish, gelu

For the few rows of a search step (16 … 640) a packed product is 10–20 % faster than the plain one, which packs W again at each
step. Only for inference in float32 on a CPU, and only while the weight is unchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 64  # oneDNN chooses the layout for this number of rows; any number works


class Packed:
    """A weight and bias packed for oneDNN; `fits` checks that the parameter has not changed.

    `of`: the parameter, if `weight` is only a part of its rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, of: Tensor | None = None) -> None:
        self._weight = weight if of is None else of
        self._version = self._weight._version
        self._bias = None if bias is None else bias.detach()
        self._laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of a model have no packed products, which nothing can read back."""
        return type(None), ()

    def fits(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the packed product can replace the plain one."""
        same = weight is self._weight and weight._version == self._version
        return same and torch.is_inference_mode_enabled() and x.dtype == torch.float32 and x.device.type == "cpu"

    def __call__(self, x: Tensor, *, activation: str = "none") -> Tensor:
        """f(x Wᵀ + b), (…, K) → (…, N)."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._laid_out, self._bias, activation, [], "none" if activation == "gelu" else ""
        )
        return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Packed | None = None) -> Tensor:
    """x Wᵀ + b, by the packed product if there is one and it fits."""
    return packed(x) if packed is not None and packed.fits(x, weight) else F.linear(x, weight, bias)


def pack_for_inference(model: nn.Module) -> bool:
    """Pack the large products of a model for inference; False if this torch or machine cannot.

    Every module with large products has a method `pack()`.
    """
    if not can_pack(next(model.parameters())):
        return False
    for module in model.modules():
        pack: Any = getattr(module, "pack", None)
        if pack is not None:
            pack()
    return True


def expect_changes(model: nn.Module) -> None:
    """Outdate every packed copy of a model's weights, also those of the compiled library; `train()` of the models calls it.

    Copies are current while the version counters of torch are. Fused optimisers do not raise these counters.
    """
    for parameter in model.parameters():
        if not parameter.is_inference():
            torch.autograd.graph.increment_version(parameter)


def can_pack(weight: Tensor) -> bool:
    """Whether this machine can pack products with this matrix."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and _works()


def _works() -> bool:
    """Whether this torch has the packed product and computes it correctly."""
    if not torch.backends.mkldnn.is_available():
        return False
    weight, x = torch.linspace(-1, 1, 96).view(12, 8), torch.linspace(-2, 2, 24).view(3, 8)
    try:
        with torch.inference_mode():
            return bool(torch.allclose(Packed(weight, None)(x), x @ weight.t(), atol=1e-5))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
