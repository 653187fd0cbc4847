"""What every score × arrangement must do, in every use: the contract of the attention seam."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.helpers import in_turn
from tests.reference.structures import CASES, HEADS, USES, Case
from torch import Tensor

from phraseloom.layers.attention import ARRANGEMENTS, SCORES, MultiHeadAttention, build_attention
from phraseloom.layers.attention.masks import Visibility, masked_softmax

WIDTH, ALL = 12, CASES
DECODER = [c for c in CASES if c.use == "decoder_self"]
CROSS = [c for c in CASES if c.use == "cross"]
SINGLE_ORDER = ("heterogeneous 1", "interleaved 1", "homogeneous 4")

each = pytest.mark.parametrize("case", in_turn(ALL), ids=str)
each_decoder = pytest.mark.parametrize("case", in_turn(DECODER), ids=str)
each_cross = pytest.mark.parametrize("case", in_turn(CROSS), ids=str)


@cache
def block(case: Case, dtype: torch.dtype = torch.float64) -> MultiHeadAttention:
    return case.build(width=WIDTH).to(dtype)


def inputs(case: Case, batch: int, length: int, queries: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """What goes into this use: the tokens, or the queries and the memory."""
    torch.manual_seed(11)
    sizes = (queries, length) if case.use == "cross" else (length,)
    return [torch.randn(batch, n, WIDTH, dtype=dtype) for n in sizes]


def run(case: Case, given: list[Tensor], lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    memory = given[1] if case.use == "cross" else None
    visibility = case.visibility(given[-1].shape[1], lengths, queries=given[0].shape[1])
    output, weights = block(case, given[0].dtype)(given[0], memory, visibility)
    return output, block(case, given[0].dtype).structure.split(weights)


def real_rows(case: Case, lengths: Tensor, count: int) -> Tensor:
    """(B, Q): which outputs count. In cross-attention every query is real."""
    rows = torch.arange(count)[None]
    return rows < (torch.full_like(lengths, count) if case.use == "cross" else lengths)[:, None]


def visible(case: Case, lengths: Tensor, queries: int, length: int) -> Tensor:
    """(B, H, J, Q, G, K): slots and query n-grams by their last token."""
    structure = block(case).structure
    orders_HG = torch.zeros(HEADS, len(structure.blocks), dtype=torch.long)
    for g, parts in enumerate(structure.blocks):
        for part in parts:
            orders_HG[part.first : part.last, g] = part.order
    i, j = torch.arange(queries)[:, None, None], torch.arange(length)
    query_orders = torch.tensor(structure.query_orders)[:, None, None, None]
    seen = (i >= query_orders - 1) & (j >= 0)
    if case.causal:
        seen = seen & (j <= i)
    begins = torch.ones_like(orders_HG) if structure.zero_extended else orders_HG
    exists = j >= begins[:, None, None, :, None] - 1
    padded = j[None] >= lengths[:, None]
    return (exists & seen)[None] & ~padded[:, None, None, None, None]


def test_every_mechanism_is_under_contract() -> None:
    """A mistake in asking what goes together must not empty the contract."""
    assert {c.score for c in ALL} == set(SCORES)
    for use in USES:
        kinds = {(c.score, c.options()["arrangement"]) for c in ALL if c.use == use}
        assert kinds >= {(s, a) for s in ("convkv", "queryk") for a in ARRANGEMENTS} | {("token", "homogeneous")}
        texts = [c.text for c in ALL if c.use == use]
        assert "queryk heterogeneous 1-2-3 keys-per-order" in texts and "queryk heterogeneous 1-2-3" in texts
        relative = {c.text for c in ALL if c.use == use and SCORES[c.score].distances}
        assert ("queryk-relative heterogeneous 1-2" in relative) == (use != "cross") == bool(relative)


@each
def test_shapes_and_layout(case: Case) -> None:
    given = inputs(case, 2, 5)
    output, weights = run(case, given)
    structure = block(case).structure
    queries = given[0].shape[1]
    assert output.shape == given[0].shape
    assert weights.shape == (2, HEADS, len(structure.query_orders), queries, len(structure.blocks), 5)
    assert structure.heads == HEADS
    for parts in structure.blocks:
        assert [h for part in parts for h in range(part.first, part.last)] == list(range(HEADS))


@each
def test_weights_are_a_distribution_over_visible_slots(case: Case) -> None:
    lengths = torch.tensor([5, 2, 1, 0])
    given = inputs(case, 4, 5)
    _, weights = run(case, given, lengths)
    seen = visible(case, lengths, *weights.shape[3::2])
    real = real_rows(case, lengths, weights.shape[3])[:, None, None, :].expand(weights.shape[:4])
    weights, seen = weights[real], seen.expand(weights.shape)[real]
    assert not weights[~seen].any()
    assert (weights[seen] > 0).all()
    torch.testing.assert_close(weights.sum((-2, -1)), seen.any(-1).any(-1).double(), rtol=0, atol=1e-12)


@each
def test_padding_never_matters_even_nan(case: Case) -> None:
    """A padded sentence gives what it gives alone, forward and backward, whatever stands at the padding."""
    lengths, attention = torch.tensor([5, 1, 2, 3]), block(case)
    given = inputs(case, 4, 5)
    for b, length in enumerate(lengths.tolist()):
        given[-1][b, length:] = float("nan")
    given = [x.requires_grad_() for x in given]
    output, weights = run(case, given, lengths)
    real = real_rows(case, lengths, output.shape[1])
    direction = torch.randn_like(output)
    attention.zero_grad()
    (output * direction)[real].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in attention.parameters() if p.grad is not None)
    for b, length in enumerate(lengths.tolist()):
        alone = [x.detach()[b : b + 1] for x in given]
        alone[-1] = alone[-1][:, :length]
        alone = [x.clone().requires_grad_() for x in alone]
        alone_output, alone_weights = run(case, alone)
        rows = alone_output.shape[1]
        torch.testing.assert_close(output[b, :rows], alone_output[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(weights[b, :, :, :rows, :, :length], alone_weights[0], rtol=0, atol=1e-12)
        gradients = torch.autograd.grad((alone_output[0] * direction[b, :rows]).sum(), alone)
        for x, gradient in zip(given, gradients, strict=True):
            assert x.grad is not None
            torch.testing.assert_close(x.grad[b, : gradient.shape[1]], gradient[0], rtol=0, atol=1e-12)
            assert not x.grad[b, gradient.shape[1] :].any()


@each
def test_neighbours_in_the_batch_do_not_matter(case: Case) -> None:
    given, lengths = inputs(case, 3, 4), torch.tensor([4, 2, 3])
    output, weights = run(case, given, lengths)
    order = torch.tensor([2, 0])
    other, other_weights = run(case, [x[order] for x in given], lengths[order])
    torch.testing.assert_close(other, output[order], rtol=0, atol=1e-12)
    torch.testing.assert_close(other_weights, weights[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", DECODER + CROSS, ids=str)
def test_the_future_is_not_seen_bit_for_bit(case: Case) -> None:
    """Output t of a decoder depends on nothing after t: not on later tokens, in cross-attention not on later queries."""
    given = inputs(case, 1, 5, 5, dtype=torch.float32)
    first = min(block(case).structure.orders) if case.causal and not block(case).structure.zero_extended else 1
    before, _ = run(case, given)
    for t in range(5):
        changed = given[0].clone()
        changed[:, t] += 1.0
        after, _ = run(case, [changed, *given[1:]])
        assert torch.equal(after[:, :t], before[:, :t])
        seen_from = max(t, first - 1)  # a token is seen as soon as there is a slot for it
        assert not torch.allclose(after[:, seen_from], before[:, seen_from])
    x = given[0].requires_grad_()
    output, _ = run(case, [x, *given[1:]])
    for t in range(1, 5):
        (gradient,) = torch.autograd.grad(output[:, :t].sum(), x, retain_graph=True)
        assert not gradient[:, t:].any()


@pytest.mark.parametrize("case", [c for c in ALL if c.use == "encoder_self"], ids=str)
def test_an_encoder_sees_everything(case: Case) -> None:
    (x,) = inputs(case, 1, 4)
    output, _ = run(case, [x.requires_grad_()])
    for i in range(4):
        (gradient,) = torch.autograd.grad(output[0, i, 0], x, retain_graph=True)
        assert gradient[0].any(-1).all()


def joined(case: Case) -> str:
    return " ".join(case.text.split()[1:3])


@pytest.mark.parametrize(
    "case",
    [c for c in ALL if joined(c) in SINGLE_ORDER and SCORES[c.score].dot_product and not SCORES[c.score].distances],
    ids=str,
)
def test_order_one_is_token_attention(case: Case) -> None:
    """With the same matrices, n = 1 gives ordinary attention: output, weights and gradient."""
    token, attention = block(Case("token", case.use)), case.build(width=WIDTH)
    own = {**attention.score.matrices(), **attention.arrangement.matrices()}
    source = {**token.score.matrices(), **token.arrangement.matrices()}
    assert {name[:2] for name in own} == source.keys()
    with torch.no_grad():
        for name, matrix in own.items():
            matrix.copy_(source[name[:2]].view(matrix.shape))
    given = [x.requires_grad_() for x in inputs(case, 3, 5)]
    lengths = torch.tensor([5, 1, 3])
    visibility, real = (
        case.visibility(5, lengths, queries=given[0].shape[1]),
        real_rows(case, lengths, given[0].shape[1]),
    )
    results = []
    for made in (token, attention):
        output, weights = made(given[0], given[1] if len(given) > 1 else None, visibility)
        results.append((output[real], weights.transpose(1, 2)[real]))
    for of_token, of_phrase in zip(*results, strict=True):
        torch.testing.assert_close(of_phrase, of_token, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad(r[0].square().sum(), given) for r in results]
    for of_token, of_phrase in zip(*gradients, strict=True):
        torch.testing.assert_close(of_phrase, of_token, rtol=0, atol=1e-12)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("score", ["convkv", "queryk"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_homogeneous_is_heterogeneous_after_zeros(score: str, order: int, use: str) -> None:
    """What zero extension means, exactly (P002 §3.1.1): with all heads of one order n, homogeneous attention is
    heterogeneous attention of that order to the sentence with n-1 zero vectors before it. For n = 1 they are the same.
    """
    case = Case(score, use)
    options = {"width": WIDTH, "heads": HEADS, "score": score, "reads_ahead": use == "encoder_self"}
    padded = build_attention(arrangement="homogeneous", split=[0] * (order - 1) + [HEADS], **options).double()
    plain = build_attention(arrangement="heterogeneous", orders=[order], **options).double()
    source = {**padded.score.matrices(), **padded.arrangement.matrices()}
    with torch.no_grad():
        for name, matrix in {**plain.score.matrices(), **plain.arrangement.matrices()}.items():
            source_name = name if name in source else f"{name}_n{order}"
            matrix.copy_(source[source_name])
    given, lengths = inputs(case, 3, 4), torch.tensor([4, 1, 2])
    zeros = torch.zeros(3, order - 1, WIDTH, dtype=torch.float64)
    longer = [*given[:-1], torch.cat([zeros, given[-1]], 1)]
    results = []
    for attention, xs, before in ((padded, given, 0), (plain, longer, order - 1)):
        queries = xs[0].shape[1]
        visibility = case.visibility(4 + before, lengths + before, queries=queries)
        output, weights = attention(xs[0], xs[1] if len(xs) > 1 else None, visibility)
        first = 0 if use == "cross" else before
        results.append((output[:, first:], weights[:, :, first:, before:]))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@each
def test_sentences_shorter_than_every_window(case: Case) -> None:
    """One token: a result without NaN, and zeros where no slot exists (only orders above 1 without zero extension)."""
    given = [x.requires_grad_() for x in inputs(case, 2, 1, 1)]
    output, weights = run(case, given)
    structure = block(case).structure
    nothing = min(structure.orders) > 1 and not structure.zero_extended
    assert torch.isfinite(output).all()
    assert bool(output.any()) is not nothing
    assert weights[:, :, 0].sum().item() == pytest.approx(0 if nothing else 2 * HEADS)
    for gradient in torch.autograd.grad(output.sum(), given):
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@each
def test_nothing_visible_gives_zero_and_finite_gradients(case: Case, dtype: torch.dtype) -> None:
    given = [x.requires_grad_() for x in inputs(case, 2, 3, 3, dtype=dtype)]
    output, weights = run(case, given, torch.tensor([0, 2]))
    assert not weights[0].any()
    assert not output[0].any()
    gradients = torch.autograd.grad(output.sum(), [*given, *block(case, dtype).parameters()])
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 1e6), (torch.bfloat16, 1e6), (torch.float16, 50.0)], ids=lambda v: str(v)
)
@each
def test_large_inputs_give_no_nan(case: Case, dtype: torch.dtype, size: float) -> None:
    given = [(x * size).requires_grad_() for x in inputs(case, 2, 5, dtype=dtype)]
    output, weights = run(case, given, torch.tensor([5, 2]))
    real = real_rows(case, torch.tensor([5, 2]), output.shape[1])
    assert torch.isfinite(output[real]).all()
    assert torch.isfinite(weights).all()
    for gradient in torch.autograd.grad(output[real].sum() / size, given):
        assert torch.isfinite(gradient).all()


@each
def test_mixed_precision_stays_near_full_precision(case: Case) -> None:
    """As in training: float32 parameters, bfloat16 products."""
    given, lengths = [x.requires_grad_() for x in inputs(case, 2, 5, dtype=torch.float32)], torch.tensor([5, 2])
    real = real_rows(case, lengths, given[0].shape[1])
    results = []
    for mixed in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            output, weights = run(case, given, lengths)
        results.append((output[real], weights, *torch.autograd.grad(output[real].float().square().sum(), given)))
    for full, half in zip(*results, strict=True):
        assert torch.isfinite(half).all()
        assert (half.float() - full).norm() <= 0.1 * full.norm()


@each
def test_weights_to_tokens_keep_their_sums(case: Case) -> None:
    given, lengths = inputs(case, 2, 5), torch.tensor([5, 2])
    _, split = run(case, given, lengths)
    structure = block(case).structure
    weights = split.flatten(4, 5).flatten(2, 3)
    tokens = structure.token_weights(weights)
    real = real_rows(case, lengths, split.shape[3])[:, None].expand(tokens.shape[:3])
    assert tokens.shape == (2, HEADS, split.shape[3], 5)
    assert (tokens >= 0).all()
    torch.testing.assert_close(tokens.sum(-1)[real], split[:, :, 0].sum((-2, -1))[real], rtol=0, atol=1e-12)
    assert not tokens[1, :, :2, 2:].any(), "weight on padding"
    if case.score in ("token", "relative"):
        assert torch.equal(tokens, weights)


@pytest.mark.parametrize("case", [c for c in ALL if c.use == "encoder_self"], ids=str)
def test_weights_are_those_before_dropout(case: Case) -> None:
    attention = case.build(width=WIDTH, dropout=0.5)
    (x,) = inputs(case, 2, 4)
    calm, weights = attention(x, None, case.visibility(4))
    noisy, noisy_weights = attention.train()(x, None, case.visibility(4))
    assert torch.equal(noisy_weights, weights)
    assert not torch.allclose(noisy, calm)


@each_decoder
def test_steps_equal_the_full_forward_with_reorder(case: Case) -> None:
    """Hypotheses change places in the middle, then some of them end, and the buffers grow beyond their first size."""
    attention, order, kept = block(case), torch.tensor([2, 0, 0, 3]), torch.tensor([3, 1])
    torch.manual_seed(5)
    x = torch.randn(4, 8, WIDTH, dtype=torch.float64)
    cache = attention.start(4, 2)
    history, steps = x[:, :0], []
    with torch.inference_mode():
        for t in range(8):
            if t in (1, 3):
                cache.reorder(order)
                history = history[order]
            if t == 5:
                cache.reorder(kept)
                history, x = history[kept], x[kept]
            history = torch.cat([history, x[:, t : t + 1]], 1)
            steps.append((history, attention.step_self(x[:, t], cache)))
        for history, step in steps:
            full, _ = attention(history, None, case.visibility(history.shape[1]))
            torch.testing.assert_close(step, full[:, -1], rtol=0, atol=1e-12)


@each_cross
def test_cross_steps_equal_the_full_forward_with_reorder(case: Case) -> None:
    """The beam of a sentence changes places, then one sentence ends; the queries that have begun follow (interleaved)."""
    attention, structure, beam = block(case), block(case).structure, 2
    torch.manual_seed(5)
    memory, lengths = torch.randn(3, 5, WIDTH, dtype=torch.float64), torch.tensor([5, 1, 3])
    x = torch.randn(6, 6, WIDTH, dtype=torch.float64)
    order, sentences, rows = torch.tensor([1, 0, 2, 2, 5, 4]), torch.tensor([2, 0]), torch.tensor([4, 5, 0, 1])
    cache = attention.remember(memory, Visibility(key_length=5, lengths_B=lengths), beam=beam)
    history = x[:, :0]
    with torch.inference_mode():
        for t in range(6):
            if t in (1, 3):
                cache.reorder(order)
                history = history[order]
            if t == 4:
                cache.keep(sentences, rows)
                history, x, memory, lengths = history[rows], x[rows], memory[sentences], lengths[sentences]
            history = torch.cat([history, x[:, t : t + 1]], 1)
            step, weights = attention.step_cross(x[:, t], cache, Visibility(key_length=5, lengths_B=lengths))
            repeated = Visibility(key_length=5, lengths_B=lengths.repeat_interleave(beam), query_length=t + 1)
            full, full_weights = attention(history, memory.repeat_interleave(beam, 0), repeated)
            torch.testing.assert_close(step, full[:, -1], rtol=0, atol=1e-12)
            expected = structure.split(full_weights)[:, :, :, -1].flatten(3)
            torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


def test_masked_softmax_of_extreme_scores() -> None:
    scores = torch.tensor([[1e30, -1e30, 0.0]], requires_grad=True)
    hidden = torch.tensor([[True, False, False]])
    weights = masked_softmax(scores, hidden)
    assert weights.tolist() == [[0.0, 0.0, 1.0]]
    weights[0, 2].backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
