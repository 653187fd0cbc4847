"""A plain Transformer as a model folder of CTranslate2 (https://github.com/OpenNMT/CTranslate2), which translates on its own.

    model.bin  config.json  shared_vocabulary.json or source_vocabulary.json and target_vocabulary.json
    source.spm  target.spm      for models with sentencepiece subwords

Tokens there are our pieces; the end of the source is added by CTranslate2. What our search never produces (pad, the start
token, tags and, with `unknown: forbid`, unknown words) gets an output bias of -inf, so that a plain `translate_batch` does as
ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from phraseloom.bridges.exported import CTRANSLATE2, PlainModel, read_plain, write_listing
from phraseloom.errors import UsageError
from phraseloom.files import atomic_write_bytes
from phraseloom.layers.embeddings import sinusoid
from phraseloom.options.text import TextConfig
from phraseloom.replace import check_folder, new_folder
from phraseloom.text.marian import MarianSubwords
from phraseloom.text.sentencepiece import Sentencepiece
from phraseloom.text.vocabulary import BOS, PAD, SPECIALS, UNK, Vocabulary

QUANTIZATIONS = ("int8", "int8_float32", "int16", "float16", "float32")
POSITIONS = 2048
_ACTIVATIONS = {"relu": "RELU", "swish": "SWISH", "gelu": "GELU"}


def export_ctranslate2(
    path: str | Path, output: str | Path, *, quantization: str | None = None, overwrite: bool = False
) -> PlainModel:
    """Write the model that `path` means as the CTranslate2 folder `output`, whole or not at all.

    `quantization`: one of QUANTIZATIONS; None keeps float32. Raises UsageError without the package ctranslate2, ModelError
    for a model that CTranslate2 cannot compute, FileProblem, CorruptError.
    """
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise UsageError(f"no quantization {quantization!r}", hint=f"one of {', '.join(QUANTIZATIONS)}")
    try:
        from ctranslate2.specs import common_spec
        from ctranslate2.specs.transformer_spec import TransformerSpec
    except ImportError as error:
        raise UsageError("the package ctranslate2 is missing", hint="pip install 'phraseloom[ctranslate2]'") from error
    check_folder(output, CTRANSLATE2, overwrite=overwrite, inputs=[path])
    source = read_plain(path, "CTranslate2")
    config = source.config
    spec = TransformerSpec.from_config(
        (config.encoder.layers, config.decoder.layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=common_spec.Activation[_ACTIVATIONS[config.activation]],
    )
    _fill(spec, source)
    for register, side in (
        (spec.register_source_vocabulary, source.tokenizer.source),
        (spec.register_target_vocabulary, source.tokenizer.target),
    ):
        register(token_names(side.vocabulary))
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = SPECIALS[BOS], "</s>", SPECIALS[UNK]
    spec.config.decoder_start_token, spec.config.add_source_eos = SPECIALS[BOS], True
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    with new_folder(output, CTRANSLATE2, overwrite=overwrite, inputs=[path]) as new:
        spec.save(str(new))
        write_sentencepiece(new, source)
        write_listing(new, [p.name for p in new.iterdir()])
    return source


def token_names(vocabulary: Vocabulary) -> list[str]:
    """The pieces by id, all different: an ordinary piece that is spelled like a special one gets its number added."""
    return [p if i < len(SPECIALS) or p not in SPECIALS else f"{p}#{i}" for i, p in enumerate(vocabulary)]


def write_sentencepiece(folder: Path, source: PlainModel) -> None:
    """Write `source.spm` and `target.spm`, for sides that have sentencepiece models.

    None of a model whose text is changed before the subwords: these files alone would cut it into other tokens.
    """
    if source.tokenizer.text != TextConfig():
        return
    for name in ("source", "target"):
        subwords = getattr(source.tokenizer, name).subwords
        if isinstance(subwords, Sentencepiece | MarianSubwords):
            atomic_write_bytes(folder / f"{name}.spm", subwords.content)


def _fill(spec: Any, source: PlainModel) -> None:
    """Every parameter into its place."""
    model, config, width = source.model, source.config, source.config.width
    left = {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters(remove_duplicate=False)}

    def take(name: str) -> np.ndarray:
        return np.ascontiguousarray(left.pop(name))

    def linear(place: Any, weight: np.ndarray, bias: np.ndarray | None) -> None:
        place.weight = np.ascontiguousarray(weight)
        if bias is not None:
            place.bias = np.ascontiguousarray(bias)

    def norm(place: Any, name: str) -> None:
        place.gamma, place.beta = take(f"{name}.weight"), take(f"{name}.bias")

    def attention(place: Any, name: str, norm_name: str, *, cross: bool) -> None:
        weight, bias = take(f"{name}.score.weight"), take(f"{name}.bias") if f"{name}.bias" in left else None
        parts = [slice(0, width), slice(width, None)] if cross else [slice(None)]
        for linear_place, rows in zip(place.linear, parts, strict=False):
            linear(linear_place, weight[rows], None if bias is None else bias[rows])
        ends = f"{name}.arrangement"
        linear(place.linear[-1], take(f"{ends}.weight"), take(f"{ends}.bias") if f"{ends}.bias" in left else None)
        norm(place.layer_norm, norm_name)

    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if config.norm == "pre":
            norm(stack.layer_norm, f"{side}.norm")
        for number, layer in enumerate(stack.layer):
            name = f"{side}.layers.{number}"
            own, around = ("attention", "attention") if side == "encoder" else ("self_attention", "self")
            attention(layer.self_attention, f"{name}.{own}", f"{name}.{around}_residual.norm", cross=False)
            if side == "decoder":
                attention(layer.attention, f"{name}.cross_attention", f"{name}.cross_residual.norm", cross=True)
            linear(layer.ffn.linear_0, take(f"{name}.feed_forward.up.weight"), take(f"{name}.feed_forward.up.bias"))
            linear(layer.ffn.linear_1, take(f"{name}.feed_forward.down.weight"), take(f"{name}.feed_forward.down.bias"))
            norm(layer.ffn.layer_norm, f"{name}.feed_forward_residual.norm")
        stack.scale_embeddings = config.scale_embeddings
        text = "source" if side == "encoder" else "target"
        embeddings = stack.embeddings[0] if side == "encoder" else stack.embeddings
        embeddings.weight = take(f"{text}_embedding.weight")
        layout = getattr(config.positions, text).layout
        stack.position_encodings.encodings = sinusoid(POSITIONS, width, layout).numpy()
    bias = take("output.bias") if "output.bias" in left else np.zeros(len(left["output.weight"]), np.float32)
    never = [
        PAD,
        BOS,
        *source.tokenizer.target.tag_ids.values(),
        *([UNK] if source.decoding.unknown == "forbid" else []),
    ]
    bias[never] = -np.inf
    linear(spec.decoder.projection, take("output.weight"), bias)
    assert not left, f"parameters without a place: {sorted(left)}"
