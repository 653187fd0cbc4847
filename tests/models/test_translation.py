"""The whole model: padding, batch order and incremental decoding change nothing; loss equals score; it can learn."""

from __future__ import annotations

import pytest
import torch

from phraseloom.data.tensors import Batch, make_batch
from phraseloom.models.build import build_model
from phraseloom.models.translation import TranslationModel
from phraseloom.options.model import ModelConfig

RELATIVE = {"score": {"kind": "relative", "clip": 3}}
VARIANTS = {
    "pre": {},
    "post": {"norm": "post"},
    "relative": {"attention": {"encoder_self": RELATIVE, "decoder_self": RELATIVE}, "positions": {"kind": "none"}},
    "interleaved": {"positions": {"kind": "sinusoid", "layout": "interleaved"}, "tied": "none"},
    "t2t-bias": {"positions": {"kind": "sinusoid", "layout": "t2t"}, "tied": "two_way", "output": {"bias": True}},
}
SOURCES, TARGETS = [[5, 6, 7], [8, 9], [4], [10, 11, 12, 13]], [[5, 6], [7, 8, 9, 10], [], [5, 5, 5]]


def built(variant: str) -> TranslationModel:
    torch.manual_seed(0)
    return build_model(ModelConfig.model_validate({"preset": "tiny", **VARIANTS[variant]}), 30, 30).double().eval()


def batch(order: list[int]) -> Batch:
    return make_batch([SOURCES[i] for i in order], [TARGETS[i] for i in order])


@pytest.mark.parametrize("variant", VARIANTS)
def test_neighbours_do_not_matter(variant: str) -> None:
    model = built(variant)
    together = model.score(batch([0, 1, 2, 3])).sum(1)
    for order in ([3, 1], [0], [2, 0, 3, 1]):
        apart = model.score(batch(order)).sum(1)
        torch.testing.assert_close(apart, together[order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_incremental_equals_full(variant: str) -> None:
    model, b = built(variant), batch([0, 1, 2, 3])
    full = model.score(b)
    state = model.start(model.encode(b.source_BS, b.source_lengths_B), beam=1, max_length=2)
    state.expand(2)
    for t in range(b.target_in_BT.shape[1]):
        hidden, weights, _ = model.step(b.target_in_BT[:, t].repeat_interleave(2), state)
        assert len(weights) == 2
        assert weights[0].shape == (8, 4, 1, b.source_BS.shape[1])
        gold = b.target_out_BT[:, t].repeat_interleave(2)[:, None]
        log_p = model.output.log_probs(hidden).gather(1, gold).view(4, 2)
        real = t < b.target_lengths_B
        torch.testing.assert_close(log_p[real], full[real, t, None].expand(-1, 2), rtol=0, atol=1e-10)


def test_keep_and_reorder_follow_their_sentences() -> None:
    model, b = built("pre"), batch([0, 1, 3])
    state = model.start(model.encode(b.source_BS, b.source_lengths_B), beam=2, max_length=8)
    model.step(torch.tensor([2] * 6), state)
    model.step(torch.tensor([5, 6, 7, 8, 9, 10]), state)
    state.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
    state.keep(torch.tensor([2, 0]))
    hidden, *_ = model.step(torch.tensor([11, 12, 13, 14]), state)
    for row, (sentence, prefix) in enumerate([(3, [2, 10, 11]), (3, [2, 9, 12]), (0, [2, 6, 13]), (0, [2, 5, 14])]):
        alone = make_batch([SOURCES[sentence]], [[]])
        memory = model.encode(alone.source_BS, alone.source_lengths_B)
        expected, *_ = model.decode(torch.tensor([prefix]), memory)
        torch.testing.assert_close(hidden[row], expected[0, -1], rtol=0, atol=1e-10)


def test_loss_without_smoothing_is_minus_score() -> None:
    model, b = built("pre"), batch([0, 1, 2, 3])
    sums = model.loss(b)
    assert sums.tokens == b.target_tokens == 13
    assert sums.nll.item() == pytest.approx(-model.score(b).sum().item(), abs=1e-9)


def test_ties_are_one_storage() -> None:
    model = built("pre")
    assert model.source_embedding.weight is model.target_embedding.weight is model.output.weight
    model = built("t2t-bias")
    assert model.target_embedding.weight is model.output.weight
    assert model.source_embedding.weight is not model.output.weight


def test_loss_falls_on_one_batch() -> None:
    torch.manual_seed(0)
    model = build_model(
        ModelConfig.model_validate({"preset": "tiny", "dropout": 0.0, "output": {"label_smoothing": 0.0}}), 30, 30
    )
    optimizer, b = torch.optim.Adam(model.parameters(), lr=3e-3), batch([0, 1, 2, 3])
    for _ in range(60):
        sums = model.loss(b)
        optimizer.zero_grad()
        (sums.objective / sums.tokens).backward()
        optimizer.step()
    assert sums.nll.item() / sums.tokens < 0.1
