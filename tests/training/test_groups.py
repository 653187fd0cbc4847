"""Modules by name: what is frozen, and what has a rate of its own."""

from __future__ import annotations

import pytest
import torch
import toy

from phraseloom.errors import ConfigError, UsageError
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.training import AdamConfig
from phraseloom.recipe import check_recipe
from phraseloom.training.optimization import FlatAdam, FlatParameters, freeze, members, rate_factors


def model(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelConfig.model_validate({"preset": "tiny", **options}), 20, 20)


def test_a_name_means_everything_below_it_and_a_star_any_text() -> None:
    whole = model(attention="queryk heterogeneous 1-2 gated")
    names = [name for name, _ in whole.named_parameters()]
    assert members(whole, "encoder", "k") == [n for n in names if n.startswith("encoder.")]
    assert members(whole, "encoder.layers.1", "k") == [n for n in names if n.startswith("encoder.layers.1.")]
    assert members(whole, "*.gate", "k") == [n for n in names if n.endswith(".gate")]
    assert len(members(whole, "*.gate", "k")) == 6
    assert members(whole, "decoder.layers.*.cross_attention", "k") == [n for n in names if ".cross_attention." in n]
    assert members(whole, "output", "k") == ["source_embedding.weight"], "the matrix that all three share"


def test_a_name_that_means_nothing_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"training\.freeze: no parameter .* named 'encodr'; did you mean encoder\?"):
        freeze(model(), ["encodr"])
    with pytest.raises(
        UsageError, match=r"training\.rates: .*'x'; a module is one of decoder, encoder, output, source_emb"
    ):
        rate_factors(model(), {"x": 0.1})
    with pytest.raises(UsageError, match=r"did you mean encoder\.layers\.0\.attention"):
        freeze(model(), ["encoder.layers.0.atention"])
    with pytest.raises(UsageError, match="leaves nothing to train"):
        freeze(model(), ["*"])
    with pytest.raises(ConfigError, match=r"training\.rates"):
        check_recipe({"name": "x", "data": {}, "training": {"rates": {"encoder": 0}}})


def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same() -> None:
    whole, part = toy.ToyModel(0.0), toy.ToyModel(0.0)
    part.load_state_dict(whole.state_dict())
    assert freeze(part, ["hidden"]) == ["hidden.weight", "hidden.bias"]
    for each in (whole, part):
        each.loss(toy.ToyData().batch(range(5))).objective.backward()  # type: ignore[arg-type]
    assert part.hidden.weight.grad is None and part.hidden.bias.grad is None
    torch.testing.assert_close(part.embedding.weight.grad, whole.embedding.weight.grad)
    assert set(FlatParameters(part).spans) == {"embedding.weight"}


def test_the_longest_name_counts() -> None:
    whole = model()
    factors = rate_factors(whole, {"encoder.layers.1.feed_forward": 3.0, "encoder": 0.5, "encoder.layers.1": 2.0})
    assert factors["encoder.layers.0.feed_forward.up.weight"] == 0.5
    assert {f for n, f in factors.items() if n.startswith("encoder.layers.1.feed_forward.")} == {3.0}
    assert {f for n, f in factors.items() if n.startswith("encoder.layers.1.attention.")} == {2.0}
    assert not [name for name in factors if name.startswith("decoder")]


def test_rates_by_group_are_those_of_adam_with_groups() -> None:
    torch.manual_seed(0)
    ours, theirs = toy.ToyModel(0.0), toy.ToyModel(0.0)
    theirs.load_state_dict(ours.state_dict())
    flat = FlatParameters(ours)
    adam = FlatAdam(flat, AdamConfig(weight_decay=0.1), rate_factors(ours, {"hidden.weight": 0.1}))
    parameters = dict(theirs.named_parameters())
    groups = [{"params": [p], "factor": 0.1 if n == "hidden.weight" else 1.0} for n, p in parameters.items()]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
    for step in range(10):
        batch = toy.ToyData().batch(range(step, step + 9))  # type: ignore[arg-type]
        flat.grad.zero_()
        theirs.zero_grad()
        ours.loss(batch).objective.backward()
        theirs.loss(batch).objective.backward()
        for group in reference.param_groups:
            group["lr"] = 0.01 * group["factor"]
        adam.step(0.01, 1.0)
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert adam.count.tolist() == [10] * len(adam.factors) and set(adam.factors) == {0.1, 1.0}
    again = FlatAdam(flat, AdamConfig(), rate_factors(ours, {"hidden.weight": 0.1}))
    again.load({k: v.clone() for k, v in adam.tensors().items()}, 10)
    assert again.count.tolist() == adam.count.tolist()
    assert FlatParameters(toy.ToyModel()).runs({}) == [(1.0, slice(0, len(flat.data)))]
