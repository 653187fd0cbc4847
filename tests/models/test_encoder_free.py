"""Models without an encoder (P004): what the decoder reads is the embedded source itself, and no more than that."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.models.test_recurrent import SIZE, SMALL, built, recurrent
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.models.build import build_model
from phraseloom.models.decoder import Memory
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig
from phraseloom.text.vocabulary import EOS

NONE: dict[str, Any] = {"kind": "none"}
FREE: dict[str, Any] = {"encoder": NONE, "decoder": {"layers": 2}}
NO_POSITIONS: dict[str, Any] = {**FREE, "positions": {"source": NONE}}
SOURCES = [[5, 6, 7, 4], [8, 9], []]
TARGETS = [[5, 6], [7, 8, 9], []]


def sinusoid(position: int, width: int) -> list[float]:
    """sin in the first half, cos in the second, of p / 10000^(2c/D)."""
    angles = [position / 10000 ** (2 * c / width) for c in range(width // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def encode(model: TranslationModel, b: Batch) -> Memory:
    return model.encode(b.source_BS, b.source_lengths_B)


def totals(model: TranslationModel, sources: list[list[int]], target: list[int]) -> Tensor:
    """log p of one target given each source."""
    return model.score(make_batch(sources, [target] * len(sources))).sum(1)


@pytest.mark.parametrize("positions", [True, False], ids=["positions", "no-positions"])
@pytest.mark.parametrize("decoder", [{"layers": 2}, recurrent()], ids=["transformer", "recurrent"])
def test_the_memory_is_the_embedded_source(decoder: dict[str, Any], positions: bool) -> None:
    """√D E[x], with the sinusoid unless it is left out; and nothing of an encoder is in the model."""
    model = built(**({**FREE, "decoder": decoder} if positions else {**NO_POSITIONS, "decoder": decoder}))
    b = make_batch(SOURCES, TARGETS)
    memory, weight = encode(model, b), model.source_embedding.weight
    for row, (source, n) in enumerate(zip(b.source_BS.tolist(), b.source_lengths_B.tolist(), strict=True)):
        for p in range(n):
            expected = math.sqrt(8) * weight[source[p]]
            if positions:
                expected = expected + torch.tensor(sinusoid(p, 8), dtype=torch.float64)
            torch.testing.assert_close(memory.states_BSD[row, p], expected, rtol=0, atol=1e-6)
    assert memory.mixed is memory.phrases is memory.final is None
    assert not list(model.encoder.parameters())
    assert not model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT).encoder_self


def test_dropout_of_embeddings_is_all_that_is_dropped_of_the_source() -> None:
    model, b = built(**FREE, dropout=0.25).train(), make_batch(SOURCES[:1] * 200, TARGETS[:1] * 200)
    torch.manual_seed(0)
    noisy = encode(model, b).states_BSD
    calm = encode(model.eval(), b).states_BSD
    dropped = noisy == 0
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(noisy[~dropped], (calm / 0.75)[~dropped], rtol=1e-4, atol=0)


ORDERS = [[5, 6, 7, 4], [7, 5, 4, 6], [4, 7, 6, 5]]


@pytest.mark.parametrize("phrasal", [False, True], ids=["token", "n-grams"])
def test_without_positions_the_order_of_the_source_is_not_seen(phrasal: bool) -> None:
    """A bag of words: scores, hidden states and translations are those of any other order; only n-grams see neighbours."""
    model = built(**NO_POSITIONS, **({"attention": {"cross": "queryk heterogeneous 1-2"}} if phrasal else {}))
    scores = totals(model, ORDERS, [6, 8, 4])
    assert torch.allclose(scores, scores[:1], rtol=0, atol=1e-10) != phrasal
    if phrasal:
        return
    limits, options = Limits.of([4] * 3, None, None), SearchOptions(beam=3, n_best=2)
    found = search(model, encode(model, make_batch(ORDERS, [[]] * 3)), limits, options)
    assert [h.tokens for h in found[0]] == [h.tokens for h in found[1]] == [h.tokens for h in found[2]]
    once, twice = totals(model, [[5, 6], [5, 6, 6]], [4]).tolist()
    assert abs(once - twice) > 1e-4


def test_with_positions_the_order_of_the_source_is_seen() -> None:
    scores = totals(built(**FREE), ORDERS, [6, 8, 4])
    assert min(abs((scores[i] - scores[j]).item()) for i, j in ((0, 1), (0, 2), (1, 2))) > 1e-4


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_positions_of_a_recurrent_decoder_without_encoder(cell: str) -> None:
    """RNNS2S-noEnc: attention without positions sees a bag of words too, though what begins the decoder is EOS in any case."""
    keys = {"encoder": NONE, "decoder": recurrent(cell=cell)}
    seen, unseen = (totals(built(**keys, **p), ORDERS, [6, 8]) for p in ({}, {"positions": {"source": NONE}}))
    assert not torch.allclose(seen, seen[:1], rtol=0, atol=1e-6)
    torch.testing.assert_close(unseen, unseen[:1].expand(3), rtol=0, atol=1e-10)


@pytest.mark.parametrize("initial", ["last", "zero"])
@pytest.mark.parametrize(
    "encoder", [NONE, recurrent(), recurrent(bidirectional=0)], ids=["none", "both-ways", "forwards"]
)
def test_a_fixed_context_is_the_last_state_and_nothing_else(encoder: dict[str, Any], initial: str) -> None:
    """RNNS2S-noAtt and RNNS2S-noAtt-noEnc: any other state of the source may be anything."""
    model, b = (
        built(encoder=encoder, decoder=recurrent(attention="fixed", initial=initial)),
        make_batch(SOURCES, TARGETS),
    )
    memory = encode(model, b)
    assert memory.lengths_B is not None
    others = torch.arange(memory.states_BSD.shape[1]) != memory.lengths_B[:, None] - 1
    changed = Memory(memory.states_BSD + others[..., None] * torch.randn(8).double(), memory.lengths_B)
    before, after = (model.decode(b.target_in_BT, m)[0] for m in (memory, changed))
    assert torch.equal(before, after)
    changed = Memory(memory.states_BSD + ~others[..., None] * torch.randn(8).double(), memory.lengths_B)
    assert not torch.isclose(model.decode(b.target_in_BT, changed)[0], before).all(-1).any()


def test_what_a_fixed_context_knows_of_the_source() -> None:
    """Without encoder it is the vector of EOS: with positions it tells the length, without them nothing at all."""
    keys = {"encoder": NONE, "decoder": recurrent(attention="fixed")}
    long, short, other = [5, 6, 7, 4], [8, 9], [7, 7]
    scores = totals(built(**keys), [long, short, other], [5, 8])
    assert scores[1] == scores[2]
    assert abs(scores[0] - scores[1]) > 1e-4
    scores = totals(built(**keys, positions={"source": NONE}), [long, short, other], [5, 8])
    assert scores[0] == scores[1] == scores[2]
    scores = totals(built(encoder=recurrent(), decoder=recurrent(attention="fixed")), [long, short, other], [5, 8])
    assert len({round(s, 6) for s in scores.tolist()}) == 3


def test_attention_is_what_tells_it_more() -> None:
    model = built(encoder=NONE, decoder=recurrent(attention="mlp"))
    scores = totals(model, [[8, 9], [7, 7]], [5, 8])
    assert abs(scores[0] - scores[1]) > 1e-4


@pytest.mark.parametrize(
    "phrases", [{}, {"transparent_tokens": True}, {"attention": "gated", "glance": "mean"}], ids=str
)
@pytest.mark.parametrize("attention", ["token", "queryk heterogeneous 1-2"])
@pytest.mark.parametrize("encoder", [NONE, recurrent()], ids=["none", "recurrent"])
def test_source_phrases_without_self_attention(
    encoder: dict[str, Any], attention: str, phrases: dict[str, Any]
) -> None:
    """The one level of an encoder-free model is that of the embeddings: no mixtures, and every decoder layer reads it."""
    config = {**SMALL, "encoder": encoder, "decoder": {"layers": 2}, "attention": attention, "phrases": phrases}
    torch.manual_seed(0)
    model = build_model(ModelConfig.model_validate(config), SIZE, SIZE).double()
    sources = [[5, 6, 7, 4, 8, 9, 10, 11, 5, 6], *SOURCES]
    b = make_batch(sources, [[5, 6], *TARGETS])
    levels = 1 if encoder is NONE else 3
    looks = model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT)
    assert looks.phrases is not None and model.phrases is not None
    assert len(looks.phrases.vectors) == len(model.phrases.representations) == levels
    mixed = (model.phrases.transparent, model.phrases.transparent_tokens)
    wanted = (True, phrases.get("transparent_tokens", False))
    assert [m is not None for m in mixed] == [w and levels > 1 for w in wanted]
    memory = encode(model, b)
    assert memory.phrases is not None
    if levels == 1:
        assert torch.equal(looks.phrases.tokens[0], memory.states_BSD)
        assert all(torch.equal(v, looks.phrases.vectors[0]) for v in memory.phrases.vectors)
        assert memory.mixed is None
    torch.testing.assert_close(looks.phrases.tokens[-1], memory.states_BSD, rtol=0, atol=0)
    together = model.score(b).sum(1)
    for row, source in enumerate(sources):
        alone = model.score(make_batch([source], [[[5, 6], *TARGETS][row]])).sum(1)
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-10)
    (-together.sum()).backward()
    assert not [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]


def test_one_matrix_may_still_serve_both_sides_and_the_output() -> None:
    config = ModelConfig.model_validate({**SMALL, **FREE, "tied": "three_way"})
    model = build_model(config, SIZE, SIZE)
    assert model.source_embedding.weight is model.target_embedding.weight is model.output.weight
    model(make_batch(SOURCES, TARGETS)).objective.backward()
    assert model.output.weight.grad is not None
    assert model.output.weight.grad[EOS].any()
