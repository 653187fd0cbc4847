"""A folder of Marian itself (https://marian-nmt.github.io), in the terms of Hugging Face.

    *.npz          the parameters, and in `special:model.yml` the options that the model was trained with
    decoder.yml    the vocabularies by name, and the options of the search
    source.spm  target.spm  *.vocab.yml     as OPUS-MT publishes them, or
    vocab.spm                               a sentencepiece model that also numbers the pieces

Marian multiplies from the left, so that its matrices are the transposed ones. Its decoder starts with a vector of zeros, which
becomes the embedding of a padding token, the last one, without a probability. numpy reads the arrays, never objects (pickles).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from phraseloom.bridges import marian_format as names
from phraseloom.bridges.marian_format import MarianFolder, Settings
from phraseloom.errors import CorruptError, FileProblem, ModelError
from phraseloom.files import require_file
from phraseloom.reading import MIB, read_bounded
from phraseloom.text.sentencepiece import MAX_MODEL_BYTES

OPTIONS = "special:model.yml"
DECODER = "decoder.yml"
LARGEST_VOCABULARY = 64 * MIB
BIAS = "decoder_ff_logit_out_b"
# Options of training that change what is computed, and the values that Hugging Face's MarianMT has; "" where there is none.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-tied-layers": ([],),
    "right-left": (False,),
    "ulr": (False,),
    "tied-embeddings": (True, False),
}
# Options of the search without a counterpart here.
NO_COUNTERPART = ("word-penalty", "output-sampling", "shortlist", "max-length", "max-length-crop")
# Marian's gelu is x σ(1.702 x), so it is swish between scaled matrices.
GELU, GELU_SCALE = "gelu", 1.702
# The parameters of a layer: part of MarianMT -> of Marian.
PARTS = {"self_attn": "self", "encoder_attn": "context"}
NORMS = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}


def read_npz_folder(folder: Path) -> MarianFolder:
    """What a folder of Marian holds. Raises FileProblem, CorruptError, ModelError."""
    file = _only_npz(folder)
    with _open(file) as arrays:
        return _describe(folder, file, arrays)


def _describe(folder: Path, file: Path, arrays: Any) -> MarianFolder:
    options = _options(arrays, file)
    decoder = folder / DECODER
    search = Settings(_yaml(decoder) if decoder.is_file() else {}, decoder)
    all_tied = options.flag("tied-embeddings-all", False)
    shared = all_tied or options.flag("tied-embeddings-src", False)
    if not all_tied and not options.flag("tied-embeddings", False):
        what = "the output has a matrix of its own (tied-embeddings: false)"
        raise ModelError(
            what, file=file, hint="only models whose output is tied to the target embeddings are supported"
        )
    pairs, sentencepiece = _vocabularies(folder, search, shared)
    sizes = [len(ids) for _, ids in pairs]
    pad = sizes[-1]
    vocabularies: list[tuple[Path, dict[str, Any]]] = [(path, _with_pad_piece(ids)) for path, ids in pairs]
    end = pairs[-1][1].get("</s>")
    if end is None:
        raise ModelError("</s> is not in the vocabulary", file=pairs[-1][0])
    activation = options.text("transformer-ffn-activation", "swish")
    layers = [options.whole(f"{side}-depth", least=1) for side in ("enc", "dec")]
    heads, inner = (options.whole(f"transformer-{what}", least=1) for what in ("heads", "dim-ffn"))
    config: dict[str, Any] = {
        "model_type": "marian",
        "vocab_size": sizes[0] + 1,
        "decoder_vocab_size": pad + 1,
        "share_encoder_decoder_embeddings": shared,
        "d_model": options.whole("dim-emb", least=1),
        "encoder_layers": layers[0],
        "decoder_layers": layers[1],
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": options.whole("transformer-decoder-dim-ffn", 0) or inner,
        "activation_function": "swish" if activation == GELU else activation,
        "dropout": options.number("transformer-dropout", 0.0),
        "scale_embedding": True,
        "max_position_embeddings": 512,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": end,
    }
    generation: dict[str, Any] = {
        "num_beams": search.whole("beam-size", 12, least=1),
        "length_penalty": search.number("normalize", 0.0),
        "bad_words_ids": [[pad]],
        "renormalize_logits": True,
        "forced_eos_token_id": end,
        **{name: search.get(name) for name in NO_COUNTERPART},
    }
    settings: dict[str, Any] = {} if search.flag("allow-unk", False) else {"unknown": "forbid"}
    factor = search.number("max-length-factor", 3.0)
    settings["max_length"] = {"factor": factor, "constant": int(factor)}  # Marian counts the end of the source too
    return MarianFolder(
        config=Settings(config, file),
        vocabularies=vocabularies,
        sentencepiece=sentencepiece,
        languages=("", ""),
        generation=Settings(generation, decoder),
        read_tensors=lambda: (_read_tensors(config, file, GELU_SCALE if activation == GELU else 1.0), file),
        settings=settings,
    )


def _read_tensors(config: dict[str, Any], file: Path, scale: float) -> dict[str, Tensor]:
    with _open(file) as arrays:
        tensors = _tensors(arrays, config, file)
    for name in tensors if scale != 1.0 else ():
        if ".fc1." in name:
            tensors[name] = tensors[name] * scale
        elif name.endswith(".fc2.weight"):
            tensors[name] = tensors[name] / scale
    return tensors


def _only_npz(folder: Path) -> Path:
    several = sorted(folder.glob("*.npz"))
    if len(several) > 1:
        what = f"several .npz files ({', '.join(p.name for p in several[:3])}): an ensemble is not supported"
        raise FileProblem(what, file=folder, hint="leave one of them in the folder")
    return several[0]


def _open(file: Path) -> Any:
    """The arrays of a .npz file by name, each read when it is asked for. Raises CorruptError."""
    try:
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > 8 * file.stat().st_size:
            raise CorruptError(
                f"{unpacked:,} bytes in a file of {file.stat().st_size:,}, which no model has", file=file
            )
        return np.load(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise CorruptError("not a readable .npz file", file=file, hint="is the download complete?") from error


def _array(arrays: Any, name: str, file: Path) -> np.ndarray:
    try:
        array = arrays[name]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:  # objects are a ValueError
        raise CorruptError(f"array {name} is damaged, or holds objects", file=file) from error
    assert isinstance(array, np.ndarray)
    return array


def _options(arrays: Any, file: Path) -> Settings:
    """The options of training, with values that are supported."""
    if OPTIONS not in arrays:
        raise ModelError(f"no {OPTIONS} in it: not a model of Marian", file=file)
    text = _array(arrays, OPTIONS, file).tobytes().rstrip(b"\0")
    options = Settings(_parsed(text, file), file)
    for key, values in REQUIRED.items():
        value = options.get(key, values[0])
        if value not in values:
            raise ModelError(f"{key} is {value!r}, and only {values[0]!r} is supported", file=file)
    return options


def _yaml(path: Path) -> dict[str, Any]:
    return _parsed(read_bounded(path, "options of Marian", MIB), path)


def _parsed(text: bytes, file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CorruptError("not readable options of Marian (YAML)", file=file) from error
    if not isinstance(content, dict):
        raise CorruptError("not options of Marian (YAML)", file=file)
    return content


def _vocabularies(folder: Path, search: Settings, shared: bool) -> tuple[list[tuple[Path, dict[str, int]]], list[Path]]:
    """The ids of the pieces, of both sides or of each, and the sentencepiece models of source and target."""
    named = search.items("vocabs")
    if len(named) == 2:
        files = [folder / Path(str(name)).name for name in named]
    else:
        there = (
            sorted(folder.glob("*.vocab.yml")) + sorted(folder.glob("vocab.yml")) + sorted(folder.glob("*vocab*.spm"))
        )
        if not there:
            raise FileProblem(f"no {DECODER} that names the vocabularies, and no vocab.yml or vocab.spm", file=folder)
        source = [p for p in there if re.search(r"\b(src|source)\b", p.name)]
        target = [p for p in there if re.search(r"\b(trg|tgt|target)\b", p.name)]
        files = [(source or there)[0], (target or there)[0]]
    if shared and files[0] != files[1]:
        what = f"two vocabularies ({files[0].name}, {files[1].name}), but one matrix of embeddings"
        raise ModelError(what, file=folder)
    pieces = [(path, _pieces(require_file(path, "vocabulary"))) for path in (files[:1] if shared else files)]
    models = [
        path if path.suffix == ".spm" else require_file(folder / f"{side}.spm", "sentencepiece model")
        for side, path in zip(("source", "target"), files, strict=True)
    ]
    return pieces, models


def _pieces(path: Path) -> dict[str, int]:
    if path.suffix == ".spm":
        return _numbered(read_bounded(path, "sentencepiece model", MAX_MODEL_BYTES), path)
    return read_vocabulary(path)


def _numbered(model: bytes, path: Path) -> dict[str, int]:
    """The pieces of a sentencepiece model by their own ids."""
    import sentencepiece

    sentencepiece.set_min_log_level(3)
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = processor.id_to_piece(list(range(processor.get_piece_size())))
    except (RuntimeError, ValueError, IndexError, UnicodeDecodeError) as error:
        raise CorruptError("not a sentencepiece model", file=path) from error
    return {piece: number for number, piece in enumerate(pieces)}


def read_vocabulary(path: Path) -> dict[str, int]:
    """A `vocab.yml` of Marian, one `PIECE: ID` a line; a parser of all of YAML takes seconds for it.

    Raises CorruptError (line).
    """
    content = read_bounded(path, "vocabulary", LARGEST_VOCABULARY)
    result: dict[str, int] = {}
    for number, raw in enumerate(content.split(b"\n"), 1):
        try:
            line = raw.decode().rstrip("\r")
            if not line.strip() or line.startswith(("#", "---")):
                continue
            parts = re.fullmatch(r"(.+):[ \t]+(\d{1,9})[ \t]*", line)
            piece = None if parts is None else _unquoted(parts[1])
        except (ValueError, yaml.YAMLError):
            parts, piece = None, None
        if parts is None or piece is None or piece in result:
            raise CorruptError("not a line `PIECE: ID` of a vocabulary, or a piece twice", file=path, line=number)
        result[piece] = int(parts[2])
    return result


def _unquoted(text: str) -> str | None:
    """A YAML key without its quotes; None if it is not a string."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        if "\\" not in text:
            return text[1:-1]
        piece = yaml.BaseLoader(text).get_single_data()
        return piece if isinstance(piece, str) else None
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


def _tensors(arrays: Any, config: dict[str, Any], file: Path) -> dict[str, Tensor]:
    """The parameters under the names of MarianMT. Raises ModelError for an array that has no place there."""
    wanted: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {}
    for side in ("encoder", "decoder"):
        for _, group in names.layer_names(side, config[f"{side}_layers"]):
            wanted |= {name: (_marian_name(name), _transposed) for name in group}
    if config["share_encoder_decoder_embeddings"]:
        wanted[names.SHARED] = ("Wemb", _with_pad)
    else:
        wanted[names.SOURCE_EMBEDDING] = ("encoder_Wemb", _with_pad)
        wanted[names.TARGET_EMBEDDING] = ("decoder_Wemb", _with_pad)
    wanted[names.OUTPUT_BIAS] = (BIAS, _with_bias_of_pad)
    there = set(arrays)
    for theirs, _ in wanted.values():
        if theirs not in there:
            raise ModelError(f"array {theirs} is missing", file=file)
    if extra := sorted(there - {theirs for theirs, _ in wanted.values()} - {OPTIONS}):
        raise ModelError(f"array {extra[0]} has no place in such a model", file=file)
    return {
        name: torch.from_numpy(change(_parameter(arrays, theirs, file))) for name, (theirs, change) in wanted.items()
    }


def _parameter(arrays: Any, name: str, file: Path) -> np.ndarray:
    """An array of real numbers, as they are in models that are not quantised."""
    array = _array(arrays, name, file)
    if array.dtype not in (np.float16, np.float32, np.float64) or not array.ndim:
        what = (
            f"array {name} is of the type {array.dtype.str} and shape {array.shape}, not a matrix or vector of floats"
        )
        raise ModelError(what, file=file, hint="use the model as Marian trained it, before quantisation")
    return array


def _marian_name(name: str) -> str:
    """`model.encoder.layers.0.self_attn.q_proj.weight` as `encoder_l1_self_Wq`."""
    _, side, _, number, part, *rest = name.split(".")
    layer, kind = f"{side}_l{int(number) + 1}", rest[-1]
    if part in NORMS:
        return f"{layer}_{NORMS[part]}_ln_{'scale' if kind == 'weight' else 'bias'}"
    letter = "W" if kind == "weight" else "b"
    if part in PARTS:
        return f"{layer}_{PARTS[part]}_{letter}{rest[0][0]}"
    return f"{layer}_ffn_{letter}{part[-1]}"


def _transposed(array: np.ndarray) -> np.ndarray:
    """Matrices the other way round, rows of one as vectors."""
    return array.reshape(-1) if 1 in array.shape or array.ndim == 1 else array.T


def _with_pad_piece(ids: dict[str, int]) -> dict[str, Any]:
    """The vocabulary with a padding token at its end; a piece of theirs with this name, which no text has, gets another."""
    return {**{(f"<pad>#{n}" if piece == "<pad>" else piece): n for piece, n in ids.items()}, "<pad>": len(ids)}


def _with_pad(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])


def _with_bias_of_pad(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array.reshape(1, -1), np.zeros((1, 1), array.dtype)], axis=1)
