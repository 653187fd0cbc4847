"""How the parameters of a model are drawn before training, as data. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from phraseloom.config import Config


class InitConfig(Config):
    """The start of training; one word in place of the mapping is the `kind`.

    `kind`: fan_in_uniform, U(±√(1 / fan_in)); xavier_uniform, U(±√(6 / (fan_in + fan_out)));
    uniform, every parameter but those of layer normalisations U(±`range`). `embeddings`: normal, N(0, 1/√D);
    small_uniform, U(±√(2 / (V + D))), the released start of paper 001. `recurrent`: how the cells of
    recurrent layers are drawn, gate by gate: both matrices as said, or (orthogonal) the recurrent one orthogonal and the input
    one xavier_uniform. `branch_scale` multiplies the last matrix of every residual branch of a Transformer, and
    `phrase_scale` those of combination networks (null: as `branch_scale`); 0 makes a branch start as the identity.
    """

    kind: Literal["fan_in_uniform", "xavier_uniform", "uniform"] = "fan_in_uniform"
    range: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    embeddings: Literal["normal", "small_uniform"] = "normal"
    recurrent: Literal["orthogonal", "xavier_uniform", "fan_in_uniform"] = "orthogonal"
    branch_scale: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    phrase_scale: Annotated[float, Field(ge=0.0, le=1.0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> InitConfig:
        if (self.kind == "uniform") != (self.range is not None):
            raise ValueError("range is for kind: uniform, which needs it")
        changed = [
            name
            for name, usual in (("embeddings", "normal"), ("recurrent", "orthogonal"))
            if getattr(self, name) != usual
        ]
        if self.kind == "uniform" and changed:
            raise ValueError(f"kind: uniform draws everything from its range; leave {changed[0]} out")
        return self


def fill_init(value: Any) -> Any:
    """`value` with what a start implies: embeddings drawn from a stated range are not multiplied by √D.

    `init_range: R`, the key of earlier versions, is `init: {kind: uniform, range: R}` with scaled embeddings.
    """
    if not isinstance(value, dict):
        return value
    value = dict(value)
    old = value.pop("init_range", None)
    if old is not None:
        if "init" in value:
            raise ValueError("init_range and init say the same; keep init")
        value = {"scale_embeddings": True, **value, "init": {"kind": "uniform", "range": old}}
    init = value.get("init")
    kind = (
        init if isinstance(init, str) else init.get("kind") if isinstance(init, dict) else getattr(init, "kind", None)
    )
    return {"scale_embeddings": kind != "uniform", **value}
