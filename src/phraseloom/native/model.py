"""A model for search whose encoder, decoder steps and output run in the library: `fast(model, kernels, precision)`.

The hidden states are within 1e-5 of those of eager torch, and are the same bits in every batch. Each part of a model that the
library cannot run (the encoder, the decoder, the output) stays eager. With the precision int8, matrices are multiplied as
bytes (`body.inc`); states are still the same bits in every batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import CDLL, addressof, byref, c_int64
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn

from phraseloom.errors import UsageError
from phraseloom.layers.attention.multihead import MultiHeadAttention
from phraseloom.layers.fertility import AS_TRAINED, Tempering
from phraseloom.layers.segments import PhraseSegments
from phraseloom.models.decoder import Memory
from phraseloom.models.device import REDUCED
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.phrases import PhraseMemory
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder, final_states
from phraseloom.models.translation import TranslationModel
from phraseloom.native.library import (
    ACTIVATIONS,
    GATES,
    OutputStruct,
    Parts,
    SourceStruct,
    StackStruct,
    best_variant,
    check,
    load,
)
from phraseloom.native.program import Unsupported, decoder_program, encoder_program, output_program
from phraseloom.options.decoding import Kernels, Precision
from phraseloom.outputs import ContinuousOutput, DecoderOutput, SoftmaxOutput, WordOrPhraseOutput


def fast(model: Any, kernels: Kernels = "auto", precision: Precision = "fp32") -> Any:
    """`model` for search with these kernels: itself for `eager`, for bf16 and fp16, and for `auto` where the library cannot
    run its decoder in float32.

    Raises UsageError for `native` and for int8 if the library was not built or cannot run the decoder.
    """
    if kernels == "eager" or precision in REDUCED:
        return model
    try:
        return NativeModel(model, _compiled(model, as_bytes=precision == "int8"))
    except Unsupported as reason:
        if precision == "int8":
            raise UsageError(f"precision: int8 is not possible: {reason}", hint="use precision: fp32") from None
        if kernels == "auto":
            return model
        raise UsageError(f"kernels: native is not possible: {reason}", hint="use kernels: auto") from None


class _Compiled:
    """The programs of a model and the parameters that they were made from. `as_bytes`: see `Parts`."""

    def __init__(self, model: Any, *, as_bytes: bool) -> None:
        embedding = _embedding(model)
        # Kept alive, for another must not get their addresses; not the model itself, whose end is that of its programs.
        self._modules, self._read = list(model.modules())[1:], _tensors(model)
        self._made_of = self._identities(model)
        self._made_from = None if any(t.is_inference() for t in self._read) else _versions(self._read)
        self._score = getattr(model.output, "score", None)
        self.parts = parts = Parts(best_variant(_head_size(model)), as_bytes=as_bytes)
        self.decoder = decoder_program(parts, model.decoder, embedding)
        self.encoder = self.output = None
        if isinstance(model, TranslationModel):
            try:
                self.encoder = encoder_program(parts, model.encoder, model.source_embedding, model.phrases)
            except Unsupported:
                self.encoder = None
        fertility = getattr(model, "fertility", None)
        self.fertility = (
            [] if fertility is None else [parts.matrix(one.weight, one.bias, exact=True) for one in fertility.maps]
        )
        try:
            self.output = output_program(parts, model.output, gated=fertility is not None)
        except Unsupported:
            self.output = None

    def is_current(self, model: Any) -> bool:
        """Whether the tensors of `model` and the score of its gate are still those that were packed.

        Inference tensors count no changes, so they are packed each time. PyTorch hides changes through `.data`.
        """
        if self._made_of != self._identities(model) or getattr(model.output, "score", None) != self._score:
            return False
        return self._made_from is not None and _versions(self._read) == self._made_from

    def _identities(self, model: Any) -> list[int]:
        """The identities of all modules, parameters and fixed vectors, listed faster than by `model.parameters()`."""
        modules = (model, *self._modules)
        children = [id(child) for one in modules for child in one._modules.values()]
        return [
            *children,
            *(id(tensor) for one in modules for tensor in one._parameters.values()),
            *map(id, _fixed(model)),
        ]


def _tensors(model: Any) -> list[Tensor]:
    """The parameters of a model and its fixed vectors."""
    return [*model.parameters(), *_fixed(model)]


def _fixed(model: Any) -> list[Tensor]:
    """Tensors that may not be among the parameters."""
    table = [model.output.table.rows_VM] if isinstance(model.output, ContinuousOutput) else []
    return [_embedding(model).weight, *table]


def _head_size(model: Any) -> int:
    """The size of the heads of the decoder's first attention, else of the encoder's; 0 if there are no heads."""
    for part in (model.decoder, getattr(model, "encoder", None)):
        for module in () if part is None else part.modules():
            if type(module) is MultiHeadAttention:
                size: int = module.score.layout.size
                return size
    return 0


def _embedding(model: Any) -> Any:
    return model.embedding if isinstance(model, LanguageModel) else model.target_embedding


def _versions(tensors: list[Tensor]) -> list[tuple[int, int]]:
    return [(t.data_ptr(), t._version) for t in tensors]


_programs: dict[bool, WeakKeyDictionary[nn.Module, _Compiled]] = {False: WeakKeyDictionary(), True: WeakKeyDictionary()}
_lock = threading.Lock()


def _compiled(model: Any, *, as_bytes: bool) -> _Compiled:
    """The programs of a model, made when it is first searched or when its parameters have changed."""
    if load() is None:
        raise Unsupported("the compiled library is not there; `phraseloom doctor` tells how to build it")
    if type(model) not in (TranslationModel, LanguageModel):
        raise Unsupported("it runs one translation or language model, without layers of others and not an ensemble")
    with _lock:
        compiled = _programs[as_bytes].get(model)
        if compiled is None or model.training or not compiled.is_current(model):
            if model.training or any(p.device.type != "cpu" or p.dtype != torch.float32 for p in model.parameters()):
                raise Unsupported("it runs float32 models on a CPU, for inference")
            _programs[as_bytes][model] = compiled = _Compiled(model, as_bytes=as_bytes)
        return compiled


class NativeModel:
    """A `SearchModel` (`decoding/limits.py`) over the programs of a model; everything else is the model's."""

    writes = "tokens"

    def __init__(self, model: Any, compiled: _Compiled) -> None:
        self.model, self._compiled = model, compiled
        self.output = model.output if compiled.output is None else NativeOutput(model.output, compiled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def encode(
        self,
        source_BS: Tensor,
        lengths_B: Tensor | None,
        phrase_sizes_BP: Tensor | None = None,
        *,
        tempering: Tempering = AS_TRAINED,
    ) -> Memory:
        """See `TranslationModel.encode`."""
        program = self._compiled.encoder
        if program is None:
            memory: Memory = self.model.encode(source_BS, lengths_B, phrase_sizes_BP, tempering=tempering)
            return memory
        sentences, length = source_BS.shape
        tokens = source_BS.contiguous()
        lengths = torch.full((sentences,), length, device="cpu") if lengths_B is None else lengths_B.contiguous()
        _require(tokens, torch.int64, (sentences, length))
        _require(lengths, torch.int64, (sentences,))
        if sentences and not 0 <= int(lengths.min()) <= int(lengths.max()) <= length:
            raise IndexError("a length is outside the batch")
        positions = _positions(self.model.source_embedding, 0, length)
        states = torch.empty(sentences, length, program.width, dtype=torch.float32, device="cpu")
        source = SourceStruct(sentences=sentences, length=length, tokens=tokens.data_ptr(), lengths=lengths.data_ptr())
        source.positions, source.states = _data(positions), states.data_ptr()
        memory = Memory(states, None if lengths_B is None or bool((lengths == length).all()) else lengths_B)
        if self.model.phrases is not None:
            segments: PhraseSegments = self.model.phrases.begin(source_BS, lengths, phrase_sizes_BP).segments
            sizes = segments.sizes_BP.contiguous()
            _require_phrases(sizes, lengths)
            vectors = torch.zeros(
                program.num_phrase_mixtures, *sizes.shape, program.width, dtype=torch.float32, device="cpu"
            )
            mixed = torch.zeros(program.num_token_mixtures, *states.shape, dtype=torch.float32, device="cpu")
            source.phrases, source.sizes = sizes.shape[1], sizes.data_ptr()
            source.vectors, source.mixed = vectors.data_ptr(), mixed.data_ptr()
            memory.mixed = list(mixed) or None
            of_layers = list(vectors) if len(vectors) > 1 else [vectors[0]] * len(self.model.decoder.layers)
            memory.phrases = PhraseMemory(of_layers, sizes, segments.visibility)
        if isinstance(self.model.encoder, RecurrentEncoder) and self.model.encoder.keep_final:
            parts = 2 if program.recurrence[0].layers[0].forwards.gates == GATES["lstm"] else 1
            final = torch.empty(sentences, program.num_layers, parts, program.width, dtype=torch.float32, device="cpu")
            source.final = final.data_ptr()
            memory.final = [tuple(state.unbind(1)) for state in final.unbind(1)]
        check(self._compiled.parts.library.pl_encode(addressof(program), addressof(source)))
        if self.model.fertility is not None:
            logits_BSC = self._fertility(self.model.fertility.join(self.model.source_embedding(source_BS), states))
            memory.shares_BS2 = self.model.shares(logits_BSC, memory.lengths_B, tempering)
        return memory

    def _fertility(self, joined_BSI: Tensor) -> Tensor:
        """The classes of source tokens before calibration, (B, S, C): `Fertility.classify`."""
        x, parts = joined_BSI.flatten(0, 1).contiguous(), self._compiled.parts
        for number, matrix in enumerate(self._compiled.fertility, 1):
            _require(x, torch.float32, (len(x), matrix.k))
            y = torch.empty(len(x), matrix.n, dtype=torch.float32, device="cpu")
            activation = ACTIVATIONS["linear" if number == len(self._compiled.fertility) else "relu"]
            parts.library.pl_multiply(parts.variant, byref(matrix), x.data_ptr(), len(x), activation, y.data_ptr())
            x = y
        return x.unflatten(0, joined_BSI.shape[:2])

    def start(self, memory: Any, *, beam: int = 1, max_length: int = 64) -> NativeState:
        """The state of search before the first step, `beam` hypotheses a sentence."""
        state = NativeState(self._compiled, memory, max_length, self.model)
        if beam > 1:
            state.expand(beam)
        return state

    def step(self, tokens_R: Tensor, state: NativeState) -> DecoderOutput:
        """Feed one token to every row: hidden (R, D). There are no attention weights."""
        hidden_RD, gate_R2 = state.advance(tokens_R, _embedding(self.model))
        return DecoderOutput(hidden_RD, (), gate_R2)

    @property
    def programs(self) -> Programs | None:
        """What a search in the library needs; None if the output is eager."""
        compiled = self._compiled
        if compiled.output is None:
            return None
        reads_gate, positions = isinstance(self.model.output, WordOrPhraseOutput), _embedding(self.model).positions
        return Programs(compiled.parts.library, compiled.decoder, compiled.output, positions, reads_gate)


class Programs(NamedTuple):
    """A decoder (`Stack`), an output (`Output`) and whether it reads a gate, and the vectors of positions from one on."""

    library: CDLL
    decoder: StackStruct
    output: OutputStruct
    positions: Callable[[int, int], Tensor] | None
    reads_gate: bool


class NativeState:
    """The state of a search; row = sentence * beam + hypothesis."""

    def __init__(self, compiled: _Compiled, memory: Any, capacity: int, model: Any) -> None:
        self._compiled, self._library = compiled, compiled.parts.library
        self.rows = sentences = memory if isinstance(memory, int) else len(memory.states_BSD)
        self.beam, self.step, self.has_gate = 1, 0, False
        self.handle = self._library.pl_start(addressof(compiled.decoder), sentences, max(1, capacity))
        if not self.handle:
            raise MemoryError("no memory for the caches of search; make batch_sentences smaller")
        finalize(self, self._library.pl_end, self.handle)
        if not isinstance(memory, int):
            self._read(memory, model)

    def _read(self, memory: Memory, model: Any) -> None:
        sentences, length, _ = memory.states_BSD.shape
        lengths = (
            torch.full((sentences,), length, device="cpu")
            if memory.lengths_B is None
            else memory.lengths_B.contiguous()
        )
        _require(lengths, torch.int64, (sentences,))
        if sentences and not 0 <= int(lengths.min()) <= int(lengths.max()) <= length:
            raise IndexError("a length is outside the batch")
        if isinstance(model.decoder, RecurrentDecoder):
            self._read_recurrent(memory, model.decoder, lengths)
        for number, layer in enumerate(getattr(model.decoder, "layers", ())):
            if layer.cross_attention is not None:
                states = memory.of_layer(number).contiguous()
                _require(
                    states, torch.float32, (sentences, length, self._compiled.decoder.layers[number].cross.memory.k)
                )
                check(self._library.pl_memory(self.handle, number, states.data_ptr(), length, lengths.data_ptr()))
            if layer.combination is not None and memory.phrases is not None:
                self._read_phrases(number, memory.phrases, sentences)
        if memory.shares_BS2 is not None:
            shares = memory.shares_BS2.transpose(1, 2).contiguous()
            _require(shares, torch.float32, (sentences, 2, length))
            check(self._library.pl_gate(self.handle, shares.data_ptr()))
            self.has_gate = True

    def _read_recurrent(self, memory: Memory, decoder: RecurrentDecoder, lengths: Tensor) -> None:
        sentences, length, width = len(lengths), memory.states_BSD.shape[1], self._compiled.decoder.width
        states = memory.states_BSD.contiguous()
        _require(states, torch.float32, (sentences, length, width))
        check(self._library.pl_memory(self.handle, 0, states.data_ptr(), length, lengths.data_ptr()))
        if decoder.initial == "final":
            initial = torch.cat([part for state in final_states(memory) for part in state], -1)
            parts = sum(cell.parts for cell in decoder.cells)
            _require(initial, torch.float32, (sentences, parts * width))
            self._library.pl_initial(self.handle, initial.data_ptr())

    def _read_phrases(self, layer: int, phrases: PhraseMemory, sentences: int) -> None:
        vectors, counts = phrases.vectors[layer].contiguous(), phrases.visibility.lengths_B
        most = vectors.shape[1]
        width = self._compiled.decoder.layers[layer].combination.keys_values.k
        _require(vectors, torch.float32, (sentences, most, width))
        if counts is not None:
            counts = counts.contiguous()
            _require(counts, torch.int64, (sentences,))
            if sentences and not 0 <= int(counts.min()) <= int(counts.max()) <= most:
                raise IndexError("a number of phrases is outside the batch")
        check(self._library.pl_phrases(self.handle, layer, vectors.data_ptr(), most, _data(counts)))

    def advance(self, tokens_R: Tensor, embedding: Any) -> tuple[Tensor, Tensor | None]:
        """Feed one token to every row: hidden states (R, D), and λ_word and λ_phrase (R, 2) of a model with a gate."""
        program = self._compiled.decoder
        hidden = torch.empty(self.rows, program.width, dtype=torch.float32, device="cpu")
        tokens = tokens_R.contiguous()
        _require(tokens, torch.int64, (self.rows,))
        position = _positions(embedding, self.step, 1)
        gate = torch.empty(self.rows, 2, dtype=torch.float32, device="cpu") if self.has_gate else None
        check(self._library.pl_step(self.handle, tokens.data_ptr(), _data(position), hidden.data_ptr(), _data(gate)))
        self.step += 1
        return hidden, gate

    def reorder(self, rows_R: Tensor) -> None:
        """Row i becomes what row `rows_R[i]` was; rows stay within their sentence."""
        rows = rows_R.contiguous()
        _require(rows, torch.int64, (len(rows),))
        check(self._library.pl_reorder(self.handle, rows.data_ptr(), len(rows)))
        self.rows = len(rows)

    def expand(self, beam: int) -> None:
        """From one hypothesis a sentence to `beam` equal ones."""
        assert self.beam == 1
        self.beam = beam
        self.reorder(torch.arange(self.rows, device="cpu").repeat_interleave(beam))

    def keep(self, sentences_B: Tensor) -> None:
        """Keep these sentences only, with all their hypotheses, in this order."""
        if self.beam > 1:
            sentences_B = (sentences_B[:, None] * self.beam + torch.arange(self.beam, device="cpu")).flatten()
        self.reorder(sentences_B)


class NativeOutput:
    """An output whose best classes and scores come from the library, chunk by chunk; all else is the output's."""

    def __init__(self, output: SoftmaxOutput | ContinuousOutput, compiled: _Compiled) -> None:
        self.eager, self._compiled = output, compiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.eager, name)

    def candidates(self, hidden_RD: Tensor, count: int, gate_R2: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p and ids of the `count` best classes of each row, (R, count) each, best first; ties go to the lower id."""
        log_probs, ids, _ = self._run(hidden_RD, count, gate_R2)
        return log_probs.float(), ids

    def allowed(
        self, hidden_RD: Tensor, count: int, banned: tuple[int, ...], gate_R2: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same without the `banned` classes, in float64; -inf where fewer are left."""
        log_probs, ids, _ = self._run(hidden_RD, count, gate_R2, banned)
        return log_probs, ids

    def gold_log_probs(self, hidden_ND: Tensor, gold_N: Tensor, gate_N2: Tensor | None = None) -> Tensor:
        """log p of the gold class of each row, (N,)."""
        of_gold = self._run(hidden_ND, 1, gate_N2, gold_R=gold_N)[2]
        assert of_gold is not None
        return of_gold.float()

    def _run(
        self,
        hidden_RD: Tensor,
        count: int,
        gate_R2: Tensor | None,
        banned: tuple[int, ...] = (),
        gold_R: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        output, parts = self._compiled.output, self._compiled.parts
        assert output is not None
        rows, count = len(hidden_RD), min(count, output.classes.n)
        hidden = hidden_RD.contiguous()
        _require(hidden, torch.float32, (rows, output.first.k or output.classes.k))
        log_probs = torch.empty(rows, count, dtype=torch.float64, device="cpu")
        ids = torch.empty(rows, count, dtype=torch.int64, device="cpu")
        of_gold = None
        if gold_R is not None:
            gold_R, of_gold = gold_R.contiguous(), torch.empty(rows, dtype=torch.float64, device="cpu")
            _require(gold_R, torch.int64, (rows,))
        if not isinstance(self.eager, WordOrPhraseOutput):
            gate_R2 = None
        if gate_R2 is not None:
            gate_R2 = gate_R2.contiguous()
            _require(gate_R2, torch.float32, (rows, 2))
        if count == 0:
            return log_probs, ids, of_gold
        code = parts.library.pl_candidates(
            parts.variant, addressof(output), hidden.data_ptr(), _data(gate_R2), rows, count,
            (c_int64 * len(banned))(*banned), len(banned), log_probs.data_ptr(), ids.data_ptr(), _data(gold_R), _data(of_gold),
        )  # fmt: skip
        check(code)
        return log_probs, ids, of_gold


def _positions(embedding: Any, first: int, length: int) -> Tensor | None:
    positions: Tensor | None = None if embedding.positions is None else embedding.positions(first, length).contiguous()
    return positions


def _require(tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Refuse a tensor that the library would read or write beyond its end."""
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise ValueError(
            f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}, but {shape} {dtype} on cpu is needed"
        )


def _require_phrases(sizes_BP: Tensor, lengths_B: Tensor) -> None:
    """Refuse phrases that are not the tokens of their sentences, one after the other."""
    _require(sizes_BP, torch.int64, (len(lengths_B), sizes_BP.shape[1]))
    if bool((sizes_BP < 0).any()) or not torch.equal(sizes_BP.sum(1), lengths_B):
        raise IndexError("a phrase is outside its sentence")


def _data(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
