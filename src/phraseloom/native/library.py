"""The compiled library: where it is, its structures for ctypes, and packed matrices.

The library is optional. `load` returns None if it was not built for this machine; everything then runs in eager torch.
It has no part of torch: functions take pointers to contiguous tensors, float32 unless `kernels.h` has another type, and sizes
that the caller has checked.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int, c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

MAX_TAPS = 8
VARIANTS = ("generic", "avx2", "avx512", "avx512 vnni")
ACTIVATIONS = {"linear": 0, "relu": 1, "swish": 2, "gelu": 3}
GATES = {"gru": 3, "lstm": 4}
RECURRENT_ATTENTIONS = {"mlp": 0, "general": 1, "fixed": 2, "multihead": 3}

_NO_MEMORY, _BAD_TOKEN = -1, -2
_LONGEST_BYTES = 1 << 16  # MOST_BYTES of kernels.cpp


class MatrixStruct(Structure):
    """`Matrix` of kernels.h."""

    _fields_ = [("packed", c_void_p), ("bias", c_void_p), ("n", c_int64), ("k", c_int64), ("bytes", c_int64)]


class NormStruct(Structure):
    """`Norm` of kernels.h."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("width", c_int64), ("epsilon", c_double)]


class WindowStruct(Structure):
    """`Window` of kernels.h."""

    _fields_ = [(n, c_int64) for n in ("to_cache", "offset", "width", "taps")] + [("columns", c_int64 * MAX_TAPS)]


class SlotsStruct(Structure):
    """`Slots` of kernels.h."""

    _fields_ = [(n, c_int64) for n in ("order", "taps", "key", "value")] + [("queries", POINTER(c_int64))]


class AttentionStruct(Structure):
    """`Attention` of kernels.h."""

    _fields_ = [
        *((n, MatrixStruct) for n in ("into", "memory", "out")),
        *((n, c_int64) for n in ("heads", "size", "blocks", "num_orders")),
        ("orders", POINTER(c_int64)),
        *((n, c_int64) for n in ("zero_extended", "query_width", "cache_width", "history")),
        *((n, POINTER(WindowStruct)) for n in ("windows", "memory_windows")),
        *((n, c_int64) for n in ("num_windows", "num_memory_windows")),
        ("slots", POINTER(SlotsStruct)),
        ("gate", c_void_p),
        *((n, c_int64) for n in ("gate_block", "gate_order")),
        *((n, c_void_p) for n in ("key_table", "value_table")),
        *((n, c_int64) for n in ("clip", "num_reads")),
        *((n, POINTER(c_int64)) for n in ("read_order", "read_ahead")),
    ]


class CombinationStruct(Structure):
    """`Combination` of kernels.h."""

    _fields_ = [
        ("norm", NormStruct),
        *((n, MatrixStruct) for n in ("query", "keys_values", "output", "hidden", "down")),
        *((n, c_int64) for n in ("heads", "size", "add_attended")),
    ]


class RepresentationStruct(Structure):
    """`Representation` of kernels.h."""

    _fields_ = [
        *((n, c_int64) for n in ("mean", "gated")),
        *((n, MatrixStruct) for n in ("of_glance", "of_token")),
        ("score", c_void_p),
        ("score_bias", c_double),
    ]


class LayerStruct(Structure):
    """`Layer` of kernels.h."""

    _fields_ = [
        *((n, c_int64) for n in ("pre", "has_cross", "has_combination", "activation")),
        *((n, NormStruct) for n in ("self_norm", "cross_norm", "feed_forward_norm")),
        *((n, AttentionStruct) for n in ("own", "cross")),
        *((n, MatrixStruct) for n in ("up", "down")),
        ("combination", CombinationStruct),
    ]


class CellStruct(Structure):
    """`Cell` of kernels.h."""

    _fields_ = [*((n, MatrixStruct) for n in ("input", "fed", "hidden")), ("width", c_int64), ("gates", c_int64)]


class RecurrentLayerStruct(Structure):
    """`RecurrentLayer` of kernels.h."""

    _fields_ = [("forwards", CellStruct), ("backwards", CellStruct)]


class RecurrenceStruct(Structure):
    """`Recurrence` of kernels.h."""

    _fields_ = [
        ("layers", POINTER(RecurrentLayerStruct)),
        *((n, c_int64) for n in ("residual", "attention")),
        *((n, MatrixStruct) for n in ("query", "key")),
        ("score", c_void_p),
        ("block", AttentionStruct),
        *((n, MatrixStruct) for n in ("join", "initial")),
    ]


class StackStruct(Structure):
    """`Stack` of kernels.h."""

    _fields_ = [
        *((n, c_int64) for n in ("variant", "width", "embedded", "vocabulary", "num_layers")),
        ("scale", c_double),
        ("embedding", c_void_p),
        ("project", MatrixStruct),
        *((n, NormStruct) for n in ("embedding_norm", "final_norm")),
        ("layers", POINTER(LayerStruct)),
        ("recurrence", POINTER(RecurrenceStruct)),
        ("representations", POINTER(RepresentationStruct)),
        *((n, c_void_p) for n in ("phrase_shares", "token_shares")),
        *((n, c_int64) for n in ("num_phrase_mixtures", "num_token_mixtures")),
    ]


class OutputStruct(Structure):
    """`Output` of kernels.h."""

    _fields_ = [*((n, MatrixStruct) for n in ("first", "second", "classes")), ("first_phrase", c_int64)]


class SourceStruct(Structure):
    """`Source` of kernels.h."""

    _fields_ = [
        *((n, c_int64) for n in ("sentences", "length", "phrases")),
        *((n, c_void_p) for n in ("tokens", "lengths", "positions", "sizes", "states", "vectors", "mixed", "final")),
    ]


class ByteTableStruct(Structure):
    """`ByteTable` of kernels.h."""

    _fields_ = [
        *((n, c_void_p) for n in ("panels", "starts", "scales", "rows")),
        *((n, c_int64) for n in ("n", "width", "quads")),
    ]


class DirectionsStruct(Structure):
    """`Directions` of kernels.h."""

    _fields_ = [*((n, c_void_p) for n in ("bytes", "vectors", "inverse", "slack", "excluded")), ("count", c_int64)]


class SearchRulesStruct(Structure):
    """`SearchRules` of kernels.h."""

    _fields_ = [
        *(
            (n, c_int64)
            for n in ("variant", "sentences", "width", "beam", "count", "kept", "begin", "end", "num_banned")
        ),
        *((n, c_int64) for n in ("gated", "weighed", "until_finished", "bound_now", "free_end")),
        *((n, c_void_p) for n in ("output", "banned", "longest", "shortest", "divisors")),
    ]


_STRUCTS = (
    MatrixStruct,
    NormStruct,
    WindowStruct,
    SlotsStruct,
    AttentionStruct,
    CombinationStruct,
    RepresentationStruct,
    LayerStruct,
    CellStruct,
    RecurrentLayerStruct,
    RecurrenceStruct,
    StackStruct,
    OutputStruct,
    SourceStruct,
    ByteTableStruct,
    DirectionsStruct,
    SearchRulesStruct,
)
_P, _I = c_void_p, c_int64
_FUNCTIONS = {
    "pl_lanes": (_I, [_I]),
    "pl_struct_size": (_I, [_I]),
    "pl_packed_size": (_I, [_I, _I, _I, _I]),
    "pl_pack": (None, [_I, _P, _I, _I, _I, _P]),
    "pl_candidates": (c_int, [_I, _P, _P, _P, _I, _I, _P, _I, _P, _P, _P, _P]),
    "pl_encode": (c_int, [_P, _P]),
    "pl_multiply": (None, [_I, _P, _P, _I, _I, _P]),
    "pl_start": (_P, [_P, _I, _I]),
    "pl_end": (None, [_P]),
    "pl_memory": (c_int, [_P, _I, _P, _I, _P]),
    "pl_initial": (None, [_P, _P]),
    "pl_phrases": (c_int, [_P, _I, _P, _I, _P]),
    "pl_gate": (c_int, [_P, _P]),
    "pl_step": (c_int, [_P, _P, _P, _P, _P]),
    "pl_reorder": (c_int, [_P, _P, _I]),
    "pl_search_start": (_P, [_P, _P, _I]),
    "pl_search_step": (c_int, [_P, _P]),
    "pl_search_result": (None, [_P, _P, _P, _P, _P, _P]),
    "pl_search_end": (None, [_P]),
    "pl_has_farthest": (c_int, []),
    "pl_farthest": (c_int, [_P, _P, _P]),
}


@cache
def load() -> ctypes.CDLL | None:
    """The library, or None if it was not built or does not fit this version of the package."""
    folder = Path(__file__).parent
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_kernels{suffix}"
        if path.is_file():
            break
    else:
        return None
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # of another machine, or older than these declarations
        return None
    sizes = [library.pl_struct_size(number) for number in range(len(_STRUCTS))]
    return library if sizes == [ctypes.sizeof(struct) for struct in _STRUCTS] else None


def variants() -> list[int]:
    """The variants that this processor can run, the slowest first: positions in `VARIANTS`."""
    library = load()
    return [] if library is None else [n for n in range(len(VARIANTS)) if library.pl_lanes(n)]


def best_variant(head_size: int) -> int:
    """The widest variant whose vectors divide a head, or the widest one if none does, or if there are no heads (0)."""
    library, numbers = load(), variants()
    assert library is not None
    return next((n for n in reversed(numbers) if head_size % library.pl_lanes(n) == 0), numbers[-1])


def check(code: int) -> None:
    """Raise the error of a function of the library."""
    if code == _NO_MEMORY:
        raise MemoryError("no memory for the caches of search; make batch_sentences smaller")
    if code == _BAD_TOKEN:
        raise IndexError("a token id is outside the vocabulary")
    if code:
        raise IndexError("a row is outside the state of the search")


class Parts:
    """Makes structures of one variant, and keeps alive what they point to. `as_bytes`: matrices are packed as bytes."""

    def __init__(self, variant: int, *, as_bytes: bool = False) -> None:
        library = load()
        assert library is not None
        self.library, self.variant, self.as_bytes = library, variant, as_bytes
        self._alive: list[object] = []

    def keep(self, thing: object) -> None:
        """Keep an object alive as long as these parts."""
        self._alive.append(thing)

    def pointer(self, tensor: Tensor | None) -> int | None:
        """The address of the numbers, as contiguous float32; None for None."""
        if tensor is None:
            return None
        tensor = tensor.detach().float().contiguous()
        self.keep(tensor)
        return tensor.data_ptr()

    def integers(self, numbers: list[int]) -> ctypes.Array[c_int64]:
        """An array of int64."""
        array = (c_int64 * max(1, len(numbers)))(*numbers)
        self.keep(array)
        return array

    def matrix(self, weight: Tensor, bias: Tensor | None = None, *, exact: bool = False) -> MatrixStruct:
        """A packed copy of y = x Wᵀ + b, W (n, k); in floats if it has to be `exact`."""
        weight = weight.detach().float().contiguous()
        n, k = weight.shape
        as_bytes = self.as_bytes and not exact and k <= _LONGEST_BYTES
        size = self.library.pl_packed_size(self.variant, n, k, as_bytes)
        packed = torch.empty(size, dtype=torch.float32, device="cpu")
        self.library.pl_pack(self.variant, weight.data_ptr(), n, k, as_bytes, packed.data_ptr())
        return MatrixStruct(self.pointer(packed), self.pointer(bias), n, k, as_bytes)

    def norm(self, norm: torch.nn.Module | None) -> NormStruct:
        """A layer normalisation; none for an identity."""
        if not isinstance(norm, torch.nn.LayerNorm):
            return NormStruct()
        size = norm.normalized_shape
        ones, zeros = (torch.full(size, value, dtype=torch.float32, device="cpu") for value in (1.0, 0.0))
        weight = ones if norm.weight is None else norm.weight
        bias = zeros if norm.bias is None else norm.bias
        return NormStruct(self.pointer(weight), self.pointer(bias), norm.normalized_shape[0], norm.eps)
