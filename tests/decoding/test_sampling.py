"""Drawing tokens: the right distribution, the right tokens left out, draws that depend on seed, line, sample, step alone."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.decoding.toys import END, ToyModel, random_table

from phraseloom.decoding.generator import generate_tokens
from phraseloom.decoding.limits import Sampling
from phraseloom.decoding.sampling import draw, filtered, uniform

SIZE = 9  # 0, 1, 2 are PAD, UNK, BOS; 3 is EOS


class LineToy(ToyModel):
    """A toy language model: its memory is a number of lines, and it knows nothing of which line it writes."""

    def __init__(self, table: Any = None) -> None:
        super().__init__(table or random_table(SIZE, seed=3, sharpness=1.0))

    def start(self, memory: int, *, beam: int, max_length: int) -> Any:
        return super().start([0] * memory, beam=beam, max_length=max_length)


def written(prompts: list[list[int]], places: list[tuple[int, int]], seed: int = 1, **options: Any) -> list[Any]:
    return generate_tokens(LineToy(), prompts, places, max_tokens=6, sampling=Sampling(**options), seed=seed)


def allowed(prefix: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    """The distribution that is drawn from after a prefix, by the definition."""
    p = random_table(SIZE, seed=3, sharpness=1.0)(0, prefix).exp() ** (1 / temperature)
    p[:3] = 0.0
    return p / p.sum()


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    """The first two tokens of 4000 samples against their probabilities: chi-square far from its tail, in fixed draws."""
    count = 4000
    found = written([[5]] * count, [(0, n) for n in range(count)], temperature=temperature)
    firsts = Counter(w.tokens[0] if w.tokens else END for w in found)
    p = allowed((5,), temperature)
    chi = sum((firsts[t] - count * float(p[t])) ** 2 / (count * float(p[t])) for t in range(3, SIZE))
    assert chi < 20.5  # 5 degrees of freedom, 99.9 %
    after = [w.tokens[1] if len(w.tokens) > 1 else END for w in found if w.tokens[:1] == [7]]
    p = allowed((5, 7), temperature)
    chi = sum((after.count(t) - len(after) * float(p[t])) ** 2 / (len(after) * float(p[t])) for t in range(3, SIZE))
    assert len(after) > 100 and chi < 20.5
    wrong = allowed((5,), temperature * 1.5)
    assert sum((firsts[t] - count * float(wrong[t])) ** 2 / (count * float(wrong[t])) for t in range(3, SIZE)) > 30


def test_log_prob_is_that_of_the_model_as_it_is() -> None:
    table = random_table(SIZE, seed=3, sharpness=1.0)
    for w in written([[5, 6]] * 20, [(0, n) for n in range(20)], temperature=3.0, top_k=4):
        tokens = [*w.tokens, END] if w.ended else w.tokens
        total = sum(float(table(0, (5, 6, *tokens[:i]))[t]) for i, t in enumerate(tokens))
        assert w.log_prob == pytest.approx(total)
        assert w.ended or len(w.tokens) == 6


def test_a_line_does_not_depend_on_its_batch() -> None:
    prompts = [[], [5], [6, 7, 8, 4], [5, 5], []]
    places = [(0, 0), (1, 0), (2, 0), (2, 1), (4, 0)]
    together = written(prompts, places)
    assert together == [written([p], [place])[0] for p, place in zip(prompts, places, strict=True)]
    assert together == written(prompts[::-1], places[::-1])[::-1]
    assert together != written(prompts, places, seed=2)
    assert written([[5]] * 9, [(n, 0) for n in range(9)]) != written([[5]] * 9, [(0, 0)] * 9)
    assert len({tuple(w.tokens) for w in written([[5]] * 9, [(0, n) for n in range(9)])}) > 2
    assert len({tuple(w.tokens) for w in written([[5]] * 9, [(0, 0)] * 9)}) == 1


def test_top_k_and_top_p_leave_out_what_they_say() -> None:
    p = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]], dtype=torch.float64)
    close = {"abs": 1e-12}
    assert filtered(p.log(), Sampling(top_k=2))[0].tolist() == pytest.approx(
        [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], **close
    )
    assert filtered(p.log(), Sampling(top_p=0.6))[0].tolist() == pytest.approx(
        [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0], **close
    )
    kept = filtered(p.log(), Sampling(top_p=0.7))[0]
    assert kept.tolist() == pytest.approx([0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85], **close)
    both = filtered(p.log(), Sampling(top_k=3, top_p=0.4))[0]  # top_p is of what top_k leaves: 0.4 / 0.85 is enough
    assert both.tolist() == [0, 1, 0, 0, 0]
    assert filtered(p.log(), Sampling(top_p=1e-9))[0].tolist() == [0, 1, 0, 0, 0]
    ties = filtered(torch.zeros(1, 5), Sampling(top_k=2))[0]
    assert ties.tolist() == [0.5, 0.5, 0, 0, 0]
    cold = filtered(p.log(), Sampling(temperature=0.01))[0]
    assert float(cold[1]) == pytest.approx(1.0)
    coldest = filtered(p.log(), Sampling(temperature=1e-320))[0]
    assert coldest.tolist() == [0, 1, 0, 0, 0]


def test_draw_never_takes_what_has_no_probability() -> None:
    p = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]], dtype=torch.float64)
    for u, column in ((0.0, 1), (0.2999, 1), (0.3, 3), (0.9999, 3), (1.0, 3)):
        assert draw(p, torch.tensor([u], dtype=torch.float64)).tolist() == [column]


def test_uniform_numbers_are_uniform_and_all_their_own() -> None:
    numbers = [uniform(7, line, sample, step) for line in range(10) for sample in range(10) for step in range(50)]
    assert len(set(numbers)) == 5000 and min(numbers) >= 0 and max(numbers) < 1
    counts = Counter(int(10 * u) for u in numbers)
    assert sum((c - 500) ** 2 / 500 for c in counts.values()) < 27.9  # 9 degrees of freedom, 99.9 %
    mean = math.fsum(a * b for a, b in pairwise(numbers)) / 4999
    assert abs(mean - 0.25) < 0.01


def test_greedy_takes_the_best_and_stops_where_it_must() -> None:
    greedy = generate_tokens(LineToy(), [[5], []], [(0, 0), (1, 0)], max_tokens=5, sampling=None, seed=1)
    for prompt, w in zip(([5], []), greedy, strict=True):
        tokens = list(prompt)
        while len(tokens) - len(prompt) < 5 and (best := int(allowed(tuple(tokens)).argmax())) != END:
            tokens.append(best)
        assert w.tokens == tokens[len(prompt) :]
    certain = torch.full((SIZE,), -50.0, dtype=torch.float64)
    certain[END] = 0.0
    toy = LineToy(lambda sentence, prefix: certain)
    assert generate_tokens(toy, [[5]], [(0, 0)], max_tokens=5, sampling=None, seed=1) == [([], 0.0, True)]
