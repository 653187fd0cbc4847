"""Precision, recall and F1 of fertility: by hand, over tokens alone, the same in any batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.analysis.explain_kinds import CONTINUOUS, joined_tokenizer
from tests.helpers import tagged_tokenizer
from tests.training import fertility_net as net
from torch import Tensor

from phraseloom.analysis.fertility import (
    ClassScore,
    FertilityScore,
    at_recall,
    break_even,
    calibration_of,
    evaluate_fertility,
    score,
    scores_of,
)
from phraseloom.data.tensors import make_batch
from phraseloom.errors import DataError, ModelError
from phraseloom.layers.fertility import Fertility
from phraseloom.losses.fertility import CLASS_WEIGHTS
from phraseloom.models import tasks
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.training import fertility_data
from phraseloom.training.fertility_data import LabelledText

CPU = torch.device("cpu")


def test_scores_by_hand() -> None:
    confusion = np.array([[5, 1, 0], [2, 0, 0], [1, 0, 3]])
    found = scores_of(confusion, ("a", "b", "c"))
    assert found == {"a": ClassScore(6, 8, 5), "b": ClassScore(2, 1, 0), "c": ClassScore(4, 3, 3)}
    assert (found["a"].precision, found["a"].recall, found["a"].f1) == (5 / 8, 5 / 6, pytest.approx(10 / 14))
    assert (found["b"].precision, found["b"].recall, found["b"].f1) == (0.0, 0.0, 0.0)
    assert (found["c"].precision, found["c"].recall, found["c"].f1) == (1.0, 0.75, pytest.approx(6 / 7))


def test_nothing_predicted_and_nothing_there() -> None:
    for one in (ClassScore(0, 0, 0), ClassScore(3, 0, 0), ClassScore(0, 3, 0)):
        assert (one.precision, one.recall, one.f1) == (0.0, 0.0, 0.0)


def test_as_plain_data() -> None:
    whole = FertilityScore(np.array([[3, 1], [0, 4]]), np.array([[3, 1], [0, 4]]), 0.5, 2)
    assert whole.tokens == 8
    assert whole.accuracy == 7 / 8
    data = whole.as_dict()
    assert data["classes"]["0-1"] == {
        "precision": 1.0,
        "recall": 0.75,
        "f1": pytest.approx(6 / 7),
        "total": 4,
        "predicted": 3,
        "right": 3,
    }
    assert list(data["classes"]) == ["0-1", "2+"]
    assert list(data["gate"]) == ["word", "phrase"]
    assert data["confusion"] == [[3, 1], [0, 4]]


class Known:
    """A model whose states are the logits of a table by id; what lies on EOS and padding would be class 3."""

    def __init__(self, table_VC: Tensor) -> None:
        self.table = table_VC

    def source_states(self, source_BS: Tensor, lengths_B: Tensor, phrases: Any) -> tuple[Tensor, Tensor]:
        """No embeddings, and states."""
        return self.table[source_BS][..., :0], self.table[source_BS]


def identity(classes: int) -> Fertility:
    one = Fertility(0, classes, classes, "states", ())
    with torch.no_grad():
        linear: Any = one.maps[0]
        linear.weight.copy_(torch.eye(classes))
        linear.bias.zero_()
    return one


@pytest.mark.parametrize("classes", [4, 2])
@pytest.mark.parametrize("sentences", [1, 3, 256])
def test_counts_are_those_of_a_loop(classes: int, sentences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fertility_data, "BATCH_SENTENCES", sentences)
    random = np.random.default_rng(4)
    torch.manual_seed(4)
    table = torch.randn(12, classes)
    table[:4] = torch.tensor([-9.0] * (classes - 1) + [9.0])
    lengths = random.integers(1, 7, 20)
    ids, labels = random.integers(4, 12, lengths.sum()), random.integers(0, classes, lengths.sum())
    text = LabelledText(ids.astype(np.int32), labels.astype(np.int8), np.concatenate([[0], lengths.cumsum()]))
    found = score(Known(table), identity(classes), text, device=CPU)
    pairs = Counter((int(y), int(table[i].argmax())) for i, y in zip(ids, labels, strict=True))
    assert {(a, b): int(found.confusion_CC[a, b]) for a in range(classes) for b in range(classes)} == {
        (a, b): pairs[a, b] for a in range(classes) for b in range(classes)
    }
    bound = classes // 2
    share = table.softmax(-1)[:, :bound].sum(-1)
    gate = Counter((int(y >= bound), int(share[i] < 0.5)) for i, y in zip(ids, labels, strict=True))
    assert {(a, b): int(found.gate_22[a, b]) for a in (0, 1) for b in (0, 1)} == {
        (a, b): gate[a, b] for a in (0, 1) for b in (0, 1)
    }
    weights = torch.tensor(CLASS_WEIGHTS[classes])
    expected = torch.nn.functional.cross_entropy(table[ids], torch.from_numpy(labels), weights)
    assert found.loss == pytest.approx(expected.item(), rel=1e-5)
    assert (found.tokens, found.sentences) == (len(ids), 20)


def test_the_gate_is_not_the_likeliest_class() -> None:
    table = torch.zeros(6, 4)
    table[5] = torch.tensor([0.3, 0.3, 0.4, 0.0]).clamp(min=1e-9).log()  # likeliest: 2 words; yet a word is likelier
    text = LabelledText(np.array([5], np.int32), np.array([1], np.int8), np.array([0, 1]))
    found = score(Known(table), identity(4), text, device=CPU)
    assert found.confusion_CC[1, 2] == 1
    assert found.gate_22[0, 0] == 1


def test_a_model_without_the_module(tmp_path: Path) -> None:
    net.saved(tmp_path / "net")
    net.written(tmp_path, s=["an"], l=["1"])
    with pytest.raises(ModelError, match="no fertility module; phraseloom fertility train gives it one"):
        evaluate_fertility(tmp_path / "net", tmp_path / "s", tmp_path / "l")


def test_files_and_classes_of_the_model(tmp_path: Path) -> None:
    module = {"classes": 2, "widths": [3]}
    net.saved(tmp_path / "net", {**net.OUTPUT, "fertility": module})
    net.written(tmp_path, s=["an Haus", "Hochschule", "an an an"], l=["1 0", "4", "1 1 1"])
    lines: list[str] = []
    arguments = (tmp_path / "net", tmp_path / "s", tmp_path / "l")
    found = evaluate_fertility(*arguments, max_tokens=2, report=lines.append)
    assert {name: s.total for name, s in found.classes.items()} == {"0-1": 2, "2+": 1}
    assert lines == [f"{tmp_path / 's'}: 1 line left out of more than 2 tokens"]
    with pytest.raises(DataError, match="no line of it can be used"):
        evaluate_fertility(tmp_path / "net", *(tmp_path / n for n in ("s", "l")), max_tokens=0, report=lines.append)


def test_a_model_reads_its_tags(tmp_path: Path) -> None:
    """The gate is measured as it decodes; tags themselves are no items."""
    tags, joined = tagged_tokenizer("<2de>", "<2fr>"), joined_tokenizer()
    sides = tags.source.subwords, joined.target.subwords
    tokenizer = Tokenizer(TextConfig(), "de", "en", *sides, tags=("<2de>", "<2fr>"))
    config = ModelConfig.model_validate(CONTINUOUS["gate"])
    torch.manual_seed(0)
    model = tasks.build(config, tokenizer).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    save_model(tmp_path / "net", model, config, tokenizer, generation={"tags": ["<2de>"]})
    net.written(tmp_path, s=["the old man sleeps .", "a cow"], l=["1 0 2 1 1", "2 1"])
    arguments, said = (tmp_path / "net", tmp_path / "s", tmp_path / "l"), list[str]()
    text = fertility_data.read_sentences(tokenizer.source, *arguments[1:], classes=4, max_tokens=99)
    for chosen, prefix in ((None, ["<2de>"]), (["<2fr>"], ["<2fr>"]), ([], [])):
        found = evaluate_fertility(*arguments, tags=chosen, report=said.append)
        nll = 0.0
        for i, line in enumerate(("the old man sleeps .", "a cow")):
            ids = tokenizer.source.encode(line)
            batch = make_batch([[*tokenizer.tag_ids(prefix), *ids]], [[]])
            with torch.inference_mode():
                states = model.source_states(batch.source_BS, batch.source_lengths_B, None)
                logits_SC = model.fertility.calibrate(model.fertility.classify(model.fertility.join(*states)))[0]
            own = text.labels[text.bounds[i] : text.bounds[i + 1]].astype(np.int64)
            log_p_SC = logits_SC[len(prefix) : len(prefix) + len(ids)].log_softmax(-1)
            nll -= float(log_p_SC[torch.arange(len(ids)), torch.from_numpy(own)].sum())
        assert found.nll == pytest.approx(nll / len(text.labels), rel=1e-5)
    assert said == ["warning: no --tag is given; the tags of this model are <2de>, <2fr>"]
    kept = np.arange(len(text.labels))
    tagged = fertility_data.read_sentences(
        tokenizer.source, *arguments[1:], classes=4, max_tokens=99, tags=tokenizer.tag_ids(["<2de>"])
    )
    room = fertility_data.Room(1 << 20, tmp_path)
    items = [fertility_data.read_items(model, model.fertility, t, kept, room, device=CPU) for t in (text, tagged)]
    assert torch.equal(items[0].labels_N, items[1].labels_N) and not torch.equal(items[0].inputs_NI, items[1].inputs_NI)


def test_reliability_and_break_even_by_hand() -> None:
    probability = np.array([0.001, 0.004, 0.005, 0.55, 0.59, 1.0])
    is_phrase = np.array([False, True, False, True, False, True])
    found = calibration_of(probability, is_phrase)
    told = found.as_dict()
    assert [(b["from"], b["to"], b["tokens"]) for b in told["bins"]] == [
        (0.0, 0.005, 2), (0.005, 0.01, 1), (0.5, 0.6, 2), (0.9, 1.0, 1),
    ]  # fmt: skip
    assert [b["probability"] for b in told["bins"]] == pytest.approx([0.0025, 0.005, 0.57, 1.0])
    assert [b["share"] for b in told["bins"]] == [0.5, 0.0, 0.5, 1.0]
    assert found.error == pytest.approx((2 * 0.4975 + 0.005 + 2 * 0.07 + 0.0) / 6)
    assert told["mean"] == pytest.approx(probability.mean())
    assert break_even(probability, is_phrase) == ClassScore(3, 3, 2)


def test_precision_at_a_recall_by_hand() -> None:
    """The likeliest tokens first, and the earlier of two; 2 of 3 phrases take the first four tokens."""
    probability = np.array([0.2, 0.9, 0.5, 0.5, 0.6, 0.1])
    is_phrase = np.array([False, True, False, True, False, True])
    assert [at_recall(probability, is_phrase, share) for share in (0.0, 0.28, 0.6, 1.0)] == [
        ClassScore(3, 0, 0), ClassScore(3, 1, 1), ClassScore(3, 4, 2), ClassScore(3, 6, 3),
    ]  # fmt: skip
    assert at_recall(probability, np.zeros(6, bool), 0.28) == ClassScore(0, 0, 0)


def test_both_working_points() -> None:
    """Logits that favour phrases by a factor of 9 in the odds, and the shift that takes it off."""
    table = torch.zeros(8, 2)
    for token, p in ((4, 0.05), (5, 0.2), (6, 0.6)):
        table[token] = torch.tensor([1 - p, 9 * p]).log()
    fertility = identity(2)
    fertility.set_shift((0.0, float(np.log(9))))
    ids, labels = [4] * 20 + [5] * 10 + [6] * 5, [1] + [0] * 19 + [1] * 2 + [0] * 8 + [1] * 3 + [0] * 2
    text = LabelledText(np.array(ids, np.int32), np.array(labels, np.int8), np.array([0, 35]))
    found = score(Known(table), fertility, text, device=CPU)
    assert found.gate["phrase"] == ClassScore(6, 5, 3)
    assert found.as_trained["gate"]["phrase"] == ClassScore(6, 15, 5)  # 0.2 is a phrase: 9 · 0.2 / 0.8 > 1
    assert found.as_trained["classes"]["2+"] == ClassScore(6, 15, 5)
    assert found.calibration is not None and found.calibration.error == pytest.approx(0.0, abs=1e-6)
    assert found.break_even == ClassScore(6, 6, 4)
    p = torch.tensor([0.05] * 20 + [0.2] * 10 + [0.6] * 5, dtype=torch.float64)
    of_true = torch.where(torch.tensor(labels) == 1, p, 1 - p)
    assert found.nll == pytest.approx(float(-of_true.log().mean()), rel=1e-5)
