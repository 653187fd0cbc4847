"""Models as MarianMT folders: transformers loads them by name and writes our outputs; what cannot go is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bridges import marian
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.bridges.from_marian import import_marian
from phraseloom.bridges.to_marian import export_marian
from phraseloom.config import validate
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ModelError
from phraseloom.models.store import load_model, save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def random_model(folder: Path, **options: Any) -> Path:
    tokenizer = tiny_tokenizer(folder.parent / f"{folder.name}.tokenizer")
    config = validate(ModelConfig, {"preset": "tiny", "norm": "post", **options})
    torch.manual_seed(5)
    model = build(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    save_model(folder, model, config, tokenizer)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "attention_bias": True,
            "activation": "gelu",
            "norm_epsilon": 1e-5,
            "output": {"bias": True},
            "scale_embeddings": False,
        },
    ],
    ids=["usual", "biases"],
)
def test_outputs_are_ours(options: dict[str, Any], tmp_path: Path) -> None:
    marian.need_transformers()
    from transformers import AutoTokenizer, MarianMTModel

    path = random_model(tmp_path / "model", **options)
    export_marian(path, tmp_path / "theirs")
    model = MarianMTModel.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    rules = {
        "stop": "transformers",
        "length_penalty": {"kind": "sockeye", "alpha": 1.0, "beta": 0.0},
        "min_length": {"constant": 0},
    }
    ours = Translator.from_pretrained(path, max_length={"constant": 18}, **rules)
    batch = tokenizer(LINES, return_tensors="pt", padding=True)
    assert [row[:-1] for row in tokenizer(LINES).input_ids] == ours.tokenizer.source.encode_batch(LINES)
    for beams in (1, 5):
        with torch.inference_mode():
            rows = model.generate(**batch, num_beams=beams, max_length=20)
        expected = [[i for i in row if i > 3] for row in rows.tolist()]
        result = ours.translate(LINES, beam=beams)
        assert [ours.tokenizer.target.vocabulary.ids(t.tokens) for t in result] == expected
        assert [t.text for t in result] == tokenizer.batch_decode(rows, skip_special_tokens=True)


def test_there_and_back_are_the_same_parameters(tmp_path: Path) -> None:
    path = random_model(
        tmp_path / "model", attention_bias=True, norm_epsilon=1e-5, output={"bias": True, "smoothing": "kl"}
    )
    export_marian(path, tmp_path / "theirs")
    import_marian(tmp_path / "theirs", tmp_path / "again")
    before, after = load_model(path)[0], load_model(tmp_path / "again")[0]
    again = dict(after.named_parameters())
    for name, parameter in before.named_parameters():
        assert torch.equal(parameter, again[name]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "pre"}, "norm: pre, which MarianMT cannot compute; export to CTranslate2, or train with norm: post"),
        (
            {"attention": "convkv heterogeneous 1-2"},
            "attention.encoder_self is convkv heterogeneous, which MarianMT cannot",
        ),
        ({"tied": "two_way"}, "tied: two_way or two vocabularies, which MarianMT cannot compute"),
        ({"positions": {"kind": "sinusoid", "layout": "t2t"}}, "positions.source in the layout t2t, which MarianMT"),
    ],
)
def test_what_cannot_go_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        export_marian(random_model(tmp_path / "model", **options), tmp_path / "theirs")
    assert message in str(caught.value) and not (tmp_path / "theirs").exists()
