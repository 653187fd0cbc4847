"""The matrix-product FLOP of a training update and of a search, by torch's own formulas, from a model's configuration.

A product (m × k)(k × n) counts 2mkn. The model is built and run on shapes only, without parameters in memory, for one sentence
pair of the requested lengths; every product that torch computes adds the number of `torch.utils.flop_counter`. So a new score
or layer is counted without further code. Not counted: softmax, normalisation, dropout, sums.

A backward pass has two products for each product of the forward pass, so an update costs about three forward passes. A product
with a constant side, such as the zero state before the first token, has only one.

Attention is counted as the backend `explicit` computes it, whatever the configuration says.

**Phrase representations** have two counts. The layers compute the glance half of W1 once per phrase, and sums over
the tokens of a phrase as products with the P × S membership (`computed=True`). The default count uses the formulas of the
paper for phrases, and torch's count for everything else. With P phrases in a sentence, f and h the inner widths of combination
and scorer:

    level          2·D·h + D           a source token, L+1 levels: W1 on [g ; x_k] (with a scorer), the sum of its x_k
    combination    2·D·D + 3·D·f       a token, every Transformer layer of both sides: Wq, Wo, W_a on [x ; a], W_b
                   2·D·D               a phrase: Wk and Wv; in search once per source
                   2·D·P               a token: scores and mixing
    transparent    (L+1)·D             a phrase and decoder layer; with transparent_tokens also a token

Slots that begin before the sentence count like the others (at most n-1 of K), because they are computed. Lengths count EOS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry, shape_wrapper

from phraseloom.data.tensors import make_batch
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig

Pair = tuple[int, int]

META, CPU = torch.device("meta"), torch.device("cpu")
aten = torch.ops.aten


@shape_wrapper
def _matrix_vector(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
    return 2 * math.prod(matrix)


FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    aten.addmm_: flop_registry[aten.addmm],
    aten.mv: _matrix_vector,
}
"""The FLOP formula of each operation: torch's own, and those that torch lacks."""


class FlopCount(TorchDispatchMode):
    """Counts the FLOP of the code that runs inside. Floating-point tensors have shapes only; integers and masks have values."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on shapes if one of its tensors has no values, otherwise on values."""
        kwargs = dict(kwargs or {})
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        on_shapes = any(t.is_meta for t in tensors)
        if kwargs.get("device") is not None:
            kwargs["device"] = META if on_shapes else CPU
        if on_shapes and not all(t.is_meta for t in tensors):
            args, kwargs = tree_map(_shape, (args, kwargs))
        result = func(*args, **kwargs)
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result if on_shapes else tree_map(_shape_of_float, result)


def _shape(x: Any) -> Any:
    return x.to(META) if isinstance(x, Tensor) else x


def _shape_of_float(x: Any) -> Any:
    return x.to(META) if isinstance(x, Tensor) and x.is_floating_point() else x


def count(run: Callable[[], Any]) -> int:
    """The FLOP of a function that runs a model of `shapes_of`."""
    with FlopCount() as counted:
        run()
    return counted.total


def shapes_of(
    config: ModelConfig, vocabulary: int, table_width: int = 300, first_phrase: int | None = None
) -> nn.Module:
    """A model whose parameters have shapes and no values. `table_width`: size of the fixed vectors of a continuous output, of
    which those from `first_phrase` on are of phrases."""
    # Fused attention needs a device, and its products depend on the kernel.
    explicit = config.attention.model_copy(update={"backend": "explicit"})
    config = config.model_copy(update={"attention": explicit})
    with META:
        softmax = config.output.kind == "softmax"
        fixed = None if softmax else TargetTable(torch.empty(vocabulary, table_width), first_phrase)
        return build_model(config, vocabulary, vocabulary, fixed)


def tokens(length: int) -> list[int]:
    """The ids of a sentence of `length` tokens; the length counts EOS, the ids leave it out."""
    return [0] * (length - 1)


class Cost(Protocol):
    """The FLOP of sentence pairs in training and in search. `remark`: a note for estimates that use the count, or None."""

    remark: str | None

    def training(self, pairs: Sequence[Pair]) -> int:
        """See `training_flop`."""
        ...

    def search(self, pairs: Sequence[Pair], *, beam: int) -> int:
        """See `decoding_flop`."""
        ...


class TokenCost:
    """The cost of a model that writes token by token. `formulas`: the cost of its phrases by the formulas of the paper."""

    remark: str | None = None

    def __init__(self, model: Any, formulas: PhraseFormulas | None = None) -> None:
        self.model, self.formulas = model, formulas
        self.updates: dict[Pair, int] = {}
        self.steps: dict[int, tuple[int, int, int]] = {}

    def update(self, source: int, target: int) -> int:
        """Forward and backward of a sentence pair."""
        if (source, target) not in self.updates:
            added = 0 if self.formulas is None else 3 * self.formulas.forward(source, target)
            self.updates[source, target] = added + count(lambda: self._loss(source, target).backward())
        return self.updates[source, target]

    def _loss(self, source: int, target: int) -> Tensor:
        objective: Tensor = self.model.train().loss(make_batch([tokens(source)], [tokens(target)])).objective
        return objective

    def hypothesis(self, source: int) -> tuple[int, int, int]:
        """Of one hypothesis: FLOP of encoding the source, of the first step, and the growth from each step to the next."""
        if source not in self.steps:
            with torch.no_grad():
                self.steps[source] = self._hypothesis(source)
        return self.steps[source]

    def _hypothesis(self, source: int) -> tuple[int, int, int]:
        model = self.model.eval()
        batch = make_batch([tokens(source)], [[]])
        with FlopCount() as counted:
            memory = model.encode(batch.source_BS, batch.source_lengths_B)
            state = model.start(memory, beam=1, max_length=2)
            totals = [counted.total]
            for _ in range(2):
                decoded = model.step(torch.zeros(1, dtype=torch.long), state)
                model.output.log_probs(decoded.hidden, decoded.gate)
                totals.append(counted.total)
        once, first, second = totals[0], totals[1] - totals[0], totals[2] - totals[1]
        if self.formulas is not None:
            step = self.formulas.target(1, source)
            once, first, second = once + self.formulas.source(source), first + step, second + step
        return once, first, second - first

    def training(self, pairs: Sequence[Pair]) -> int:
        """See `training_flop`."""
        return sum(self.update(*pair) for pair in pairs)

    def search(self, pairs: Sequence[Pair], *, beam: int) -> int:
        """See `decoding_flop`."""
        total = 0
        for source, steps in pairs:
            once, first, more = self.hypothesis(source)
            total += once + first + beam * sum(first + more * before for before in range(1, steps))
        return total


class PhraseFormulas:
    """The FLOP of phrase representations by the formulas of paper 001 (the table above)."""

    def __init__(self, config: ModelConfig) -> None:
        assert config.phrases is not None
        self.config, self.phrases = config, config.phrases
        self.levels, self.width = config.encoder.layers + 1, config.width

    @cached_property
    def _token(self) -> int:
        given = self.phrases.combination_width
        inner = self.config.ffn_width if given is None else given
        return 2 * self.width**2 + 3 * self.width * inner

    def source(self, source: int) -> int:
        """Of a source: levels, mixtures, Transformer encoder layers, keys and values for the decoder."""
        width, options, phrases = self.width, self.phrases, phrase_count(self.config, source)
        decoder = self.config.decoder.layers
        encoder = self.config.encoder.layers if self.config.encoder.kind == "transformer" else 0
        level = 0 if options.attention == "none" else source * (2 * width * (options.scorer_width or width) + width)
        mixed = phrases * options.transparent + source * options.transparent_tokens
        mixtures = decoder * self.levels * width * mixed if self.levels > 1 else 0
        keys = (encoder + decoder) * phrases * 2 * width**2
        return 2 * (self.levels * level + mixtures + keys + encoder * source * (self._token + 2 * width * phrases))

    def target(self, target: int, source: int) -> int:
        """Of target tokens: the decoder layers."""
        phrases = phrase_count(self.config, source)
        return 2 * self.config.decoder.layers * target * (self._token + 2 * self.width * phrases)

    def forward(self, source: int, target: int) -> int:
        """Of a sentence pair."""
        return self.source(source) + self.target(target, source)


def phrase_count(config: ModelConfig, source: int) -> int:
    """The number of phrases in a source of `source` tokens (including EOS). ValueError if the length does not determine it."""
    segments: Any = config.phrases and config.phrases.segments
    if segments.kind != "fixed":
        raise ValueError(f"the length of a source does not determine its phrases of kind {segments.kind}")
    size = max(min(segments.max_tokens, -(-source // segments.min_chunks)), segments.floor)
    return -(-source // size)


COSTS = {"segments": "phraseloom.npmt.flops"}
"""Modules with a `cost_of` of their own, by what the model writes; all other models use `TokenCost`."""


def model_cost(
    config: ModelConfig,
    vocabulary: int,
    *,
    table_width: int = 300,
    first_phrase: int | None = None,
    computed: bool = False,
) -> Cost:
    """The cost of the model of a configuration with `vocabulary` target types; see `training_flop`.

    Raises ValueError if the length of a source does not determine its phrases.
    """
    return _model_cost(config.model_dump_json(), vocabulary, table_width, first_phrase, computed)


@lru_cache(maxsize=32)
def _model_cost(config_json: str, vocabulary: int, table_width: int, first_phrase: int | None, computed: bool) -> Cost:
    config = ModelConfig.model_validate_json(config_json)
    formulas = None
    if config.phrases is not None:
        phrase_count(config, 1)
        if not computed:
            formulas = PhraseFormulas(config)
            config = config.model_copy(update={"phrases": None})
    model: Any = shapes_of(config, vocabulary, table_width, first_phrase)
    if model.writes in COSTS:
        return cast(Cost, import_module(COSTS[model.writes]).cost_of(model, computed=computed))
    return TokenCost(model, formulas)


def training_flop(config: ModelConfig, vocabulary: int, pairs: Iterable[Pair], **kwargs: Any) -> int:
    """Forward and backward of sentence pairs (source length, target length), once each.

    `vocabulary`: target types. `table_width`: size of the vectors of a continuous output (300); those from `first_phrase` on
    are of phrases. `computed`: count phrases, and the rows of segments, as the layers compute them, not as the papers do.
    """
    return model_cost(config, vocabulary, **kwargs).training(list(pairs))


def decoding_flop(config: ModelConfig, vocabulary: int, pairs: Iterable[Pair], *, beam: int, **kwargs: Any) -> int:
    """Encoding and search; pairs of source length and number of steps. The first step has one hypothesis a sentence."""
    return model_cost(config, vocabulary, **kwargs).search(list(pairs), beam=beam)


def padded(batch: Sequence[Pair]) -> list[Pair]:
    """The pairs of a batch at their padded lengths, as hardware without ragged tensors computes them."""
    if not batch:
        return []
    longest = (max(s for s, _ in batch), max(t for _, t in batch))
    return [longest] * len(batch)
