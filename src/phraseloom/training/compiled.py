"""The loss of a model through `torch.compile`: one program for the batches of a run, not one for each shape.

Sizes of batches are symbols for the compiler, every batch is taken as padded, and the chunks of cross-entropy are one operation
(`losses/cross_entropy.py`). More programs are made where a size is 1, where two sizes of the first batch were equal and later
are not, where a side has more than 128 tokens (the table of positions grows), and where texts are so long that their attention
is fused; that attention is computed as without the compiler.
Models whose number of operations follows the lengths of a batch are not compiled (`obstacle`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from phraseloom.data.tensors import Batch
from phraseloom.errors import UsageError
from phraseloom.models.decoder import TransformerDecoder
from phraseloom.models.encoder import NoEncoder, TransformerEncoder
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.translation import TranslationModel
from phraseloom.outputs import SoftmaxOutput

__all__ = ["compile_loss", "obstacle"]


def obstacle(model: torch.nn.Module) -> str | None:
    """What in a model is not compiled, as a plural; None if the whole loss is."""
    if isinstance(model, LanguageModel):
        return None
    if not isinstance(model, TranslationModel):
        return "segmental models"
    parts = (model.encoder, TransformerEncoder | NoEncoder), (model.decoder, TransformerDecoder)
    if not all(isinstance(part, kinds) for part, kinds in parts):
        return "models with recurrent layers"
    if model.phrases is not None:
        return "models with source phrases"
    if not isinstance(model.output, SoftmaxOutput):
        return "models with continuous output"
    return None if model.guide is None else "losses with guided alignment"


def compile_loss(model: torch.nn.Module, *, backend: Any = "inductor") -> Callable[[Batch], Any]:
    """The loss of a batch, compiled when it is first called; as it is where there is an `obstacle`, and without gradients.

    The call raises UsageError if the compiler of this machine fails.
    """
    plain: Callable[[Batch], Any] = cast(Any, model).loss
    if obstacle(model) is not None:
        return plain
    compiled = torch.compile(plain, backend=backend)

    def loss(batch: Batch) -> Any:
        if not torch.is_grad_enabled():  # a validation would be one more program
            return plain(batch)
        from torch._dynamo.exc import TorchDynamoException

        try:
            return compiled(_of_any_size(batch.as_padded()))
        except TorchDynamoException as error:
            inner = getattr(error, "inner_exception", error)  # what a backend raised
            reason = str(inner).strip().partition("\n")[0] or type(inner).__name__
            raise UsageError(
                f"training.compile: torch cannot compile the loss on this machine: {reason}",
                hint="it needs a C++ compiler (CPU) or triton (GPU); or set training.compile to false",
            ) from error

    return loss


def _of_any_size(batch: Batch) -> Batch:
    """The batch, its sizes marked as symbols. `dynamic=True` would also take the rates and scales of layers as symbols, and
    trace everything twice."""
    from torch._dynamo import maybe_mark_dynamic

    for tensor in vars(batch).values():
        if isinstance(tensor, torch.Tensor):
            maybe_mark_dynamic(tensor, tuple(range(tensor.dim())))
    return batch
