"""A word alignment model as one safetensors file: words, tables, how they were made, and a checksum of all of it.

    source_words, target_words               uint8    UTF-8, one word a line
    DIRECTION.source, .target                int32    [K] numbers of words, in the order of (source, target)
    DIRECTION.probabilities, .null           float32  t of the word pairs [K], and of each word beside the null word

The metadata are one JSON text: kind, format, lowercase, tension and p_null of each direction, what the maker noted, and the
SHA-256 of all of that and of the arrays. (One, since safetensors writes several in any order.)
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from phraseloom import __version__
from phraseloom.align.aligner import Aligner, Table
from phraseloom.align.prior import DIRECTIONS, TENSIONS
from phraseloom.errors import CorruptError, ModelError
from phraseloom.files import atomic_write_bytes, require_file
from phraseloom.reading import read_header

KIND, FORMAT, METADATA = "word alignment model", 1, "phraseloom"
ARRAYS = {"source": np.int32, "target": np.int32, "probabilities": np.float32, "null": np.float32}


def save_aligner(path: str | Path, aligner: Aligner, *, notes: dict[str, Any] | None = None) -> None:
    """Write a model to a file that appears whole or not at all; the same model makes the same bytes. `notes`: JSON."""
    arrays = {
        f"{side}_words": np.frombuffer("\n".join(words).encode(), np.uint8)
        for side, words in (("source", aligner.source_words), ("target", aligner.target_words))
    }
    for direction, table in aligner.tables.items():
        arrays |= {f"{direction}.{name}": np.asarray(getattr(table, name), dtype) for name, dtype in ARRAYS.items()}
    about = {
        "kind": KIND,
        "format": FORMAT,
        "phraseloom": __version__,
        "lowercase": aligner.lowercase,
        "directions": {name: {"tension": t.tension, "p_null": t.p_null} for name, t in aligner.tables.items()},
        "notes": notes or {},
    }
    about["sha256"] = _checksum(about, arrays)
    text = json.dumps(about, ensure_ascii=False, allow_nan=False)
    atomic_write_bytes(path, safetensors.numpy.save(arrays, {METADATA: text}))


def load_aligner(path: str | Path) -> Aligner:
    """The model in a file. Raises FileProblem, CorruptError (damaged), ModelError (not such a file, or of another format)."""
    path = require_file(path, "word alignment model")
    hint = "phraseloom align train makes a word alignment model"
    try:
        read_header(path)
    except CorruptError as error:
        raise CorruptError(f"not a whole safetensors file ({error.what})", file=path, hint=hint) from error
    try:
        with safetensors.safe_open(path, "np") as file:
            about = json.loads((file.metadata() or {}).get(METADATA, "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, RecursionError) as error:
        raise CorruptError(f"not a whole safetensors file ({error})", file=path, hint=hint) from error
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise ModelError("not a word alignment model", file=path, hint="phraseloom align train makes one")
    if about.get("format") != FORMAT:
        what = f"format {about.get('format')!r}, but this version reads format {FORMAT}"
        raise ModelError(what, file=path, hint="train it again, or use the version that made it")
    if _checksum(about, arrays) != about.get("sha256"):
        raise CorruptError("checksum differs: the file is damaged", file=path, hint="copy it again or train it again")
    try:
        return _aligner(about, arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptError(f"the parts of the model do not fit ({error})", file=path) from error


def _checksum(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of all of `about` but itself, and of the name, type, shape and bytes of every array."""
    heads = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    stated = [{name: value for name, value in about.items() if name != "sha256"}, heads]
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for _, array in sorted(arrays.items()):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _aligner(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Aligner:
    """The model of a file whose checksum fits; raises what wrong parts raise, which can only be another program's."""
    source_words, target_words = (_words(arrays[f"{side}_words"]) for side in ("source", "target"))
    tables = {}
    for direction, prior in about["directions"].items():
        source, target, probabilities, null = (arrays[f"{direction}.{name}"] for name in ARRAYS)
        table = Table(source, target, probabilities, null, tension=prior["tension"], p_null=prior["p_null"])
        _check(table, len(source_words), len(target_words), direction)
        tables[direction] = table
    if not tables or not set(tables) <= set(DIRECTIONS):
        raise ValueError(f"directions {', '.join(tables)}")
    return Aligner(source_words, target_words, tables, lowercase=about["lowercase"])


def _words(data: np.ndarray) -> list[str]:
    words = data.tobytes().decode("utf-8").split("\n")
    if len(set(words)) != len(words) or "" in words:
        raise ValueError("a word is empty or there twice")
    return words


def _check(table: Table, source_words: int, target_words: int, direction: str) -> None:
    for name, dtype in ARRAYS.items():
        array = getattr(table, name)
        if array.dtype != dtype or array.ndim != 1:
            raise ValueError(f"{direction}.{name} is {array.dtype} {array.shape}")
    keys = table.source.astype(np.int64) * target_words + table.target
    sizes = {len(table.source), len(table.target), len(table.probabilities)}
    inside = all(
        ((numbers >= 0) & (numbers < size)).all()
        for numbers, size in ((table.source, source_words), (table.target, target_words))
    )
    if len(sizes) != 1 or not inside or (np.diff(keys) <= 0).any():
        raise ValueError(f"the word pairs of {direction}")
    choosers = target_words if direction == "forward" else source_words
    numbers = np.concatenate([table.probabilities, table.null])
    if len(table.null) != choosers or not ((numbers > 0) & (numbers < 1.001)).all():
        raise ValueError(f"the probabilities of {direction}")
    if not (table.tension == 0 or TENSIONS[0] <= table.tension <= TENSIONS[1]):
        raise ValueError(f"tension {table.tension}")
    if table.p_null is not None and not 0 <= table.p_null < 1:
        raise ValueError(f"p_null {table.p_null}")
