"""Recurrent cells, stacks and their attention against loops over single sentences and against torch's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.reference import recurrent as reference
from tests.reference.recurrent_weights import attention_of, cell_of
from torch import Tensor, nn

from phraseloom.layers.attention import build_attention
from phraseloom.layers.attention.masks import Visibility
from phraseloom.layers.recurrent import ATTENTIONS, CELLS, BlockAttention, Cell, last_states
from phraseloom.models.recurrent import InitialStates, RecurrentEncoder

INPUT, WIDTH, HEADS, LENGTH = 6, 8, 4, 5
LENGTHS = torch.tensor([3, 5, 1, 4])
KINDS = sorted(CELLS)
each_cell = pytest.mark.parametrize("kind", KINDS)


def shaken(module: Any, seed: int = 0) -> Any:
    """Random float64 parameters, biases too, large enough that no gate is near its middle."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.normal_(std=0.6, generator=generator)
    return module.eval()


def made(kind: str, *, inputs: int = INPUT, seed: int = 0, width: int = WIDTH) -> Cell:
    return shaken(CELLS[kind](input_width=inputs, width=width), seed)


def tokens(width: int = INPUT, seed: int = 1, batch: int = 4, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, width, generator=generator, dtype=torch.float64)


def state_of(cell: Cell, rows: int = 4, seed: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64) for _ in range(cell.parts))


def vectors(x: Tensor) -> list[Tensor]:
    return list(x.unbind(0))


@pytest.mark.parametrize("given", [False, True], ids=["from-zero", "from-a-state"])
@pytest.mark.parametrize("packed", [False, True], ids=["full", "ragged"])
@each_cell
def test_cells_are_those_of_the_equations(kind: str, packed: bool, given: bool) -> None:
    """Outputs, final states, and the gradient of every parameter, of the tokens and of the first state."""
    cell, x = made(kind), tokens().requires_grad_()
    lengths = LENGTHS if packed else torch.full((4,), LENGTH)
    state = tuple(part.requires_grad_() for part in state_of(cell)) if given else None
    output, final = cell.run(x, lengths if packed else None, state)
    direction, of_final = tokens(WIDTH, 3), state_of(cell, seed=4)
    objective, expected = output.new_zeros(()), output.new_zeros(())
    for part, d in zip(final, of_final, strict=True):
        objective = objective + (part * d).sum()
    for b, length in enumerate(lengths.tolist()):
        begin = None if state is None else tuple(part[b] for part in state)
        outputs, end = reference.read(cell_of(cell), vectors(x[b, :length]), begin)
        torch.testing.assert_close(output[b, :length], torch.stack(outputs), rtol=0, atol=1e-12)
        assert not output[b, length:].any()
        objective = objective + (output[b, :length] * direction[b, :length]).sum()
        expected = expected + (torch.stack(outputs) * direction[b, :length]).sum()
        for part, found, d in zip(end, final, of_final, strict=True):
            torch.testing.assert_close(found[b], part, rtol=0, atol=1e-12)
            expected = expected + (part * d[b]).sum()
    to = [x, *cell.parameters(), *(state or ())]
    for got, wanted in zip(torch.autograd.grad(objective, to), torch.autograd.grad(expected, to), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)


@each_cell
def test_torch_s_modules_agree(kind: str) -> None:
    """With the same matrices; torch's second bias is zero, but for the candidate of the GRU."""
    cell, x, state = made(kind), tokens(), state_of(made(kind))
    theirs = (nn.LSTM if kind == "lstm" else nn.GRU)(INPUT, WIDTH, batch_first=True).double()
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(cell.input_weight)
        theirs.weight_hh_l0.copy_(cell.hidden_weight)
        theirs.bias_ih_l0.copy_(cell.bias)
        theirs.bias_hh_l0.zero_()
        if kind == "gru":
            theirs.bias_hh_l0[2 * WIDTH :] = cell.candidate_bias
    begin = tuple(part[None] for part in state)
    expected, _ = theirs(x, begin if kind == "lstm" else begin[0])
    torch.testing.assert_close(cell.run(x, None, state)[0], expected, rtol=0, atol=1e-12)


@each_cell
def test_steps_are_the_run(kind: str) -> None:
    cell, x, state = made(kind), tokens(), state_of(made(kind))
    output, final = cell.run(x, None, state)
    for t in range(LENGTH):
        state = cell.step(cell.from_input(x[:, t]), state)
        torch.testing.assert_close(state[0], output[:, t], rtol=0, atol=1e-12)
    for got, wanted in zip(state, final, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@each_cell
def test_a_step_leaves_the_old_state_as_it_was(kind: str) -> None:
    """Hypotheses share the state that they come from."""
    cell, state = made(kind), state_of(made(kind))
    before = [part.clone() for part in state]
    cell.step(cell.from_input(tokens()[:, 0]), state)
    assert all(torch.equal(a, b) for a, b in zip(state, before, strict=True))


@each_cell
def test_mixed_precision_leaves_cells_as_they_are(kind: str) -> None:
    """They sum over steps; what comes in may be rounded, what goes on is not."""
    cell, x, state = made(kind).float(), tokens().bfloat16(), tuple(part.float() for part in state_of(made(kind)))
    for lengths in (None, LENGTHS):
        expected = cell.run(x.float(), lengths, state)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = cell.run(x, lengths, state)
        assert torch.equal(found[0], expected[0])
        assert all(torch.equal(a, b) for a, b in zip(found[1], expected[1], strict=True))
    read = cell.from_input(x.float()[:, 0]).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = cell.step(read, state)
    assert all(torch.equal(a, b) for a, b in zip(step, cell.step(read.float(), state), strict=True))


@each_cell
def test_a_state_that_is_a_view_is_as_good(kind: str) -> None:
    """The first states of a decoder are columns of one product."""
    cell, x = made(kind), tokens()
    whole = torch.cat(state_of(cell), -1)
    views = tuple(whole.chunk(cell.parts, -1))
    expected = cell.run(x, None, tuple(part.contiguous() for part in views))[0]
    assert torch.equal(cell.run(x, None, views)[0], expected)


def test_a_new_lstm_does_not_forget_and_starts_small() -> None:
    for kind in KINDS:
        cell = CELLS[kind](input_width=INPUT, width=WIDTH)
        for w, inputs in ((cell.input_weight, INPUT), (cell.hidden_weight, WIDTH)):
            bound = (6 / (inputs + WIDTH)) ** 0.5
            assert w.abs().max() <= bound
            assert w.std() > bound / 3
        biases = cell.bias.detach().view(-1, WIDTH)
        assert biases.mean(1).tolist() == ([0, 1, 0, 0] if kind == "lstm" else [0, 0, 0])
        assert biases.std(1).sum() == 0


def stack(
    kind: str, layers: int, bidirectional: int, residual: bool = False, *, dropout: float = 0.0, keep_final: bool = True
) -> RecurrentEncoder:
    def of(n: int) -> list[Cell]:
        both = n < bidirectional
        return [CELLS[kind](input_width=WIDTH, width=WIDTH // (1 + both)) for _ in range(1 + both)]

    made = RecurrentEncoder([of(n) for n in range(layers)], residual=residual, dropout=dropout, keep_final=keep_final)
    return shaken(made)


@pytest.mark.parametrize("keep_final", [False, True], ids=["", "final"])
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize("bidirectional", range(4))
@each_cell
def test_encoders_are_those_of_the_equations(kind: str, bidirectional: int, residual: bool, keep_final: bool) -> None:
    """States, final states and gradients, whatever stands at padding."""
    encoder = stack(kind, 3, bidirectional, residual, keep_final=keep_final)
    x = tokens(WIDTH).requires_grad_()
    padding = torch.arange(LENGTH) >= LENGTHS[:, None]
    states, final = encoder(x, LENGTHS)
    assert (final is not None) == keep_final
    with torch.no_grad():
        other = encoder(x.masked_fill(padding[..., None], float("nan")), LENGTHS)
    assert torch.equal(other.states_BSD[~padding], states[~padding])
    layers = [[cell_of(cell) for cell in cells] for cells in encoder.layers]
    direction, of_final = tokens(WIDTH, 3), tokens(WIDTH, 4)
    objective, expected = x.new_zeros(()), x.new_zeros(())
    for b, length in enumerate(LENGTHS.tolist()):
        outputs, ends = reference.encode(vectors(x[b, :length]), layers, residual=residual)
        torch.testing.assert_close(states[b, :length], torch.stack(outputs), rtol=0, atol=1e-12)
        objective = objective + (states[b, :length] * direction[b, :length]).sum()
        expected = expected + (torch.stack(outputs) * direction[b, :length]).sum()
        for n, (found, end) in enumerate(zip(final or [], ends if keep_final else [], strict=True)):
            for got, wanted in zip(found, end, strict=True):
                torch.testing.assert_close(got[b], wanted, rtol=0, atol=1e-12)
                objective, expected = (
                    objective + got[b] @ of_final[b, n],
                    expected + wanted @ of_final[b, n],
                )
    to = [x, *encoder.parameters()]
    for got, wanted in zip(torch.autograd.grad(objective, to), torch.autograd.grad(expected, to), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)
    (to_x,) = torch.autograd.grad(encoder(x, LENGTHS).states_BSD[~padding].sum(), x)
    assert not to_x[padding].any()


@pytest.mark.parametrize("bidirectional", [0, 2])
@each_cell
def test_full_sentences_need_no_lengths(kind: str, bidirectional: int) -> None:
    encoder, x = stack(kind, 2, bidirectional, True), tokens(WIDTH)
    with_lengths, without = encoder(x, torch.full((4,), LENGTH)), encoder(x, None)
    torch.testing.assert_close(with_lengths.states_BSD, without.states_BSD, rtol=0, atol=1e-12)
    for got, wanted in zip(with_lengths.final, without.final, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@each_cell
def test_encoder_dropout_is_between_layers_and_in_training_only(kind: str) -> None:
    x = tokens(WIDTH)
    one, two = stack(kind, 1, 1, dropout=0.5), stack(kind, 2, 1, dropout=0.5)
    calm = stack(kind, 2, 1)(x, LENGTHS).states_BSD
    assert torch.equal(two(x, LENGTHS).states_BSD, calm)
    assert not torch.allclose(two.train()(x, LENGTHS).states_BSD, calm)
    assert torch.equal(one.train()(x, LENGTHS).states_BSD, one.eval()(x, LENGTHS).states_BSD)


NAMES = [*ATTENTIONS, "multihead"]


def attention(name: str) -> Any:
    if name == "multihead":
        return shaken(BlockAttention(build_attention(width=WIDTH, heads=HEADS)))
    return shaken(ATTENTIONS[name](width=WIDTH))


def source(lengths: Tensor | None = LENGTHS) -> Visibility:
    return Visibility(key_length=LENGTH, lengths_B=lengths)


@pytest.mark.parametrize("name", NAMES)
def test_attentions_are_those_of_the_equations(name: str) -> None:
    """Two queries a sentence, as in a beam: contexts, weights, gradients; NaN at padding does not matter."""
    layer = attention(name)
    memory, queries = tokens(WIDTH).requires_grad_(), tokens(WIDTH, 5)[:, :2].flatten(0, 1).requires_grad_()
    padding = torch.arange(LENGTH) >= LENGTHS[:, None]
    cache = layer.project_memory(memory.masked_fill(padding[..., None], float("nan")), source(), beam=2)
    contexts, weights = layer(queries, cache, source())
    attend, direction = attention_of(layer), tokens(WIDTH, 6)[:, :2].flatten(0, 1)
    expected = memory.new_zeros(())
    for row in range(8):
        b, length = row // 2, int(LENGTHS[row // 2])
        context, shares = attend([queries[row]], vectors(memory[b, :length]))
        torch.testing.assert_close(contexts[row], context, rtol=0, atol=1e-12)
        expected = expected + context @ direction[row]
        if shares is None:
            assert weights is None
            continue
        assert not weights[row, ..., length:].any()
        torch.testing.assert_close(weights[row, :, 0, :length], shares.view(-1, length), rtol=0, atol=1e-12)
    to = [memory, queries, *layer.parameters()]
    got = torch.autograd.grad((contexts * direction).sum(), to, allow_unused=True)
    wanted = torch.autograd.grad(expected, to, allow_unused=True)
    for g, w in zip(got, wanted, strict=True):
        assert (g is None) == (w is None) == (name == "fixed" and g is None)
        if g is not None and w is not None:
            torch.testing.assert_close(g, w, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_sentences_that_stay_keep_their_source(name: str) -> None:
    layer, chosen = attention(name), torch.tensor([3, 0])
    memory, queries = tokens(WIDTH), tokens(WIDTH, 5)[:, 0]
    cache = layer.project_memory(memory, source())
    whole, weights = layer(queries, cache, source())
    cache.keep(chosen, chosen)
    part, of_part = layer(queries[chosen], cache, source(LENGTHS[chosen]))
    torch.testing.assert_close(part, whole[chosen], rtol=0, atol=1e-12)
    if weights is not None:
        torch.testing.assert_close(of_part, weights[chosen], rtol=0, atol=1e-12)


def test_the_last_state_is_that_of_the_last_real_token() -> None:
    memory = tokens(WIDTH)
    assert torch.equal(
        last_states(memory, LENGTHS), torch.stack([memory[0, 2], memory[1, 4], memory[2, 0], memory[3, 3]])
    )
    assert torch.equal(last_states(memory, None), memory[:, 4])


@pytest.mark.parametrize("parts", [1, 2])
def test_initial_states_are_those_of_the_equations(parts: int) -> None:
    """Rows of the one matrix: layer by layer, in each layer part by part (h before c)."""
    first, last = shaken(InitialStates(width=WIDTH, layers=3, parts=parts)), tokens(WIDTH)[:, 0]
    states = first(last)
    assert [len(state) for state in states] == [parts] * 3
    for layer, state in enumerate(states):
        for part, found in enumerate(state):
            rows = slice((layer * parts + part) * WIDTH, (layer * parts + part + 1) * WIDTH)
            for b in range(4):
                wanted = torch.tanh(first.linear.weight[rows] @ last[b] + first.linear.bias[rows])
                torch.testing.assert_close(found[b], wanted, rtol=0, atol=1e-12)
