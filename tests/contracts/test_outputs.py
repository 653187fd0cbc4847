"""What every output layer must do: the contract of OUTPUTS (loss, log p, the best of them)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phraseloom.layers.packed import linear
from phraseloom.layers.table import TargetTable
from phraseloom.options.model import ContinuousConfig
from phraseloom.outputs import OUTPUTS, continuous
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK

SIZE, WIDTH, M = 50, 12, 16
FIRST_PHRASE = 31


def table(dtype: torch.dtype = torch.float64) -> TargetTable:
    generator = torch.Generator().manual_seed(3)
    rows = nn.functional.normalize(torch.randn(SIZE, M, generator=generator, dtype=dtype), dim=-1)
    rows[[PAD, BOS]] = 0
    rows[EOS] = M**-0.5
    return TargetTable(rows, FIRST_PHRASE)


LOSSES = ("vmf", "vmf_reg1", "vmf_reg2", "vmf_reg1_reg2", "vmf_released", "cosine", "l2", "max_margin")


def softmax() -> Any:
    weight = nn.Parameter(torch.randn(SIZE, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    return OUTPUTS["softmax"](weight, label_smoothing=0.0)


def of_table(kind: str, **options: Any) -> Callable[[], Any]:
    """With the published loss, unless said; a small table has room for the margin of Kumar and Tsvetkov."""
    chosen = {"loss": "vmf_released", "margin": 0.5, **options}
    return lambda: OUTPUTS[kind](table(), width=WIDTH, forbidden=(PAD, BOS), **chosen).double()


def of_words(lambda_N: Tensor) -> Tensor:
    """A gate (N, 2) of λ_word."""
    return torch.stack((lambda_N, 1 - lambda_N), 1)


class Gated(nn.Module):
    """An output with λ_word in column D of the hidden vectors, so that every case takes one tensor."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output, self.table = output, output.table

    def loss(self, h: Tensor, gold: Tensor) -> Any:
        return self.output.loss(h[:, :WIDTH], gold, self.share(h))

    def log_probs(self, h: Tensor) -> Tensor:
        return self.output.log_probs(h[:, :WIDTH], self.share(h))

    def candidates(self, h: Tensor, count: int) -> Any:
        return self.output.candidates(h[:, :WIDTH], count, self.share(h))

    def gold_log_probs(self, h: Tensor, gold: Tensor) -> Tensor:
        return self.output.gold_log_probs(h[:, :WIDTH], gold, self.share(h))

    @staticmethod
    def share(h: Tensor) -> Tensor | None:
        return of_words(h[:, WIDTH]) if h.shape[1] > WIDTH else None


CASES: dict[str, Callable[[], Any]] = {"softmax": softmax}
CASES |= {f"continuous-{loss}": of_table("continuous", loss=loss) for loss in LOSSES}
CASES |= {"continuous-deep": of_table("continuous", hidden_layer=True), "word_or_phrase": of_table("word_or_phrase")}
CASES |= {"continuous-margin": of_table("continuous", margin_weight=0.5, margin=0.3)}
CASES |= {"continuous-nearest": of_table("continuous", loss="max_margin", rival="nearest")}
CASES |= {"continuous-rivals": of_table("continuous", loss="max_margin", rivals=5)}
CASES |= {"continuous-frequent": of_table("continuous", loss="max_margin", rivals=3, frequent_rivals=3)}
CASES |= {"phrases-rivals": of_table("word_or_phrase", loss="max_margin", rivals=3, frequent_rivals="words")}
CASES |= {
    f"gated-{score}": lambda score=score: Gated(of_table("word_or_phrase", score=score)())
    for score in ("mixture", "density", "released")
}


def test_every_output_is_here() -> None:
    assert {type(make()) for make in CASES.values()} - {Gated} == set(OUTPUTS.values())


def hidden(name: str, rows: int, *, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    h = 2 * torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)
    if name.startswith("gated"):
        h = torch.cat([h, torch.rand(rows, 1, dtype=torch.float64, generator=generator)], 1)
    return h


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, Any]:
    torch.manual_seed(5)
    return request.param, CASES[request.param]().eval()


def test_log_p_is_a_distribution(case: tuple[str, Any]) -> None:
    name, output = case
    log_probs = output.log_probs(hidden(name, 7))
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(7, dtype=torch.float64))
    if name != "softmax":
        assert log_probs[:, [PAD, BOS]].eq(float("-inf")).all()
        assert log_probs[:, [UNK, EOS]].isfinite().all()


@pytest.mark.parametrize("count", [1, 5, 49])
def test_candidates_are_the_best_of_all(case: tuple[str, Any], count: int) -> None:
    name, output = case
    h = hidden(name, 6)
    values, ids = output.candidates(h, count)
    expected, where = output.log_probs(h).sort(dim=1, descending=True, stable=True)
    assert torch.equal(ids, where[:, :count])
    assert torch.allclose(values, expected[:, :count])


def test_gold_vectors_score_as_in_the_whole(case: tuple[str, Any]) -> None:
    name, output = case
    gold = torch.arange(4, 24)
    h = hidden(name, 20)
    assert torch.allclose(output.gold_log_probs(h, gold), output.log_probs(h)[torch.arange(20), gold])
    assert output.gold_log_probs(h[:0], gold[:0]).shape == (0,)


def test_nll_in_evaluation_is_that_of_p(case: tuple[str, Any]) -> None:
    name, output = case
    gold, h = torch.arange(4, 24), hidden(name, 20)
    sums = output.loss(h, gold)
    assert torch.allclose(sums.nll, -output.gold_log_probs(h, gold).sum()) and sums.tokens == 20


def test_loss_falls_on_one_batch(case: tuple[str, Any]) -> None:
    name, output = case
    output.train()
    gold = torch.arange(4, 24)
    h = nn.Parameter(hidden(name, 20))
    optimizer = torch.optim.Adam([h, *output.parameters()], lr=0.05)
    found = []
    for _ in range(100):
        optimizer.zero_grad()
        objective = output.loss(h, gold).objective
        objective.backward()
        optimizer.step()
        found.append(objective.item())
    assert found[-1] < found[0] - 1e-3
    with torch.no_grad():
        best = output.eval().candidates(h[:, :WIDTH], 1)[1][:, 0]
    assert (best == gold).double().mean() > 0.8


@pytest.mark.parametrize("name", [n for n in CASES if n != "softmax"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8])
def test_any_number_of_rows_at_a_time_gives_the_same_best(
    monkeypatch: pytest.MonkeyPatch, name: str, rows: int
) -> None:
    """Sums of a few binary digits are exact in any order, so equal words stay equal: the lower id goes first."""
    output = CASES[name]().eval()
    vectors = output.table.rows_VM
    vectors[4:] = vectors[4:].sign() / 4
    vectors[40], vectors[45] = vectors[20], vectors[33]
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.copy_((8 * parameter).round() / 8)
    h = (8 * hidden(name, 7)).round() / 8
    values, ids = output.candidates(h, 9)
    gold = torch.arange(10, 17)
    of_gold = output.gold_log_probs(h, gold)
    monkeypatch.setattr(continuous, "CHUNK_ELEMENTS", rows * SIZE + SIZE - 1)
    in_parts = output.candidates(h, 9)
    assert torch.equal(in_parts[1], ids)
    assert torch.allclose(in_parts[0], values, atol=1e-12)
    assert torch.allclose(output.gold_log_probs(h, gold), of_gold, atol=1e-12)


@pytest.mark.parametrize("name", ["continuous-vmf", "gated-mixture"])
@pytest.mark.parametrize(("chunk", "expected"), [(SIZE - 1, [1] * 7), (3 * SIZE, [3, 3, 1]), (4 * SIZE, [4, 3])])
def test_no_scores_are_larger_than_a_chunk(
    monkeypatch: pytest.MonkeyPatch, name: str, chunk: int, expected: list[int]
) -> None:
    output, sizes = CASES[name]().eval(), []

    def spy(x: Tensor, weight: Tensor, **rest: Any) -> Tensor:
        sizes.append(len(x))
        return linear(x, weight, **rest)

    monkeypatch.setattr(continuous, "CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(continuous, "linear", spy)
    output.candidates(hidden(name, 7), 3)
    output.gold_log_probs(hidden(name, 7), torch.arange(7))
    assert sizes == 2 * expected


@pytest.mark.parametrize("name", ["softmax", "continuous-vmf", "gated-mixture", "gated-density"])
def test_log_p_has_a_gradient_and_takes_one_tensor_where_it_has_none(name: str) -> None:
    output = CASES[name]().eval()
    h = hidden(name, 5).requires_grad_()
    with_gradient = output.log_probs(h)
    with_gradient[:, 7].sum().backward()
    assert h.grad is not None and h.grad[:, :WIDTH].abs().sum() > 0
    with torch.no_grad():
        assert torch.equal(output.log_probs(h), with_gradient)
    with torch.inference_mode():
        assert torch.equal(output.log_probs(h), with_gradient)


def test_the_table_is_not_trained_and_not_stored() -> None:
    output = of_table("continuous")()
    assert {name for name, _ in output.named_parameters()} == {"project.weight", "project.bias"}
    assert set(output.state_dict()) == {"project.weight", "project.bias"}


def test_without_a_gate_words_and_phrases_are_one_table() -> None:
    plain, both = of_table("continuous")(), of_table("word_or_phrase")()
    both.load_state_dict(plain.state_dict())
    h = hidden("continuous", 5)
    assert torch.equal(plain.log_probs(h), both.log_probs(h))


def test_a_mixture_gives_each_table_its_share() -> None:
    """With equal words in both tables the gate alone decides; at 0 and 1 nothing is NaN."""
    output = of_table("word_or_phrase", score="mixture")().eval()
    output.table.rows_VM[4:] = output.table.rows_VM[4]
    output.table.rows_VM[UNK] = output.table.rows_VM[EOS] = output.table.rows_VM[4]
    gates = torch.tensor([0.0, 0.25, 0.9, 1.0], dtype=torch.float64)
    p = output.log_probs(hidden("continuous", 4), of_words(gates)).exp()
    words, phrases = p[:, :FIRST_PHRASE].sum(1), p[:, FIRST_PHRASE:].sum(1)
    num_words, num_phrases = FIRST_PHRASE - 2, SIZE - FIRST_PHRASE
    expected = gates * num_words / (gates * num_words + (1 - gates) * num_phrases)
    assert torch.allclose(words, expected, atol=1e-12) and torch.allclose(words + phrases, torch.ones_like(words))


def test_in_training_no_sum_over_words_is_made() -> None:
    output = of_table("continuous")().train()
    sums = output.loss(hidden("continuous", 3), torch.tensor([4, 5, 6]))
    assert sums.nll.isnan() and sums.objective.isfinite()


def test_the_packed_table_gives_the_same() -> None:
    output = OUTPUTS["continuous"](table(torch.float32), width=WIDTH).eval()
    h = hidden("continuous", 5).float()
    with torch.inference_mode():
        before = output.candidates(h, 4)
        output.pack()
        after = output.candidates(h, 4)
    assert torch.equal(before[1], after[1]) and torch.allclose(before[0], after[0], atol=1e-5)


def test_the_max_margin_loss_is_added() -> None:
    h, gold = hidden("continuous", 6), torch.arange(4, 10)
    torch.manual_seed(5)
    both = of_table("continuous", margin_weight=0.5, margin=0.3)().train()
    parts = of_table("continuous")().train(), of_table("continuous", loss="max_margin", margin=0.3)().train()
    for part in parts:
        part.load_state_dict(both.state_dict())
    vmf, hinge = (part.loss(h, gold).objective for part in parts)
    assert hinge > 0
    assert both.loss(h, gold).objective.item() == pytest.approx((vmf + 0.5 * hinge).item(), rel=1e-12)


def test_rivals_are_drawn_in_training_only() -> None:
    h, gold = hidden("continuous", 30), torch.arange(4, 34)
    torch.manual_seed(5)
    few = of_table("continuous", loss="max_margin", rivals=5)()
    every = of_table("continuous", loss="max_margin")()
    every.load_state_dict(few.state_dict())
    drawn = [few.train().loss(h, gold).objective.item() for _ in range(2)]
    whole = every.train().loss(h, gold).objective.item()
    assert drawn[0] != drawn[1] and max(drawn) < whole
    assert few.eval().loss(h, gold).objective.item() == whole


@pytest.mark.parametrize("score", ["density", "released"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gate_scores_with_log_c_rank_words_in_half_precision_too(score: str, dtype: torch.dtype) -> None:
    """log C is near 427 at width 300, and the distance of two numbers of bfloat16 there is 2."""
    torch.manual_seed(0)
    words, rows = 1500, nn.functional.normalize(torch.randn(2000, 300), dim=-1)
    output = OUTPUTS["word_or_phrase"](TargetTable(rows, words), width=32, score=score).eval()
    h, gate = 3 * torch.randn(50, 32), of_words(torch.rand(50))
    with torch.inference_mode():
        exact, best = output.candidates(h, 1, gate)
        with torch.autocast("cpu", dtype=dtype):
            log_p, ids = output.candidates(h, 1, gate)
            assert output.scores(h, gate).dtype == torch.float32
    assert (ids == best).double().mean() > 0.9
    torch.testing.assert_close(log_p, exact, rtol=0.02, atol=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frequent_rivals": 5}, "frequent_rivals needs rivals"),
        ({"frequent_rivals": 5, "rivals": 5, "loss": "cosine"}, "rivals is for a max-margin loss"),
        ({"margin_weight": 0.5}, "leave margin_weight out"),
        ({"frequent_rivals": "words", "rivals": 5}, "is for kind: word_or_phrase"),
    ],
)
def test_rivals_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ContinuousConfig.model_validate({"kind": "continuous", **options})


@pytest.mark.parametrize(
    ("frequent", "expected"),
    [(0, [2, 11]), (4, [0, 1, 2, 3, 8, 11, 30]), ("words", [*range(FIRST_PHRASE), FIRST_PHRASE + 1])],
)
def test_rivals_are_those_of_the_options(frequent: Any, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drawn ones (2 and 11, or of phrases one), the most frequent ones or all words, and with these those of the batch."""
    h, gold = hidden("continuous", 3), torch.tensor([30, 8, 30])
    output = of_table("word_or_phrase", loss="max_margin", rivals=2, frequent_rivals=frequent)().train()
    drawn = {0: torch.tensor([11, 2]), FIRST_PHRASE: torch.tensor([FIRST_PHRASE + 1] * 2)}
    monkeypatch.setattr(torch, "randint", lambda low, *_, **__: drawn[low])
    seen = []
    monkeypatch.setattr(
        "phraseloom.outputs.continuous.max_margin_loss",
        lambda predicted, gold, table, *, rivals_R, **_: (seen.append(rivals_R.tolist()), predicted.sum(1))[1],
    )
    output.loss(h, gold)
    assert seen == [expected]


def test_all_words_and_as_many_drawn_rivals_as_phrases_are_all_rows() -> None:
    h, gold = hidden("continuous", 30), torch.arange(4, 34)
    every = of_table("word_or_phrase", loss="max_margin")().train()
    few = of_table("word_or_phrase", loss="max_margin", rivals=len(every.table), frequent_rivals="words")().train()
    few.load_state_dict(every.state_dict())
    assert few.loss(h, gold).objective == every.loss(h, gold).objective
