"""What an attention is made of, as data: a score and an arrangement, for each use. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from phraseloom.config import Config
from phraseloom.layers.naming import parse, parse_orders, parse_split


class TokenScoreConfig(Config):
    """Ordinary scaled dot-product scores."""

    kind: Literal["token"] = "token"


class RelativeScoreConfig(Config):
    """Scores with clipped relative positions (Shaw et al. 2018); self-attention only."""

    kind: Literal["relative"] = "relative"
    clip: Annotated[int, Field(ge=1)] = 16
    on_values: bool = True


class ConvKVScoreConfig(Config):
    """n-gram keys and values by convolution (P002 eq. 5)."""

    kind: Literal["convkv"] = "convkv"


class QueryKScoreConfig(Config):
    """Queries as kernels over token keys (P000 eq. 9, P002 eq. 6).

    `share_keys`: one key matrix for all orders (paper 000; the default), or one an order (paper 002).
    """

    kind: Literal["queryk"] = "queryk"
    share_keys: bool | None = None


ScoreConfig = Annotated[
    TokenScoreConfig | RelativeScoreConfig | ConvKVScoreConfig | QueryKScoreConfig, Field(discriminator="kind")
]
Orders = Annotated[list[Annotated[int, Field(ge=1, le=16)]], Field(min_length=1)]


class HomogeneousConfig(Config):
    """Every head attends to one order. `split`: how many heads for order 1, 2, …, as [4, 4] or "44"; all order 1 if
    left out."""

    kind: Literal["homogeneous"] = "homogeneous"
    split: list[Annotated[int, Field(ge=0)]] | None = None

    @field_validator("split", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return parse_split(str(value)) if isinstance(value, str | int) else value


class HeterogeneousConfig(Config):
    """Every head attends to slots of all `orders` in one softmax."""

    kind: Literal["heterogeneous"] = "heterogeneous"
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


class InterleavedConfig(HeterogeneousConfig):
    """n-gram queries of all `orders` attend to slots of all `orders`; order 1 is one of them."""

    kind: Literal["interleaved"] = "interleaved"  # type: ignore[assignment]

    @field_validator("orders")
    @classmethod
    def _holds_one(cls, value: list[int]) -> list[int]:
        if 1 not in value:
            raise ValueError("interleaved attention needs order 1: a sentence of one token has no other query")
        return value


ArrangementConfig = Annotated[HomogeneousConfig | HeterogeneousConfig | InterleavedConfig, Field(discriminator="kind")]


class AttentionConfig(Config):
    """One attention block: a score and an arrangement, or both in a line such as `queryk heterogeneous 1-2`."""

    score: ScoreConfig = TokenScoreConfig()
    arrangement: ArrangementConfig = HomogeneousConfig()

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = parse(value)
        score: dict[str, Any] = {"kind": found.pop("score")}
        if "share_keys" in found:
            score["share_keys"] = found.pop("share_keys")
        if "arrangement" not in found:
            return {"score": score}
        return {"score": score, "arrangement": {"kind": found.pop("arrangement"), **found}}

    @model_validator(mode="after")
    def _fits(self) -> AttentionConfig:
        score, arrangement = self.score, self.arrangement
        orders = {1}
        if isinstance(arrangement, HeterogeneousConfig):
            orders = set(arrangement.orders)
        elif arrangement.split is not None:
            orders = {n for n, heads in enumerate(arrangement.split, 1) if heads}
        if score.kind in ("token", "relative") and orders != {1}:
            raise ValueError(
                f"{score.kind} scores know no n-grams: orders {sorted(orders)} need score convkv or queryk"
            )
        if score.kind == "queryk" and score.share_keys is not None and arrangement.kind == "homogeneous":
            raise ValueError(
                "share_keys has no meaning here: in a homogeneous arrangement each order has heads of its own"
            )
        return self


USES = ("encoder_self", "decoder_self", "cross")


class AttentionsConfig(Config):
    """The attention of each use, switchable on its own; one line for all three means that attention in every use."""

    encoder_self: AttentionConfig = AttentionConfig()
    decoder_self: AttentionConfig = AttentionConfig()
    cross: AttentionConfig = AttentionConfig()

    @model_validator(mode="before")
    @classmethod
    def _for_all(cls, value: Any) -> Any:
        return dict.fromkeys(USES, value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _cross_has_no_distance(self) -> AttentionsConfig:
        if self.cross.score.kind == "relative":
            raise ValueError(
                "relative scores are for self-attention: source and target positions have no common distance"
            )
        return self
