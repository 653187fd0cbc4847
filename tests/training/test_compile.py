"""`compile: true`: one program for batches of all shapes, the gradients of eager torch, dropout with checkpointed layers.

The backends of these tests are `eager` and `aot_eager`, which run the graphs as they are: no compiler is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from tests.contracts import every_model
from tests.contracts import test_encoders_decoders as contract
from tests.models import test_language_model
from tests.npmt import test_model as segmental
from tests.training import toy
from torch._dynamo.backends.debugging import aot_eager

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.errors import UsageError
from phraseloom.layers.attention import backend as attention_backend
from phraseloom.models.device import arithmetic
from phraseloom.models.recompute import checkpoint_layers
from phraseloom.training import loop, run
from phraseloom.training.compiled import compile_loss, obstacle

# torch makes an object of each autograd function that it compiles and looks at the gradients of what enters a program; it warns
# of both itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
LINES = [
    "queryk heterogeneous 1-2",
    *(pytest.param(line, marks=pytest.mark.full) for line in ("token", "convkv heterogeneous 1-2")),
]
ONE_LAYER = {"encoder": {"kind": "transformer", "layers": 1}, "decoder": {"kind": "transformer", "layers": 1}}
# Sentences, source and target tokens of the longest; the third batch has no padding.
SHAPES = [(4, 9, 12), (3, 5, 4), (5, 6, 6), (6, 11, 7), (2, 3, 13)]


class Counter:
    """A backend that counts the programs; `inner` turns a graph into what runs."""

    def __init__(self, inner: Any = lambda graph, _: graph.forward) -> None:
        dynamo.reset()
        self.inner, self.programs = inner, 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.programs += 1
        return self.inner(graph, inputs)


def batch_of(sentences: int, source: int, target: int) -> Batch:
    def side(longest: int) -> list[list[int]]:
        shorter = 0 if source == target else 1
        sizes = [longest - shorter * (row % 3) for row in range(sentences)]
        return [[4 + (row + place) % (contract.SIZE - 4) for place in range(size)] for row, size in enumerate(sizes)]

    return make_batch(side(source), side(target)).to("cpu")


def batches() -> list[Batch]:
    made = [batch_of(*shape) for shape in SHAPES]
    assert (
        [b.is_source_padded for b in made]
        == [b.real_places is not None for b in made]
        == [True, True, False, True, True]
    )
    return made


def gradients(loss: Any, model: Any, batch: Batch) -> dict[str, torch.Tensor]:
    model.zero_grad()
    sums = loss(batch)
    sums.objective.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return found | {"objective": sums.objective.detach(), "nll": sums.nll, "tokens": torch.tensor(sums.tokens)}


def agree(compiled: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-9) -> None:
    assert compiled.keys() == expected.keys()
    for name, value in compiled.items():
        torch.testing.assert_close(
            value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("line", LINES)
def test_one_program_serves_batches_of_all_shapes_and_has_the_gradients_of_eager_torch(line: str) -> None:
    model, counter = every_model.translation(attention=line, dropout=0.0, **ONE_LAYER), Counter()
    loss = compile_loss(model, backend=counter)
    for batch in batches():
        agree(gradients(loss, model, batch), gradients(model.loss, model, batch))
    assert counter.programs == 1
    with torch.no_grad():
        assert torch.equal(loss(batch).objective, model.loss(batch).objective)
    assert counter.programs == 1  # a validation is not compiled


def test_a_language_model_is_one_program() -> None:
    model, counter = test_language_model.model(attention="queryk heterogeneous 1-2"), Counter()
    loss = compile_loss(model, backend=counter)
    for _, source, target in SHAPES:
        batch = make_batch([[]] * source, [[4] * (target - row % 2) for row in range(source)]).to("cpu")
        agree(gradients(loss, model, batch), gradients(model.loss, model, batch), 1e-5)
    assert counter.programs <= 2


@pytest.mark.full
def test_products_are_in_bf16() -> None:
    model, counter = every_model.translation(dropout=0.0, **ONE_LAYER).float(), Counter(aot_eager)
    loss = compile_loss(model, backend=counter)
    for batch in batches()[:2]:
        found = []
        for some in (loss, model.loss):
            with arithmetic("bf16", torch.device("cpu")):
                found.append(gradients(some, model, batch))
        full = gradients(model.loss, model, batch)
        for name, value in found[0].items():
            assert value.dtype == found[1][name].dtype
            assert (value - found[1][name]).double().norm() <= 0.02 * full[name].double().norm() + 1e-6, name
        assert not torch.equal(found[0]["objective"], full["objective"])
    assert counter.programs == 1


@pytest.mark.full
@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_backward_pass_has_the_masks_of_the_forward_pass(checkpointed: bool) -> None:
    """Along its own direction the slope of the loss, with the same draws, is |gradient|². Layers that run again with other
    masks would give another gradient."""
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "ffn_dropout": 0.1}
    model, counter = every_model.translation(**rates, **ONE_LAYER).train(), Counter(aot_eager)
    if checkpointed:
        checkpoint_layers(model)
    loss = compile_loss(model, backend=counter)
    for batch in batches()[:2]:
        torch.manual_seed(7)
        found = gradients(loss, model, batch)
        directions = [(p, found[name]) for name, p in model.named_parameters() if name in found]
        squares = sum(float(gradient.square().sum()) for _, gradient in directions)

        def slope(seed: int, batch: Batch = batch, directions: Any = directions) -> float:
            ends = []
            for step in (1e-6, -2e-6):  # there, and to the other side
                with torch.no_grad():
                    for parameter, gradient in directions:
                        parameter.add_(gradient, alpha=step)
                torch.manual_seed(seed)
                ends.append(loss(batch).objective.item())
            with torch.no_grad():
                for parameter, gradient in directions:
                    parameter.add_(gradient, alpha=1e-6)
            return (ends[0] - ends[1]) / 2e-6

        assert slope(7) == pytest.approx(squares, rel=1e-5)
        assert slope(8) != pytest.approx(squares, rel=1e-3)  # other masks are seen
    assert counter.programs == 1


@pytest.mark.full
@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_long_texts_are_fused_outside_of_the_programs(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, counter = test_language_model.model(attention="queryk heterogeneous 1-2", attention_dropout=rate), Counter()
    model.train(rate > 0)
    monkeypatch.setattr(attention_backend, "FUSED_FROM", 8)
    monkeypatch.setattr(attention_backend, "FUSED_FROM_WITH_DROPOUT", 8)
    loss, programs = compile_loss(model, backend=counter), []
    for length in (9, 12, 10, 17, 13):
        batch = make_batch([[]] * 3, [[4] * (length - row) for row in range(3)]).to("cpu")
        found = []
        for some in (loss, model.loss):
            torch.manual_seed(3)
            found.append(gradients(some, model, batch))
        if not rate:
            agree(*found, 1e-5)
        programs.append(counter.programs)
    assert programs[1] == programs[-1]


def test_models_that_are_not_compiled_run_as_they_are() -> None:
    phrases = every_model.translation(phrases={})
    guided = every_model.translation()
    guided.guide = object()
    models = [
        (contract.built("lstm+transformer"), "models with recurrent layers"),
        (contract.built("transformer+mlp"), "models with recurrent layers"),
        (contract.built("transformer+transformer-gated"), "models with continuous output"),
        (phrases, "models with source phrases"),
        (guided, "losses with guided alignment"),
        (segmental.built(next(iter(segmental.KINDS))), "segmental models"),
    ]
    for model, reason in models:
        assert obstacle(model) == reason
        assert compile_loss(model) == model.loss
    assert obstacle(every_model.translation()) is None


def test_a_run_says_what_is_compiled() -> None:
    said: list[str] = []

    class Job:
        model = every_model.translation()
        say = staticmethod(said.append)

    run.say_what_is_compiled(Job())  # type: ignore[arg-type]
    Job.model.guide = object()
    run.say_what_is_compiled(Job())  # type: ignore[arg-type]
    assert said[0] == "training.compile: the first update waits for the compiler"
    assert said[1].startswith("warning: training.compile does nothing here: losses with guided alignment are not")


def test_a_job_compiles_if_the_recipe_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(loop, "compile_loss", lambda model: asked.append(model) or model.loss)
    toy.finish(tmp_path / "plain", toy.config(max_updates=1))
    assert not asked
    job = toy.finish(tmp_path / "compiled", toy.config(max_updates=1, compile=True))
    assert asked == [job.model] and job.state.update == 1


def test_a_machine_without_a_compiler() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("No working C++ compiler found in g++\nmore")

    loss = compile_loss(every_model.translation(**ONE_LAYER), backend=Counter(broken))
    with pytest.raises(
        UsageError, match=r"training\.compile: torch cannot compile .*No working C\+\+ compiler"
    ) as caught:
        loss(batches()[0])
    assert "\n" not in str(caught.value) and "set training.compile to false" in str(caught.value.hint)
