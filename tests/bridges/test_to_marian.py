"""Models as MarianMT folders: transformers loads them by name and writes our outputs; what cannot go is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bridges import marian
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.bridges.exported import read_plain
from phraseloom.bridges.from_marian import import_marian
from phraseloom.bridges.to_marian import _tensors, export_marian
from phraseloom.cli.main import run
from phraseloom.config import validate
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ModelError
from phraseloom.models.store import change_generation, load_model, save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.extension import add_tags
from phraseloom.text.tokenizer import Tokenizer

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


def test_an_imported_model_is_exported_and_imported_again(tmp_path: Path) -> None:
    """Its start token is excluded from the output, which the export writes as a bias of -inf."""
    marian.need_transformers()
    theirs = marian.write_folder(tmp_path / "theirs")
    import_marian(theirs, tmp_path / "ours")
    change_generation(tmp_path / "ours", {"unknown": "forbid"})
    export_marian(tmp_path / "ours", tmp_path / "exported")
    assert import_marian(tmp_path / "exported", tmp_path / "again").notes == ()
    translators = [Translator.from_pretrained(tmp_path / name) for name in ("ours", "again")]
    first, second = (translator.translate([source for source, _ in marian.world()[:20]]) for translator in translators)
    assert [t.tokens for t in first] == [t.tokens for t in second]
    assert [t.log_prob for t in first] == pytest.approx([t.log_prob for t in second], abs=1e-4)
    assert translators[1].config.unknown == "forbid"


def test_settings_of_the_search_go_or_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, theirs = random_model(tmp_path / "model"), tmp_path / "theirs"

    def convert(**options: Any) -> tuple[dict[str, Any], list[str]]:
        change_generation(path, options)
        assert run(["convert", "to-marian", str(path), str(theirs), "--overwrite"]) == 0
        return json.loads((theirs / "generation_config.json").read_bytes()), capsys.readouterr().err.splitlines()

    begin = "left out, as there is no such setting: "
    written, notes = convert()
    assert (written["min_length"], written["no_repeat_ngram_size"]) == (2, 0)
    assert notes == [
        f"{begin}length_penalty: {{'kind': 'wu', 'alpha': 0.6}}", f"{begin}stop: finished", f"{begin}max_length: 2,20",
    ]  # fmt: skip
    same = {"length_penalty": {"kind": "none"}, "stop": "transformers", "max_length": {"constant": 30}}
    written, notes = convert(**same, min_length={"constant": 4}, no_repeat_ngram_size=3)
    assert notes == []
    expected = {"min_length": 5, "max_length": 32, "no_repeat_ngram_size": 3, "length_penalty": 0.0}
    assert {name: written[name] for name in expected} == expected
    import_marian(theirs, tmp_path / "again")
    again = json.loads((tmp_path / "again/generation_config.json").read_bytes())
    assert again["min_length"] == {"factor": 0.0, "constant": 4} and again["no_repeat_ngram_size"] == 3
    written, notes = convert(sample=True, n_best=2, min_length={"factor": 0.5, "constant": 2}, unknown="replace")
    assert written["min_length"] == 0
    assert notes == [f"{begin}{it}" for it in ("n_best: 2", "sample: True", "min_length: 0.5,2", "unknown: replace")]


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layers.0.feed_forward.up.weight",
        "encoder.layers.0.attention.bias",
        "decoder.layers.1.feed_forward.down.bias",
    ],
)
def test_a_missing_parameter_is_no_zero(name: str, tmp_path: Path) -> None:
    source = read_plain(random_model(tmp_path / "model", attention_bias=True), "MarianMT")
    module, _, parameter = name.rpartition(".")
    setattr(source.model.get_submodule(module), parameter, None)
    with pytest.raises(ModelError, match=rf"parameter {name} is missing, and MarianMT cannot do without it"):
        _tensors(source)


def test_a_parameter_without_a_place_is_refused(tmp_path: Path) -> None:
    source = read_plain(random_model(tmp_path / "model"), "MarianMT")
    source.model.encoder.register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ModelError, match=r"parameter encoder.scale has no place in MarianMT"):
        _tensors(source)


def test_a_model_with_tags_is_refused(tmp_path: Path) -> None:
    subwords = add_tags(tiny_tokenizer(tmp_path / "tokenizer").source.subwords, ["<2de>", "<2fr>"])
    tokenizer = Tokenizer(TextConfig(), "en", "de", subwords, subwords, tags=["<2de>", "<2fr>"])
    config = validate(ModelConfig, {"preset": "tiny", "norm": "post"})
    save_model(tmp_path / "model", build(config, tokenizer), config, tokenizer)
    with pytest.raises(ModelError, match=r"a source with tags \(<2de>, <2fr>\), which MarianMT cannot compute"):
        export_marian(tmp_path / "model", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "pre"}, "norm: pre, which MarianMT cannot compute; export to CTranslate2, or train with norm: post"),
        (
            {"attention": "convkv heterogeneous 1-2"},
            "attention.encoder_self is convkv heterogeneous, which MarianMT cannot",
        ),
        ({"tied": "two_way"}, "tied: two_way or two vocabularies, which MarianMT cannot compute"),
        (
            {"attention": "token interleaved 1", "feed_forward": "interleaved"},
            "feed_forward: interleaved, which MarianMT cannot compute",
        ),
        ({"positions": {"kind": "sinusoid", "layout": "t2t"}}, "positions.source in the layout t2t, which MarianMT"),
    ],
)
def test_what_cannot_go_is_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        export_marian(random_model(tmp_path / "model", **options), tmp_path / "theirs")
    assert message in str(caught.value) and not (tmp_path / "theirs").exists()
