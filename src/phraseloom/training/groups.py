"""Parameters by the names of modules: what is frozen, and what has a learning rate of its own.

A name is that of a module or parameter as in `model.safetensors`, and means everything below it; `*` stands for any text:

    encoder        encoder.layers.0        decoder.layers.*.cross_attention        *.gate

A shared matrix is meant by each of its names. `phraseloom inspect MODEL` lists the names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn

from phraseloom.errors import UsageError

__all__ = ["freeze", "members", "rate_factors"]


def members(model: nn.Module, pattern: str, key: str) -> list[str]:
    """The names of the parameters that `pattern` means, each shared one under its first name.

    `key`: of the recipe, for the error. Raises UsageError where there is none.
    """
    first: dict[int, str] = {}
    result: dict[str, None] = {}
    above: dict[str, None] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(parameter), name)
        prefixes = _prefixes(name)
        above.update(dict.fromkeys(prefixes))
        if any(fnmatchcase(prefix, pattern) for prefix in prefixes):
            result[own] = None
    if not result:
        near = difflib.get_close_matches(pattern, above, n=1, cutoff=0.5)
        top = sorted({name for name in above if "." not in name})
        hint = f"did you mean {near[0]}?" if near else f"a module is one of {', '.join(top)}, or what is below them"
        raise UsageError(f"{key}: no parameter of this model is named {pattern!r}", hint=hint)
    return list(result)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def freeze(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Take what `patterns` mean out of training; the names. Raises UsageError where one means nothing, or nothing is left."""
    names = dict.fromkeys(name for pattern in patterns for name in members(model, pattern, "training.freeze"))
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(False)
    if names and not any(parameter.requires_grad for parameter in parameters.values()):
        raise UsageError("training.freeze leaves nothing to train", hint="name fewer modules")
    return list(names)


def rate_factors(model: nn.Module, rates: Mapping[str, float]) -> dict[str, float]:
    """The factor on the learning rate of each parameter that has one; of several patterns the longest counts.

    Raises UsageError where a pattern means nothing.
    """
    result: dict[str, float] = {}
    for pattern in sorted(rates, key=len):
        result |= dict.fromkeys(members(model, pattern, "training.rates"), rates[pattern])
    return result
