"""Every attention that a recipe can ask for, at a small size: the cases of the contract and of the comparison with the loops.

What goes together is asked of the configuration, not listed here: a combination that it refuses is left out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import pydantic
import torch

from phraseloom.layers.attention import ARRANGEMENTS, SCORES, MultiHeadAttention, build_attention
from phraseloom.layers.attention.masks import Visibility
from phraseloom.options.model import ModelConfig

HEADS = 4
USES = ("encoder_self", "decoder_self", "cross")
ORDERS = {
    "homogeneous": ("", "4", "22", "121", "0031"),
    "heterogeneous": ("1", "1-2", "1-2-3", "2", "2-3", "1-2-3-4"),
    "interleaved": ("1", "1-2", "1-2-3", "1-3"),
}


@dataclass(frozen=True)
class Case:
    """One attention block in one use, as in a recipe."""

    text: str
    use: str

    def __str__(self) -> str:
        return f"{self.text.replace(' ', '_')}@{self.use}"

    @property
    def score(self) -> str:
        return self.text.split()[0]

    @property
    def causal(self) -> bool:
        return self.use == "decoder_self"

    def options(self) -> dict[str, Any]:
        """The keywords of `build_attention`, as resolved by the configuration."""
        block = getattr(_ask(self.text, self.use).attention, self.use)
        named = {"score": block.score.kind, "arrangement": block.arrangement.kind}
        rest = {**block.score.model_dump(exclude={"kind"}), **block.arrangement.model_dump(exclude={"kind"})}
        if "clip" in rest:
            rest["clip"] = 2
        return named | {name: value for name, value in rest.items() if value is not None}

    def build(self, *, width: int = 12, dropout: float = 0.0) -> MultiHeadAttention:
        """A block with random float64 matrices, large enough that attention is far from uniform."""
        reads_ahead = self.use == "encoder_self"
        made = build_attention(width=width, heads=HEADS, reads_ahead=reads_ahead, dropout=dropout, **self.options())
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in made.double().parameters():
                parameter.normal_(std=0.4, generator=generator)
        return made.eval()

    def visibility(self, length: int, lengths: torch.Tensor | None = None, *, queries: int | None = None) -> Visibility:
        """What this use sees of `length` tokens; in cross-attention from `queries` of them."""
        return Visibility(
            key_length=length, lengths_B=lengths, causal=self.causal,
            query_length=queries if self.use == "cross" and queries is not None else length,
        )  # fmt: skip


@cache
def _ask(text: str, use: str) -> ModelConfig:
    return ModelConfig.model_validate({"width": 12, "heads": HEADS, "attention": {use: text}})


def _cases() -> list[Case]:
    texts = [" ".join((score, *form)).strip() for score in SCORES for form in _forms()]
    found: dict[str, Case] = {}
    for use, text in itertools.product(USES, texts):
        try:
            resolved = getattr(_ask(text, use).attention, use).model_dump_json()
        except pydantic.ValidationError:
            continue
        found.setdefault(f"{use} {resolved}", Case(text, use))
    return list(found.values())


def _forms() -> list[tuple[str, ...]]:
    forms: list[tuple[str, ...]] = [()]
    for arrangement in ARRANGEMENTS:
        forms += itertools.product([arrangement], ORDERS[arrangement], ["", "keys-per-order"])
    return [tuple(word for word in form if word) for form in forms]


CASES = _cases()
