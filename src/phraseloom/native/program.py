"""Modules of a model → the structures that the library runs: weights packed, windows and slots as tables of offsets.

What the library cannot run raises `Unsupported` with its name; `docs/decoding.md` lists it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from phraseloom.layers.attention.convkv import ConvKVScore
from phraseloom.layers.attention.gate import opening
from phraseloom.layers.attention.heterogeneous import HeterogeneousArrangement
from phraseloom.layers.attention.homogeneous import HomogeneousArrangement
from phraseloom.layers.attention.interleaved import InterleavedArrangement
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.attention.queryk import QueryKScore
from phraseloom.layers.attention.relative import (
    RelativeConvKVScore,
    RelativePositions,
    RelativeQueryKScore,
    RelativeScore,
)
from phraseloom.layers.attention.token import TokenScore
from phraseloom.layers.attention.windows import Window, WindowOutput
from phraseloom.layers.embeddings import TokenEmbedding
from phraseloom.layers.feedforward import FeedForward, Residual
from phraseloom.layers.phrase_representation import (
    AttentiveCombination,
    GatedPhraseScorer,
    PhraseRepresentation,
    PhraseScorer,
    TransparentAttention,
)
from phraseloom.layers.recurrent import (
    BlockAttention,
    Cell,
    FixedContext,
    GeneralAttention,
    GRUCell,
    LSTMCell,
    MLPAttention,
)
from phraseloom.layers.table import TableEmbedding
from phraseloom.models.decoder import TransformerDecoder
from phraseloom.models.encoder import NoEncoder, TransformerEncoder
from phraseloom.models.phrases import SourcePhrases
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder
from phraseloom.native.library import (
    ACTIVATIONS,
    GATES,
    MAX_TAPS,
    RECURRENT_ATTENTIONS,
    AttentionStruct,
    CellStruct,
    CombinationStruct,
    LayerStruct,
    MatrixStruct,
    OutputStruct,
    Parts,
    RecurrenceStruct,
    RecurrentLayerStruct,
    RepresentationStruct,
    SlotsStruct,
    StackStruct,
    WindowStruct,
)
from phraseloom.outputs import ContinuousOutput, SoftmaxOutput, WordOrPhraseOutput


class Unsupported(Exception):
    """What the library cannot run, by name."""


def decoder_program(parts: Parts, decoder: Any, embedding: Any) -> StackStruct:
    """The step of a Transformer decoder, or of a recurrent one, with its embedding."""
    if type(decoder) is RecurrentDecoder:
        return _recurrent_decoder(parts, decoder, embedding)
    if type(decoder) is not TransformerDecoder:
        raise Unsupported(f"it cannot run a {type(decoder).__name__}")
    layers = [_decoder_layer(parts, layer) for layer in decoder.layers]
    return _stack(parts, layers, decoder.norm, embedding)


def encoder_program(parts: Parts, encoder: Any, embedding: Any, phrases: SourcePhrases | None) -> StackStruct:
    """A Transformer encoder, a recurrent one, or none, with its embedding and its source phrases."""
    if type(encoder) not in (TransformerEncoder, RecurrentEncoder, NoEncoder):
        raise Unsupported(f"encoder {type(encoder).__name__}")
    if type(encoder) is RecurrentEncoder:
        stack = _recurrent_encoder(parts, encoder, embedding)
    else:
        stack = _transformer_encoder(parts, encoder, embedding)
    if phrases is not None:
        _levels(parts, stack, phrases)
    return stack


def _transformer_encoder(parts: Parts, encoder: Any, embedding: Any) -> StackStruct:
    layers = []
    for layer in encoder.layers if type(encoder) is TransformerEncoder else ():
        struct = LayerStruct(has_combination=layer.combination is not None)
        struct.own = attention(parts, layer.attention, cross=False)
        _residual(parts, struct, "self_norm", layer.attention_residual)
        if layer.combination is not None:
            struct.combination = _combination(parts, layer.combination)
        _feed_forward(parts, struct, layer.feed_forward, layer.feed_forward_residual)
        layers.append(struct)
    return _stack(parts, layers, encoder.norm, embedding)


def _recurrent_encoder(parts: Parts, encoder: RecurrentEncoder, embedding: Any) -> StackStruct:
    layers = [
        RecurrentLayerStruct(_cell(parts, cells[0]), _cell(parts, cells[1]) if len(cells) > 1 else CellStruct())
        for cells in encoder.layers
    ]
    width, reads = sum(cell.width for cell in encoder.layers[0]), encoder.layers[0][0].input_width
    struct = RecurrenceStruct(residual=encoder.residual)
    return _recurrent_stack(parts, struct, layers, encoder.norm, embedding, width=width, reads=reads)


def _recurrent_decoder(parts: Parts, decoder: RecurrentDecoder, embedding: Any) -> StackStruct:
    first, width, attend = decoder.cells[0], decoder.width, decoder.attention
    fed = width if decoder.input_feeding else 0
    layers = [
        RecurrentLayerStruct(_cell(parts, cell, fed=0 if number else fed)) for number, cell in enumerate(decoder.cells)
    ]
    struct = RecurrenceStruct(residual=decoder.residual)
    if type(attend) is MLPAttention:
        struct.attention = RECURRENT_ATTENTIONS["mlp"]
        struct.query, struct.key = parts.matrix(attend.query_weight), parts.matrix(attend.key_weight)
        struct.score = parts.pointer(attend.score_weight)
    elif type(attend) is GeneralAttention:
        struct.attention, struct.query = RECURRENT_ATTENTIONS["general"], parts.matrix(attend.query_weight)
    elif type(attend) is FixedContext:
        struct.attention = RECURRENT_ATTENTIONS["fixed"]
    elif type(attend) is BlockAttention:
        struct.attention, struct.block = RECURRENT_ATTENTIONS["multihead"], attention(parts, attend.block, cross=True)
    else:
        raise Unsupported(f"attention {type(attend).__name__}")
    struct.join = parts.matrix(decoder.hidden.weight, decoder.hidden.bias)
    if decoder.initial == "last":
        linear = decoder.initial_states.linear
        struct.initial = parts.matrix(linear.weight, linear.bias)
    reads = first.input_width - fed
    return _recurrent_stack(parts, struct, layers, None, embedding, width=width, reads=reads)


def _cell(parts: Parts, cell: Cell, *, fed: int = 0) -> CellStruct:
    """A cell whose last `fed` inputs are what the decoder feeds back."""
    if type(cell) not in (LSTMCell, GRUCell):
        raise Unsupported(f"cell {type(cell).__name__}")
    split = cell.input_width - fed
    struct = CellStruct(width=cell.width, gates=GATES["gru" if type(cell) is GRUCell else "lstm"])
    struct.input = parts.matrix(cell.input_weight[:, :split], cell.bias)
    if fed:
        struct.fed = parts.matrix(cell.input_weight[:, split:])
    bias = None
    if type(cell) is GRUCell:
        bias = torch.cat([torch.zeros(2 * cell.width, dtype=torch.float32, device="cpu"), cell.candidate_bias.detach()])
    struct.hidden = parts.matrix(cell.hidden_weight, bias)
    return struct


def output_program(parts: Parts, output: Any, *, gated: bool) -> OutputStruct:
    """A softmax, or a continuous output, whose forbidden classes get a bias of -inf. With a gate, its score is `mixture`."""
    struct = OutputStruct()
    if type(output) is SoftmaxOutput:
        struct.classes = parts.matrix(output.weight, output.class_bias())
    elif type(output) is ContinuousOutput or (
        type(output) is WordOrPhraseOutput and (output.score == "mixture" or not gated)
    ):
        linears: list[Any] = (
            [output.project] if isinstance(output.project, nn.Linear) else [output.project[0], output.project[2]]
        )
        matrices = [parts.matrix(linear.weight, linear.bias) for linear in linears]
        struct.first, struct.second = matrices[0], matrices[1] if len(matrices) > 1 else MatrixStruct()
        bias = torch.zeros(len(output.table), dtype=torch.float32, device="cpu")
        bias[list(output.forbidden)] = float("-inf")
        struct.classes, struct.first_phrase = parts.matrix(output.table.rows_VM, bias), output.table.first_phrase
    else:
        raise Unsupported(f"output {type(output).__name__}")
    parts.keep(struct)
    return struct


def _levels(parts: Parts, stack: StackStruct, phrases: SourcePhrases) -> None:
    """The phrases of each level, and the mixtures of levels; without transparent attention one mixture, the last level."""
    if type(phrases) is not SourcePhrases:
        raise Unsupported(f"phrases {type(phrases).__name__}")
    stack.representations = _array(
        parts, RepresentationStruct, [_representation(parts, level) for level in phrases.representations]
    )
    last = torch.eye(stack.num_layers + 1, dtype=torch.float32, device="cpu")[-1:]
    shares = last if phrases.transparent is None else _shares(phrases.transparent)
    stack.phrase_shares, stack.num_phrase_mixtures = parts.pointer(shares), len(shares)
    if phrases.transparent_tokens is not None:
        shares = _shares(phrases.transparent_tokens)
        stack.token_shares, stack.num_token_mixtures = parts.pointer(shares), len(shares)


def _shares(mixture: TransparentAttention) -> Tensor:
    if type(mixture) is not TransparentAttention:
        raise Unsupported(f"mixtures {type(mixture).__name__}")
    return mixture.shares().t()


def _representation(parts: Parts, level: PhraseRepresentation) -> RepresentationStruct:
    scorer = level.scorer
    if type(level) is not PhraseRepresentation or type(scorer) not in (PhraseScorer, GatedPhraseScorer, type(None)):
        raise Unsupported(f"phrases {type(level).__name__} with {type(scorer).__name__}")
    struct = RepresentationStruct(mean=level.glance == "mean")
    if scorer is not None:
        of_glance, of_token = scorer.hidden.weight.chunk(2, 1)
        struct.of_glance = parts.matrix(of_glance)
        struct.of_token = parts.matrix(of_token, scorer.hidden.bias)
        struct.score = parts.pointer(scorer.score)
    if isinstance(scorer, GatedPhraseScorer):
        struct.gated, struct.score_bias = True, scorer.score_bias.item()
    return struct


def _stack(parts: Parts, layers: list[LayerStruct], norm: Any, embedding: Any) -> StackStruct:
    struct = StackStruct(num_layers=len(layers), final_norm=parts.norm(norm))
    struct.layers = _array(parts, LayerStruct, layers)
    struct.width = struct.embedded = layers[0].down.n if layers else embedding.weight.shape[1]
    return _embed(parts, struct, embedding)


def _recurrent_stack(
    parts: Parts,
    recurrence: RecurrenceStruct,
    layers: list[RecurrentLayerStruct],
    norm: Any,
    embedding: Any,
    *,
    width: int,
    reads: int,
) -> StackStruct:
    """A stack of this width whose first layer reads embeddings of width `reads`."""
    if len({layer.forwards.gates for layer in layers}) > 1:
        raise Unsupported("layers of different cells")
    recurrence.layers = _array(parts, RecurrentLayerStruct, layers)
    struct = StackStruct(width=width, embedded=reads, num_layers=len(layers), final_norm=parts.norm(norm))
    struct.recurrence = _array(parts, RecurrenceStruct, [recurrence])
    return _embed(parts, struct, embedding)


def _embed(parts: Parts, struct: StackStruct, embedding: Any) -> StackStruct:
    """Complete a stack with its embedding."""
    struct.variant = parts.variant
    if type(embedding) is TableEmbedding:
        struct.project = parts.matrix(embedding.linear.weight, embedding.linear.bias)
    elif type(embedding) is not TokenEmbedding or embedding.weight.shape[1] != struct.embedded:
        raise Unsupported(f"{type(embedding).__name__} of another width than the model")
    struct.embedding, struct.scale = parts.pointer(embedding.weight), embedding.scale
    struct.vocabulary, struct.embedding_norm = len(embedding.weight), parts.norm(embedding.norm)
    parts.keep(struct)
    return struct


def _decoder_layer(parts: Parts, layer: Any) -> LayerStruct:
    struct = LayerStruct(has_cross=layer.cross_attention is not None, has_combination=layer.combination is not None)
    struct.own = attention(parts, layer.self_attention, cross=False)
    _residual(parts, struct, "self_norm", layer.self_residual)
    if layer.cross_attention is not None:
        struct.cross = attention(parts, layer.cross_attention, cross=True)
        _residual(parts, struct, "cross_norm", layer.cross_residual)
    if layer.combination is not None:
        struct.combination = _combination(parts, layer.combination)
    _feed_forward(parts, struct, layer.feed_forward, layer.feed_forward_residual)
    return struct


def _residual(parts: Parts, struct: LayerStruct, name: str, residual: Residual) -> None:
    if type(residual) is not Residual:
        raise Unsupported(f"residual {type(residual).__name__}")
    setattr(struct, name, parts.norm(residual.norm))
    struct.pre = residual.pre


def _feed_forward(parts: Parts, struct: LayerStruct, feed_forward: Any, residual: Any) -> None:
    if feed_forward is None:
        raise Unsupported("a layer without feed-forward")
    if type(feed_forward) is not FeedForward or feed_forward.activation not in ACTIVATIONS:
        raise Unsupported(f"feed-forward {type(feed_forward).__name__}")
    struct.up = parts.matrix(feed_forward.up.weight, feed_forward.up.bias)
    struct.down = parts.matrix(feed_forward.down.weight, feed_forward.down.bias)
    struct.activation = ACTIVATIONS[feed_forward.activation]
    _residual(parts, struct, "feed_forward_norm", residual)


def _combination(parts: Parts, combination: AttentiveCombination) -> CombinationStruct:
    size = combination.query.weight.shape[0] // combination.heads
    network = {}
    if combination.hidden is not None and combination.down is not None:
        network["hidden"] = parts.matrix(combination.hidden.weight, combination.hidden.bias)
        network["down"] = parts.matrix(combination.down.weight)
    return CombinationStruct(
        norm=parts.norm(combination.residual.norm),
        query=parts.matrix(combination.query.weight * size**-0.5),
        keys_values=parts.matrix(combination.keys_values.weight),
        output=parts.matrix(combination.output.weight),
        heads=combination.heads,
        size=size,
        add_attended=combination.add_attended,
        **network,
    )


SCORES = (TokenScore, ConvKVScore, QueryKScore, RelativeScore, RelativeConvKVScore, RelativeQueryKScore)
ARRANGEMENTS = (HomogeneousArrangement, HeterogeneousArrangement, InterleavedArrangement)


def attention(parts: Parts, block: Any, *, cross: bool) -> AttentionStruct:
    """An attention block: its matrices with the scales of the queries in them, its windows, and the slots of every head."""
    _check_attention(block)
    score, arrangement, structure = block.score, block.arrangement, block.structure
    layout, size = score.layout, score.layout.size
    weight, bias = _scaled(score.weight, block.bias, layout.queries, size)
    split = layout.split if cross else 0
    struct = AttentionStruct(heads=structure.heads, size=size, blocks=len(structure.blocks))
    struct.into = parts.matrix(weight[: split or None], None if bias is None else bias[: split or None])
    if cross:
        struct.memory = parts.matrix(weight[split:], None if bias is None else bias[split:])
    struct.out = parts.matrix(arrangement.weight, arrangement.bias)
    struct.num_orders, struct.orders = len(structure.query_orders), parts.integers(list(structure.query_orders))
    struct.zero_extended = structure.zero_extended

    of_cache = _Places(layout.keys + layout.values, size)
    of_queries = _Places(layout.queries, size)
    single = all(output.taps == 1 for output in layout.queries)
    query_windows = [] if single else of_queries.windows(to_cache=False)
    cache_windows = of_cache.windows(to_cache=True, start=split)
    struct.query_width, struct.cache_width = 0 if single else of_queries.width, of_cache.width
    own_windows = query_windows if cross else query_windows + cache_windows
    struct.windows, struct.num_windows = _array(parts, WindowStruct, own_windows), len(own_windows)
    struct.history = max([window.taps for window in own_windows], default=1)
    if cross:
        struct.memory_windows = _array(parts, WindowStruct, cache_windows)
        struct.num_memory_windows = len(cache_windows)

    relative = isinstance(score, RelativePositions)
    products = super(RelativePositions, score).products if relative else score.products
    slots: list[SlotsStruct] = [SlotsStruct()] * (structure.heads * len(structure.blocks))
    for product in products:
        part = product.part
        for head in range(part.first, part.last):
            local = product.first_head + head - part.first
            rows = range(product.row, product.row + len(structure.query_orders) * product.taps)
            place = of_queries.column if single else of_queries.offset
            slots[head * len(structure.blocks) + product.block] = SlotsStruct(
                order=part.order,
                taps=product.taps,
                key=of_cache.offset(product.source, product.key_block, local),
                value=of_cache.offset(len(layout.keys), product.block, head),
                queries=parts.integers([place(product.source, row, local) for row in rows]),
            )
    struct.slots = _array(parts, SlotsStruct, slots)

    if block.gate is not None:
        struct.gate = parts.pointer(opening(block.gate.detach()))
        struct.gate_block = next(g for g, block_parts in enumerate(structure.blocks) if block_parts[0].order == 1)
        struct.gate_order = structure.query_orders.index(1)
    if relative:
        struct.key_table, struct.value_table = parts.pointer(score.key_table), parts.pointer(score.value_table)
        struct.clip = score.clip
    reads = arrangement.taps if isinstance(arrangement, InterleavedArrangement) else [(0, 0)]
    struct.num_reads = len(reads)
    struct.read_order, struct.read_ahead = (parts.integers(list(column)) for column in zip(*reads, strict=True))
    return struct


def _check_attention(block: Any) -> None:
    """Raise Unsupported for a block that the kernels do not compute."""
    if type(block) is not MultiHeadAttention:
        raise Unsupported(f"attention {type(block).__name__}")
    score, arrangement = type(block.score), type(block.arrangement)
    if score not in SCORES or arrangement not in ARRANGEMENTS:
        raise Unsupported(f"attention with {score.__name__} and {arrangement.__name__}")
    layout = block.score.layout
    if max(output.taps for output in layout.queries + layout.keys + layout.values) > MAX_TAPS:
        raise Unsupported(f"n-grams longer than {MAX_TAPS}")


def _scaled(
    weight: Tensor, bias: Tensor | None, queries: tuple[WindowOutput, ...], size: int
) -> tuple[Tensor, Tensor | None]:
    """The packed matrix and its bias with the scales of the query windows."""
    scales = torch.ones(len(weight), dtype=torch.float32, device="cpu")
    for window in (window for output in queries for window in output.windows):
        for column in window.columns:
            scales[column : column + (window.last - window.first) * size] = window.scale
    return weight.detach() * scales[:, None], None if bias is None else bias.detach() * scales


def _array(parts: Parts, kind: Any, items: list[Any]) -> Any:
    array = (kind * max(1, len(items)))(*items)
    parts.keep(array)
    return array


class _Places:
    """Where the numbers of several outputs lie in one row: output by output, block by block, head by head."""

    def __init__(self, outputs: tuple[WindowOutput, ...], size: int) -> None:
        self.outputs, self.size = outputs, size
        self.starts, self.width = [], 0
        for output in outputs:
            self.starts.append(self.width)
            self.width += output.blocks * output.heads * size

    def offset(self, output: int, block: int, head: int) -> int:
        """Where a head of a block of an output begins."""
        return self.starts[output] + (block * self.outputs[output].heads + head) * self.size

    def column(self, output: int, block: int, head: int) -> int:
        """Where it begins in the product, if it is a window of one tap."""
        windows = self.outputs[output].windows
        window = next(w for w in windows if w.block == block and w.first <= head < w.last)
        return window.columns[0] + (head - window.first) * self.size

    def windows(self, *, to_cache: bool, start: int = 0) -> list[WindowStruct]:
        """The windows that make the row from a product that begins at column `start` of the packed matrix."""
        return [
            self._window(number, window, to_cache, start)
            for number, output in enumerate(self.outputs)
            for window in output.windows
        ]

    def _window(self, output: int, window: Window, to_cache: bool, start: int) -> WindowStruct:
        struct = WindowStruct(to_cache=to_cache, offset=self.offset(output, window.block, window.first))
        struct.width, struct.taps = (window.last - window.first) * self.size, len(window.columns)
        struct.columns[: len(window.columns)] = [column - start for column in window.columns]
        return struct
