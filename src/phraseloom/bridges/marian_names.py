"""How the parameters of a Transformer are called here and in a MarianMT folder of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator

SHARED = "model.shared.weight"
SOURCE_EMBEDDING, TARGET_EMBEDDING = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
OUTPUT, OUTPUT_BIAS = "lm_head.weight", "final_logits_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

# The layers of each side: our attention or norm -> theirs.
ATTENTION = {
    "encoder": {"attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
NORMS = {
    "encoder": {"attention_residual": "self_attn_layer_norm", "feed_forward_residual": "final_layer_norm"},
    "decoder": {
        "self_residual": "self_attn_layer_norm",
        "cross_residual": "encoder_attn_layer_norm",
        "feed_forward_residual": "final_layer_norm",
    },
}


def layer_names(side: str, layers: int) -> Iterator[tuple[str, list[str]]]:
    """Each parameter of the layers of a side, and those of theirs whose rows, one after the other, it holds."""
    for number in range(layers):
        ours, theirs = f"{side}.layers.{number}.", f"model.{side}.layers.{number}."
        for own, other in ATTENTION[side].items():
            for kind, packed in (("weight", "score.weight"), ("bias", "bias")):
                yield f"{ours}{own}.{packed}", [f"{theirs}{other}.{part}_proj.{kind}" for part in "qkv"]
                yield f"{ours}{own}.arrangement.{kind}", [f"{theirs}{other}.out_proj.{kind}"]
        for kind in ("weight", "bias"):
            for own, other in NORMS[side].items():
                yield f"{ours}{own}.norm.{kind}", [f"{theirs}{other}.{kind}"]
            for own, other in (("up", "fc1"), ("down", "fc2")):
                yield f"{ours}feed_forward.{own}.{kind}", [f"{theirs}{other}.{kind}"]
