"""What every encoder with every decoder must do: the contract of the tables ENCODERS and DECODERS of `models/build.py`."""

from __future__ import annotations

import itertools
import typing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_tokenizer
from torch import Tensor

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.decoding.constrained import constrained_search
from phraseloom.decoding.constraint_tracker import ConstraintTracker, spellings
from phraseloom.decoding.constraints import Constraints
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.penalties import WuPenalty
from phraseloom.decoding.search import search
from phraseloom.layers.table import TargetTable
from phraseloom.models import tasks
from phraseloom.models import translation as targets
from phraseloom.models.build import DECODERS, ENCODERS, build_model
from phraseloom.models.decoder import Memory
from phraseloom.models.store import load_model, read_config, save_model
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig, RecurrentDecoderConfig, RecurrentEncoderConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary
from phraseloom.text.words import Words

SIZE, HEADS = 9, 4
SOURCES, TARGETS = [[5, 6, 7], [8, 4], [], [4, 7, 8, 5]], [[5, 6], [7, 8, 4, 5], [], [5, 5, 5]]
LENGTHS = [len(s) + 1 for s in SOURCES]

RATES = {"dropout": 0.3}
VARIATIONAL = {"variational_dropout": {"inputs": 0.05, "states": 0.05}}
ENCODER: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "layers": 2},
    "none": {"kind": "none"},
    "lstm": {"kind": "recurrent", "layers": 2},
    "gru": {
        "kind": "recurrent",
        "layers": 3,
        "cell": "gru",
        "bidirectional": 2,
        "residual": True,
        **RATES,
        **VARIATIONAL,
    },
    "columns": {"kind": "columns", "layers": 3, "width": 6, **RATES},
    "columns-lstm": {"kind": "columns", "cell": "lstm"},
}
FIRST = {"kind": "recurrent", "layers": 2}
DECODER: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "layers": 2},
    "mlp": {**FIRST},
    "mlp-gru": {**FIRST, "layers": 3, "cell": "gru", "residual": True, "hidden_dropout": 0.0, **RATES, **VARIATIONAL},
    "general": {**FIRST, "attention": "general", "input_feeding": False, "initial": "zero"},
    "fixed": {**FIRST, "attention": "fixed"},
    "fixed-not-fed": {**FIRST, "attention": "fixed", "cell": "gru", "input_feeding": False},
    "multihead": {**FIRST, "attention": "multihead", "residual": True},
    "multihead-not-fed": {**FIRST, "attention": "multihead", "cell": "gru", "input_feeding": False},
}
GATED = {
    "kind": "word_or_phrase",
    "loss": "vmf_released",
    "hidden_layer": True,
    "fertility": {"classes": 4, "widths": [5]},
}
LINES = {"2": "queryk heterogeneous 1-2", "3": "convkv interleaved 1-2-3", "h": "convkv homogeneous 22"}


def cases() -> dict[str, dict[str, Any]]:
    """Every kind of encoder with every kind of decoder, two of them with every decoder; n-grams where there is nothing else to
    give the tokens a context; what is optional."""
    pairs = {
        *itertools.product(("none", "lstm"), DECODER),
        *itertools.product(ENCODER, ("transformer", "mlp", "mlp-gru")),
    }
    found = {f"{e}+{d}": {"encoder": ENCODER[e], "decoder": DECODER[d]} for e, d in sorted(pairs)}
    for d, n in (
        ("transformer", "2"),
        ("multihead", "2"),
        ("multihead", "3"),
        ("multihead-not-fed", "3"),
        ("multihead-not-fed", "h"),
    ):
        found[f"none+{d}-{n}"] = {"encoder": ENCODER["none"], "decoder": DECODER[d], "attention": LINES[n]}
    for cell, fed in (("lstm", True), ("gru", False)):
        decoder = {**FIRST, "layers": ENCODER[cell]["layers"], "cell": cell, "initial": "final", "input_feeding": fed}
        found[f"{cell}+final{'' if fed else '-not-fed'}"] = {"encoder": ENCODER[cell], "decoder": decoder}
    for e in ("none", "lstm"):
        found[f"{e}+transformer-phrases"] = {"encoder": ENCODER[e], "decoder": DECODER["transformer"], "phrases": {}}
    general, final = {**FIRST, "attention": "general"}, {**FIRST, "attention": "general", "initial": "final"}
    continuous = {"kind": "continuous", "loss": "vmf_released"}
    for output, more in ((continuous, {}), (GATED, {}), (GATED, {"embedding_width": 6})):
        name = output["kind"] + "".join(f"-{key}" for key in more)
        found[f"lstm+final-{name}"] = {"encoder": ENCODER["lstm"], "decoder": final, "output": output, **more}
    found["gru+general-narrow"] = {"encoder": ENCODER["gru"], "decoder": general, "embedding_width": 6}
    found["lstm+general-not-fed-narrow"] = {
        "encoder": ENCODER["lstm"],
        "decoder": DECODER["general"],
        "embedding_width": 6,
    }
    found["none+general-fed-none"] = {"encoder": ENCODER["none"], "decoder": general, "output": GATED}
    for e, line in (("transformer", "queryk heterogeneous 1-2"), ("none", "convkv interleaved 1-2"), ("lstm", None)):
        model = {"encoder": ENCODER[e], "decoder": DECODER["transformer"], "output": GATED}
        found[f"{e}+transformer-gated"] = {**model, **({"attention": line} if line else {})}
    released = {
        **GATED,
        "score": "released",
        "loss": "vmf",
        "fertility": {"classes": 2, "inputs": "states", "widths": []},
    }
    found["transformer+transformer-released"] = {
        "encoder": ENCODER["transformer"],
        "decoder": DECODER["transformer"],
        "output": released,
        "phrases": {},
    }
    for e, norm in (("transformer", "pre"), ("transformer", "post"), ("none", "pre")):
        model = {"encoder": ENCODER[e], "decoder": DECODER["transformer"], "norm": norm, "feed_forward": "interleaved"}
        found[f"{e}+transformer-convolved-{norm}"] = {**model, "attention": "queryk interleaved 1-2 keys-per-order"}
    for e, d in (("none", "transformer"), ("lstm", "mlp")):
        found[f"{e}+{d}-memory-norm"] = {"encoder": {**ENCODER[e], "memory_norm": True}, "decoder": DECODER[d]}
    found["lstm+transformer-post"] = {"encoder": ENCODER["lstm"], "decoder": DECODER["transformer"], "norm": "post"}
    return found


CASES = cases()
each = pytest.mark.parametrize("name", CASES)


def config(name: str, **more: Any) -> ModelConfig:
    sizes = {"width": 16, "heads": HEADS, "ffn_width": 16, "tied": "none", "output": {"bias": True}}
    if "output" in CASES[name]:
        sizes["tied"] = "two_way"
    return ModelConfig.model_validate({**sizes, **CASES[name], **more})


def table() -> TargetTable:
    """Unit vectors of the target tokens, of which the last three are phrases."""
    rows = torch.nn.functional.normalize(torch.randn(SIZE, 10, generator=torch.Generator().manual_seed(8)), dim=-1)
    rows[[PAD, BOS]] = 0
    return TargetTable(rows, SIZE - 3)


def built(name: str, **more: Any) -> TranslationModel:
    model = build_model(config(name, **more), SIZE, SIZE, table()).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return model.eval()


kept = cache(built)


def batch(order: typing.Sequence[int] = (0, 1, 2, 3)) -> Batch:
    return make_batch([SOURCES[i] for i in order], [TARGETS[i] for i in order])


def encode(model: TranslationModel, b: Batch) -> Memory:
    return model.encode(b.source_BS, b.source_lengths_B)


def test_every_kind_and_option_is_under_contract() -> None:
    """An entry that is added to a table, or to the options of one, has to be added here."""
    made = [config(name) for name in CASES]
    assert {(c.encoder.kind, c.decoder.kind) for c in made} == set(itertools.product(ENCODERS, DECODERS))
    for kind in (RecurrentEncoderConfig, RecurrentDecoderConfig):
        options = [o for c in made for o in (c.encoder, c.decoder) if isinstance(o, kind)]
        for field, info in kind.model_fields.items():
            wanted = set(typing.get_args(info.annotation)) or ({True, False} if info.annotation is bool else set())
            seen = {getattr(o, field) for o in options}
            assert seen >= wanted
            assert len(seen) > 1 or field == "kind", field


@each
def test_neighbours_and_their_order_do_not_matter(name: str) -> None:
    model = kept(name)
    together = model.score(batch())
    for order in ([3, 1], [0], [1], [2], [2, 0, 3, 1]):
        apart = model.score(batch(order))
        torch.testing.assert_close(apart, together[order, : apart.shape[1]], rtol=0, atol=1e-10)


@each
def test_more_padding_does_not_matter_even_nan(name: str) -> None:
    """Scores and gradients are the same whatever the vector of PAD is, scores even if it is NaN."""
    model, b = built(name), batch()
    expected = model.score(b)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(expected.sum(), parameters)
    more = torch.full((4, 3), PAD)
    wide = Batch(
        torch.cat([b.source_BS, more], 1), b.source_lengths_B, b.target_in_BT, b.target_out_BT, b.target_lengths_B
    )
    with torch.no_grad():
        model.source_embedding.weight[PAD] += 3.0
    found = model.score(wide)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for got, wanted in zip(torch.autograd.grad(found.sum(), parameters), gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)
    with torch.no_grad():
        model.source_embedding.weight[PAD] = float("nan")
        torch.testing.assert_close(model.score(wide), expected, rtol=0, atol=1e-10)


def slots_of(model: TranslationModel, weights: list[Tensor]) -> list[Tensor]:
    """(B, H, J, T, G, S) of each layer that attends, from the whole."""
    return [s.split(w) for s, w in zip(model.decoder.cross_structures, weights, strict=True)]


def slots_of_step(model: TranslationModel, weights: list[Tensor]) -> list[Tensor]:
    """(R, H, J, G, S) of each, from a step."""
    found = []
    for structure, w in zip(model.decoder.cross_structures, weights, strict=True):
        assert w.shape[1:3] == (structure.heads, len(structure.query_orders))
        found.append(w.unflatten(-1, (len(structure.blocks), -1)))
    return found


@each
def test_steps_are_the_whole(name: str) -> None:
    """Hidden states and the attention of every layer, for two equal hypotheses a sentence."""
    model, b = kept(name), batch()
    memory = encode(model, b)
    hidden, weights, _ = model.decode(b.target_in_BT, memory, keep_weights=True)
    whole = slots_of(model, weights)
    assert all(w.shape[0] == 4 and w.shape[3] == hidden.shape[1] and w.shape[5] == b.source_BS.shape[1] for w in whole)
    assert all(w[b_].sum() > 0 and not w[b_, ..., n:].any() for w in whole for b_, n in enumerate(LENGTHS))
    state = model.start(memory, beam=1, max_length=2)
    state.expand(2)
    with torch.inference_mode():
        for t in range(hidden.shape[1]):
            assert state.step == t
            step, of_step, _ = model.step(b.target_in_BT[:, t].repeat_interleave(2), state)
            torch.testing.assert_close(step, hidden[:, t].repeat_interleave(2, 0), rtol=0, atol=1e-10)
            for got, wanted in zip(slots_of_step(model, of_step), whole, strict=True):
                torch.testing.assert_close(got, wanted[:, :, :, t].repeat_interleave(2, 0), rtol=0, atol=1e-10)


@each
def test_hypotheses_change_places_and_sentences_leave(name: str) -> None:
    """Each row goes on as its own prefix would from scratch, alone."""
    model, b, beam = kept(name), batch((0, 1, 3)), 2
    state = model.start(encode(model, b), beam=1)
    model.step(torch.tensor([BOS] * 3), state)
    state.expand(beam)
    model.step(torch.tensor([4, 5, 6, 7, 8, 4]), state)
    state.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
    state.keep(torch.tensor([2, 0]))
    model.step(torch.tensor([5, 6, 7, 8]), state)
    state.reorder(torch.tensor([0, 0, 3, 2]))
    hidden, weights, _ = model.step(torch.tensor([6, 7, 8, 4]), state)
    rows = [(3, [4, 5, 6]), (3, [4, 5, 7]), (0, [4, 8, 8]), (0, [5, 7, 4])]
    for row, (sentence, prefix) in enumerate(rows):
        alone = make_batch([SOURCES[sentence]], [[]])
        expected, looks, _ = model.decode(torch.tensor([[BOS, *prefix]]), encode(model, alone), keep_weights=True)
        torch.testing.assert_close(hidden[row], expected[0, -1], rtol=0, atol=1e-10)
        for got, wanted in zip(slots_of_step(model, weights), slots_of(model, looks), strict=True):
            length = wanted.shape[-1]
            torch.testing.assert_close(got[row, ..., :length], wanted[0, :, :, -1], rtol=0, atol=1e-10)
            assert not got[row, ..., length:].any()


@each
def test_a_memory_of_chosen_sentences(name: str) -> None:
    model, b, chosen = kept(name), batch(), torch.tensor([3, 1])
    memory = encode(model, b)
    whole = model.decode(b.target_in_BT, memory)[0]
    part = model.decode(b.target_in_BT[chosen], memory.select(chosen))[0]
    torch.testing.assert_close(part, whole[chosen], rtol=0, atol=1e-10)


@each
def test_the_future_is_not_seen_bit_for_bit(name: str) -> None:
    model, b = kept(name), batch()
    memory = encode(model, b)
    before = model.decode(b.target_in_BT, memory)[0]
    for t in range(b.target_in_BT.shape[1]):
        changed = b.target_in_BT.clone()
        changed[:, t] = (changed[:, t] + 3) % SIZE
        after = model.decode(changed, memory)[0]
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.isclose(after[:, t], before[:, t], rtol=0, atol=1e-12).all(-1).any()


@each
def test_every_parameter_learns(name: str) -> None:
    """With all dropout of training; and no parameter is there that nothing depends on."""
    model = built(name).train()
    torch.manual_seed(0)
    model(batch()).objective.backward()
    learned = [
        (n, p) for n, p in model.named_parameters() if not n.startswith("fertility.")
    ]  # it is trained afterwards
    without = [n for n, p in learned if p.grad is None or not p.grad.isfinite().all()]
    assert not without
    assert not [n for n, p in learned if not p.grad.any()]


@each
def test_one_token_and_an_empty_target(name: str) -> None:
    model = built(name)
    b = make_batch([[]], [[]])
    log_p = model.score(b)
    assert log_p.shape == (1, 1)
    (-log_p.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT) is not None


@each
def test_dropout_is_of_training_only(name: str) -> None:
    model, b = built(name), batch()
    calm = model.score(b)
    assert torch.equal(model.score(b), calm)
    model.train()
    torch.manual_seed(1)
    noisy = model.score(b)
    assert not torch.allclose(noisy, calm)
    torch.manual_seed(1)
    assert torch.equal(model.score(b), noisy)


@each
def test_looks_have_a_structure_for_every_layer(name: str) -> None:
    model, b, asked = kept(name), batch(), config(name)
    looks = model.attention_maps(b.source_BS, b.source_lengths_B, b.target_in_BT)
    attends = {
        "encoder_self": asked.encoder.layers if asked.encoder.kind == "transformer" else 0,
        "decoder_self": asked.decoder.layers if asked.decoder.kind == "transformer" else 0,
        "cross": asked.decoder.layers,
    }
    if isinstance(asked.decoder, RecurrentDecoderConfig):
        attends["cross"] = int(asked.decoder.attention != "fixed")
    assert {use: len(getattr(looks, use)) for use in attends} == attends
    assert (looks.phrases is None) == (asked.phrases is None)
    cross = model.decode(b.target_in_BT, encode(model, b), keep_weights=True)[1]
    for (weights, structure), wanted in zip(looks.cross, cross, strict=True):
        assert torch.equal(weights, wanted)
        tokens = structure.token_weights(weights)
        assert tokens.shape == (4, structure.heads, b.target_in_BT.shape[1], b.source_BS.shape[1])
        torch.testing.assert_close(tokens.sum(-1), torch.ones_like(tokens[..., 0]), rtol=0, atol=1e-10)


@each
def test_single_and_mixed_precision_stay_near(name: str) -> None:
    """As in training: float32 parameters, products in bfloat16, the loss in float32."""
    torch.manual_seed(1)
    model, b = build_model(config(name), SIZE, SIZE, table()).double().eval(), batch()
    exact = model.score(b)
    model.float()
    torch.testing.assert_close(model.score(b).double(), exact, rtol=0, atol=1e-4)
    results = []
    for mixed in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            decoded = model.decode(b.target_in_BT, encode(model, b), keep_weights=True)
        hidden, weights, _ = decoded
        assert hidden.dtype == torch.float32
        targets.loss(model.output, decoded, b).objective.backward()
        results.append(
            [hidden, *weights, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])]
        )
    for full, half in zip(*results, strict=True):
        assert half.isfinite().all()
        assert (half.float() - full).norm() <= 0.1 * full.norm()


def outputs(longest: int) -> list[list[int]]:
    real = range(EOS + 1, SIZE)
    return [list(some) for n in range(longest + 1) for some in itertools.product(real, repeat=n)]


@each
def test_a_wide_beam_is_enumeration(name: str) -> None:
    """All outputs of up to two tokens, scored whole, in a batch of sentences of which some end before others."""
    model, penalty, every = kept(name), WuPenalty(0.6), outputs(2)
    sources = [SOURCES[0], SOURCES[2]]
    b = make_batch(sources, [[], []])
    options = SearchOptions(beam=len(every), n_best=5, penalty=penalty)
    found = search(model, encode(model, b), Limits.of([2, 2], None, None), options)
    for source, hypotheses in zip(sources, found, strict=True):
        with torch.inference_mode():
            totals = model.score(make_batch([source] * len(every), every)).sum(1)
        scores = totals / penalty.divisor(torch.tensor([len(o) + 1.0 for o in every], dtype=torch.float64))
        best = scores.argsort(descending=True)[:5].tolist()
        assert [h.tokens for h in hypotheses] == [every[i] for i in best]
        assert [h.score for h in hypotheses] == pytest.approx(scores[best].tolist(), abs=1e-9)


@each
def test_search_does_not_depend_on_the_batch_and_greedy_is_a_beam_of_one(name: str) -> None:
    model = built(name)
    with torch.no_grad():
        for parameter in model.output.parameters():
            parameter.mul_(2.0)

    def translate(sources: list[list[int]], beam: int) -> list[list[Any]]:
        b = make_batch(sources, [[] for _ in sources])
        return search(model, encode(model, b), Limits.of([4] * len(sources), None, None), SearchOptions(beam, beam))

    for beam in (1, 3):
        together = translate(SOURCES, beam)
        for source, found in zip(SOURCES, together, strict=True):
            (alone,) = translate([source], beam)
            assert [h.tokens for h in alone] == [h.tokens for h in found]
            scores = model.score(make_batch([source] * len(found), [h.tokens for h in found])).sum(1)
            assert [h.log_prob for h in found] == pytest.approx(scores.tolist(), abs=1e-10)
    for source, (found,) in zip(SOURCES, translate(SOURCES, 1), strict=True):
        tokens: list[int] = []
        while len(tokens) < 4:
            b = make_batch([source], [tokens])
            hidden, _, share = model.decode(b.target_in_BT, encode(model, b))
            log_p = model.output.log_probs(hidden[:, -1], None if share is None else share[:, -1])[0]
            log_p[:EOS] = -torch.inf
            if (best := int(log_p.argmax())) == EOS:
                break
            tokens.append(best)
        assert found.tokens == tokens


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Tokenizer]:
    """Of subwords, and of words with the vectors that a continuous output needs."""
    words, phrases = [f"w{n}" for n in range(SIZE - 7)], [f"a_{n}" for n in range(3)]
    target = Words(Vocabulary([*SPECIALS, *words, *phrases]), joined=True, vectors=table().rows_VM.numpy())
    source = Words(Vocabulary([*SPECIALS, *words, *"abc"]))
    of_words = Tokenizer(TextConfig(), "de", "en", source, target)
    return {False: tiny_tokenizer(tmp_path_factory.mktemp("text")), True: of_words}


@each
def test_a_stored_model_is_the_same_model(name: str, tmp_path: Path, tokenizers: dict[bool, Tokenizer]) -> None:
    torch.manual_seed(0)
    of_words = "output" in CASES[name]
    tokenizer = tokenizers[of_words]
    asked = config(name) if of_words or "embedding_width" in CASES[name] else config(name, tied="three_way")
    model = tasks.build(asked, tokenizer).eval()
    save_model(tmp_path / "m", model, asked, tokenizer)
    loaded, _, _ = load_model(tmp_path / "m")
    assert read_config(tmp_path / "m")[1] == asked
    before, after = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert torch.equal(loaded.score(batch()), model.score(batch()))
    card = (tmp_path / "m" / "README.md").read_bytes().decode()
    assert ("no encoder" in card) == (asked.encoder.kind == "none")
    assert ("recurrent decoder" in card) == (asked.decoder.kind == "recurrent")


@each
def test_search_under_constraints_is_the_best_of_the_allowed_outputs(name: str) -> None:
    """A beam as wide as the space: the n-best list is the free one without the outputs that break a constraint."""
    words = Words(Vocabulary([*SPECIALS, "a", "b", "a_b", "b_a", "a_a"]), joined=True)
    side = Tokenizer(TextConfig(), "en", "en", words, words).target
    asked = [Constraints(("b a",)), Constraints((), ("a b",)), Constraints(("b",), ("a",))]
    model, b = kept(name), batch((0, 1, 3))
    limits, options = Limits.of([3] * 3), SearchOptions(beam=160, n_best=160, penalty=WuPenalty(0.6))
    with torch.inference_mode():
        free = search(model, encode(model, b), limits, options)
    trackers = [ConstraintTracker(side, c, [spellings(side, phrase) for phrase in c.include]) for c in asked]
    with torch.inference_mode():
        found = constrained_search(model, encode(model, b), limits, options, trackers)
    for own, all_of_them, allowed in zip(asked, free, found, strict=True):
        expected = [h for h in all_of_them if not own.unmet(side.decode(h.tokens))]
        assert 0 < len(expected) < len(all_of_them)
        assert [h.tokens for h in allowed] == [h.tokens for h in expected]
        assert [h.score for h in allowed] == pytest.approx([h.score for h in expected], abs=1e-9)
