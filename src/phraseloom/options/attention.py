"""Options of attention: a score and an arrangement for each use. No torch here.

An attention in one line: `SCORE [ARRANGEMENT ORDERS] [shared-keys | keys-per-order] [gated]`.

    token                             ordinary attention
    relative                          with clipped relative positions
    queryk heterogeneous 1-2          every head sees tokens and bigrams
    queryk-relative heterogeneous 1-2 with clipped relative positions of tokens and bigrams
    convkv homogeneous 44             four heads of tokens, four of bigrams
    queryk interleaved 1-2 keys-per-order
    queryk heterogeneous 1-2 gated    starts as ordinary attention

To add a score or arrangement, write a file in `layers/attention/` and add a line to its table here, with a class for its
options if it has any.
"""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

from phraseloom.config import Config, or_short, validate

EXAMPLE = "queryk heterogeneous 1-2"
KEYS = {"shared-keys": True, "keys-per-order": False}
GATED = "gated"
FORM = f"SCORE [ARRANGEMENT ORDERS] [{' | '.join(KEYS)}] [{GATED}]"


def parse(text: str) -> dict[str, Any]:
    """`score`, and those of `arrangement`, `orders` or `split`, `share_keys` and `gated` that the line names. Raises
    ValueError."""
    words = text.split()
    options: dict[str, Any] = {}
    if words and words[-1] == GATED:
        options["gated"] = bool(words.pop())
    if words and words[-1] in KEYS:
        options["share_keys"] = KEYS[words.pop()]
    if len(words) not in (1, 3):
        raise ValueError(f"{text!r} is not {FORM}, such as {EXAMPLE!r}")
    options["score"] = words[0]
    if len(words) == 3:
        options["arrangement"] = words[1]
        if words[1] == "homogeneous":
            options["split"] = parse_split(words[2])
        else:
            options["orders"] = parse_orders(words[2])
    return options


def parse_split(text: str) -> list[int]:
    """Heads of order 1, 2, …: `44` or `3-2-3` or `12-4`."""
    parts = text.split("-") if "-" in text else list(text)
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise ValueError(f"{text!r} is no division of the heads, such as 44 or 3-2-3 or 12-4")
    return [int(p) for p in parts]


def parse_orders(text: str) -> list[int]:
    """`1-2-3` → [1, 2, 3]."""
    parts = text.split("-")
    if not all(p.isascii() and p.isdigit() for p in parts):
        raise ValueError(f"{text!r} are no orders, such as 1-2 or 1-2-3")
    return [int(p) for p in parts]


NUMBERS = "[0-9]+(-[0-9]+)*"
SHORT_NUMBERS = {"type": "string", "pattern": f"^{NUMBERS}$"}

Backend = Literal["auto", "explicit", "fused"]
Orders = Annotated[list[Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]


class ArrangementOptions(Config):
    """Options of an arrangement. The fields are keyword arguments of `structure` of its class."""

    kind: str

    @abstractmethod
    def orders_seen(self) -> set[int]:
        """The orders n of the n-grams that any head attends to."""


class SplitOptions(ArrangementOptions):
    """`split`: the number of heads for order 1, 2, …, as [4, 4] or "44"; by default all heads have order 1."""

    split: list[Annotated[int, Field(ge=0)]] | None = Field(
        None, json_schema_extra=or_short({**SHORT_NUMBERS, "type": ["string", "integer"], "minimum": 0})
    )

    @field_validator("split", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return parse_split(str(value)) if isinstance(value, str | int) else value

    def orders_seen(self) -> set[int]:
        """The orders that have heads."""
        return {1} if self.split is None else {n for n, heads in enumerate(self.split, 1) if heads}


class OrdersOptions(ArrangementOptions):
    """`orders`: the orders of the n-grams that every head attends to, as [1, 2] or "1-2"."""

    orders: Orders = Field([1, 2], json_schema_extra=or_short(SHORT_NUMBERS))

    @field_validator("orders", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return parse_orders(value) if isinstance(value, str) else value

    @field_validator("orders")
    @classmethod
    def _different(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError(f"orders {'-'.join(map(str, value))} name one order twice")
        return sorted(value)

    def orders_seen(self) -> set[int]:
        """All orders."""
        return set(self.orders)


class OrdersWithOneOptions(OrdersOptions):
    """`orders`: the orders of queries and slots, including order 1."""

    @field_validator("orders")
    @classmethod
    def _holds_one(cls, value: list[int]) -> list[int]:
        if 1 not in value:
            raise ValueError("interleaved attention needs order 1: a sentence of one token has no other query")
        return value


class ScoreOptions(Config):
    """Options of a score. The fields are keyword arguments of its class."""

    kind: str

    def check(self, arrangement: ArrangementOptions) -> None:
        """Raise ValueError if an option has no meaning in this arrangement."""


class RelativeOptions(ScoreOptions):
    """`clip`: larger distances count as this one; `on_values`: also add a vector of the distance to the values."""

    clip: Annotated[int, Field(ge=1)] = 16
    on_values: bool = True


class QueryKOptions(ScoreOptions):
    """`share_keys`: one key matrix for all orders (paper 000; the default), or one per order (paper 002)."""

    share_keys: bool | None = None

    def check(self, arrangement: ArrangementOptions) -> None:
        """Raise ValueError if heads are divided among the orders, which then have their own keys anyway."""
        if self.share_keys is not None and isinstance(arrangement, SplitOptions):
            raise ValueError(
                "share_keys has no meaning here: in a homogeneous arrangement each order has heads of its own"
            )


class RelativeQueryKOptions(QueryKOptions, RelativeOptions):
    """`share_keys`: as for queryk; `clip`, `on_values`: as for relative."""


@dataclass(frozen=True)
class KindEntry:
    """A line of a table. `home`: file and class in `layers/attention/`, imported when a block is built; `description`: for the
    schema of recipes."""

    home: str
    description: str
    options: type[Config]

    def load(self) -> Any:
        """The class; imports torch."""
        file, name = self.home.split(".")
        return getattr(import_module(f"phraseloom.layers.attention.{file}"), name)


@dataclass(frozen=True)
class ScoreEntry(KindEntry):
    """A score. `ngrams`: whether it supports orders above 1; `distances`: whether it needs the distance of two positions, which
    cross-attention does not have; `dot_product`: whether it is that of `token` where order 1 is alone and there are no
    distances."""

    options: type[Config] = ScoreOptions
    ngrams: bool = True
    distances: bool = False
    dot_product: bool = True


SCORES = {
    "token": ScoreEntry("token.TokenScore", "Ordinary scaled dot products.", ngrams=False),
    "relative": ScoreEntry(
        "relative.RelativeScore",
        "Clipped relative positions (Shaw 2018).",
        RelativeOptions,
        ngrams=False,
        distances=True,
    ),
    "convkv": ScoreEntry("convkv.ConvKVScore", "n-gram keys and values by convolution (P002 eq. 5)."),
    "queryk": ScoreEntry("queryk.QueryKScore", "Queries as kernels over token keys (P000 eq. 9).", QueryKOptions),
    "convkv-relative": ScoreEntry(
        "relative.RelativeConvKVScore", "convkv with relative positions.", RelativeOptions, distances=True
    ),
    "queryk-relative": ScoreEntry(
        "relative.RelativeQueryKScore", "queryk with relative positions.", RelativeQueryKOptions, distances=True
    ),
}
ARRANGEMENTS = {
    "homogeneous": KindEntry("homogeneous.HomogeneousArrangement", "Every head attends to one order.", SplitOptions),
    "heterogeneous": KindEntry(
        "heterogeneous.HeterogeneousArrangement", "All orders in one softmax, for every head.", OrdersOptions
    ),
    "interleaved": KindEntry(
        "interleaved.InterleavedArrangement", "n-gram queries and n-gram slots of all orders.", OrdersWithOneOptions
    ),
}


def _config(name: str, entry: KindEntry) -> Any:
    """The configuration class of an entry: its options and its `kind`."""
    parts = [entry.description, *([entry.options.__doc__] if entry.options is not ScoreOptions else [])]
    kind: Any = (Literal[name], name)
    title = entry.home.split(".")[1] + "Config"
    return create_model(title, __base__=entry.options, __doc__="\n\n".join(map(str, parts)), kind=kind)


def _any(table: Mapping[str, KindEntry]) -> Any:
    """The union of the classes of a table, selected by `kind`."""
    classes = [_config(name, entry) for name, entry in table.items()]
    return Annotated[reduce(or_, classes), Field(discriminator="kind")]


def _forms() -> str:
    """The form of the line, and all words that it may contain."""
    return (
        f"an attention in one line is {FORM}: a score is one of {', '.join(SCORES)}, an arrangement one of "
        f"{', '.join(ARRANGEMENTS)}; orders are 1-2 or 1-2-3, of a homogeneous one heads such as 44"
    )


LINE = {
    "type": "string",
    "pattern": rf"^\s*({'|'.join(SCORES)})(\s+({'|'.join(ARRANGEMENTS)})\s+{NUMBERS})?"
    rf"(\s+({'|'.join(KEYS)}))?(\s+{GATED})?\s*$",
    "examples": [EXAMPLE],
}
"""The JSON schema of an attention in one line."""

if TYPE_CHECKING:
    AnyScore = ScoreOptions
    AnyArrangement = ArrangementOptions
else:
    AnyScore, AnyArrangement = _any(SCORES), _any(ARRANGEMENTS)


class AttentionConfig(Config):
    """One attention block: a score and an arrangement, or both in a line such as `queryk heterogeneous 1-2`.

    `gated`: each head has a gate for n-grams, initialised to zero, so that training starts from attention to tokens.
    """

    model_config = ConfigDict(json_schema_extra=or_short(LINE))

    score: AnyScore = Field({"kind": "token"}, validate_default=True)
    arrangement: AnyArrangement = Field({"kind": "homogeneous"}, validate_default=True)
    gated: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        options = parse(value)
        for what, names in (("score", SCORES), ("arrangement", ARRANGEMENTS)):
            if (name := options.get(what, "token" if what == "score" else "homogeneous")) not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                meant = f"did you mean {near[0]}? " if near else ""
                raise ValueError(f"{name!r} is no {what}; {meant}{_forms()}")
        score: dict[str, Any] = {"kind": options.pop("score")}
        if "share_keys" in options:
            able = [name for name, entry in SCORES.items() if "share_keys" in entry.options.model_fields]
            if score["kind"] not in able:
                word = next(word for word, shared in KEYS.items() if shared is options["share_keys"])
                raise ValueError(f"{word!r} sets share_keys, which only {' and '.join(able)} scores have")
            score["share_keys"] = options.pop("share_keys")
        block = {"score": score, "gated": options.pop("gated", False)}
        if "arrangement" not in options:
            return block
        return {**block, "arrangement": {"kind": options.pop("arrangement"), **options}}

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `build_attention` for this block."""
        score, arrangement = self.score.model_dump(exclude_none=True), self.arrangement.model_dump(exclude_none=True)
        kinds = {"score": score.pop("kind"), "arrangement": arrangement.pop("kind"), "gated": self.gated}
        return {**kinds, **score, **arrangement}

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out `gated` if there is no gate, as earlier versions store and read it."""
        stored: dict[str, Any] = handler(self)
        return stored if self.gated else {key: value for key, value in stored.items() if key != "gated"}

    @model_validator(mode="after")
    def _fits(self) -> AttentionConfig:
        kind, orders = self.score.kind, self.arrangement.orders_seen()
        if not SCORES[kind].ngrams and orders != {1}:
            able = " or ".join(name for name, entry in SCORES.items() if entry.ngrams)
            raise ValueError(f"{kind} scores know no n-grams: orders {sorted(orders)} need score {able}")
        self.score.check(self.arrangement)
        if self.gated and (self.arrangement.kind == "homogeneous" or 1 not in orders or len(orders) < 2):
            raise ValueError(
                "gated needs heads that see both tokens and n-grams: heterogeneous or interleaved, orders such as 1-2"
            )
        return self


def read_line(line: str) -> AttentionConfig:
    """The attention that a line such as `queryk heterogeneous 1-2` names. Raises ConfigError."""
    return validate(AttentionConfig, line)


USES = ("encoder_self", "decoder_self", "cross")


class BackendOptions(Config):
    """`backend`: how attention is computed.

    `explicit` builds the attention weights. `fused` never holds them in memory, which pays for long texts. `auto`, the
    default, takes the faster of the two by length. The results are equal up to rounding.
    """

    backend: Backend = "auto"

    def uses(self) -> dict[str, AttentionConfig]:
        """The attention of each use, by name."""
        options = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in options.items() if isinstance(value, AttentionConfig)}

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `backend` where it is auto: the form that earlier versions store and read."""
        stored: dict[str, Any] = handler(self)
        return {key: value for key, value in stored.items() if key != "backend" or value != "auto"}


class AttentionsConfig(BackendOptions):
    """The attention of each use; one line sets the same attention for all three uses."""

    model_config = ConfigDict(json_schema_extra=or_short(LINE))

    encoder_self: AttentionConfig = AttentionConfig()
    decoder_self: AttentionConfig = AttentionConfig()
    cross: AttentionConfig = AttentionConfig()

    @model_validator(mode="before")
    @classmethod
    def _for_all(cls, value: Any) -> Any:
        return dict.fromkeys(USES, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _cross_has_no_distance(self) -> AttentionsConfig:
        kind = self.cross.score.kind
        if SCORES[kind].distances:
            raise ValueError(
                f"{kind} scores are for self-attention: source and target positions have no common distance"
            )
        return self
