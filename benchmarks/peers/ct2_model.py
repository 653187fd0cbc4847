"""Write a CTranslate2 model folder from plain arrays: a pre-norm ReLU Transformer with sinusoid positions.

Runs under the interpreter of PHRASELOOM_PEER_CT2. Arrays (float32; every linear weight is (out, in): y = x Wᵀ + b):
    embeddings                              (V, D) shared; or source_embeddings and target_embeddings
    output_weight, output_bias              optional; without the first the output is tied to the target embeddings
    positions                               (P, D) added to the embeddings, which are scaled by √D; P bounds lengths
    encoder.I.self.qkv.weight               (3D, D) rows q | k | v
    decoder.I.self.qkv.weight, decoder.I.cross.q.weight, decoder.I.cross.kv.weight
    SIDE.I.{self,cross}.o.weight            (D, D)
    SIDE.I.ffn.{up,down}.{weight,bias}      SIDE.I.{self,cross,ffn}.norm.{weight,bias}      SIDE.norm.{weight,bias}
An array that is left over is an error, so that nothing is dropped in silence.

CTranslate2 adds nothing to the source: the caller appends the end symbol. Its vocabulary here is <pad> <unk> <s> </s>
and then the ids as decimal numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import common_spec
from ctranslate2.specs.transformer_spec import TransformerSpec

SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"]


class Arrays:
    """The arrays by name, each taken once."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.left = dict(arrays)

    def take(self, name: str) -> np.ndarray:
        return np.ascontiguousarray(self.left.pop(name), dtype=np.float32)

    def layers(self, side: str) -> int:
        numbers = [n.split(".")[1] for n in self.left if n.startswith(side + ".")]
        return 1 + max(int(n) for n in numbers if n.isdigit())

    def norm(self, spec: Any, name: str) -> None:
        spec.gamma, spec.beta = self.take(name + ".weight"), self.take(name + ".bias")

    def linear(self, spec: Any, name: str) -> None:
        spec.weight = self.take(name + ".weight")
        if name + ".bias" in self.left:
            spec.bias = self.take(name + ".bias")


def fill_layer(arrays: Arrays, layer: Any, name: str, *, decoder: bool) -> None:
    own = layer.self_attention
    arrays.linear(own.linear[0], name + "self.qkv")
    arrays.linear(own.linear[1], name + "self.o")
    arrays.norm(own.layer_norm, name + "self.norm")
    if decoder:
        for linear, part in zip(layer.attention.linear, ("q", "kv", "o"), strict=True):
            arrays.linear(linear, f"{name}cross.{part}")
        arrays.norm(layer.attention.layer_norm, name + "cross.norm")
    arrays.linear(layer.ffn.linear_0, name + "ffn.up")
    arrays.linear(layer.ffn.linear_1, name + "ffn.down")
    arrays.norm(layer.ffn.layer_norm, name + "ffn.norm")


def write(file: Path, out: Path, *, heads: int, epsilon: float) -> None:
    """The arrays of an .npz file as a model folder."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = Arrays({name: stored[name] for name in stored.files})
    spec = TransformerSpec.from_config(
        (arrays.layers("encoder"), arrays.layers("decoder")),
        heads,
        pre_norm=True,
        activation=common_spec.Activation.RELU,
    )
    if "embeddings" in arrays.left:
        source = target = arrays.take("embeddings")
    else:
        source, target = arrays.take("source_embeddings"), arrays.take("target_embeddings")
    positions = arrays.take("positions")
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight = source if side == "encoder" else target
        stack.scale_embeddings = True
        stack.position_encodings.encodings = positions
        arrays.norm(stack.layer_norm, side + ".norm")
        for number, layer in enumerate(stack.layer):
            fill_layer(arrays, layer, f"{side}.{number}.", decoder=side == "decoder")
    spec.decoder.projection.weight = arrays.take("output_weight") if "output_weight" in arrays.left else target
    if "output_bias" in arrays.left:
        spec.decoder.projection.bias = arrays.take("output_bias")
    if arrays.left:
        raise SystemExit(f"arrays that CTranslate2 has no place for: {sorted(arrays.left)}")
    for register, matrix in (
        (spec.register_source_vocabulary, source),
        (spec.register_target_vocabulary, target),
    ):
        register([*SPECIALS, *map(str, range(len(SPECIALS), len(matrix)))])
    config = spec.config
    config.bos_token, config.eos_token, config.unk_token = "<s>", "</s>", "<unk>"
    config.decoder_start_token, config.add_source_eos, config.layer_norm_epsilon = "<s>", False, epsilon
    spec.validate()
    spec.optimize(quantization=None)
    out.mkdir(parents=True, exist_ok=True)
    spec.save(str(out))
