"""The scores and arrangements of attention, by the names that recipes use: where each is, and its options. No torch.

A new one is a file in `layers/attention/` and a line in its table here; one with options has a class for them here too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, field_validator

from phraseloom.config import Config
from phraseloom.layers.naming import parse_orders, parse_split

Backend = Literal["auto", "explicit", "fused"]
Orders = Annotated[list[Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]


class ArrangementOptions(Config):
    """What a recipe may say of an arrangement. Its fields are keywords of `structure` of the class."""

    kind: str

    @abstractmethod
    def orders_seen(self) -> set[int]:
        """The orders n of the n-grams that some head attends to."""


class SplitOptions(ArrangementOptions):
    """`split`: how many heads for order 1, 2, …, as [4, 4] or "44"; all order 1 if left out."""

    split: list[Annotated[int, Field(ge=0)]] | None = None

    @field_validator("split", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return parse_split(str(value)) if isinstance(value, str | int) else value

    def orders_seen(self) -> set[int]:
        """Those that have heads."""
        return {1} if self.split is None else {n for n, heads in enumerate(self.split, 1) if heads}


class OrdersOptions(ArrangementOptions):
    """`orders`: of the n-grams that every head attends to, as [1, 2] or "1-2"."""

    orders: Orders = Field([1, 2])

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
        """All of them."""
        return set(self.orders)


class OrdersWithOneOptions(OrdersOptions):
    """`orders`: of queries and slots; order 1 is one of them."""

    @field_validator("orders")
    @classmethod
    def _holds_one(cls, value: list[int]) -> list[int]:
        if 1 not in value:
            raise ValueError("interleaved attention needs order 1: a sentence of one token has no other query")
        return value


class ScoreOptions(Config):
    """What a recipe may say of a score. Its fields are keywords of the class of the score."""

    kind: str

    def check(self, arrangement: ArrangementOptions) -> None:
        """ValueError where an option has no meaning in this arrangement."""


class RelativeOptions(ScoreOptions):
    """`clip`: the largest distance that is told apart; `on_values`: also add a vector of the distance to the values."""

    clip: Annotated[int, Field(ge=1)] = 16
    on_values: bool = True


class QueryKOptions(ScoreOptions):
    """`share_keys`: one key matrix for all orders (paper 000; the default), or one an order (paper 002)."""

    share_keys: bool | None = None

    def check(self, arrangement: ArrangementOptions) -> None:
        """ValueError where heads divided among the orders have keys of their own anyway."""
        if self.share_keys is not None and isinstance(arrangement, SplitOptions):
            raise ValueError(
                "share_keys has no meaning here: in a homogeneous arrangement each order has heads of its own"
            )


@dataclass(frozen=True)
class KindEntry:
    """A line of a table: `home` is file and class in `layers/attention/`, loaded when a block is built; `says` is for
    the schema of recipes."""

    home: str
    says: str
    options: type[Config]

    def load(self) -> Any:
        """The class; imports torch."""
        file, name = self.home.split(".")
        return getattr(import_module(f"phraseloom.layers.attention.{file}"), name)


@dataclass(frozen=True)
class ScoreEntry(KindEntry):
    """A score. `ngrams`: whether it knows orders above 1; `distances`: whether it needs positions that have a distance,
    as those of two texts have not."""

    options: type[Config] = ScoreOptions
    ngrams: bool = True
    distances: bool = False


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
    """The options of an entry with its `kind`, as a class that a recipe is checked against."""
    says = [entry.says, *([entry.options.__doc__] if entry.options is not ScoreOptions else [])]
    kind: Any = (Literal[name], name)
    title = entry.home.split(".")[1] + "Config"
    return create_model(title, __base__=entry.options, __doc__="\n\n".join(map(str, says)), kind=kind)


def _any(table: Mapping[str, KindEntry]) -> Any:
    """One of a table, chosen by `kind`."""
    classes = [_config(name, entry) for name, entry in table.items()]
    return Annotated[reduce(or_, classes), Field(discriminator="kind")]


if TYPE_CHECKING:
    AnyScore = ScoreOptions
    AnyArrangement = ArrangementOptions
else:
    AnyScore, AnyArrangement = _any(SCORES), _any(ARRANGEMENTS)
