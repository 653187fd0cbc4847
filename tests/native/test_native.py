"""The compiled library against eager torch: the same numbers within 1e-5, the same outputs, the same bits in every batch."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import weakref
from functools import cache
from typing import Any

import pytest
import torch
from tests.helpers import in_turn
from torch import Tensor, nn

from phraseloom.data.tensors import make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.penalties import WuPenalty
from phraseloom.decoding.search import search
from phraseloom.errors import ModelError, UsageError
from phraseloom.layers.recurrent import GRUCell, LSTMCell, MLPAttention
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_language_model, build_model
from phraseloom.models.recurrent import RecurrentDecoder, RecurrentEncoder
from phraseloom.native import library, model
from phraseloom.native.model import NativeModel, fast
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.outputs import DecoderOutput, WordOrPhraseOutput

needs_library = pytest.mark.skipif(
    library.load() is None, reason="the compiled library is not built: python setup.py build_ext --inplace"
)
pytestmark = needs_library

SIZE, CLOSE = 50, 1e-5
SMALL = {"width": 32, "heads": 2, "ffn_width": 8}
NO_ENCODER = {"encoder": {"kind": "none"}}
GATE = {"kind": "word_or_phrase", "fertility": {"classes": 4, "widths": [5, 6]}}
ONE_LAYER = {"kind": "recurrent", "layers": 1}


def recurrent(**decoder: Any) -> dict[str, Any]:
    """A recurrent model of two layers with these options of the decoder."""
    return {"encoder": {"kind": "recurrent", "layers": 2}, "decoder": {"kind": "recurrent", "layers": 2, **decoder}}


BIASES = {"attention_bias": True, "activation": "swish", "norm": "post"}
CASES: dict[str, dict[str, Any]] = {
    "token": {},
    "relative": {"attention": {"decoder_self": "relative", "encoder_self": "relative"}},
    "relative-short": {"attention": {"decoder_self": {"score": {"kind": "relative", "clip": 2, "on_values": False}}}},
    **{
        line.replace(" ", "-"): {"attention": {"encoder_self": line, "decoder_self": line}}
        for line in (
            "convkv-relative heterogeneous 1-2",
            "convkv-relative homogeneous 22",
            "queryk-relative heterogeneous 1-2-3 gated",
            "queryk-relative homogeneous 211",
            "queryk-relative interleaved 1-2 keys-per-order",
        )
    },
    **{
        line.replace(" ", "-"): {"attention": line}
        for line in (
            "convkv heterogeneous 1-2",
            "convkv heterogeneous 2-3",
            "convkv homogeneous 22",
            "convkv interleaved 1-2",
            "convkv interleaved 1-2 gated",
            "queryk heterogeneous 1-2",
            "queryk heterogeneous 1-2-3",
            "queryk heterogeneous 1-2 keys-per-order",
            "queryk heterogeneous 1-2 gated",
            "queryk homogeneous 211",
            "queryk interleaved 1-2-3",
        )
    },
    "post-norm": {"norm": "post"},
    "marian": {**BIASES, "scale_embeddings": True, "positions": {"kind": "none"}},
    "biases-queryk": {**BIASES, "attention": "queryk heterogeneous 1-2"},
    "biases-interleaved": {**BIASES, "attention": "convkv interleaved 1-2"},
    "gelu": {"activation": "gelu"},
    "embedding-norm": {"embedding_norm": True},
    "phrases": {"phrases": {}},
    "phrases-post-norm": {"phrases": {"residual": "token", "transparent": True}, "norm": "post"},
    "phrases-mean": {"phrases": {"glance": "mean", "attention": "none", "transparent": False}},
    "phrases-gated": {"phrases": {"attention": "gated", "transparent_tokens": True, "combination_width": 20}},
    "phrases-attention-alone": {"phrases": {"combination_width": 0}},
    "phrases-attention-alone-post": {"phrases": {"combination_width": 0}, "norm": "post"},
    "phrases-queryk": {"phrases": {"scorer_width": 7}, "attention": "queryk heterogeneous 1-2"},
    "phrases-interleaved": {"phrases": {"glance": "mean"}, "attention": "convkv interleaved 1-2"},
    "phrases-heads-of-6": {"phrases": {"scorer_width": 20}, "width": 24, "embedding_norm": True},
    "phrases-from-trees": {"phrases": {"segments": {"kind": "dataset"}}},
    "phrases-no-encoder": {**NO_ENCODER, "phrases": {"residual": "token"}},
    "no-encoder": NO_ENCODER,
    "no-encoder-norm": {"encoder": {"kind": "none", "memory_norm": True}},
    "no-encoder-queryk": {**NO_ENCODER, "attention": "queryk heterogeneous 1-2"},
    "lstm-encoder": {"encoder": {"kind": "recurrent", "layers": 2}},
    "gru-encoder-norm": {"encoder": {"kind": "recurrent", "layers": 3, "cell": "gru", "memory_norm": True}},
    "lstm-encoder-deep": {"encoder": {"kind": "recurrent", "layers": 4, "bidirectional": 2, "residual": True}},
    "lstm-encoder-phrases": {
        "encoder": {"kind": "recurrent", "layers": 2, "memory_norm": True},
        "phrases": {"transparent_tokens": True},
    },
    "reordered-encoder": {"encoder": ONE_LAYER, "reordering": {"layers": 1}},
    "lstm": recurrent(),
    "lstm-norm": {
        "encoder": {"kind": "recurrent", "layers": 2, "bidirectional": 0, "memory_norm": True},
        "decoder": {"kind": "recurrent", "layers": 3, "residual": True},
    },
    "lstm-no-feeding": recurrent(input_feeding=False),
    "lstm-final": {
        "encoder": {"kind": "recurrent", "layers": 3, "bidirectional": 2, "residual": True},
        "decoder": {"kind": "recurrent", "layers": 3, "residual": True, "initial": "final"},
    },
    "lstm-zero": recurrent(initial="zero"),
    "lstm-general": recurrent(attention="general"),
    "lstm-fixed": recurrent(attention="fixed"),
    "lstm-heads": recurrent(attention="multihead"),
    **{
        f"lstm-{line.replace(' ', '-')}": {**recurrent(attention="multihead"), "attention": {"cross": line}}
        for line in ("queryk heterogeneous 1-2", "convkv homogeneous 22", "queryk interleaved 1-2 gated")
    },
    "lstm-of-transformer": {"decoder": {"kind": "recurrent", "layers": 2}},
    "lstm-no-encoder": {**NO_ENCODER, "decoder": {"kind": "recurrent", "layers": 2}},
    "lstm-fixed-no-encoder": {**NO_ENCODER, "decoder": {"kind": "recurrent", "layers": 2, "attention": "fixed"}},
    "lstm-positions": {**recurrent(), "positions": {"kind": "sinusoid"}, "embedding_norm": True},
    "lstm-narrow-embeddings": {**recurrent(), "embedding_width": 12, "positions": {"kind": "sinusoid"}},
    "lstm-width-42": {**recurrent(), "width": 42, "heads": 1},
    "lstm-width-160": {**recurrent(), "width": 160},
    "lstm-reordered": {**recurrent(initial="final"), "reordering": {"layers": 1}},
    "lstm-continuous": {**recurrent(), "output": {"kind": "continuous"}, "tied": "two_way"},
    "lstm-words-or-phrases": {**recurrent(), "output": {"kind": "word_or_phrase"}, "tied": "two_way"},
    **{
        f"lstm-gate-{kind}": {**recurrent(attention=kind), "output": GATE, "tied": "two_way"}
        for kind in ("mlp", "general", "multihead")
    },
    **{
        f"gru-{kind}": {
            "encoder": {"kind": "recurrent", "layers": 2, "cell": "gru"},
            "decoder": {"kind": "recurrent", "layers": 2, "cell": "gru", "attention": kind, "initial": initial},
        }
        for kind, initial in (("mlp", "last"), ("general", "final"), ("fixed", "last"), ("multihead", "zero"))
    },
    "gru-no-feeding": {
        "encoder": {**ONE_LAYER, "cell": "gru"},
        "decoder": {**ONE_LAYER, "cell": "gru", "input_feeding": False},
        "width": 42,
        "heads": 1,
    },
    "heads-of-4": {"width": 16},
    "heads-of-6": {"width": 24},
    "heads-of-16": {"width": 64, "attention": "queryk heterogeneous 1-2"},
    "continuous": {"output": {"kind": "continuous"}, "tied": "two_way"},
    "continuous-two-layers": {"output": {"kind": "continuous", "hidden_layer": True}},
    "words-or-phrases": {"output": {"kind": "word_or_phrase"}, "tied": "two_way"},
    **{
        line.replace(" ", "-"): {"output": GATE, "tied": "two_way", "attention": line.removeprefix("gate ")}
        for line in (
            "gate token",
            "gate queryk heterogeneous 1-2-3",
            "gate queryk heterogeneous 1-2 gated",
            "gate convkv homogeneous 22",
            "gate convkv interleaved 1-2",
        )
    },
    "gate-density": {"output": {**GATE, "score": "density"}, "norm": "post"},
}
EAGER = {"reordered-encoder": "encoder", "lstm-reordered": "encoder", "gate-density": "output"}
each = pytest.mark.parametrize("name", CASES)
SOURCES = [
    [5, 6, 7, 8, 9, 10, 11, 12],
    [4],
    [7, 7, 9],
    [30, 31, 32, 33],
    [40, 12, 13, 5, 6, 7, 8, 20],
    [9, 9],
    [21, 22, 23],
]


def randomised(module: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * 0.1) if "norm" in name else parameter.copy_(noise * 0.2)
    return module.eval()


@cache
@torch.inference_mode(mode=False)  # a test under inference mode may be the first to ask
def built(name: str) -> Any:
    config = {
        "width": 32,
        "heads": 4,
        "ffn_width": 48,
        "encoder": {"layers": 2},
        "decoder": {"layers": 2},
        "tied": "none",
    }
    vectors = torch.randn(SIZE, 10, generator=torch.Generator().manual_seed(8))
    table = TargetTable(nn.functional.normalize(vectors, dim=-1), SIZE - 13)
    case = {"output": {"bias": True}, **config, **CASES[name]}
    return randomised(build_model(ModelConfig.model_validate(case), SIZE, SIZE, table))


def encoded(searched: Any, sources: list[list[int]]) -> Any:
    phrases = [[1, (len(s) + 1) // 2, len(s) - (len(s) + 1) // 2][: 3 - (len(s) < 2)] for s in sources]  # with EOS
    batch = make_batch(sources, [[] for _ in sources], phrases)
    return searched.encode(batch.source_BS, batch.source_lengths_B, batch.phrase_sizes_BP)


def walk(searched: Any, sources: list[list[int]] = SOURCES, *, capacity: int = 3) -> list[DecoderOutput]:
    """Hidden states and λ_word of nine steps while rows are multiplied, reordered and dropped, from the encoder on."""
    generator = torch.Generator().manual_seed(5)
    state = searched.start(encoded(searched, sources), beam=1, max_length=capacity)
    decoded, rows = [], len(sources)
    for step in range(9):
        tokens = torch.randint(0, SIZE, (rows,), generator=generator)
        decoded.append(searched.step(tokens, state))
        if step == 1:
            state.expand(3)
            rows *= 3
        elif step == 5:
            remaining = torch.arange(0, rows // 3, 2)
            state.keep(remaining)
            rows = 3 * len(remaining)
        elif step > 1:
            chosen = torch.randint(0, 3, (rows // 3, 3), generator=generator)
            state.reorder((torch.arange(0, rows, 3)[:, None] + chosen).flatten())
    return decoded


def assert_close(got: Tensor, expected: Tensor) -> None:
    """The stated rule: within 1e-5 of the reference, relative to the largest number of it where that is above 1."""
    assert got.shape == expected.shape
    assert torch.equal(got.isinf(), expected.isinf())
    got, expected = (x.masked_fill(x.isinf(), 0.0) for x in (got, expected))
    assert float((got - expected).abs().max()) <= CLOSE * max(1.0, float(expected.abs().max()))


def assert_same_steps(native: Any, reference: Any) -> None:
    """Hidden states, the gate, and the best classes of the last step."""
    walks = walk(native), walk(reference)
    for got, expected in zip(*walks, strict=True):
        assert_close(got.hidden, expected.hidden)
        assert (got.gate is None) == (expected.gate is None)
        if got.gate is not None:
            assert_close(got.gate, expected.gate)
    last = walks[1][-1]
    log_probs, ids = native.output.candidates(last.hidden, 5, last.gate)
    expected_log_probs, expected_ids = reference.output.candidates(last.hidden, 5, last.gate)
    assert torch.equal(ids, expected_ids)
    assert_close(log_probs, expected_log_probs)


@each
@torch.inference_mode()
def test_encoder_and_steps_agree_with_eager(name: str) -> None:
    reference = built(name)
    native = fast(reference, "native")
    assert isinstance(native, NativeModel)
    for part in ("encoder", "output"):
        assert (getattr(native._compiled, part) is None) == (EAGER.get(name) == part)
    eager_memory, memory = encoded(reference, SOURCES), encoded(native, SOURCES)
    real = torch.arange(memory.states_BSD.shape[1]) < eager_memory.lengths_B[:, None]
    for layer in range(2):
        assert_close(memory.of_layer(layer)[real], eager_memory.of_layer(layer)[real])
        if memory.phrases is not None:
            assert_close(memory.phrases.vectors[layer], eager_memory.phrases.vectors[layer])
    assert (memory.final is None) == (eager_memory.final is None)
    for state, expected in zip(memory.final or (), eager_memory.final or (), strict=True):
        for part, expected_part in zip(state, expected, strict=True):
            assert_close(part, expected_part)
    assert_same_steps(native, reference)


@each
@torch.inference_mode()
def test_no_row_depends_on_its_batch(name: str) -> None:
    native = fast(built(name), "native")
    together = encoded(native, SOURCES * 46)
    state = native.start(together, beam=1, max_length=3)
    tokens = torch.arange(len(SOURCES) * 46) % SIZE
    decoded = [native.step(tokens, state) for _ in range(5)]
    last = decoded[-1]
    scores = native.output.candidates(last.hidden, 7, last.gate)
    for number in (0, 1, 2, 3, 160, 321):
        alone = encoded(native, [SOURCES[number % len(SOURCES)]])
        if native._compiled.encoder is not None:
            length = alone.states_BSD.shape[1]
            assert torch.equal(alone.states_BSD[0], together.states_BSD[number, :length])
            for state, expected in zip(alone.final or (), together.final or (), strict=True):
                assert all(torch.equal(part[0], of_all[number]) for part, of_all in zip(state, expected, strict=True))
            state = native.start(alone, beam=1, max_length=9)
            for step in range(5):
                got = native.step(tokens[number : number + 1], state)
                assert torch.equal(got.hidden[0], decoded[step].hidden[number]), step
                if got.gate is not None:
                    assert torch.equal(got.gate[0], decoded[step].gate[number]), step
        if native._compiled.output is not None:
            row = last.rows(torch.tensor([number]))
            got_log_probs, got_ids = native.output.candidates(row.hidden, 7, row.gate)
            assert torch.equal(got_ids[0], scores[1][number])
            assert torch.equal(got_log_probs[0], scores[0][number])


@torch.inference_mode()
def test_a_phrase_that_the_gate_hardly_allows_has_its_probability() -> None:
    """Both shares are read, each from itself: one of 10⁻⁸ is not 1 - the other."""
    reference = copy.deepcopy(built("gate-token"))
    reference.fertility.maps[-1].bias[:2] += 18.0  # of a word
    for searched in (fast(reference, "native"), reference):
        phrase = SIZE - 2
        limits = Limits.of([1] * len(SOURCES), [1] * len(SOURCES), [[phrase]] * len(SOURCES))
        found = [h.log_prob for [h] in search(searched, encoded(searched, SOURCES), limits, SearchOptions(beam=1))]
        exact = copy.deepcopy(reference).double()
        wanted = exact.score(make_batch(SOURCES, [[phrase]] * len(SOURCES))).sum(1)
        assert max(wanted) < -16
        assert found == pytest.approx(wanted.tolist(), abs=1e-3)


@pytest.mark.parametrize("variant", library.variants())
@torch.inference_mode()
def test_every_variant_of_the_kernels_agrees(variant: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "best_variant", lambda head_size: variant)
    monkeypatch.setattr(model, "_programs", {False: {}})
    for name in (
        "token",
        "queryk-heterogeneous-1-2",
        "convkv-interleaved-1-2",
        "heads-of-16",
        "phrases-gated",
        "phrases-heads-of-6",
        "lstm",
        "lstm-width-42",
        "lstm-width-160",
        "lstm-general",
        "gru-mlp",
    ):
        native = fast(built(name), "native")
        assert native._compiled.parts.variant == variant
        assert_same_steps(native, built(name))


@pytest.mark.parametrize("line", ["token", "queryk heterogeneous 1-2"])
@torch.inference_mode()
def test_language_models_step_natively(line: str) -> None:
    config = {"width": 32, "heads": 4, "ffn_width": 48, "decoder": {"layers": 2}, "attention": {"decoder_self": line}}
    reference = randomised(build_language_model(LanguageModelConfig.model_validate(config), SIZE))
    native, tokens = fast(reference, "native"), torch.tensor([4, 5, 6])
    states = [searched.start(3, beam=1, max_length=2) for searched in (native, reference)]
    for _ in range(4):
        assert_close(native.step(tokens, states[0]).hidden, reference.step(tokens, states[1]).hidden)


@pytest.mark.parametrize("name", ["token", "lstm", "lstm-queryk-heterogeneous-1-2", "gru-general", "lstm-gate-mlp"])
@torch.inference_mode()
def test_beams_from_the_first_step(name: str) -> None:
    native = fast(built(name), "native")
    memory, tokens = encoded(native, SOURCES), torch.arange(3 * len(SOURCES))
    states = [native.start(memory, beam=beam, max_length=3) for beam in (3, 1)]
    first = native.step(tokens[::3], states[1])
    assert torch.equal(native.step(tokens // 3 * 3, states[0]).hidden, first.hidden.repeat_interleave(3, 0))
    states[1].expand(3)
    assert torch.equal(*(native.step(tokens, state).hidden for state in states))


@pytest.mark.parametrize("name", ["lstm-norm", "lstm-encoder-deep", "gru-general", "lstm-general"])
@torch.inference_mode()
def test_errors_of_recurrent_states_do_not_add_up(name: str) -> None:
    generator, reference = torch.Generator().manual_seed(9), built(name)
    native = fast(reference, "native")
    sources = [torch.randint(4, SIZE, (n,), generator=generator).tolist() for n in (300, 40, 1500)]
    memories = [encoded(searched, sources) for searched in (native, reference)]
    real = torch.arange(memories[0].states_BSD.shape[1]) < memories[1].lengths_B[:, None]
    assert_close(*(memory.states_BSD[real] for memory in memories))
    pairs = [(native, native.start(memories[1])), (reference, reference.start(memories[1], max_length=300))]
    for tokens in torch.randint(4, SIZE, (300, 3), generator=generator):
        assert_close(*(searched.step(tokens, state).hidden for searched, state in pairs))


TRAINED: dict[str, dict[str, Any]] = {
    **{line: {"attention": line} for line in ("token", "convkv heterogeneous 1-2", "queryk heterogeneous 1-2")},
    "lstm": {"encoder": ONE_LAYER, "decoder": {"kind": "recurrent", "layers": 2, "residual": True}},
    "gru": {
        "encoder": {**ONE_LAYER, "cell": "gru"},
        "decoder": {**ONE_LAYER, "cell": "gru", "attention": "multihead", "initial": "final"},
        "attention": {"cross": "queryk heterogeneous 1-2"},
    },
    "no-encoder": {**NO_ENCODER, "decoder": {**ONE_LAYER, "attention": "general", "input_feeding": False}},
}


@cache
def trained(name: str) -> Any:
    """A small model that has learned to write its source backwards."""
    torch.manual_seed(1)
    config = {
        "width": 32,
        "heads": 2,
        "ffn_width": 64,
        "encoder": {"layers": 1},
        "decoder": {"layers": 2},
        **TRAINED[name],
    }
    toy = build_model(ModelConfig.model_validate({**config, "dropout": 0.0, "attention_dropout": 0.0}), 24, 24).train()
    adam = torch.optim.Adam(toy.parameters(), lr=3e-3)
    for _ in range(150):
        sources = [torch.randint(4, 24, (int(n),)).tolist() for n in torch.randint(1, 8, (32,))]
        loss = toy.loss(make_batch(sources, [s[::-1] for s in sources]))
        adam.zero_grad()
        (loss.objective / loss.tokens).backward()
        adam.step()
    return toy.eval()


@pytest.mark.parametrize("name", in_turn(TRAINED))
def test_trained_models_write_the_same(name: str) -> None:
    reference = trained(name)
    sources = [
        torch.randint(4, 24, (1 + n % 9,), generator=torch.Generator().manual_seed(n)).tolist() for n in range(40)
    ]
    for beam, exact in ((1, True), (4, True), (4, False)):
        results = []
        for searched in (reference, fast(reference, "native")):
            limits = Limits.of([2 * len(s) + 3 for s in sources], [1] * len(sources), [[4, 5]] + [[]] * 39)
            options = SearchOptions(beam=beam, n_best=beam, penalty=WuPenalty(0.6), exact=exact)
            with torch.inference_mode():
                results.append(search(searched, encoded(searched, sources), limits, options))
        for expected, got in zip(*results, strict=True):
            assert [h.tokens for h in got] == [h.tokens for h in expected]
            assert [h.cut for h in got] == [h.cut for h in expected]
            assert [h.score for h in got] == pytest.approx([h.score for h in expected], abs=1e-4)


def native_output(weight: Tensor, bias: Tensor | None = None, kind: str = "softmax") -> tuple[Any, Any]:
    """The output of a model with these vectors of the classes, native and eager; a continuous one predicts its hidden state."""
    config = {"width": weight.shape[1], "heads": 1, "ffn_width": 8, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
    output = {"kind": kind, "bias": bias is not None} if kind == "softmax" else {"kind": kind}
    table = TargetTable(weight, len(weight) // 2)
    whole = ModelConfig.model_validate({**config, "tied": "none", "output": output})
    reference = build_model(whole, 9, len(weight), table).eval()
    with torch.no_grad():
        if kind != "softmax":
            reference.output.project.weight.copy_(torch.eye(weight.shape[1]))
            reference.output.project.bias.zero_()
        else:
            reference.output.weight.copy_(weight)
            if bias is not None:
                reference.output.bias.copy_(bias)
    return fast(reference, "native").output, reference.output


@pytest.mark.parametrize("kind", ["softmax", "continuous", "word_or_phrase"])
@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 1000, 4099])
@torch.inference_mode()
def test_candidates_of_vocabularies_of_any_size(size: int, kind: str) -> None:
    size += 4 * (kind != "softmax")  # special tokens, two of which are forbidden
    generator = torch.Generator().manual_seed(size)
    # Whole numbers, whose sums are exact: the order of near ties is defined.
    weight, bias = (torch.randint(-3, 4, shape, generator=generator).float() for shape in ((size, 16), (size,)))
    hidden = torch.randint(-3, 4, (11, 16), generator=generator).float()
    gold = torch.randint(0, size, (11,), generator=generator)
    words = torch.tensor([0.0, 0.3, 0.9, 1.0, -1.0, 1.0, 1e-42, 0.2, 0.4, 0.7, 1e-9])
    gates = torch.stack((words, 1 - words), 1)
    gates[5, 1] = 1e-9
    native, eager = native_output(weight, bias if kind == "softmax" else None, kind)
    for gate in (None, gates):
        for count in (1, 6, 2000):
            log_probs, ids = native.candidates(hidden, count, gate)
            expected_log_probs, expected_ids = eager.candidates(hidden, count, gate)
            assert torch.equal(ids, expected_ids)
            assert_close(log_probs, expected_log_probs)
        assert_close(native.gold_log_probs(hidden, gold, gate), eager.gold_log_probs(hidden, gold, gate))
    assert kind != "word_or_phrase" or isinstance(native.eager, WordOrPhraseOutput)


@torch.inference_mode()
def test_equal_scores_go_to_the_lower_id() -> None:
    weight = torch.ones(300, 4)
    weight[200:] = 2.0
    native, _ = native_output(weight)
    ids = native.candidates(torch.ones(2, 4), 102)[1]
    assert ids.tolist() == [[*range(200, 300), 0, 1]] * 2


@torch.inference_mode()
def test_banned_classes_are_no_candidates_and_keep_their_probability() -> None:
    weight, hidden = torch.arange(20.0)[:, None].expand(20, 4) * 0.1, torch.ones(1, 4)
    native, eager = native_output(weight)
    log_probs, ids = native.allowed(hidden, 3, (19, 17))
    assert ids.tolist() == [[18, 16, 15]]
    assert_close(log_probs.float(), eager.log_probs(hidden)[:, [18, 16, 15]])
    log_probs, _ = native.allowed(hidden, 20, (19, 17))
    assert log_probs[0, -2:].tolist() == [float("-inf")] * 2


@torch.inference_mode()
def test_impossible_classes_and_nan() -> None:
    bias = torch.zeros(70)
    bias[:60] = float("-inf")
    native, eager = native_output(torch.randn(70, 8, generator=torch.Generator().manual_seed(1)), bias)
    hidden = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    log_probs, ids = native.candidates(hidden, 12)
    expected_log_probs, expected_ids = eager.candidates(hidden, 12)
    assert torch.equal(ids, expected_ids)
    assert torch.allclose(log_probs, expected_log_probs, atol=CLOSE)
    hidden[1, 2] = float("nan")
    log_probs, _ = native.candidates(hidden, 2)
    assert log_probs.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", ["token", "phrases-gated", "lstm-final"])
@torch.inference_mode()
def test_the_default_dtype_of_torch_does_not_matter(kind: str) -> None:
    """It is global: with another one, buffers half as large were overrun."""
    native = fast(built(kind), "native")
    wanted = search(native, encoded(native, SOURCES), Limits.of([5] * 7), SearchOptions(beam=2))
    torch.set_default_dtype(torch.bfloat16)
    try:
        memory = encoded(native, SOURCES)
        found = search(native, memory, Limits.of([5] * 7), SearchOptions(beam=2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert [[h.tokens for h in hypotheses] for hypotheses in found] == [
        [h.tokens for h in hypotheses] for hypotheses in wanted
    ]


@pytest.mark.parametrize(
    "where", ["encoder.layers.0.attention", "decoder.layers.0.self_attention", "decoder.layers.0.cross_attention"]
)
def test_attention_of_nothing_but_nan_is_refused(where: str) -> None:
    """A row of NaN is not a row without a visible token, whose context is 0."""
    broken = randomised(build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE))
    weight = next(p for name, p in broken.get_submodule(where).named_parameters() if p.dim() == 2)
    with torch.no_grad():
        weight[0, 0] = float("nan")
    searched = fast(broken, "native")
    with torch.inference_mode(), pytest.raises(ModelError, match="NaN"):
        search(searched, encoded(searched, SOURCES), Limits.of([5] * 7), SearchOptions())


def test_the_gate_of_attention_to_nan_is_nan() -> None:
    case = copy.deepcopy(built("gate-token"))
    weight = next(p for _, p in case.decoder.layers[-1].cross_attention.named_parameters() if p.dim() == 2)
    with torch.no_grad():
        weight.fill_(float("nan"))
    for searched in (case, fast(case, "native")):
        gate = walk(searched)[0].gate
        assert gate is not None
        assert gate.isnan().all()


def test_a_broken_model_is_refused() -> None:
    broken = randomised(build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE))
    with torch.no_grad():
        broken.decoder.layers[0].feed_forward.up.weight[3, 2] = float("nan")
    searched = fast(broken, "native")
    with torch.inference_mode(), pytest.raises(ModelError, match="NaN"):
        search(searched, encoded(searched, SOURCES), Limits.of([5] * 7), SearchOptions())


@torch.inference_mode()
def test_no_candidates() -> None:
    native, eager = native_output(torch.randn(20, 4))
    for output in (native, eager):
        log_probs, ids = output.candidates(torch.ones(2, 4), 0)
        assert log_probs.shape == ids.shape == (2, 0)


def test_another_default_device() -> None:
    """Every tensor that the library reads is on the CPU."""
    case = built("phrases-mean")
    with torch.device("meta"):
        native = fast(copy.deepcopy(case), "native")
    assert torch.equal(walk(native)[0].hidden, walk(fast(case, "native"))[0].hidden)


def test_swish_of_numbers_far_below_zero() -> None:
    case = randomised(build_model(ModelConfig.model_validate({"preset": "tiny", "activation": "swish"}), SIZE, SIZE))
    with torch.no_grad():
        case.decoder.layers[0].feed_forward.up.bias[:3] = torch.tensor([-95.0, -1e4, -1e38])
    assert_close(walk(fast(case, "native"))[0].hidden, walk(case)[0].hidden.detach())


FORKING = """
import os, sys, threading, time
from ctypes import addressof, c_int64
import torch
from phraseloom.native import library
torch.set_num_threads(1)
parts = library.Parts(library.variants()[-1])
output = library.OutputStruct()
output.classes, output.first_phrase = parts.matrix(torch.randn(64, 1)), 64
hidden, stopped = torch.randn(1, 1), False
def made():
    found = torch.empty(1, 1, dtype=torch.float64), torch.empty(1, 1, dtype=torch.int64)
    pointers = (c_int64 * 0)(), 0, *(tensor.data_ptr() for tensor in found), None, None
    return found, (parts.variant, addressof(output), hidden.data_ptr(), None, 1, 1, *pointers)
def busy():
    kept, arguments = made()
    while not stopped:
        parts.library.pl_candidates(*arguments)
kept, arguments = made()
threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(200):
    child = os.fork()
    if child == 0:
        parts.library.pl_candidates(*arguments)
        os._exit(0)
    end = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, 9)
            sys.exit("the child hangs")
        time.sleep(0.001)
stopped = True
for thread in threads:
    thread.join()  # a thread in a call as Python ends may abort the process
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_beside_a_running_search_does_not_hang() -> None:
    """A thread that is at the pool of memory while another forks is not there in the child."""
    quiet = ["-W", "ignore::DeprecationWarning"]  # Python 3.12 and later warn of forks beside threads
    command = [sys.executable, *quiet, "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@torch.inference_mode()
def test_wrong_tensors_are_refused_before_they_reach_the_library() -> None:
    native = fast(built("token"), "native")
    state = native.start(encoded(native, SOURCES), beam=1, max_length=4)
    for tokens in (
        torch.zeros(6, dtype=torch.long),
        torch.zeros(7, dtype=torch.int32),
        torch.zeros(7, 1, dtype=torch.long),
    ):
        with pytest.raises(ValueError, match="is needed"):
            native.step(tokens, state)
    for token in (-1, SIZE):
        with pytest.raises(IndexError, match="vocabulary"):
            native.step(torch.full((7,), token), state)
        with pytest.raises(IndexError, match="vocabulary"):
            native.output.gold_log_probs(torch.zeros(1, 32), torch.tensor([token]))
        with pytest.raises(IndexError, match="vocabulary"):
            native.encode(torch.full((2, 3), token), None)
    final = fast(built("lstm-final"), "native")
    memory = encoded(final, SOURCES)
    with pytest.raises(IndexError, match="vocabulary"):
        final.encode(torch.full((2, 3), SIZE), None)
    with pytest.raises(IndexError, match="vocabulary"):
        final.step(torch.full((7,), -1), final.start(memory))
    memory.final.pop()
    with pytest.raises(ValueError, match="is needed"):
        final.start(memory)
    memory.final = None
    with pytest.raises(ModelError, match="final states"):
        final.start(memory)
    for rows in ([0, 7], [-1]):
        with pytest.raises(IndexError, match="row"):
            state.reorder(torch.tensor(rows))
    with pytest.raises(IndexError, match="length"):
        native.encode(torch.full((2, 3), 5), torch.tensor([3, 4]))
    with pytest.raises(ValueError, match="is needed"):
        native.output.candidates(torch.zeros(2, 31), 3)
    native, sizes = fast(built("phrases-from-trees"), "native"), torch.tensor([[3, 0], [2, 1]])
    native.encode(torch.full((2, 3), 5), None, sizes)
    with pytest.raises(ModelError, match="cover"):
        native.encode(torch.full((2, 3), 5), None, sizes + 1)
    with pytest.raises(IndexError, match="phrase"):
        native.encode(torch.full((2, 3), 5), None, torch.tensor([[4, -1], [2, 1]]))
    with pytest.raises(ValueError, match="is needed"):
        native.encode(torch.full((2, 3), 5), None, sizes.int())


def test_changed_weights_are_packed_again() -> None:
    changing = randomised(build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE))
    before = walk(fast(changing, "native"))
    with torch.no_grad():
        changing.decoder.layers[0].feed_forward.up.weight.mul_(1.5)
    after = walk(fast(changing, "native"))
    assert not torch.equal(before[0].hidden, after[0].hidden)
    assert_close(after[0].hidden, walk(changing)[0].hidden.detach())


@pytest.mark.parametrize("name", in_turn(CASES))
def test_a_model_that_did_not_change_is_packed_once(name: str) -> None:
    assert fast(built(name), "native")._compiled is fast(built(name), "native")._compiled


@pytest.mark.parametrize("replaced", ["tensor", "parameter", "module"])
def test_replaced_parts_are_packed_again(replaced: str) -> None:
    changing = randomised(build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE))
    before, other = walk(fast(changing, "native")), copy.deepcopy(changing.decoder.layers[0].feed_forward)
    feed_forward = changing.decoder.layers[0].feed_forward
    with torch.no_grad():
        other.up.weight.mul_(1.5)
    if replaced == "tensor":
        feed_forward.up.weight.data = other.up.weight.data
    elif replaced == "parameter":
        feed_forward.up.weight = other.up.weight
    else:
        changing.decoder.layers[0].feed_forward = other
    after = walk(fast(changing, "native"))
    assert not torch.equal(before[0].hidden, after[0].hidden)
    assert_close(after[0].hidden, walk(changing)[0].hidden.detach())


def test_changed_inference_tensors_are_packed_again() -> None:
    """They have no version counter."""
    with torch.inference_mode():
        changing = randomised(build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE))
        before = walk(fast(changing, "native"))
        changing.load_state_dict({name: 1.5 * value for name, value in changing.state_dict().items()})
        after = walk(fast(changing, "native"))
        assert not torch.equal(before[0].hidden, after[0].hidden)
        assert_close(after[0].hidden, walk(changing)[0].hidden)


@pytest.mark.parametrize("name", ["token", "lstm", "language model"])
def test_weights_that_a_fused_optimiser_has_changed_are_packed_again(name: str) -> None:
    """Fused optimisers do not raise the version counters of torch."""
    if name == "language model":
        config = LanguageModelConfig.model_validate(
            {"width": 32, "heads": 4, "ffn_width": 48, "decoder": {"layers": 1}}
        )
        changing: Any = randomised(build_language_model(config, SIZE))
    else:
        changing = copy.deepcopy(built(name))
    optimizer = torch.optim.AdamW(changing.parameters(), lr=0.1, fused=True)
    tokens = torch.tensor([4, 5, 6])

    def hidden(searched: Any) -> Tensor:
        with torch.inference_mode():
            lengths = torch.tensor([3, 3, 3])
            memory = 3 if name == "language model" else searched.encode(torch.full((3, 3), 5), lengths)
            result: Tensor = searched.step(tokens, searched.start(memory, beam=1, max_length=2)).hidden
            return result

    before = hidden(fast(changing.eval(), "native"))
    changing.train()
    changing.loss(make_batch([[5, 6, 7]] * 2, [[6, 7]] * 2)).objective.backward()
    optimizer.step()
    changing.eval()
    after = hidden(fast(changing, "native"))
    assert not torch.equal(before, after)
    assert_close(after, hidden(changing))


def test_nothing_is_kept_of_a_model_that_is_gone() -> None:
    gone = randomised(build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE))
    fast(gone, "native")
    reference = weakref.ref(gone)
    del gone
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"attention": "convkv heterogeneous 1-9"}, "n-grams longer than 8"),
        (
            {**recurrent(attention="multihead"), "attention": {"cross": "convkv heterogeneous 1-9"}},
            "n-grams longer than 8",
        ),
    ],
)
def test_what_the_library_cannot_run_is_named_and_stays_eager(case: dict[str, Any], reason: str) -> None:
    config = {**SMALL, "encoder": {"layers": 1}, "decoder": {"layers": 1}, **case}
    table = TargetTable(nn.functional.normalize(torch.randn(SIZE, 10), dim=-1), SIZE - 3)
    other = build_model(ModelConfig.model_validate(config), SIZE, SIZE, table).eval()
    assert fast(other, "auto") is other
    with pytest.raises(UsageError, match=reason):
        fast(other, "native")


class OtherCell(LSTMCell):
    pass


class OtherAttention(MLPAttention):
    pass


class OtherDecoder(RecurrentDecoder):
    pass


class OtherEncoder(RecurrentEncoder):
    pass


@pytest.mark.parametrize("other", [OtherCell, OtherAttention, OtherDecoder])
def test_recurrent_modules_of_your_own_stay_eager(other: type) -> None:
    model = build_model(ModelConfig.model_validate({**SMALL, **recurrent()}), SIZE, SIZE).eval()
    decoder: Any = model.decoder
    changed = {OtherCell: decoder.cells[1], OtherAttention: decoder.attention, OtherDecoder: decoder}[other]
    changed.__class__ = other
    assert fast(model, "auto") is model
    with pytest.raises(UsageError, match=other.__name__):
        fast(model, "native")


@pytest.mark.parametrize("case", ["class", "mixed cells"])
@torch.inference_mode()
def test_a_recurrent_encoder_of_your_own_stays_eager(case: str) -> None:
    model = build_model(ModelConfig.model_validate({**SMALL, **recurrent()}), SIZE, SIZE).eval()
    if case == "class":
        model.encoder.__class__ = OtherEncoder
    else:
        model.encoder.layers[1][0] = GRUCell(input_width=32, width=32)
    native = fast(model, "native")
    assert native._compiled.encoder is None
    assert_same_steps(native, model)


def test_other_types_and_training_stay_eager() -> None:
    reference = build_model(ModelConfig.model_validate({"preset": "tiny"}), SIZE, SIZE)
    for other in (reference.train(), reference.eval().double()):
        assert fast(other, "auto") is other
        with pytest.raises(UsageError, match="float32"):
            fast(other, "native")


def test_without_the_library_everything_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "load", lambda: None)
    assert fast(built("token"), "auto") is built("token")
    with pytest.raises(UsageError, match="phraseloom doctor"):
        fast(built("token"), "native")


def test_eager_is_the_model_itself() -> None:
    assert fast(built("token"), "eager") is built("token")
