"""Source phrase representations against the golden vectors: the loop reference, the layers, the encoder and the decoder
(P001; the vectors come from a run of the released code)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.feedforward import Residual
from phraseloom.layers.phrase_representation import SCORERS, AttentiveCombination, GatedPhraseScorer, PhraseScorer
from phraseloom.layers.segments import PhraseSegments
from phraseloom.models.build import build_model
from phraseloom.models.decoder import Memory
from phraseloom.models.phrases import PhraseMemory
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig
from tests.golden.folder import golden_files
from tests.reference import phrases as reference

PRECISIONS = [pytest.param(torch.float64, 1e-9, id="float64"), pytest.param(torch.float32, 2e-4, id="float32")]
ATTENTIONS = {"softmax": "softmax", "released": "gated"}


def load(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {name: data[name] for name in data.files}


def attention_of(path: Path) -> str:
    last = path.stem.rsplit("_", 1)[1]
    return ATTENTIONS.get(last, "none")


def put(parameter: Tensor, value: Any) -> None:
    with torch.no_grad():
        assert parameter.shape == value.shape
        parameter.copy_(torch.as_tensor(value))


def fill_scorer(scorer: PhraseScorer, data: dict[str, Any], prefix: str) -> None:
    put(scorer.hidden.weight, data[f"{prefix}hidden_weight"])
    put(scorer.hidden.bias, data[f"{prefix}hidden_bias"])
    put(scorer.score, data[f"{prefix}score_weight"])
    if isinstance(scorer, GatedPhraseScorer):
        put(scorer.score_bias, data[f"{prefix}score_bias"])


@pytest.mark.parametrize("path", golden_files("phrase_scorer_*.npz"), ids=lambda p: p.stem)
def test_reference_of_a_phrase(path: Path) -> None:
    data, attention = load(path), attention_of(path)
    w = {
        "hidden": data["scorer_hidden_weight"],
        "bias": data["scorer_hidden_bias"],
        "score": data["scorer_score_weight"],
        "score_bias": data.get("scorer_score_bias"),
    }
    for row, padding in enumerate(data["token_padding_mask"]):
        tokens = list(data["tokens"][row][~padding])
        scores = reference.token_scores(tokens, data["glance"][row], w)
        if attention == "softmax":
            found = reference.softmax(scores) @ tokens
        else:
            c = reference.sigmoid(scores + w["score_bias"]) / len(tokens)
            found = c @ tokens + (1 - c.sum()) * data["glance"][row]
        np.testing.assert_allclose(found, data["expected_phrase"][row], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", golden_files("phrase_scorer_*.npz"), ids=lambda p: p.stem)
def test_scorer(path: Path, dtype: torch.dtype, tolerance: float) -> None:
    data = load(path)
    inner, double = data["scorer_hidden_weight"].shape
    scorer = SCORERS[attention_of(path)](width=double // 2, inner=inner).to(dtype)
    fill_scorer(scorer, data, "scorer_")
    sizes = torch.as_tensor((~data["token_padding_mask"]).sum(1))[:, None]
    segments = PhraseSegments(sizes, data["tokens"].shape[1])
    glance = torch.as_tensor(data["glance"], dtype=dtype)[:, None]
    vectors, _ = scorer(segments.without_padding(torch.as_tensor(data["tokens"], dtype=dtype)), glance, segments)
    np.testing.assert_allclose(vectors[:, 0].detach().numpy(), data["expected_phrase"], rtol=0, atol=tolerance)


def fill_combiner(block: AttentiveCombination, data: dict[str, Any], prefix: str) -> None:
    put(block.hidden.weight, data[f"{prefix}hidden_weight"])
    put(block.hidden.bias, data[f"{prefix}hidden_bias"])
    put(block.down.weight, data[f"{prefix}out_weight"])
    put(block.residual.norm.weight, data[f"{prefix}layernorm_gain"])
    put(block.residual.norm.bias, data[f"{prefix}layernorm_offset"])


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", golden_files("attentive_combiner.npz"), ids=lambda p: p.stem)
def test_combiner(path: Path, dtype: torch.dtype, tolerance: float) -> None:
    """With values and output matrix of 1 and one phrase a token, what the phrase attention gives is the phrase itself."""
    data = load(path)
    inner, double = data["combiner_hidden_weight"].shape
    width = double // 2
    block = AttentiveCombination(
        width=width, heads=2, inner=inner, residual=Residual(width=width, norm="post", dropout=0.0)
    ).to(dtype)
    fill_combiner(block, data, "combiner_")
    put(block.output.weight, torch.eye(width))
    put(block.keys_values.weight[width:], torch.eye(width))
    x = torch.as_tensor(data["input_tokens"], dtype=dtype).flatten(0, 1)[:, None]
    phrases = torch.as_tensor(data["phrase_attention_output"], dtype=dtype).flatten(0, 1)[:, None]
    found, _ = block(x, block.project_phrases(phrases, Visibility(key_length=1)))
    expected = data["expected_output"].reshape(-1, width)
    np.testing.assert_allclose(found[:, 0].detach().numpy(), expected, rtol=0, atol=tolerance)
    if dtype == torch.float64:
        names = {"hidden": "hidden_weight", "bias": "hidden_bias", "down": "out_weight"}
        w = {name: data[f"combiner_{of}"] for name, of in names.items()}
        for token, a, y in zip(x[:, 0].numpy(), phrases[:, 0].numpy(), expected, strict=True):
            z = reference.combine(token, a, w) + token + a
            loops = reference.layer_norm(z, data["combiner_layernorm_gain"], data["combiner_layernorm_offset"])
            np.testing.assert_allclose(loops, y, rtol=0, atol=1e-12)


def num_layers(data: dict[str, Any], side: str) -> int:
    """How many layers a file holds of `encoder` or `decoder`."""
    return sum(1 for name in data if re.fullmatch(rf"{side}_layer\d+_ffn_out_weight", name))


def model_of(data: dict[str, Any], path: Path, dtype: torch.dtype) -> TranslationModel:
    """Our model in the shape of a file; every parameter is to be filled."""
    vocabulary, width = data["embedding_weight"].shape
    side = "encoder" if num_layers(data, "encoder") else "decoder"
    # Of the side that a file does not hold it tells what the other one needs: a column of the mixtures for each layer.
    scorer = data.get("phrase_scorer_of_embedding_score_weight")
    layers = {side: num_layers(data, side)}
    layers = {"encoder": 1, "decoder": data["transparent_phrase_logits"].shape[1] if side == "encoder" else 0} | layers
    attention = attention_of(path)
    parts = (4, 2) if attention == "none" else (6, 3)
    kind = {"kind": "fixed", "max_tokens": 8, "min_chunks": parts[0], "floor": parts[1], "basis": "batch"}
    config = ModelConfig.model_validate(
        {
            "width": width,
            "heads": int(data["num_heads"]),
            "ffn_width": len(data[f"{side}_layer0_ffn_hidden_weight"]),
            "encoder": {"layers": layers["encoder"]},
            "decoder": {"layers": layers["decoder"]},
            "norm": "post",
            "embedding_norm": True,
            "positions": {"kind": "sinusoid", "layout": "interleaved"},
            "tied": "two_way",
            "output": {"bias": True},
            "phrases": {
                "segments": kind,
                "glance": "mean" if "mean" in path.stem else "max",
                "scorer_width": None if scorer is None else len(scorer),
                "attention": attention,
                "combination_width": len(data[f"{side}_layer0_combiner_hidden_weight"]),
                "transparent": True,
                "transparent_tokens": True,
            },
        }
    )
    model = build_model(config, vocabulary, vocabulary).to(dtype).eval()
    for embedding in (model.source_embedding, model.target_embedding):
        assert embedding.positions is not None
        embedding.positions.table = positions(64, width, dtype)  # ours are made in float32
    return model


def positions(count: int, width: int, dtype: torch.dtype) -> Tensor:
    """Sine in the even channels, cosine in the odd ones."""
    angles = np.arange(count)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    table = np.zeros((count, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return torch.as_tensor(table, dtype=dtype)


def fill_attention(block: nn.Module, data: dict[str, Any], prefix: str) -> None:
    for ours, theirs in (("Wq", "query"), ("Wk", "key"), ("Wv", "value")):
        put(block.score.matrices()[ours], data[f"{prefix}_{theirs}_weight"].T)  # type: ignore[union-attr, operator]
    put(block.arrangement.weight, data[f"{prefix}_output_weight"])  # type: ignore[union-attr, arg-type]


def fill_norm(norm: nn.LayerNorm, data: dict[str, Any], prefix: str) -> None:
    put(norm.weight, data[f"{prefix}_layernorm_gain"])
    put(norm.bias, data[f"{prefix}_layernorm_offset"])


def fill_layer(layer: Any, data: dict[str, Any], prefix: str) -> None:
    """What encoder and decoder layers have in common: the combination network and the feed-forward layer."""
    block = layer.combination
    put(block.query.weight, data[f"{prefix}_phrase_attention_query_weight"])
    both = [data[f"{prefix}_phrase_attention_{name}_weight"] for name in ("key", "value")]
    put(block.keys_values.weight, np.concatenate(both))
    put(block.output.weight, data[f"{prefix}_phrase_attention_output_weight"])
    fill_combiner(block, data, f"{prefix}_combiner_")
    put(layer.feed_forward.up.weight, data[f"{prefix}_ffn_hidden_weight"])
    put(layer.feed_forward.up.bias, data[f"{prefix}_ffn_hidden_bias"])
    put(layer.feed_forward.down.weight, data[f"{prefix}_ffn_out_weight"])
    nn.init.zeros_(layer.feed_forward.down.bias)
    fill_norm(layer.feed_forward_residual.norm, data, f"{prefix}_ffn")


def filled_encoder(data: dict[str, Any], path: Path, dtype: torch.dtype) -> TranslationModel:
    model = model_of(data, path, dtype)
    put(model.source_embedding.weight, data["embedding_weight"])
    fill_norm(model.source_embedding.norm, data, "embedding")  # type: ignore[arg-type]
    for number, layer in enumerate(model.encoder.layers):
        prefix = f"encoder_layer{number}"
        fill_layer(layer, data, prefix)
        fill_attention(layer.attention, data, f"{prefix}_self_attention")
        fill_norm(layer.attention_residual.norm, data, f"{prefix}_self_attention")
    assert model.phrases is not None
    layers = range(len(model.encoder.layers))
    levels = ["phrase_scorer_of_embedding_", *(f"phrase_scorer_after_layer{n}_" for n in layers)]
    for representation, prefix in zip(model.phrases.representations, levels, strict=True):
        if representation.scorer is not None:
            fill_scorer(representation.scorer, data, prefix)
    for mixture, name in ((model.phrases.transparent, "phrase"), (model.phrases.transparent_tokens, "token")):
        assert mixture is not None
        put(mixture.weight, data[f"transparent_{name}_logits"])
    return model


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", golden_files("phrase_encoder_*.npz"), ids=lambda p: p.stem)
def test_encoder(path: Path, dtype: torch.dtype, tolerance: float) -> None:
    data = load(path)
    model = filled_encoder(data, path, dtype)
    lengths = torch.as_tensor((~data["source_padding_mask"]).sum(1))
    source = torch.as_tensor(data["source_ids"])
    memory, levels = model._encode(source, lengths, None)
    assert levels is not None and memory.mixed is not None and memory.phrases is not None
    assert int(levels.segments.sizes_BP.max()) == int(data["phrase_length_used"])
    real_tokens, real_phrases = ~data["source_padding_mask"], ~data["phrase_padding_mask"]
    assert np.array_equal((levels.segments.sizes_BP > 0).numpy(), real_phrases)

    def close(found: Tensor, expected: np.ndarray, real: np.ndarray) -> None:
        np.testing.assert_allclose(found.detach().numpy()[real], expected[real], rtol=0, atol=tolerance)

    last = len(model.encoder.layers) - 1
    for level in range(last + 1):
        close(levels.tokens[level], data[f"expected_input_of_layer{level}"], real_tokens)
        close(levels.vectors[level], data[f"expected_phrases_into_layer{level}"], real_phrases)
    close(levels.tokens[last + 1], data[f"expected_output_of_layer{last}"], real_tokens)
    for layer in range(len(model.decoder.layers)):
        tokens, phrases = memory.mixed[layer], memory.phrases.vectors[layer]
        close(tokens, data["expected_token_states_per_decoder_layer"][..., layer], real_tokens)
        close(phrases, data["expected_phrase_states_per_decoder_layer"][..., layer], real_phrases)


def filled_decoder(data: dict[str, Any], path: Path, dtype: torch.dtype) -> TranslationModel:
    model = model_of(data, path, dtype)
    put(model.target_embedding.weight, data["embedding_weight"])
    assert np.array_equal(data["embedding_weight"], data["classifier_weight"])
    assert model.output.bias is not None
    put(model.output.bias, data["classifier_bias"])
    fill_norm(model.target_embedding.norm, data, "embedding")  # type: ignore[arg-type]
    for number, layer in enumerate(model.decoder.layers):
        prefix = f"decoder_layer{number}"
        fill_layer(layer, data, prefix)
        fill_attention(layer.self_attention, data, f"{prefix}_self_attention")
        fill_norm(layer.self_residual.norm, data, f"{prefix}_self_attention")
        fill_attention(layer.cross_attention, data, f"{prefix}_token_attention")
        fill_norm(layer.cross_residual.norm, data, f"{prefix}_token_attention")
    return model


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("path", golden_files("phrase_decoder_*.npz"), ids=lambda p: p.stem)
def test_decoder(path: Path, dtype: torch.dtype, tolerance: float) -> None:
    """All at once and step by step."""
    data = load(path)
    model = filled_decoder(data, path, dtype)
    states = torch.as_tensor(data["encoder_token_states_per_decoder_layer"], dtype=dtype).unbind(-1)
    vectors = torch.as_tensor(data["encoder_phrase_states_per_decoder_layer"], dtype=dtype).unbind(-1)
    lengths = torch.as_tensor((~data["source_padding_mask"]).sum(1))
    sizes = torch.as_tensor(~data["phrase_padding_mask"]).long()
    visibility = Visibility(key_length=sizes.shape[1], lengths_B=sizes.sum(1))
    memory = Memory(states[-1], lengths, list(states), PhraseMemory(list(vectors), sizes, visibility))
    target, real = torch.as_tensor(data["target_ids"]), data["target_lengths"]
    hidden, *_ = model.decode(target, memory)
    whole = model.output.log_probs(hidden).detach().numpy()
    state, steps = model.start(memory, max_length=target.shape[1]), []
    for tokens in target.unbind(1):
        steps.append(model.output.log_probs(model.step(tokens, state)[0]).detach().numpy())
    for row, length in enumerate(real):
        expected = data["expected_log_probs"][row, :length]
        np.testing.assert_allclose(whole[row, :length], expected, rtol=0, atol=tolerance)
        np.testing.assert_allclose(np.stack(steps, 1)[row, :length], expected, rtol=0, atol=tolerance)
