"""Validation: BLEU against the raw lines as a translation would write them; the cosine loss of continuous output."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.data.tensors import make_batch
from phraseloom.decoding import translator
from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_model
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig, WordsConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import EOS
from phraseloom.text.words import learn
from phraseloom.training.dataset import batches_of
from phraseloom.training.validate import Validator, corpus_bleu


@pytest.mark.parametrize("search", [{"beam": 5, "n_best": 3}, {"beam": 1, "sample": True}, {"beam": 1, "mbr": 4}])
@pytest.mark.parametrize("joined", [True, False])
def test_references_are_plain_text(monkeypatch: pytest.MonkeyPatch, joined: bool, search: dict[str, Any]) -> None:
    plain = "It's the quality of life (in all towns)."
    raw = "It 's the quality_of_life ( in all towns ) ." if joined else plain
    words = learn([raw], WordsConfig(joined=joined, phrases=1 if joined else 0))
    tokenizer = Tokenizer(TextConfig(tokenize="moses"), "de", "en", learn(["a"], WordsConfig()), words)

    class Fake:
        def __init__(self, model: Any, tokenizer: Any, decoding: DecodingConfig, **options: Any) -> None:
            """Samples would depend on the number of processes, and one translation is scored."""
            assert (decoding.beam, decoding.n_best, decoding.sample, decoding.mbr) == (1, 1, False, 0)

        def translate(self, lines: list[str], **options: Any) -> list[Any]:
            return [SimpleNamespace(text=plain) for _ in lines]

    monkeypatch.setattr(translator, "Translator", Fake)
    world = SimpleNamespace(rank=0, size=1, any=lambda flag: False, gather_lines=lambda lines: lines)
    job: Any = SimpleNamespace(
        config=SimpleNamespace(bleu_beam=1), world=world, model=None, stop=SimpleNamespace(is_set=lambda: False)
    )
    lengths = np.ones(2, np.int32)
    validator = Validator(
        lengths, lengths, lambda indices: None, text=(["a", "a"], [raw, raw]), tokenizer=tokenizer,
        decoding=DecodingConfig.model_validate(search),
    )  # fmt: skip
    assert validator._bleu(job, *validator.text)["bleu"] == 100.0  # type: ignore[misc]


def _validated(
    model: torch.nn.Module, pairs: list[tuple[list[int], list[int]]], tokens: int, size: int
) -> dict[str, Any]:
    """What a validation by `size` processes finds, batches of at most `tokens` tokens."""
    lengths = [np.array([len(side) + 1 for side in sides], np.int32) for sides in zip(*pairs, strict=True)]
    sums: list[torch.Tensor] = []

    def batch_of(indices: np.ndarray) -> Any:
        return make_batch(*([list(pairs[i][side]) for i in indices] for side in (0, 1)))

    def keep(own: torch.Tensor) -> torch.Tensor:
        sums.append(own.clone())
        return torch.stack(sums).sum(0)

    for rank in range(size):
        world = SimpleNamespace(rank=rank, size=size, any=lambda flag: False, device=torch.device("cpu"), sum_=keep)
        job: Any = SimpleNamespace(
            config=SimpleNamespace(bleu_every=None, valid_tokens=tokens, precision="fp32"), world=world, model=model,
            loss=model.loss, stop=SimpleNamespace(is_set=False),
        )  # fmt: skip
        found = Validator(lengths[0], lengths[1], batch_of)(job)
    return found


PAIRS = [([4, 5, 6], [7, 8]), ([4], [4, 5, 6, 7, 8, 4]), ([8, 7], [5]), ([5, 5], [6, 7, 8]), ([6], [4])]


@pytest.mark.parametrize(
    ("language", "tokenizer"),
    [("zh-TW", "zh"), ("zho_Hant", "zh"), ("ja", "char"), ("jpn", "char"), ("th", "char"), ("de", "13a"), ("", "13a")],
)
def test_bleu_has_a_tokenizer_that_splits_the_language(language: str, tokenizer: str) -> None:
    """Half of a sentence without spaces is a match, not a wrong word."""
    found = corpus_bleu(["我喜欢吃苹果和梨"], ["我喜欢吃苹果和桃子"], language)
    assert f"|tok:{tokenizer}|" in found["signature"]
    assert (found["bleu"] > 50) == (tokenizer != "13a")


@pytest.mark.parametrize("loss", ["vmf_released", "cosine", "max_margin"])
def test_cosine_loss_is_the_mean_over_tokens(loss: str) -> None:
    """By a loop, one token at a time; the same for any division into batches and processes (P003)."""
    torch.manual_seed(3)
    table = TargetTable(torch.nn.functional.normalize(torch.randn(9, 5, dtype=torch.float64), dim=-1))
    wanted = {"kind": "continuous", "loss": loss}
    parts = {"encoder": {"layers": 1}, "decoder": {"layers": 1}, "dropout": 0.0, "tied": "two_way"}
    config = ModelConfig.model_validate({"width": 8, "heads": 2, "ffn_width": 8, "output": wanted, **parts})
    model = build_model(config, 9, 9, table).double().eval()
    distances = []
    with torch.no_grad():
        for source, target in PAIRS:
            batch = make_batch([source], [target])
            hidden, *_ = model.decode(batch.target_in_BT, model.encode(batch.source_BS, batch.source_lengths_B))
            for h, gold in zip(hidden[0], [*target, EOS], strict=True):
                predicted, e = model.output.predict(h).tolist(), table.rows_VM[gold].tolist()
                product = sum(x * y for x, y in zip(predicted, e, strict=True))
                distances.append(1 - product / (math.hypot(*predicted) * math.hypot(*e)))
    expected = sum(distances) / len(distances)
    found = [_validated(model, PAIRS, tokens, size) for tokens, size in ((1, 1), (8, 1), (12, 2), (1000, 1), (7, 3))]
    assert [f["cosine_loss"] for f in found] == pytest.approx([expected] * 5, abs=1e-12)
    assert {f["tokens"] for f in found} == {len(distances)}
    if loss == "cosine":
        assert found[0]["loss"] == pytest.approx(expected, abs=1e-12)


def test_a_softmax_has_no_cosine_loss() -> None:
    parts = {"encoder": {"layers": 1}, "decoder": {"layers": 1}}
    config = ModelConfig.model_validate({"width": 8, "heads": 2, "ffn_width": 8, **parts})
    assert "cosine_loss" not in _validated(build_model(config, 9, 9).eval(), PAIRS, 8, 1)


@pytest.mark.parametrize("phrases", [False, True])
def test_long_lines_of_validation_are_cropped(phrases: bool) -> None:
    """The batch of a line of 12,000 subwords is that of its first ones: memory is bounded by the recipe."""

    class OneSplit:
        def batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
            source = np.full((2, 12_000), 5, np.int64)
            return source, np.array([12_000, 3]), np.full((2, 7), 6, np.int64), np.array([2, 7])

        def phrase_sizes(self, indices: np.ndarray) -> np.ndarray:
            return np.array([[8, 11_000, 993], [4, 0, 0]], np.int64)

    split: Any = OneSplit()
    batch = batches_of(split, torch.device("cpu"), phrases=phrases, longest=10)(np.arange(2))
    assert batch.source_BS.shape == (2, 11) and batch.source_lengths_B.tolist() == [11, 4]
    assert batch.source_BS[0, 10] == EOS and batch.target_lengths_B.tolist() == [3, 8]
    if phrases:
        assert batch.phrase_sizes_BP is not None and batch.phrase_sizes_BP.tolist() == [[8, 2, 1], [4, 0, 0]]
