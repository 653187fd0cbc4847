"""What an attention is made of, as data: a score and an arrangement, for each use. No torch here."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from phraseloom.config import Config
from phraseloom.layers.config import ARRANGEMENTS, SCORES, AnyArrangement, AnyScore, Backend
from phraseloom.layers.naming import FORM, parse


def _forms() -> str:
    """How the line is written, and all that may stand in it."""
    return (
        f"an attention in one line is {FORM}: a score is one of {', '.join(SCORES)}, an arrangement one of "
        f"{', '.join(ARRANGEMENTS)}; orders are 1-2 or 1-2-3, of a homogeneous one heads such as 44"
    )


class AttentionConfig(Config):
    """One attention block: a score and an arrangement, or both in a line such as `queryk heterogeneous 1-2`.

    `gated`: n-grams stand behind a gate for each head that is shut at first, so that training starts from attention to tokens.
    """

    score: AnyScore = Field({"kind": "token"}, validate_default=True)
    arrangement: AnyArrangement = Field({"kind": "homogeneous"}, validate_default=True)
    gated: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = parse(value)
        for what, names in (("score", SCORES), ("arrangement", ARRANGEMENTS)):
            if (name := found.get(what, "token" if what == "score" else "homogeneous")) not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                meant = f"did you mean {near[0]}? " if near else ""
                raise ValueError(f"{name!r} is no {what}; {meant}{_forms()}")
        score: dict[str, Any] = {"kind": found.pop("score")}
        if "share_keys" in found:
            score["share_keys"] = found.pop("share_keys")
        block = {"score": score, "gated": found.pop("gated", False)}
        if "arrangement" not in found:
            return block
        return {**block, "arrangement": {"kind": found.pop("arrangement"), **found}}

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `gated` where there is no gate: the form that earlier versions store and read."""
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


USES = ("encoder_self", "decoder_self", "cross")


class BackendOptions(Config):
    """`backend`: how attention is computed. `explicit` writes its weights out, `fused` never has them in memory, which pays for
    long texts; `auto`, the default, takes the faster one by length. The results are the same to rounding."""

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
        kind = self.cross.score.kind
        if SCORES[kind].distances:
            raise ValueError(
                f"{kind} scores are for self-attention: source and target positions have no common distance"
            )
        return self
