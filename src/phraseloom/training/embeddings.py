"""Embeddings from elsewhere: matrices that begin as those of a trained model or of a `.vec` file (paper 004, Table 3; spec
§6.4).

A row of the new matrix is that of the same piece; where there is none it stays as it was drawn.

model    the raw matrix of that side; special symbols too. The model must multiply it by √D, or not, as this one does
`.vec`   the token that is the piece, else the word that the piece is without its word-begin mark; times one factor, so
         that the rows taken have the mean norm of drawn rows, which depends on `model.init`; no special symbols

They are read when a run begins; from then on they are part of its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from phraseloom.errors import DataError, FileProblem, ModelError, UsageError
from phraseloom.files import sha256_file
from phraseloom.models.store import WEIGHTS, find_model, find_task, load_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.training import EmbeddingsConfig
from phraseloom.recipe import AnyRecipe, LanguageModelRecipe
from phraseloom.text.sentencepiece import SPACE
from phraseloom.text.tokenizer import Side, Tokenizer
from phraseloom.text.vectors import read_vectors
from phraseloom.text.vocabulary import SPECIALS, Vocabulary

__all__ = ["Transfer", "fix", "put", "read_transfers"]


class Transfer(NamedTuple):
    """Vectors for rows of one matrix: `vectors_VD[i]` becomes row `rows_V[i]`, of `size` rows.

    `side` is one that the matrix belongs to; `name` says all of them. `origin` and its `sha256` are where it was taken.
    Vectors that are not `of_model` have mean norm 1, and get that of drawn rows.
    """

    side: str
    name: str
    rows_V: Tensor
    vectors_VD: Tensor
    size: int
    origin: str
    sha256: str
    of_model: bool

    def __str__(self) -> str:
        taken = len(self.rows_V)
        return (
            f"{self.name}: {taken:,} of {self.size:,} rows taken from {self.origin}; "
            f"{self.size - taken:,} stay as they were drawn"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What a run notes of it."""
        return {"matrix": self.name, "rows": len(self.rows_V), "from": self.origin, "sha256": self.sha256}


class Given(NamedTuple):
    """What one side of an origin offers: the row of each piece, the vectors, and whether they come from a model."""

    places: Mapping[str, int]
    vectors: Tensor
    of_model: bool


def read_transfers(recipe: AnyRecipe, tokenizer: Tokenizer) -> list[Transfer]:
    """Read what `training.embeddings` of a recipe asks for, for the vocabularies of its tokenizer; nothing if it does not.

    Raises UsageError where the recipe asks for what cannot be, FileProblem, CorruptError, DataError and ModelError where an
    origin cannot be read, is of another width or has no piece of the vocabulary.
    """
    config = recipe.training.embeddings
    if config is None:
        return []
    if isinstance(recipe, LanguageModelRecipe):
        raise UsageError("training.embeddings is for task: translation, and this is task: language_model")
    sides, one = config.sides, recipe.model.tied == "three_way"
    if one and len(set(sides.values())) > 1:
        raise UsageError(
            f"tied: three_way has one matrix, and training.embeddings names two origins ({' and '.join(sides.values())})",
            hint="name one, or set model.tied to two_way",
        )
    origins: dict[str, Origin] = {}
    for path in dict.fromkeys(sides.values()):
        wanted: dict[str, Side] = {side: getattr(tokenizer, side) for side in sides if sides[side] == path}
        origins[path] = _open(Path(path), wanted, recipe.model)
    if one and len(sides) > 1:
        _refuse_two_matrices(origins[sides["target"]])
        sides = {"target": sides["target"]}
    names = {"source": "source embeddings", "target": "target embeddings"}
    if recipe.model.tied != "none":
        names["target"] += " and output"
    if one:
        names = dict.fromkeys(names, "embeddings of both sides and output")
    found = []
    for side, path in sides.items():
        origin = origins[path]
        found.append(_match(side, names[side], origin, getattr(tokenizer, side)))
    return found


class Origin(NamedTuple):
    """An opened model folder or `.vec` file: what it offers to the sides that name it."""

    path: str
    sha256: str
    sides: Mapping[str, Given]


def _open(path: Path, wanted: Mapping[str, Side], model: ModelConfig) -> Origin:
    width = model.embedding_width or model.width
    if path.is_dir():
        return _open_model(path, wanted, width, scaled=model.scale_embeddings)
    if not path.exists():
        raise FileProblem(
            "no such model folder or file of vectors", file=path, hint="it is named in training.embeddings"
        )
    words = {word for side in wanted.values() for piece in _pieces(side.vocabulary) for word in _names(piece, side)}
    tokens, matrix_VD = read_vectors(path, wanted=words, width=width)
    given = Given({token: row for row, token in enumerate(tokens)}, torch.from_numpy(matrix_VD), of_model=False)
    return Origin(str(path), sha256_file(path), dict.fromkeys(wanted, given))


def _open_model(path: Path, wanted: Iterable[str], width: int, *, scaled: bool) -> Origin:
    folder = find_model(path)
    if find_task(folder) != "translation":
        raise ModelError(
            "this is a language model; training.embeddings takes those of a translation model, or of a .vec file",
            file=path,
        )
    model, tokenizer, _ = load_model(folder)
    sides = {}
    for side in wanted:
        matrix_VD = matrix_of(model, side).detach()
        if matrix_VD.shape[1] != width:
            raise ModelError(
                f"its {side} embeddings have width {matrix_VD.shape[1]}; those of the recipe have {width}", file=path
            )
        if (theirs := getattr(model, f"{side}_embedding").scale != 1) != scaled:
            there, here = (f"model.scale_embeddings {str(flag).lower()}" for flag in (theirs, scaled))
            made = f"its {side} embeddings are made for {there}"
            what = f"{made}, and the recipe has {here}: their size would be wrong by √{width}"
            raise ModelError(what, file=path, hint=f"set model.scale_embeddings to {str(theirs).lower()}")
        pieces = _pieces(getattr(tokenizer, side).vocabulary)
        places = {piece: row for row, piece in enumerate(pieces, start=len(SPECIALS))}
        sides[side] = Given(places, matrix_VD, of_model=True)
    checkpoint = folder.resolve().name
    shown = str(path) if checkpoint == path.name else f"{path} ({checkpoint})"
    return Origin(shown, sha256_file(folder / WEIGHTS), sides)


def _refuse_two_matrices(origin: Origin) -> None:
    if origin.sides["source"].vectors.data_ptr() != origin.sides["target"].vectors.data_ptr():
        raise UsageError(
            f"tied: three_way has one matrix, and the model {origin.path} has one for each side",
            hint="name it as training.embeddings.source or as training.embeddings.target",
        )


def _match(side: str, name: str, origin: Origin, own: Side) -> Transfer:
    """The rows of the vocabulary of a side that an origin has."""
    given, vocabulary = origin.sides[side], own.vocabulary
    rows, places = [], []
    for row, piece in enumerate(_pieces(vocabulary), start=len(SPECIALS)):
        names = (piece,) if given.of_model else _names(piece, own)
        place = next((given.places[n] for n in names if n in given.places), None)
        if place is not None:
            rows.append(row)
            places.append(place)
    if not rows:
        raise ModelError(
            f"no piece of the {side} vocabulary is there, such as {_some(vocabulary)}",
            file=origin.path,
            hint="rows are matched by the text of the pieces; is it of the same language and kind of subwords?",
        )
    if given.of_model:
        specials = list(range(len(SPECIALS)))
        rows, places = specials + rows, specials + places
    vectors_VD = given.vectors[torch.tensor(places)]
    if not given.of_model:
        mean = float(vectors_VD.norm(dim=1).double().mean())
        if mean == 0:
            raise DataError("all vectors of the pieces of the vocabulary are zero", file=origin.path)
        vectors_VD = vectors_VD / mean
    of = (len(vocabulary), origin.path, origin.sha256, given.of_model)
    return Transfer(side, name, torch.tensor(rows), vectors_VD, *of)


def _pieces(vocabulary: Vocabulary) -> list[str]:
    return list(vocabulary)[len(SPECIALS) :]


def _names(piece: str, side: Side) -> tuple[str, ...]:
    """What a piece may be called in a `.vec` file, the first choice first."""
    word = piece.removeprefix(SPACE) if side.kind == "sentencepiece" else piece
    return (piece, word) if word and word != piece else (piece,)


def _some(vocabulary: Vocabulary) -> str:
    pieces = _pieces(vocabulary)
    return ", ".join(repr(pieces[int(i)]) for i in np.linspace(0, len(pieces) - 1, 3))


def matrix_of(model: nn.Module, side: str) -> nn.Parameter:
    """The embedding matrix of the source or the target of a translation model."""
    return cast(nn.Parameter, getattr(model, f"{side}_embedding").weight)


def put(model: nn.Module, transfers: Sequence[Transfer]) -> None:
    """Write the vectors into the matrices of a new model, whose rows are as they were drawn."""
    with torch.no_grad():
        drawn = [matrix_of(model, t.side)[len(SPECIALS) :].norm(dim=1).mean() for t in transfers]
        for transfer, norm in zip(transfers, drawn, strict=True):
            weight = matrix_of(model, transfer.side)
            factor = 1 if transfer.of_model else norm
            weight[transfer.rows_V.to(weight.device)] = transfer.vectors_VD.to(weight) * factor


def fix(model: nn.Module, config: EmbeddingsConfig | None) -> None:
    """Take the matrices out of training where the recipe says `fixed`; an output that shares one is fixed with it, its bias is
    not."""
    if config is not None and config.fixed:
        for side in config.sides:
            matrix_of(model, side).requires_grad_(False)
