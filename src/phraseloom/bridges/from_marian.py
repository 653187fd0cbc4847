"""A MarianMT folder of Hugging Face (OPUS-MT and others) as a phraseloom model, with the same logits and the same outputs.

    config.json  [generation_config.json  tokenizer_config.json]  source.spm  target.spm  vocab.json  [target_vocab.json]
    model.safetensors or pytorch_model.bin

A folder of Marian itself is read as if it had been written for Hugging Face (`marian_npz.py`).

Ids move: here pad, unk, start and end are 0 … 3, so that the rows of the embeddings and of the output bias change places.
Models of Marian start with pad. Our start token gets a copy of that row and, as it is no class of theirs, no probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phraseloom.bridges import marian_format as names
from phraseloom.bridges.marian_format import MarianFolder, Settings, read_tensors
from phraseloom.bridges.marian_npz import read_npz_folder
from phraseloom.config import validate
from phraseloom.errors import CorruptError, ModelError
from phraseloom.files import read_json, require_file, require_folder, write_manifest
from phraseloom.layers.embeddings import sinusoid
from phraseloom.layers.initialisation import ShapesOnly
from phraseloom.models.store import MODEL, put_parameters, write_model
from phraseloom.models.tasks import build
from phraseloom.options.decoding import MAX_BEAM, DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.replace import check_folder, new_folder
from phraseloom.text.marian import MarianSubwords
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import BOS, PAD, SPECIALS, UNK, Vocabulary

CONFIG, GENERATION = "config.json", "generation_config.json"
ONE_MATRIX = "share_encoder_decoder_embeddings"
VOCABULARIES = ("vocab.json", "target_vocab.json")
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
# Keys of theirs that change the model, and the only value that is ours.
REQUIRED = {
    "model_type": "marian",
    "tie_word_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
# Settings of `generate` without a counterpart here, and the value that means nothing.
IGNORED: dict[str, tuple[Any, ...]] = {
    "do_sample": (False, None),
    "repetition_penalty": (1.0, None),
    "encoder_repetition_penalty": (1.0, None),
    "encoder_no_repeat_ngram_size": (0, None),
    "num_beam_groups": (1, None),
    "diversity_penalty": (0.0, None),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "max_time": (None,),
    "stop_strings": (None, []),
    "sequence_bias": (None, [], {}),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None, []),
    "constraints": (None, []),
    "guidance_scale": (1.0, None),
    "penalty_alpha": (0.0, None),
    "dola_layers": (None,),
    "watermarking_config": (None,),
    "token_healing": (False, None),
    "num_return_sequences": (1, None),
    "word-penalty": (0.0, None),  # this and the next are of Marian's own decoder.yml
    "output-sampling": ([], False, None),
    "shortlist": ([], None),
    "max-length": (1000, None),
    "max-length-crop": (False, None),
}
LEAST_KNOWN = 0.5  # of the pieces of a sentencepiece model, in vocab.json


@dataclass(frozen=True)
class Imported:
    """What was read: the languages, the number of parameters, and notes on what has no counterpart here."""

    languages: tuple[str, str]
    parameters: int
    notes: tuple[str, ...]


def import_marian(folder: str | Path, output: str | Path, *, overwrite: bool = False) -> Imported:
    """Write the model in `folder` as a model folder `output`, whole or not at all.

    Raises FileProblem, CorruptError for what is missing or damaged, ModelError for what does not fit or is not supported.
    """
    folder = require_folder(folder, "MarianMT folder")
    check_folder(output, MODEL, overwrite=overwrite, inputs=[folder])
    is_npz = any(folder.glob("*.npz")) and not (folder / CONFIG).is_file()
    theirs = read_npz_folder(folder) if is_npz else _read_folder(folder)
    sides = [_vocabulary(theirs, side) for side in range(len(theirs.vocabularies))]
    tokenizer = _tokenizer(theirs, [vocabulary for vocabulary, _ in sides])
    generation, without_pad, notes = _generation(theirs, unknown=sides[-1][1][UNK])
    start_is_pad = theirs.config.whole("decoder_start_token_id") == theirs.config.whole("pad_token_id")
    tensors, file = theirs.read_tensors()
    never = {"pad": without_pad, "bos": start_is_pad}
    for name, number in zip(("pad", "bos"), (sides[-1][1][PAD], sides[-1][1][BOS]), strict=True):
        never[name] |= _is_impossible(tensors.get(names.OUTPUT_BIAS), number)
    own = model_config(theirs.config, excluded=[name for name, excluded in never.items() if excluded])
    converted = _convert(tensors, own, [order for _, order in sides], file)
    with ShapesOnly():
        model = build(own, tokenizer)
    put_parameters(model, converted, file)
    with new_folder(output, MODEL, overwrite=overwrite, inputs=[folder]) as new:
        files = write_model(new, model, own, tokenizer, languages=theirs.languages, generation=generation)
        write_manifest(new, files)
    return Imported(theirs.languages, sum(p.numel() for p in model.parameters()), tuple(notes))


def _is_impossible(bias: Tensor | None, number: int) -> bool:
    """Whether a token has the output bias -inf, as `to_marian` writes it for tokens without a probability."""
    return bias is not None and bias.ndim == 2 and number < bias.shape[1] and float(bias[0, number]) == -torch.inf


def _read_folder(folder: Path) -> MarianFolder:
    """What a folder of Hugging Face holds. Raises FileProblem, CorruptError, ModelError."""
    config = Settings(_object(folder / CONFIG, "configuration of a MarianMT model"), folder / CONFIG)
    about = folder / "tokenizer_config.json"
    described = Settings(_object(about, "configuration of a tokenizer") if about.is_file() else {}, about)
    shared, separate = config.flag(ONE_MATRIX, True), described.flag("separate_vocabs", False)
    if separate == shared:
        what = f"separate_vocabs is {separate}, but {ONE_MATRIX} is {shared}"
        raise ModelError(what, file=about, hint="two vocabularies need two matrices of embeddings, and one needs one")
    files = [folder / name for name in VOCABULARIES[: 1 if shared else 2]]
    settings = folder / GENERATION
    given = Settings(_object(settings, "generation settings"), settings) if settings.is_file() else config
    return MarianFolder(
        config=config,
        vocabularies=[(path, _object(path, "vocabulary")) for path in files],
        sentencepiece=[require_file(folder / name, "sentencepiece model") for name in ("source.spm", "target.spm")],
        languages=(described.text("source_lang", ""), described.text("target_lang", "")),
        generation=given,  # as transformers reads them
        read_tensors=lambda: read_tensors(folder),
    )


def _object(path: Path, what: str) -> dict[str, Any]:
    content = read_json(require_file(path, what), what)
    if not isinstance(content, dict):
        raise CorruptError(f"not a {what}", file=path)
    return content


def model_config(theirs: Settings, *, excluded: list[str]) -> ModelConfig:
    """Our configuration of the model that `config.json` describes. Raises ModelError, ConfigError."""
    file = theirs.file
    for key, value in REQUIRED.items():
        if theirs.get(key, value if key != "model_type" else None) != value:
            raise ModelError(f"{key} is {theirs.get(key)!r}, and only {value!r} is supported", file=file)
    for key in ("attention_heads", "ffn_dim"):
        sides = [theirs.whole(f"{side}_{key}", least=1) for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise ModelError(f"{key} of encoder and decoder differ ({sides[0]}, {sides[1]})", file=file)
    activation = theirs.text("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ModelError(f"activation_function {activation!r} is none of {', '.join(ACTIVATIONS)}", file=file)
    return validate(
        ModelConfig,
        {
            "width": theirs.whole("d_model", least=1),
            "heads": theirs.whole("encoder_attention_heads"),
            "ffn_width": theirs.whole("encoder_ffn_dim"),
            "encoder": {"layers": theirs.whole("encoder_layers", least=1)},
            "decoder": {"layers": theirs.whole("decoder_layers", least=1)},
            "scale_embeddings": theirs.flag("scale_embedding", False),
            "tied": "three_way" if theirs.flag(ONE_MATRIX, True) else "two_way",
            "norm": "post",
            "norm_epsilon": 1e-5,
            "attention_bias": True,
            "activation": ACTIVATIONS[activation],
            "output": {"bias": True, "smoothing": "kl", "excluded": excluded},
            "dropout": theirs.number("dropout", 0.1),
            "attention_dropout": theirs.number("attention_dropout", 0.0),
            "ffn_dropout": theirs.number("activation_dropout", 0.0),
        },
        file=file,
    )


def _vocabulary(theirs: MarianFolder, side: int) -> tuple[Vocabulary, list[int]]:
    """Our vocabulary of the source (0, or of both sides) or the target (1), and for each of its ids the one of theirs."""
    path, ids = theirs.vocabularies[side]
    config, key = theirs.config, "decoder_vocab_size" if side else "vocab_size"
    size = config.whole(key, config.whole("vocab_size") if side else None)
    if any(type(i) is not int for i in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        raise CorruptError(f"its {len(ids)} pieces do not have the ids 0 to {len(ids) - 1}", file=path)
    if len(ids) != size:
        raise ModelError(f"{len(ids)} pieces, but {config.file.name} says {key} {size}", file=path)
    pieces = [piece for piece, _ in sorted(ids.items(), key=lambda item: item[1])]
    if len(theirs.vocabularies) == 2 and side == 0:  # the ids of the configuration are those of the target
        order = [_id_of(piece, ids, path) for piece in ("<pad>", "<unk>", "<pad>", "</s>")]
    else:
        pad, start, end = (config.whole(key) for key in ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
        for key, number in (("pad_token_id", pad), ("decoder_start_token_id", start), ("eos_token_id", end)):
            if number >= size:
                raise ModelError(f"{key} is {number}, but the ids of {path.name} end at {size - 1}", file=config.file)
        order = [pad, _id_of("<unk>", ids, path), start, end]
    if len({order[0], order[1], order[3]}) < 3:
        raise ModelError("pad, unk and eos are not three tokens", file=config.file)
    order += sorted(set(range(size)).difference(order))
    try:
        return Vocabulary([*SPECIALS, *(pieces[number] for number in order[len(SPECIALS) :])]), order
    except ModelError as error:
        raise ModelError(error.what, file=path) from error


def _id_of(piece: str, ids: dict[str, Any], path: Path) -> int:
    if piece not in ids:
        raise ModelError(f"{piece} is not in the vocabulary", file=path)
    return int(ids[piece])


def _tokenizer(theirs: MarianFolder, vocabularies: list[Vocabulary]) -> Tokenizer:
    sides = []
    for side, path in enumerate(theirs.sentencepiece):
        subwords = MarianSubwords(path.read_bytes(), vocabularies[min(side, len(vocabularies) - 1)], file=path)
        if subwords.known_share < LEAST_KNOWN:
            name = theirs.vocabularies[min(side, len(vocabularies) - 1)][0].name
            what = f"only {subwords.known_share:.0%} of its pieces are in {name}: it is of another model"
            raise ModelError(what, file=path)
        sides.append(subwords)
    return Tokenizer(TextConfig(), *theirs.languages, *sides)


def _generation(theirs: MarianFolder, *, unknown: int) -> tuple[dict[str, Any], bool, list[str]]:
    """Our generation settings, whether pad has no probability, and what is left out. Raises ModelError, ConfigError.

    `unknown`: their id of unknown words in the target.
    """
    given, file = theirs.generation, theirs.generation.file
    pad, start, end = (theirs.config.whole(key) for key in ("pad_token_id", "decoder_start_token_id", "eos_token_id"))
    has = {key: given.get(key) for key in IGNORED}
    notes = [f"{key}: {value!r}" for key, value in has.items() if value is not None and value not in IGNORED[key]]
    banned = given.items("bad_words_ids")
    if others := [words for words in banned if words not in ([pad], [start], [unknown])]:
        notes.append(f"bad_words_ids: {others!r:.80}")
    if [pad] not in banned:
        notes.append("outputs with the padding token, which is never produced here")
    for key, ours in (("forced_eos_token_id", end), ("eos_token_id", end), ("decoder_start_token_id", start)):
        if given.get(key) not in (ours, [ours], None):
            notes.append(f"{key}: {given.get(key)!r}")
    if given.get("forced_eos_token_id") is None and given is not theirs.config:
        notes.append("no forced_eos_token_id: an output of max_length would not have to end there")
    early: Any = given.get("early_stopping", False)
    if early not in (False, None):
        notes.append(f"early_stopping: {early!r}")
    longest = given.whole("max_length", 20) or 20  # as in transformers
    if new := given.whole("max_new_tokens", 0):
        longest = new + 1
    if longest < 3:
        hint = "3 is the least: the start token, one subword and the end"
        raise ModelError(f"max_length is {longest}", file=file, hint=hint)
    least = max(0, given.whole("min_length", 0) - 1)  # which counts the start token
    shortest = given.whole("min_new_tokens", least)
    ngrams, renormalized = given.whole("no_repeat_ngram_size", 0), given.flag("renormalize_logits", False)
    forbidden = [unknown] in banned
    reasons = {"min_length": shortest, "no_repeat_ngram_size": ngrams, "the ban of <unk>": forbidden}
    if renormalized and any(reasons.values()):
        notes.append(f"renormalize_logits of what {' and '.join(name for name in reasons if reasons[name])} leave")

    def within(key: str, value: Any, low: Any, high: Any) -> Any:
        nearest = min(max(value, low), high)
        if nearest != value:
            notes.append(f"{key}: {value} ({nearest} in its place)")
        return nearest

    alpha = within("length_penalty", given.number("length_penalty", 1.0), 0.0, 10.0)
    settings = {
        "beam": within("num_beams", given.whole("num_beams", 1) or 1, 1, MAX_BEAM),
        "length_penalty": {"kind": "sockeye", "alpha": alpha, "beta": 0.0},
        "stop": "transformers",
        "max_length": {
            "factor": 0.0,
            "constant": within("max_length", longest, 3, 100_002) - 2,
        },  # without start and end
        "min_length": {"factor": 0.0, "constant": shortest},
        "no_repeat_ngram_size": ngrams,
        "max_input_tokens": max(1, theirs.config.whole("max_position_embeddings", 1024) - 1),
        "unknown": "forbid" if forbidden else "keep",
        **theirs.settings,
    }
    validate(DecodingConfig, settings, file=file)
    return settings, renormalized and [pad] in banned, notes


def _convert(tensors: dict[str, Tensor], config: ModelConfig, orders: list[list[int]], file: Path) -> dict[str, Tensor]:
    """The parameters of a phraseloom model. ModelError names the first tensor that is missing, unexpected, or of another size.

    `orders`: for each vocabulary, the Marian ids in phraseloom order.
    """
    left = tensors  # emptied as it is read, so that no tensor is in memory for longer than needed

    def take(name: str, *shape: int) -> Tensor:
        if name not in left:
            raise ModelError(f"tensor {name} is missing", file=file)
        tensor = left.pop(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"tensor {name} has shape {tuple(tensor.shape)}, the configuration says {shape}", file=file
            )
        if not tensor.is_floating_point():
            raise ModelError(f"tensor {name} is of the type {tensor.dtype}, not of floats", file=file)
        return tensor.float()

    def finite(name: str, tensor: Tensor) -> Tensor:
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"tensor {name} holds NaN, infinity or numbers beyond those of float32", file=file)
        return tensor

    result: dict[str, Tensor] = {}
    if len(orders) == 1:
        shared = next((n for n in (names.SHARED, names.TARGET_EMBEDDING) if n in left), names.SHARED)
        matrices = {"source_embedding.weight": shared}
    else:
        matrices = {
            "source_embedding.weight": names.SOURCE_EMBEDDING,
            "target_embedding.weight": names.TARGET_EMBEDDING,
        }
    for (own, name), order in zip(matrices.items(), orders, strict=True):
        result[own] = finite(name, take(name, max(order) + 1, config.width)[torch.tensor(order)])
    rows = torch.tensor(orders[-1])
    bias = take(names.OUTPUT_BIAS, 1, len(set(orders[-1])))[0][rows]
    for special, number in (("pad", PAD), ("bos", BOS)):
        if special in config.output.excluded:  # type: ignore[union-attr]
            bias[number] = 0.0
    result["output.bias"] = finite(names.OUTPUT_BIAS, bias)
    for copy in (names.SHARED, names.SOURCE_EMBEDDING, names.TARGET_EMBEDDING, names.OUTPUT):
        left.pop(copy, None)  # one matrix, whatever these hold: transformers ties them as it loads
    for name in names.POSITIONS:
        if name in left:
            table = left.pop(name).float()
            if (
                table.shape[1:] != (config.width,)
                or not len(table)
                or (table - sinusoid(len(table), config.width)).abs().max() > 1e-2
            ):
                raise ModelError(f"{name} does not hold sinusoids", file=file)
    for side, layers in (("encoder", config.encoder.layers), ("decoder", config.decoder.layers)):
        for ours, theirs in names.layer_names(side, layers):
            parts = [finite(name, take(name, *_shape(name, config))) for name in theirs]
            result[ours] = torch.cat(parts) if len(parts) > 1 else parts[0]  # one part stays in the mapped file
    if left:
        raise ModelError(f"tensor {sorted(left)[0]} has no place in such a model", file=file)
    return result


def _shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """The size that a tensor of a layer has to have."""
    width, inner = config.width, config.ffn_width
    part, kind = name.split(".")[-2:]
    if "norm" in part:
        return (width,)
    rows, columns = {"fc1": (inner, width), "fc2": (width, inner)}.get(part, (width, width))
    return (rows, columns) if kind == "weight" else (rows,)
