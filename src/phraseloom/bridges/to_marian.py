"""A plain post-norm Transformer as a MarianMT folder of Hugging Face, which transformers loads by its usual names.

    config.json  generation_config.json  model.safetensors  tokenizer_config.json  vocab.json  source.spm  target.spm

The ids stay the same: pad, unk, start and end are 0 … 3. MarianMT adds 1e-5 to the variances of its normalisations;
phraseloom adds 1e-6 unless `norm_epsilon` sets another value. The logits then differ by about 1e-5 of their size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phraseloom.bridges import marian_format as names
from phraseloom.bridges.exported import MARIAN, PlainModel, read_plain, write_listing
from phraseloom.bridges.to_ctranslate2 import token_names, write_sentencepiece
from phraseloom.errors import ModelError
from phraseloom.files import atomic_write_json
from phraseloom.models.store import save_tensors
from phraseloom.options.decoding import DecodingConfig, NoPenaltyConfig, SockeyePenaltyConfig
from phraseloom.options.text import TextConfig
from phraseloom.replace import check_folder, new_folder
from phraseloom.text.marian import MarianSubwords
from phraseloom.text.sentencepiece import Sentencepiece
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

LONGEST = 512
ATTENTION_BIASES: tuple[str, ...] = ("attention.bias", "arrangement.bias")  # of `attention_bias`


def export_marian(path: str | Path, output: str | Path, *, overwrite: bool = False) -> PlainModel:
    """Write the model that `path` means as the MarianMT folder `output`, whole or not at all.

    Raises ModelError for a model that MarianMT cannot compute, with what could be done, FileProblem, CorruptError.
    """
    check_folder(output, MARIAN, overwrite=overwrite, inputs=[path])
    source = read_plain(path, "MarianMT")
    if (problem := _what_cannot_go(source)) is not None:
        what, hint = problem
        raise ModelError(f"{what}, which MarianMT cannot compute", file=source.folder, hint=hint)
    with new_folder(output, MARIAN, overwrite=overwrite, inputs=[path]) as new:
        atomic_write_json(new / "config.json", _config(source))
        atomic_write_json(new / "generation_config.json", _generation(source))
        save_tensors(new / "model.safetensors", _tensors(source))
        vocabulary = source.tokenizer.target.vocabulary
        atomic_write_json(new / "vocab.json", {piece: n for n, piece in enumerate(token_names(vocabulary))})
        languages = {f"{s}_lang": getattr(source.tokenizer, s).language for s in ("source", "target")}
        special = {"pad_token": SPECIALS[PAD], "unk_token": SPECIALS[UNK], "eos_token": SPECIALS[EOS]}
        described = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False, "model_max_length": LONGEST}
        atomic_write_json(new / "tokenizer_config.json", {**described, **languages, **special})
        write_sentencepiece(new, source)
        write_listing(new, [p.name for p in new.iterdir()])
    return source


def _what_cannot_go(source: PlainModel) -> tuple[str, str] | None:
    config, tokenizer = source.config, source.tokenizer
    if config.norm != "post":
        return "norm: pre", "export to CTranslate2, or train with norm: post"
    for side in ("source", "target"):
        if (layout := getattr(config.positions, side).layout) != "halves":
            return f"positions.{side} in the layout {layout}", "train with layout: halves"
        kind = getattr(tokenizer, side).subwords
        if not isinstance(kind, Sentencepiece | MarianSubwords):
            return f"subwords that are not of sentencepiece on the {side} side", "prepare the data with sentencepiece"
    if tokenizer.text != TextConfig():
        return "text that is normalised or tokenised before the subwords", "prepare the data with text as it is"
    if tokenizer.tags:
        what = f"a source with tags ({', '.join(tokenizer.tags)})"
        return what, "export to CTranslate2, which reads tokens and so also tags"
    if config.tied != "three_way" or tokenizer.source.vocabulary != tokenizer.target.vocabulary:
        return f"tied: {config.tied} or two vocabularies", "train with joint subwords and tied: three_way"
    return None


def _config(source: PlainModel) -> dict[str, Any]:
    config, size = source.config, len(source.tokenizer.target.vocabulary)
    sizes: dict[str, Any] = {}
    for side, layers in (("encoder", config.encoder.layers), ("decoder", config.decoder.layers)):
        sizes |= {
            f"{side}_layers": layers,
            f"{side}_attention_heads": config.heads,
            f"{side}_ffn_dim": config.ffn_width,
        }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": size,
        "decoder_vocab_size": size,
        "d_model": config.width,
        **sizes,
        "activation_function": config.activation,
        "scale_embedding": config.scale_embeddings,
        "max_position_embeddings": LONGEST,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.ffn_dropout,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
    }


def _generation(source: PlainModel) -> dict[str, Any]:
    """What `generate` does by default: our search, as far as it has the same settings (`left_out`)."""
    decoding = source.decoding
    alpha, longest, shortest = _penalty(decoding), _longest(decoding), decoding.min_length
    never = [PAD, BOS, *([UNK] if decoding.unknown == "forbid" else [])]
    return {
        "num_beams": decoding.beam,
        "length_penalty": 1.0 if alpha is None else alpha,
        "max_length": LONGEST if longest is None else longest,
        "min_length": 0 if shortest.factor else shortest.constant + 1,  # the start token counts there
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "bad_words_ids": [[number] for number in never],
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
    }


def _penalty(decoding: DecodingConfig) -> float | None:
    """The exponent of their length penalty; None if ours is of another kind."""
    penalty = decoding.length_penalty
    if isinstance(penalty, NoPenaltyConfig):
        return 0.0
    return penalty.alpha if isinstance(penalty, SockeyePenaltyConfig) and penalty.beta == 0.0 else None


def _longest(decoding: DecodingConfig) -> int | None:
    """Their `max_length`, which counts the start token and the end; None if ours depends on the source or is above LONGEST."""
    longest = decoding.max_length
    return longest.constant + 2 if longest.factor == 0.0 and longest.constant + 2 <= LONGEST else None


def left_out(source: PlainModel) -> list[str]:
    """The settings of the search that change outputs and have no counterpart in `generate`, with their values."""
    decoding = source.decoding
    has_none = {
        "n_best": decoding.n_best > 1,
        "sample": decoding.sample,
        "mbr": decoding.mbr > 0,
        "length_penalty": _penalty(decoding) is None,
        "stop": decoding.stop != "transformers",
        "max_length": _longest(decoding) is None,
        "min_length": decoding.min_length.factor > 0.0,
        "unknown": decoding.unknown == "replace",
        "long_lines": decoding.long_lines == "split",
        "split_sentences": decoding.split_sentences,
    }
    values = decoding.model_dump() | {name: str(getattr(decoding, name)) for name in ("max_length", "min_length")}
    return [f"{name}: {values[name]}" for name, is_left_out in has_none.items() if is_left_out]


def _tensors(source: PlainModel) -> dict[str, Tensor]:
    """The parameters under their names there; a matrix that the model shares is one parameter here and one tensor there.

    Biases that the options of the model leave out are zero. Raises ModelError if any other parameter is missing, or if one
    has no place in MarianMT.
    """
    model, config = source.model, source.config
    left = {name: p.detach().float() for name, p in model.named_parameters()}
    without = () if config.attention_bias else ATTENTION_BIASES
    without += () if config.output.bias else ("output.bias",)  # type: ignore[union-attr]

    def take(name: str, rows: int) -> Tensor:
        if name in left:
            return left.pop(name)
        if not name.endswith(without):
            raise ModelError(f"parameter {name} is missing, and MarianMT cannot do without it", file=source.folder)
        return torch.zeros(rows)

    size = len(source.tokenizer.target.vocabulary)
    result = {names.SHARED: take("source_embedding.weight", size)}
    bias = take("output.bias", size).clone()
    bias[list(model.output.excluded)] = float("-inf")  # type: ignore[arg-type]
    result[names.OUTPUT_BIAS] = bias[None]
    for side, layers in (("encoder", config.encoder.layers), ("decoder", config.decoder.layers)):
        for own, others in names.layer_names(side, layers):
            whole = take(own, len(others) * config.width)
            result |= {name: part.clone() for name, part in zip(others, whole.chunk(len(others)), strict=True)}
    if left:
        raise ModelError(f"parameter {min(left)} has no place in MarianMT", file=source.folder)
    return result
