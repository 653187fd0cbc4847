"""Recipes that cannot work are refused in words; R4: what may change on resume and what may not."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from phraseloom.options.training import FREE_ON_RESUME, TrainingConfig, changed_keys


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"max_updates": None}, "has to end the run"),
        ({"max_updates": None, "max_minutes": 1, "schedule": {"kind": "linear", "peak": 1}}, "it has to end somewhere"),
        (
            {"schedule": {"kind": "linear", "peak": 1, "warmup": 50, "updates": 50}},
            r"warmup \(50\) must be below updates",
        ),
        (
            {"schedule": {"kind": "cosine", "peak": 1, "warmup": 100, "updates": 50}},
            r"warmup \(100\) must be below updates",
        ),
        ({"guided_alignment": {"layers": [2, 2]}}, "layers has 2 twice"),
        ({"guided_alignment": {"layers": [1, 2], "heads": [3, 1, 3]}}, "heads has 3 twice"),
        ({"best_by": "bleu"}, "needs bleu_every"),
        ({"average_last": 9}, "keep_last is 3"),
        ({"processes": 3}, "some would have nothing to do"),
        ({"batch_tokens": 0}, "greater than 0"),
        ({"schedule": {"kind": "cosinus"}}, "cosine"),
        ({"optimiser": {}}, "Extra inputs"),
        ({"embeddings": {"fixed": True}}, "source, target or both"),
        ({"embeddings": {"sorce": "x"}}, "Extra inputs"),
        ({"embeddings": ""}, "not empty"),
        ({"start_from": ""}, "not empty"),
        ({"start_from": {"optimizer": "continue"}}, "path"),
        ({"start_from": "runs/a", "embeddings": "runs/b"}, "keep one"),
        ({"freeze": ["encoder layers"]}, "pattern"),
        ({"rates": {"encoder": 0}}, "greater than 0"),
    ],
)
def test_refused(keys: dict[str, Any], match: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=match):
        TrainingConfig.model_validate(keys)


def resolved(**training: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "name": "x",
        "data": {"folder": "a", "train": [{"source": "b"}]},
        "model": {"width": 8, "encoder": {"layers": 2}},
        "training": TrainingConfig.model_validate(training).model_dump(mode="json"),
        "decoding": {"beam": 5},
    }


FREE: dict[str, Any] = {
    "max_epochs": 3, "max_minutes": 2.0, "patience": 4, "checkpoint_every": 7, "valid_tokens": 9, "bleu_every": 2,
    "bleu_beam": 3, "keep_last": 5, "average_last": 2, "bad_steps": 9, "alarm_perplexity": 90.0, "device": "cpu",
    "processes": 1, "compile": True, "tf32": False, "log_every": 3, "tensorboard": True, "max_updates": 7,
    "checkpoint_activations": True, "tracker": "module:function", "fertility": {"classes": 4},
}  # fmt: skip
FIXED: dict[str, Any] = {
    "seed": 2, "batch_tokens": 9, "micro_batches": 4, "max_micro_tokens": 99, "pool_updates": 3, "clip_norm": None,
    "guided_alignment": {"weight": 0.1},
    "gradient_per": "sentence", "precision": "bf16", "optimizer": {"beta1": 0.8}, "schedule": {"kind": "constant", "rate": 0.1},
    "embeddings": "runs/base", "start_from": "runs/base", "freeze": ["encoder"], "rates": {"encoder.layers.0": 0.1},
}  # fmt: skip


def test_the_two_tables_cover_every_key() -> None:
    assert FREE.keys() | FIXED.keys() | {"best_by"} == TrainingConfig.model_fields.keys()
    assert {f"training.{k}" for k in FREE} | {"training.best_by", "training.max_updates"} == FREE_ON_RESUME | {
        "training.max_updates"
    }


@pytest.mark.parametrize("key", FREE)
def test_free_on_resume(key: str) -> None:
    refused, allowed = changed_keys(resolved(), resolved(**{key: FREE[key]}))
    assert not refused and allowed and all(change.startswith(f"training.{key}") for change in allowed)


@pytest.mark.parametrize("key", FIXED)
def test_fixed_on_resume(key: str) -> None:
    refused, _ = changed_keys(resolved(), resolved(**{key: FIXED[key]}))
    assert refused and refused[0].startswith(f"training.{key}")


def test_the_end_is_fixed_where_the_rate_depends_on_it() -> None:
    keys: dict[str, Any] = {"schedule": {"kind": "cosine", "peak": 0.1}}
    assert changed_keys(resolved(max_updates=5, **keys), resolved(max_updates=6, **keys))[0] == [
        "training.max_updates: 5 → 6"
    ]
    keys["schedule"]["updates"] = 9
    assert changed_keys(resolved(max_updates=5, **keys), resolved(max_updates=6, **keys))[0] == []


@pytest.mark.parametrize(("by", "fixed"), [("perplexity", 1), ("bleu", 3)])
def test_the_validations_of_a_plateau_are_fixed(by: str, fixed: int) -> None:
    keys: dict[str, Any] = {"schedule": {"kind": "plateau", "rate": 0.1, "by": by}}
    changes = {"checkpoint_every": 7, "bleu_every": 2, "bleu_beam": 3}
    refused, allowed = changed_keys(resolved(**keys, bleu_every=1), resolved(**keys, **changes))
    assert (len(refused), len(allowed)) == (fixed, 3 - fixed)
    assert "training.checkpoint_every: 1000 → 7" in refused


def test_other_sections() -> None:
    old, new = resolved(), resolved()
    new["data"] = {"folder": "moved"}
    new["decoding"] = {"beam": 1}
    assert changed_keys(old, new)[0] == []
    new["model"]["encoder"]["layers"] = 3
    assert changed_keys(old, new)[0] == ["model.encoder.layers: 2 → 3"]
    assert changed_keys(old, old) == ([], [])
