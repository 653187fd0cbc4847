"""The segmental model against loops over sentences, positions, cuts and words; its gradient; and what must not matter."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.reference import segmental as reference
from tests.reference.recurrent_weights import cell_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from phraseloom.data.batches import BatchPlan
from phraseloom.data.tensors import Batch, make_batch
from phraseloom.layers.packed import pack_for_inference
from phraseloom.models.build import build_model
from phraseloom.npmt.likelihood import Softmax
from phraseloom.npmt.model import SegmentalModel
from phraseloom.npmt.rows import Pairs, SegmentRows
from phraseloom.options.model import ModelConfig
from phraseloom.options.training import TrainingConfig
from phraseloom.training import loop

SOURCE_SIZE, TARGET_SIZE, LONGEST = 11, 12, 2
SOURCES = [[5, 6, 7, 8], [8], [], [4, 5], [9, 10], []]
TARGETS = [[5, 6, 11], [], [], [7, 8, 9, 10, 11], [7, 7, 7, 4], [5]]  # the fourth and the last are too long
POSSIBLE = [True, True, True, False, True, False]
KINDS = {
    "gru": {"cell": "gru"},
    "lstm": {"cell": "lstm", "layers": 3},
    "gru connected": {"cell": "gru", "layers": 1, "connect": True},
    "lstm connected": {"cell": "lstm", "connect": True},
}
each = pytest.mark.parametrize("kind", KINDS)


def built(kind: str = "gru", *, seed: int = 0, decoder: dict[str, Any] | None = None, **keys: Any) -> SegmentalModel:
    """A float64 model with parameters so large that no gate is near its middle."""
    options = {"kind": "segmental", "max_segment": LONGEST, **KINDS[kind], **(decoder or {})}
    sizes = {"width": 8, "embedding_width": 6, "heads": 2, "dropout": 0.0, "output": {"bias": True}}
    encoder = {"kind": "columns", "layers": 3, "width": 5, "cell": options["cell"]}
    data = {**sizes, "encoder": encoder, "decoder": options, "reordering": {"window": 3, "layers": 2}, **keys}
    model = build_model(ModelConfig.model_validate(data), SOURCE_SIZE, TARGET_SIZE).double()
    assert isinstance(model, SegmentalModel)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    return model.eval()


def batch(order: tuple[int, ...] = tuple(range(len(SOURCES)))) -> Batch:
    return make_batch([SOURCES[i] for i in order], [TARGETS[i] for i in order])


def embedded(embedding: Any, tokens: list[int]) -> list[Tensor]:
    return list(embedding.weight[torch.tensor(tokens, dtype=torch.int64)] * embedding.weight.shape[1] ** 0.5)


def memory_of(model: SegmentalModel, source: list[int]) -> list[Tensor]:
    """The states of a source, by loops."""
    if not source:
        return []
    xs, outer = torch.stack(embedded(model.source_embedding, source)), model.encoder
    for layer in outer.reorderings:
        weight = layer.gates.weight.view(layer.window, layer.window, layer.width)
        xs = reference.reordered(xs, weight, layer.gates.bias)
    columns = [
        reference.column([cell_of(cell) for cell in cells], list(xs), residual, backwards=bool(number))
        for number, (cells, residual) in enumerate(zip(outer.encoder.columns, outer.encoder.residuals, strict=True))
    ]
    return [outer.encoder.joined.weight @ torch.cat(pair) for pair in zip(*columns, strict=True)]


def tokens_by_loops(
    model: SegmentalModel, source: list[int], target: list[int]
) -> dict[tuple[int, int, int], tuple[Tensor, Tensor]]:
    """log p of the l words of every segment (t, j, l), and of its END, each from its own run of the network."""
    decoder, found = model.decoder, {}
    cells, start = [cell_of(cell) for cell in decoder.segment.cells], TARGET_SIZE
    before: list[Any] = [None] * (len(target) + 1)
    if decoder.history is not None:
        read = embedded(model.target_embedding, [start, *target])
        before = reference.residual_cells(
            [cell_of(cell) for cell in decoder.history.cells], read, decoder.history.residual
        )
    for t, h in enumerate(memory_of(model, source)):
        for j in range(len(target) + 1):
            begin = h if before[j] is None else h + before[j]
            for x in range(min(LONGEST, len(target) - j) + 1):
                words = target[j : j + x]
                read = embedded(model.target_embedding, [start, *words])
                tops = reference.residual_cells(cells, read, decoder.segment.residual, begin)
                logits = torch.stack(tops) @ model.output.weight.T
                logits = logits if model.output.bias is None else logits + model.output.bias
                log_p = logits.log_softmax(-1)
                tokens = log_p[torch.arange(x + 1), torch.tensor([*words, TARGET_SIZE + 1])]
                found[t, j, x] = tokens[:-1], tokens[-1]
    return found


def by_loops(model: SegmentalModel, source: list[int], target: list[int]) -> dict[tuple[int, int, int], Tensor]:
    """log p of every segment (t, j, l), END counted."""
    return {at: words.sum() + end for at, (words, end) in tokens_by_loops(model, source, target).items()}


def total(segments: dict[tuple[int, int, int], Tensor], positions: int, words: int) -> Tensor:
    """log p(y | x), differentiable, by enumeration."""
    whole = []
    for lengths in reference.cuts(positions, words, LONGEST):
        starts = [sum(lengths[:t]) for t in range(positions)]
        parts = [segments[at] for at in zip(range(positions), starts, lengths, strict=True)]
        whole.append(torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64))
    return torch.stack(whole).logsumexp(0) if whole else torch.tensor(-math.inf, dtype=torch.float64)


def expected(model: SegmentalModel) -> list[Tensor]:
    return [total(by_loops(model, s, t), len(s), len(t)) for s, t in zip(SOURCES, TARGETS, strict=True)]


@each
def test_loops_and_enumeration(kind: str) -> None:
    """The loss, every gradient of it, scores of tokens, the best segmentation and the posteriors."""
    model = built(kind)
    sums, wanted = model.loss(batch()), expected(model)
    assert [w.item() > -math.inf for w in wanted] == POSSIBLE
    possible = [w for w, there in zip(wanted, POSSIBLE, strict=True) if there]
    objective = -torch.stack(possible).sum()
    torch.testing.assert_close(sums.objective, objective, rtol=0, atol=1e-10)
    assert sums.nll.item() == pytest.approx(objective.item(), abs=1e-10)
    assert sums.tokens == sum(len(t) + 1 for t, there in zip(TARGETS, POSSIBLE, strict=True) if there)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(objective, parameters)
    for (name, _), got, gradient in zip(
        model.named_parameters(), torch.autograd.grad(sums.objective, parameters), gradients, strict=True
    ):
        torch.testing.assert_close(got, gradient, rtol=0, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")
        assert gradient.abs().max() > 1e-6, name
    torch.testing.assert_close(model.score(batch()).sum(1), torch.stack(wanted).detach(), rtol=0, atol=1e-10)
    found = model.segments(batch())
    torch.testing.assert_close(found.marginal_B, torch.stack(wanted).detach(), rtol=0, atol=1e-10)
    for b, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        segments = by_loops(model, source, target)
        exact = reference.enumerate_all(lambda *at, s=segments: s[at].item(), len(source), len(target), LONGEST)
        assert found.log_p_B[b].item() == pytest.approx(exact.best_log_p, abs=1e-10)
        if exact.count:
            assert found.lengths_BS[b, : len(source)].tolist() == list(exact.best)
        for at, weight in exact.posterior.items():
            assert found.posterior_BSCX[b, *at].item() == pytest.approx(weight, abs=1e-10)


@each
def test_tokens_given_those_before(kind: str) -> None:
    """p(y_j | y_<j) is the ratio of the probabilities of all strings that begin so; here of END at the greatest length alone
    something is lost, so that the ratio is that of prefixes of single runs."""
    model = built(kind)
    source, target = SOURCES[0], TARGETS[0]
    decoder, cells = model.decoder, [cell_of(cell) for cell in model.decoder.segment.cells]
    segments = by_loops(model, source, target)
    prefix = [torch.zeros((), dtype=torch.float64)]
    for j in range(1, len(target) + 1):
        ways = []
        for t, h in enumerate(memory_of(model, source)):
            for k in range(max(0, j - LONGEST), j):
                reach = total(segments, t, k) if k <= t * LONGEST else torch.tensor(-math.inf)
                begin = h
                if decoder.history is not None:
                    read = embedded(model.target_embedding, [TARGET_SIZE, *target[:k]])
                    of_history = [cell_of(cell) for cell in decoder.history.cells]
                    begin = h + reference.residual_cells(of_history, read, decoder.history.residual)[-1]
                read = embedded(model.target_embedding, [TARGET_SIZE, *target[k : j - 1]])
                tops = reference.residual_cells(cells, read, decoder.segment.residual, begin)
                log_p = (torch.stack(tops) @ model.output.weight.T + model.output.bias).log_softmax(-1)
                ways.append(reach + log_p[torch.arange(j - k), torch.tensor(target[k:j])].sum())
        prefix.append(torch.stack(ways).logsumexp(0))
    prefix.append(total(segments, len(source), len(target)))
    wanted = torch.stack([b - a for a, b in itertools.pairwise(prefix)]).detach()
    torch.testing.assert_close(model.score(batch((0,)))[0], wanted, rtol=0, atol=1e-10)
    assert (wanted < 0).all()


def test_impossible_tokens() -> None:
    scores = built().score(batch())
    assert scores[3].tolist()[4:] == [-math.inf, 0.0]  # two positions give four words; the fifth cannot be
    assert scores[5].tolist()[0] == -math.inf
    assert not scores[2].any()
    assert (scores <= 0).all()


@each
def test_neighbours_and_their_order_do_not_matter(kind: str) -> None:
    model = built(kind)
    together = model.score(batch())
    for order in [(4, 0), (1,), (2,), (5, 3, 2, 1, 0), (3,), (2, 5)]:
        apart = model.score(batch(order))
        wide = apart.shape[1]
        torch.testing.assert_close(apart, together[list(order), :wide], rtol=0, atol=1e-12)
        losses = [-w.item() for w in together[list(order)].sum(1) if w > -math.inf]
        assert model.loss(batch(order)).nll.item() == pytest.approx(math.fsum(losses), abs=1e-10)


@each
def test_padding_does_not_matter(kind: str) -> None:
    """More of it on both sides, other vectors of PAD and EOS, and NaN."""
    model, b = built(kind), batch()
    parameters = list(model.parameters())
    before = model.loss(b)
    gradients = torch.autograd.grad(before.objective, parameters)
    more = torch.zeros(len(SOURCES), 3, dtype=torch.int64)
    wide = Batch(
        torch.cat([b.source_BS, more], 1), b.source_lengths_B, torch.cat([b.target_in_BT, more], 1),
        torch.cat([b.target_out_BT, more], 1), b.target_lengths_B,
    )  # fmt: skip
    for value in (3.0, math.nan):
        with torch.no_grad():
            model.source_embedding.weight[[0, 3]] += value
            model.target_embedding.weight[[0, 3]] += value
        after = model.loss(wide)
        torch.testing.assert_close(after.objective, before.objective, rtol=0, atol=1e-10)
        torch.testing.assert_close(model.score(wide)[:, : b.target_out_BT.shape[1]], model.score(b), rtol=0, atol=1e-12)
        if value == 3.0:
            for got, wanted in zip(torch.autograd.grad(after.objective, parameters), gradients, strict=True):
                torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@each
def test_portions_do_not_matter(kind: str) -> None:
    model = built(kind)
    expected = model.loss(batch())
    gradients = torch.autograd.grad(expected.objective, list(model.parameters()))
    for steps in (1, 7, 30):
        model.steps_together = steps
        found = model.loss(batch())
        torch.testing.assert_close(found.objective, expected.objective, rtol=0, atol=1e-11)
        for got, wanted in zip(torch.autograd.grad(found.objective, list(model.parameters())), gradients, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10)


@each
@pytest.mark.parametrize("steps", [5, None])
@pytest.mark.parametrize("sharpness", [1, 30])
def test_dropout_is_the_same_in_both_passes(kind: str, steps: int | None, sharpness: int) -> None:
    """With the same seed the loss is a smooth function, and its gradient that of finite differences; also where the model is so
    sure of its cuts that the second pass leaves rows out."""
    model = built(kind, decoder={"dropout": 0.4}, dropout=0.3).train()
    with torch.no_grad():
        model.output.weight *= sharpness
    model.encoder.encoder.dropout = 0.3
    model.steps_together = steps

    def loss() -> Tensor:
        torch.manual_seed(7)
        return model.loss(batch()).objective

    assert loss().item() == loss().item()
    torch.manual_seed(8)
    assert model.loss(batch()).objective.item() != loss().item()
    directions = [torch.randn_like(p) for p in model.parameters()]
    gradients = torch.autograd.grad(loss(), list(model.parameters()))
    slope = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, d in zip(model.parameters(), directions, strict=True):
                p += sign * 1e-6 * d
            values.append(loss().item())
            for p, d in zip(model.parameters(), directions, strict=True):
                p -= sign * 1e-6 * d
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(slope), rel=1e-4)


@each
def test_each_dropout_acts_in_training_alone(kind: str) -> None:
    for option in ("decoder", "encoder", "source"):
        model = built(kind, decoder={"dropout": 0.4 * (option == "decoder")}, dropout=0.4 * (option == "source"))
        model.encoder.encoder.dropout = 0.4 * (option == "encoder")
        assert model.loss(batch()).objective.item() == model.loss(batch()).objective.item()
        model.train()
        assert model.loss(batch()).objective.item() != model.loss(batch()).objective.item(), option


def test_fixed_matrices_have_no_gradient() -> None:
    model = built()
    fixed = [model.target_embedding.weight, model.output.weight, model.decoder.segment.cells[1].hidden_weight]
    wanted = torch.autograd.grad(model.loss(batch()).objective, model.decoder.segment.cells[0].hidden_weight)
    for parameter in fixed:
        parameter.requires_grad_(False)
    model.loss(batch()).objective.backward()
    assert all(p.grad is None for p in fixed)
    torch.testing.assert_close(model.decoder.segment.cells[0].hidden_weight.grad, wanted[0])


def test_float32_gradients_are_those_of_float64() -> None:
    """Also after what hardly counts was left out: on a model that is sure of where to cut."""
    model = built(output={"bias": True})
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter *= 4
    exact = model.loss(batch())
    wanted = torch.autograd.grad(exact.objective, list(model.parameters()))
    model.float()
    found = model.loss(batch())
    assert found.objective.item() == pytest.approx(exact.objective.item(), rel=1e-5)
    for got, gradient in zip(torch.autograd.grad(found.objective, list(model.parameters())), wanted, strict=True):
        torch.testing.assert_close(got.double(), gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["gru", "lstm connected"])
def test_mixed_precision(kind: str) -> None:
    """Under autocast products are rounded; loss and gradients stay near, and the backward pass runs as the forward did."""
    model = built(kind).float()
    exact = model.loss(batch())
    wanted = torch.autograd.grad(exact.objective, list(model.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.loss(batch())
    assert found.objective.item() == pytest.approx(exact.objective.item(), rel=0.02)
    for got, gradient in zip(torch.autograd.grad(found.objective, list(model.parameters())), wanted, strict=True):
        assert got.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(got.flatten(), gradient.flatten(), dim=0) > 0.97


@pytest.mark.parametrize("portion", [3, 64])
def test_log_p_is_that_of_a_distribution_in_mixed_precision(portion: int) -> None:
    """Logits near 100 are rounded to 0.5: a logit and a normaliser of two products give probabilities above 1."""
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(7, 8, generator=generator), 20 * torch.randn(11, 8, generator=generator)
    rows = torch.arange(7).repeat_interleave(11)
    pairs = Pairs(rows, torch.arange(11).repeat(7)).and_then(Pairs(torch.tensor([2]), torch.tensor([5])))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Softmax(weight, None, portion).log_probs(hidden, pairs)
    assert found.dtype == torch.float32 and found.max() <= 0
    torch.testing.assert_close(found[:77].view(7, 11).exp().sum(1), torch.ones(7))
    assert found[77] == found[2 * 11 + 5]


def test_excluded_classes_have_no_share_in_training_either() -> None:
    model = built(output={"bias": True, "smoothing": "kl", "excluded": ["pad", "bos"]})
    hidden = torch.randn(3, 8, dtype=torch.float64)
    _, _, softmax = model._rows(batch())
    wanted = model.output.class_bias()
    assert wanted is not None and softmax.bias_V is not None
    assert torch.equal(softmax.bias_V, wanted) and wanted.isneginf().sum() == 2
    loss = model.loss(batch()).objective
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert softmax.logits(hidden).isneginf().sum() == 6


def test_training_outdates_what_search_has_packed() -> None:
    model = built().float()
    pack_for_inference(model)  # if torch can; without it the promise holds all the same
    hidden = torch.randn(2, 8)
    with torch.inference_mode():
        before = model.output.log_probs(hidden)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
    model.loss(batch()).objective.backward()
    optimiser.step()
    with torch.inference_mode():
        after = model.eval().output.log_probs(hidden)
    assert not torch.allclose(before, after)
    logits = torch.nn.functional.linear(hidden, model.output.weight, model.output.bias)
    torch.testing.assert_close(after, logits.log_softmax(1))


def test_pairs_that_cannot_be_segmented_are_told() -> None:
    model = built()
    lengths = (np.array([len(side) for side in sides], np.int32) for sides in (SOURCES, TARGETS))
    assert (model.remark(*lengths) or "").startswith(
        "2 of 6 pairs have more than 2 target tokens for each source token"
    )
    assert model.remark(np.array([3]), np.array([6])) is None


@pytest.mark.parametrize("per", ["token", "sentence"])
def test_pairs_that_cannot_be_segmented_are_not_divided_by(per: str) -> None:
    model, examples = built(), np.arange(len(SOURCES))
    plan = BatchPlan(*(np.array([len(line) for line in side]) for side in (SOURCES, TARGETS)), seed=1, batch_tokens=9)
    job: Any = SimpleNamespace(model=model, plan=plan, config=TrainingConfig.model_validate({"gradient_per": per}))
    with torch.no_grad():
        tokens = model.loss(batch()).tokens
    assert loop._counts(job, examples)[1:] == (tokens, tokens if per == "token" else sum(POSSIBLE))
    assert loop._counts(job, examples[[3, 5]]) == (0, 1, 1), "nothing is divided by zero"
    job.model = object()
    assert loop._counts(job, examples)[1] == sum(len(line) + 1 for line in TARGETS)


@each
def test_steps_are_the_whole(kind: str) -> None:
    """What search does: start, step, reorder, and the words before, give log p of every segment."""
    model = built(kind)
    source, target = SOURCES[0], TARGETS[0]
    memory = model.encode(batch((0,)).source_BS, None)
    assert memory.lengths_B is None
    torch.testing.assert_close(memory.states_BSD[0], torch.stack(memory_of(model, source)), rtol=0, atol=1e-12)
    segments = by_loops(model, source, target)
    history = model.history_start(2)
    assert (history is None) != model.connects
    for j in range(len(target) + 1):
        for t in range(len(source)):
            state = model.segment_start(
                memory.states_BSD[0, t].expand(2, -1), None if history is None else history.output_RD
            )
            words, log_p = target[j : j + LONGEST], torch.zeros((), dtype=torch.float64)
            fed = [TARGET_SIZE, *words]
            for x, token in enumerate(fed):
                of_next = model.segment_step(torch.tensor([token] * len(state.layers[0][0])), state)
                assert of_next.shape == (len(state.layers[0][0]), TARGET_SIZE + 2)
                torch.testing.assert_close(of_next.exp().sum(1), torch.ones(len(of_next), dtype=torch.float64))
                torch.testing.assert_close(log_p + of_next[-1, model.end_token], segments[t, j, x], rtol=0, atol=1e-10)
                if x < len(words):
                    log_p = log_p + of_next[-1, words[x]]
                state.reorder(torch.tensor([0, 1, 1]))
        if history is not None and j < len(target):
            model.history_step(torch.tensor([target[j]] * 2), history)
            history.reorder(torch.tensor([1, 0]))


class Largest(TorchDispatchMode):
    """The most elements of a tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_logits_of_all_rows_are_never_there() -> None:
    """Two sentences of 20 words, 5,000 classes: all logits are 18 million numbers; one portion of them is the most there is."""
    data = {"width": 8, "heads": 2, "encoder": {"kind": "columns"}, "decoder": {"kind": "segmental"}}
    model = build_model(ModelConfig.model_validate(data), 9, 5000)
    b = make_batch([list(range(4, 9)) * 4] * 2, [list(range(4, 24))] * 2)
    with Largest() as largest:
        loss = model.loss(b)
        loss.objective.backward()
    assert SegmentRows.of(b.source_lengths_B - 1, b.target_lengths_B - 1, 6).steps_K.sum() * 5002 > 18e6
    assert largest.elements <= 256 * 5002


def test_memory_has_the_words_alone() -> None:
    model, b = built(), batch()
    memory = model.encode(b.source_BS, b.source_lengths_B)
    assert memory.states_BSD.shape == (len(SOURCES), 4, 8)
    assert memory.lengths_B is not None and memory.lengths_B.tolist() == [len(s) for s in SOURCES]
    empty = model.encode(batch((2, 5)).source_BS, None)
    assert empty.states_BSD.shape[:2] == (2, 1)
    assert empty.lengths_B is not None and empty.lengths_B.tolist() == [0, 0]
    assert empty.states_BSD.isfinite().all()


ATTENTIONS = ("token", "queryk heterogeneous 1-2", "convkv interleaved 1-2-3", "convkv homogeneous 11", "relative")


@pytest.mark.parametrize("encoder", [*ATTENTIONS, "recurrent", "none"])
def test_other_encoders(encoder: str) -> None:
    """Any encoder will do, with and without reordering; an empty source harms nobody."""
    options: dict[str, Any] = {"kind": encoder} if encoder == "none" else {"kind": encoder, "layers": 2}
    rest: dict[str, Any] = {}
    if encoder in ATTENTIONS:
        options, rest = {"kind": "transformer", "layers": 2}, {"attention": {"encoder_self": encoder}}
    for reordering in (None, {"window": 5}):
        model = built(encoder=options, embedding_width=None, reordering=reordering, ffn_width=8, **rest)
        scores = model.score(batch()).sum(1)
        assert scores.isfinite().tolist() == POSSIBLE
        alone = model.score(batch((0,))).sum(1)
        torch.testing.assert_close(alone[0], scores[0], rtol=0, atol=1e-10)
        model.loss(batch()).objective.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_rows_are_those_that_count() -> None:
    """Against the rule: a cut is in a row if both sides of it can be segmented."""
    source, target = torch.tensor([3, 1, 0, 4, 2]), torch.tensor([7, 2, 0, 1, 7])
    for longest, unfinished in itertools.product((1, 2, 3, 9), (False, True)):
        rows = SegmentRows.of(source, target, longest, unfinished=unfinished)
        found = list(
            zip(
                rows.sentence_K[rows.position_R].tolist(), rows.place_K[rows.position_R].tolist(),
                rows.cut_R.tolist(), rows.words_R.tolist(), strict=True,
            )
        )  # fmt: skip
        wanted = [
            (b, t, j, min(longest, m - j))
            for b, (n, m) in enumerate(zip(source.tolist(), target.tolist(), strict=True))
            for t in range(n)
            for j in range(m + 1)
            if j <= t * longest and (unfinished or (m <= n * longest and m - j <= (n - t) * longest))
        ]
        assert found == wanted
        assert rows.steps_K.sum() == sum(words + 1 for *_, words in wanted)
        for limit in (1, 8, 1000):
            covered = list(rows.portions(limit))
            assert [s.start for _, s in covered[1:]] == [s.stop for _, s in covered[:-1]]
            assert sum(s.stop - s.start for s, _ in covered) == len(rows.sentence_K)
            for positions, _ in covered:
                assert rows.steps_K[positions].sum() <= limit or positions.stop - positions.start == 1


def test_posteriors_are_zero_outside_the_rows() -> None:
    """So nothing is lost by leaving the other cuts out."""
    model, b = built(), batch()
    inside = model.segments(b).posterior_BSCX
    lengths = b.source_lengths_B - 1, b.target_lengths_B - 1
    torch.testing.assert_close(inside.sum((2, 3)).sum(1), (lengths[0] * torch.tensor(POSSIBLE)).double())
