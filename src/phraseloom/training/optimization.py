"""Learning-rate schedules as pure functions, and Adam over one flat buffer of all parameters.

Parameters and gradients of a model live in one flat tensor each; every `parameter` and `parameter.grad` is a view into
them. Zeroing, the norm, clipping, the sum over processes and Adam are then single operations over one tensor.

Parameters by the names of modules: what is frozen, and what has a learning rate of its own.

A name is that of a module or parameter as in `model.safetensors`, and means everything below it; `*` matches any text:

    encoder        encoder.layers.0        decoder.layers.*.cross_attention        *.gate

A shared matrix is meant by each of its names. `phraseloom inspect MODEL` lists the names.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from phraseloom.errors import ModelError, UsageError
from phraseloom.options.training import (
    AdamConfig,
    ConstantConfig,
    DecayConfig,
    InverseSqrtConfig,
    InverseSqrtPeakConfig,
    PlateauConfig,
    ScheduleConfig,
)

__all__ = [
    "FlatAdam",
    "FlatParameters",
    "SCHEDULES",
    "freeze",
    "inverse_sqrt",
    "members",
    "rate_factors",
    "rate_function",
]

Rate = Callable[[int], float]
ALIGNMENT = 16  # elements: every parameter starts on a cache line


def inverse_sqrt(step: int, *, factor: float, width: int, warmup: int) -> float:
    """factor · width^-0.5 · min(step^-0.5, step · warmup^-1.5), step from 1 (Vaswani et al. 2017, 5.3)."""
    return factor * width**-0.5 * min(step**-0.5, step * warmup**-1.5)


def warm_up(step: int, warmup: int) -> float:
    """1/warmup, 2/warmup, … 1 and then 1."""
    return min(1.0, step / warmup) if warmup else 1.0


def decay(step: int, *, kind: str, warmup: int, updates: int, floor: float) -> float:
    """The share of the peak rate: linear warm-up, then half a cosine or a line from 1 to `floor` at step `updates`."""
    if step <= warmup:
        return warm_up(step, warmup)
    done = min(1.0, (step - warmup) / max(1, updates - warmup))
    left = 1 - done if kind == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return floor + (1 - floor) * left


def _inverse_sqrt(config: InverseSqrtConfig, width: int, _: int | None) -> Rate:
    return lambda step: inverse_sqrt(step, factor=config.factor, width=width, warmup=config.warmup)


def _inverse_sqrt_peak(config: InverseSqrtPeakConfig, _: int, __: int | None) -> Rate:
    return lambda step: config.peak * min((step / config.warmup) ** -0.5, step / config.warmup)


def _constant(config: ConstantConfig | PlateauConfig, _: int, __: int | None) -> Rate:
    return lambda step: config.rate * warm_up(step, config.warmup)


def _decay(config: DecayConfig, _: int, max_updates: int | None) -> Rate:
    updates = config.updates or max_updates
    assert updates is not None  # TrainingConfig refuses this
    return lambda s: config.peak * decay(s, kind=config.kind, warmup=config.warmup, updates=updates, floor=config.floor)


SCHEDULES: dict[str, Callable[..., Rate]] = {
    "inverse_sqrt": _inverse_sqrt,
    "inverse_sqrt_peak": _inverse_sqrt_peak,
    "constant": _constant,
    "plateau": _constant,  # the factor that falls at a plateau is state: see state.Progress.rate_factor
    "cosine": _decay,
    "linear": _decay,
}


def rate_function(config: ScheduleConfig, *, width: int, max_updates: int | None) -> Rate:
    """The learning rate as a function of the number of the applied step, from 1."""
    return SCHEDULES[config.kind](config, width, max_updates)


class FlatParameters:
    """The trainable parameters of a model in one tensor, and their gradients in another; shared parameters once.

    `buffer` makes the zeroed tensor of gradients.
    """

    def __init__(self, model: nn.Module, buffer: Callable[[Tensor], Tensor] = torch.zeros_like) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if len({(p.dtype, p.device) for _, p in named}) != 1:
            raise ModelError("trainable parameters must be of one type and on one device")
        self.spans: dict[str, tuple[int, torch.Size]] = {}
        self.places: list[tuple[int, nn.Parameter]] = []  # where each parameter begins
        size = 0
        for name, p in named:
            self.spans[name] = (size, p.shape)
            self.places.append((size, p))
            size += -(-p.numel() // ALIGNMENT) * ALIGNMENT
        first = named[0][1]
        self.data = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.grad = buffer(self.data)
        for name, p in named:
            view = self.view(self.data, name)
            view.copy_(p.detach())
            p.data = view
            p.grad = self.view(self.grad, name)

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The view of one parameter in a flat tensor, in its shape."""
        begin, shape = self.spans[name]
        return flat[begin : begin + shape.numel()].view(shape)

    def runs(self, factors: Mapping[str, float]) -> list[tuple[float, slice]]:
        """Slices of the flat tensor with one factor each (1 if `factors` has no entry), in order."""
        starts: list[tuple[float, int]] = []
        for name, (begin, _) in self.spans.items():
            factor = factors.get(name, 1.0)
            if not starts or starts[-1][0] != factor:
                starts.append((factor, begin))
        ends = [begin for _, begin in starts[1:]] + [len(self.data)]
        return [(factor, slice(begin, end)) for (factor, begin), end in zip(starts, ends, strict=True)]

    def gradient_norm(self) -> Tensor:
        """The 2-norm of all gradients together."""
        return torch.linalg.vector_norm(self.grad)


class FlatAdam:
    """Adam on flat parameters; `step(rate, scale)` uses the gradient times `scale`.

    m ← β1·m + (1-β1)·g; v ← β2·v + (1-β2)·g²; p ← p - rate · m̂ / (√v̂ + ε), with the usual bias corrections.
    `factors` on the rate, by parameter: neighbours in the flat tensor with one factor are one step.
    """

    def __init__(self, flat: FlatParameters, config: AdamConfig, factors: Mapping[str, float] | None = None) -> None:
        self.flat, self.config = flat, config
        runs = flat.runs(factors or {})
        self.factors = [factor for factor, _ in runs]
        self.slices = [part for _, part in runs]
        self.moments = {"exp_avg": torch.zeros_like(flat.data), "exp_avg_sq": torch.zeros_like(flat.data)}
        self.count = torch.zeros(len(runs), dtype=torch.float32, device=flat.data.device)

    def step(self, rate: float, scale: float) -> None:
        """One step with learning rate `rate` along the gradient times `scale`."""
        if scale != 1.0:
            self.flat.grad.mul_(scale)
        self._step(rate, None)

    def step_if(self, condition: Tensor, rate: Tensor, scale: Tensor) -> None:
        """`step` where `condition` holds, else nothing; all three are numbers on the device, which is not waited for."""
        self.flat.grad.mul_(scale)
        self._step(rate, (~condition).float())

    @torch.no_grad()
    def _step(self, rate: float | Tensor, skip: Tensor | None) -> None:
        """By torch's function: its class imports the compiler, two seconds at the start of every run."""
        tensors = (self.flat.data, self.flat.grad, *self.moments.values())
        for factor, part, count in zip(self.factors, self.slices, self.count, strict=True):
            data, grad, mean, square = ([tensor[part]] for tensor in tensors)
            adamw(
                data,
                grad,
                mean,
                square,
                [],
                [count],
                fused=True,
                found_inf=skip,
                amsgrad=False,
                beta1=self.config.beta1,
                beta2=self.config.beta2,
                lr=rate * factor,
                weight_decay=self.config.weight_decay,
                eps=self.config.epsilon,
                maximize=False,
            )

    def tensors(self) -> dict[str, Tensor]:
        """Both moments of every parameter, as views named `exp_avg.<parameter>` and `exp_avg_sq.<parameter>`."""
        view = self.flat.view
        return {f"{kind}.{name}": view(t, name) for kind, t in self.moments.items() for name in self.flat.spans}

    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Load the moments and the number of steps. Raises ModelError if they belong to another model."""
        own = self.tensors()
        if own.keys() != tensors.keys() or any(own[k].shape != tensors[k].shape for k in own):
            different = sorted(own.keys() ^ tensors.keys()) or [k for k in own if own[k].shape != tensors[k].shape]
            raise ModelError(f"{different[0]} of the optimiser does not fit")
        for key, tensor in own.items():
            tensor.copy_(tensors[key])
        self.count.fill_(steps)


def members(model: nn.Module, pattern: str, key: str) -> list[str]:
    """The names of the parameters that match `pattern`, each shared one under its first name.

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
    """Freeze the parameters that match `patterns`; returns their names. Raises UsageError if a pattern matches nothing, or
    nothing remains to train."""
    names = dict.fromkeys(name for pattern in patterns for name in members(model, pattern, "training.freeze"))
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].requires_grad_(False)
    if names and not any(parameter.requires_grad for parameter in parameters.values()):
        raise UsageError("training.freeze leaves nothing to train", hint="name fewer modules")
    return list(names)


def rate_factors(model: nn.Module, rates: Mapping[str, float]) -> dict[str, float]:
    """The learning-rate factor of each parameter that has one; the longest of several matching patterns counts.

    Raises UsageError where a pattern means nothing.
    """
    result: dict[str, float] = {}
    for pattern in sorted(rates, key=len):
        result |= dict.fromkeys(members(model, pattern, "training.rates"), rates[pattern])
    return result
