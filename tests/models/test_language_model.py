"""The language model: nothing of the future is seen, steps equal the whole, and the sums are those of the definition."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom.config import validate
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.limits import Limits, SearchOptions
from phraseloom.decoding.search import search
from phraseloom.errors import ConfigError, ModelError
from phraseloom.models.build import build_language_model
from phraseloom.models.language_model import LanguageModel
from phraseloom.models.store import find_task, load_language_model, load_model, save_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.text.vocabulary import BOS, EOS

ATTENTIONS = [
    "token",
    "relative",
    "convkv homogeneous 22",
    "queryk heterogeneous 1-2-3",
    "queryk-relative heterogeneous 1-2",
    "queryk interleaved 1-2",
    "convkv interleaved 1-2",
]
LINES = [[5, 9, 11, 4, 7], [], [8, 8], [6, 10, 12, 5, 9, 4, 4, 11, 7], [13]]


def config(**keys: Any) -> LanguageModelConfig:
    sizes = {"width": 16, "heads": 4, "ffn_width": 24, "decoder": {"layers": 2}}
    return LanguageModelConfig.model_validate({**sizes, **keys})


def model(**keys: Any) -> LanguageModel:
    torch.manual_seed(5)
    made = build_language_model(config(**keys), 14).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5)
    return made


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_future_is_not_seen(attention: str) -> None:
    made = model(attention=attention)
    ids = torch.tensor([[BOS, 5, 9, 11, 4, 7, 6], [BOS, 5, 9, 11, 12, 8, 8]])
    with torch.no_grad():
        hidden = made.decode(ids).hidden
    torch.testing.assert_close(hidden[0, :4], hidden[1, :4], rtol=0, atol=1e-12)
    assert (hidden[0, 4:] - hidden[1, 4:]).abs().amax(-1).min() > 1e-4
    for weights, structure in made.attention_maps(ids).decoder_self:
        first = structure.split(weights)[:, :, 0]  # the queries of one token: (B, H, Q, G, K)
        assert first.transpose(2, 3).triu(1).abs().max() == 0  # slots are named by their last token


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_steps_equal_the_whole_also_when_rows_move(attention: str) -> None:
    made = model(attention=attention)
    ids = torch.tensor([[BOS, 5, 9, 11, 4, 7], [BOS, 8, 8, 6, 12, 12], [BOS, 13, 4, 5, 6, 7]])
    with torch.no_grad():
        whole = made.decode(ids).hidden
        state = made.start(4, beam=1, max_length=2)
        rows = torch.tensor([1, 0, 1, 2])
        for step in range(ids.shape[1]):
            if step == 1:  # one is done at once
                state.keep(torch.tensor([1, 2, 3]))
                rows = rows[1:]
            if step == 2:  # the beams of each line change places
                state.expand(2)
                rows = rows.repeat_interleave(2)
            if step == 3:
                state.keep(torch.tensor([2, 0]))
                rows = rows.view(3, 2)[[2, 0]].flatten()
            if step == 4:
                state.reorder(torch.tensor([1, 1, 3, 2]))
            hidden, nothing, _ = made.step(ids[rows, step], state)
            assert nothing == []
            assert torch.allclose(hidden, whole[rows, step], atol=1e-10), step


@torch.no_grad()
def test_sums_are_those_of_the_definition() -> None:
    made = model(attention="queryk heterogeneous 1-2")
    expected = []
    for line in LINES:  # one line at a time, one softmax a token
        log_probs = []
        for t, token in enumerate([*line, EOS]):
            hidden = made.decode(torch.tensor([[BOS, *line[:t]]])).hidden[0, -1]
            logits = hidden @ made.output.weight.T
            log_probs.append(float(logits[token] - torch.logsumexp(logits, 0)))
        expected.append(log_probs)
    batch = make_batch([[] for _ in LINES], LINES)
    scores = made.score(batch).tolist()
    for row, found, line in zip(expected, scores, LINES, strict=True):
        assert found[: len(row)] == pytest.approx(row, abs=1e-9)
        assert found[len(line) + 1 :] == [0.0] * (len(found) - len(line) - 1)
    sums = made.loss(batch)
    assert sums.tokens == sum(map(len, expected)) == 22
    assert float(sums.nll) == pytest.approx(-math.fsum(x for row in expected for x in row), abs=1e-8)
    assert float(sums.objective) == pytest.approx(float(sums.nll), abs=1e-8)  # no label smoothing unless asked for
    smoothed = model(attention="queryk heterogeneous 1-2", output={"label_smoothing": 0.2}).loss(batch)
    assert float(smoothed.objective) > float(sums.nll) + 0.1


@torch.no_grad()
def test_search_takes_it_as_it_is() -> None:
    """Beam and greedy search of the translation models, with a number of lines in place of a memory."""
    made = model(attention="queryk interleaved 1-2").float()
    limits = Limits.of([6, 6, 6], prefixes=[[], [5, 9], [8]])
    greedy = search(made, 3, limits, SearchOptions(beam=1))
    beam = search(made, 3, limits, SearchOptions(beam=4, n_best=2))
    assert greedy[1][0].tokens[:2] == [5, 9] and greedy[2][0].tokens[:1] == [8]
    for some in (*greedy, *beam):
        for hypothesis in some:
            score = made.score(make_batch([[]], [hypothesis.tokens])).sum()
            assert float(score) == pytest.approx(hypothesis.log_prob, abs=1e-4)
    assert all(b[0].log_prob >= g[0].log_prob - 1e-4 for b, g in zip(beam, greedy, strict=True))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"encoder": {"layers": 2}}, "encoder has no meaning in a language model"),
        ({"attention": {"cross": "token"}}, "cross has no meaning"),
        ({"attention": {"encoder_self": "token", "decoder_self": "token"}}, "encoder_self has no meaning"),
        ({"tied": "three_way"}, "three_way needs a source"),
        ({"width": 10, "heads": 4}, "width 10 is not a multiple of heads 4"),
        ({"attention": "convkv homogeneous 44"}, "split 4-4 does not divide 4 heads"),
        ({"widht": 8}, "did you mean width"),
    ],
)
def test_what_a_language_model_has_not_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(LanguageModelConfig, {"heads": 4, "width": 16, **keys})


def test_presets_leave_the_encoder_out() -> None:
    small = LanguageModelConfig.model_validate({"preset": "small", "decoder": {"kind": "transformer"}})
    assert (small.width, small.heads, small.decoder.layers) == (256, 4, 3)
    assert "encoder" not in small.model_dump() and small.output.label_smoothing == 0.0
    assert LanguageModelConfig.model_validate(small.model_dump(mode="json")) == small
    tied, untied = (build_language_model(config(tied=t), 14) for t in ("two_way", "none"))
    numbers = [sum(p.numel() for p in m.parameters()) for m in (tied, untied)]
    assert numbers[1] - numbers[0] == 14 * 16


def test_the_folder_knows_its_task(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "text")
    size = len(tokenizer.target.vocabulary)
    keys = config(attention="queryk heterogeneous 1-2")
    made = build_language_model(keys, size).eval()
    save_model(tmp_path / "m", made, keys, tokenizer, languages=("en", "en"), generation={"max_tokens": 3})
    raw = json.loads((tmp_path / "m" / "config.json").read_bytes())
    assert raw["task"] == find_task(tmp_path / "m") == "language_model"
    assert raw["languages"] == {"text": "en"} and raw["vocabularies"]["text"]["size"] == size
    assert "Language model en" in (tmp_path / "m" / "README.md").read_bytes().decode()
    loaded, _, generation = load_language_model(tmp_path / "m")
    assert generation == {"max_tokens": 3}
    batch = make_batch([[], []], [[5, 6, 7], [8]])
    assert torch.equal(loaded.score(batch), made.score(batch))
    with pytest.raises(
        ModelError,
        match="is a language model, where a translation model is needed; phraseloom generate and score",
    ):
        load_model(tmp_path / "m")


def test_models_of_before_are_translations(root: Path) -> None:
    folder = root / "tests" / "golden" / "model_format_1" / "model"
    assert "task" not in json.loads((folder / "config.json").read_bytes())
    assert find_task(folder) == "translation"
    load_model(folder)
    with pytest.raises(ModelError, match="is a translation model, not a language model; use phraseloom translate"):
        load_language_model(folder)
