"""Phrasal attention put into a trained torch model: it begins with the outputs of the old layers.

Every projection of the new layer is made of taps; a tap begins as a multiple of the old matrix of its heads (and bias),
so that

    homogeneous                  the last tap is the old matrix, the others are zero: the window that ends at token j is token j
    heterogeneous, interleaved   all n taps are the old matrix / n: an n-gram is the mean of its tokens, in score and value

Kernels of QueryK, whose scores are divided by √(n·E) and not √E, are multiplied by √n. A homogeneous layer is thereby
equal as it is. In one softmax with the tokens an n-gram would take weight from them whatever its value, so the other
two get the gate of `PhraseAttention`, shut; interleaved attention also begins with zero output matrices for n-gram
queries. docs/decisions/0006-replaced-layers-begin-equal.md has the reasons and what lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.errors import UsageError
from phraseloom.layers.attention.gate import can_be_gated
from phraseloom.layers.phrase_attention import PhraseAttention
from phraseloom.layers.transformers_attention import TransformersAttention, as_torch, is_theirs
from phraseloom.options import attention as naming


def replace_attention(
    model: nn.Module,
    structure: str = naming.EXAMPLE,
    *,
    reads_ahead: bool = False,
    where: Callable[[str], bool] | None = None,
) -> nn.Module:
    """`model`, changed in place: a `PhraseAttention` for each torch.nn.MultiheadAttention; equal outputs at first.

    `model`: a torch.nn.Transformer, its encoder, decoder or layers, or any module that holds such layers; or a MarianMT or BART
    model of transformers, whose layers become `TransformersAttention` (docs/bridges.md). `structure`:
    see `PhraseAttention`. `reads_ahead`: interleaved self-attention of encoder layers that never get an attn_mask may
    use query n-grams that end after the output. `where`: which layers, by name, such as `lambda name:
    name.endswith("self_attn")`; all if left out.

    Make the optimizer afterwards: the layers have new parameters. A homogeneous structure equals the old layer for
    padding on the right and the causal mask (a mask with holes hides windows whose last token is visible); the others
    under any mask.

    Raises UsageError, with the model unchanged, where there is nothing to replace or a layer has what n-grams cannot
    follow.
    """
    if isinstance(model, nn.MultiheadAttention):
        return _successor(model, structure, False, "the layer itself")
    made: dict[int, nn.Module] = {}
    places: list[tuple[nn.Module, str, nn.Module]] = []
    for path, holder in model.named_modules():
        ahead = reads_ahead and isinstance(holder, nn.TransformerEncoderLayer)
        for child, layer in holder._modules.items():  # named_children() passes over a layer's second name
            name = f"{path}.{child}".lstrip(".")
            theirs = layer is not None and is_theirs(layer)
            if (theirs or isinstance(layer, nn.MultiheadAttention)) and (where is None or where(name)):
                if id(layer) not in made:
                    made[id(layer)] = (
                        _adapted(layer, structure, name) if theirs else _successor(layer, structure, ahead, name)
                    )
                places.append((holder, child, made[id(layer)]))
    if not places:
        chosen = "" if where is None else " that `where` chooses"
        raise UsageError(f"{type(model).__name__} holds no torch.nn.MultiheadAttention{chosen}: nothing to replace")
    for holder, child, successor in places:
        setattr(holder, child, successor)
    for stack in model.modules():
        if isinstance(stack, nn.TransformerEncoder) and any(isinstance(m, PhraseAttention) for m in stack.modules()):
            stack.use_nested_tensor = False
    return model


def _adapted(old: Any, structure: str, name: str) -> TransformersAttention:
    """The layer that takes the place of one of transformers."""
    own = bool(old.is_decoder) and not name.endswith("encoder_attn")
    new = _successor(as_torch(old), structure, False, name)
    return TransformersAttention(new, causal=own, layer_idx=old.layer_idx)


def _successor(old: nn.MultiheadAttention, structure: str, reads_ahead: bool, name: str) -> PhraseAttention:
    """The layer that takes the place of `old`, with its weights."""
    if (
        type(old) is not nn.MultiheadAttention
        or old.in_proj_weight is None
        or old.bias_k is not None
        or old.add_zero_attn
    ):
        raise UsageError(
            f"{name} is no plain torch.nn.MultiheadAttention: a subclass, or it has kdim, vdim, add_bias_kv or add_zero_attn",
            hint="leave it out with `where`",
        )

    new = PhraseAttention(
        old.embed_dim, old.num_heads, structure, dropout=old.dropout, bias=old.in_proj_bias is not None,
        batch_first=old.batch_first, reads_ahead=reads_ahead,
        device=old.in_proj_weight.device, dtype=old.in_proj_weight.dtype,
    )  # fmt: skip
    if not new.structure.zero_extended and 1 not in new.structure.orders:
        raise UsageError(
            f"{structure!r} has no slots of order 1, so that it cannot equal attention to tokens", hint="add order 1"
        )
    if len(new.structure.blocks) > 1:
        new.gate = nn.Parameter(old.in_proj_weight.new_zeros(old.num_heads))
    copy_projections(new, old.in_proj_weight, *([] if new.bias is None else [(new.bias, old.in_proj_bias)]))
    copy_output(new.arrangement, old.out_proj.weight)
    if new.out_bias is not None:
        with torch.no_grad():
            new.out_bias.copy_(old.out_proj.bias)
    return new.train(old.training)


def copy_projections(new: Any, weight: Tensor, *biases: tuple[Tensor, Tensor]) -> None:
    """Make every tap of every projection of `new` a share of the matrices Wq | Wk | Wv (3·D, D) of attention to tokens.

    `new`: a `PhraseAttention` or a `MultiHeadAttention` block. `biases`: pairs of the biases of `new`, one number for
    each row of its packed projections, and those of the old layer (3·D).
    """
    score, structure = new.score, new.structure
    width, last_only = weight.shape[1], structure.zero_extended
    pairs = [(score.weight, weight), *((packed[:, None], old[:, None]) for packed, old in biases)]
    parts = {part.order: part for block in structure.blocks for part in block}
    with torch.no_grad():
        for name, (start, taps, wide) in score.layout.names.items():
            ordered = re.search(r"_n(\d+)", name)
            order = int(ordered[1]) if ordered else 1
            first = "qkv".index(name[1]) * width
            if last_only and ordered:
                first += parts[order].first * score.size
            scale = math.sqrt(order) if name[1] == "q" and taps else 1.0
            for k, share in enumerate(tap_shares(math.prod(taps), last_only=last_only)):
                for packed, source in pairs:
                    packed[start + k * wide : start + (k + 1) * wide] = source[first : first + wide] * (share * scale)
        for table in ("key_table", "value_table"):
            if getattr(score, table, None) is not None:
                getattr(score, table).zero_()


def tap_shares(count: int, *, last_only: bool) -> list[float]:
    """How much of the old matrix each tap begins with: all in the last one, or the same in all; their sum is 1."""
    return [0.0] * (count - 1) + [1.0] if last_only else [1.0 / count] * count


def copy_output(arrangement: Any, weight: Tensor) -> None:
    """Make the output of an arrangement that of attention to tokens, `weight` (D, D); n-gram queries begin at zero."""
    with torch.no_grad():
        for name, matrix in arrangement.matrices().items():
            matrix.zero_()
            if name in ("Wo", "Wout_q1"):
                matrix.copy_(weight.t().expand_as(matrix))


def begins_equal(block: Any) -> bool:
    """Whether a block can begin with the outputs of attention to tokens: single orders per head, or a shut gate."""
    structure = block.structure
    if structure.zero_extended or (len(structure.blocks) == 1 and 1 in structure.orders):
        return True
    return can_be_gated(structure) and block.gate is not None
