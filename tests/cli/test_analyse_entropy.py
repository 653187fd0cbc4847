"""`phraseloom analyse entropy`: tables, JSON and pictures of several small models, and what a user can get wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.analysis.entropy import attention_entropy
from phraseloom.decoding.translator import Translator
from phraseloom.errors import plural
from phraseloom.metrics.ratio import plain
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.segmenters import TreeSegmenter

from .conftest import Command

SIZES = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 2}}
RECURRENT = {"kind": "recurrent", "layers": 1, "cell": "lstm"}
MODELS: dict[str, dict[str, Any]] = {
    "token": {},
    "slots": {"attention": "queryk heterogeneous 1-2", "decoder": {"layers": 3}},
    "recurrent": {"encoder": {"kind": "none"}, "decoder": {**RECURRENT, "attention": "mlp"}},
    "fixed": {"decoder": {**RECURRENT, "attention": "fixed"}},
    "trees": {"phrases": {"segments": {"kind": "dataset"}}},
}
TREES = ["(S (DT the) (X (JJ old) (NN man)) (VP (VBZ sleeps) (. .)))", *[""] * 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, four sources and a blank one `s`, their translations `t`, and trees `trees`."""
    out = tmp_path_factory.mktemp("entropy")
    texts = {"s": [*LINES, ""], "t": [*reversed(LINES), "a"], "short": ["a"], "empty": [], "trees.txt": TREES}
    texts["broken"] = [*TREES[:2], "(S (DT a))", *TREES[3:]]
    for name, lines in texts.items():
        (out / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    tokenizer = tiny_tokenizer(out / "tokenizer")
    size = len(tokenizer.source.vocabulary)
    for name, variant in MODELS.items():
        torch.manual_seed(3)
        config = ModelConfig.model_validate({**SIZES, **variant})
        model = build_model(config, size, size)
        segmenter = TreeSegmenter(max_tokens=4, min_chunks=1, floor=1) if name == "trees" else None
        limits = {"max_length": {"constant": 4}}
        save_model(out / name, model, config, tokenizer, generation=limits, segmenter=segmenter)
    return out


@pytest.fixture
def entropy(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`phraseloom analyse entropy` in the folder of the models."""
    monkeypatch.chdir(folder)
    return lambda *arguments: command("analyse", "entropy", *arguments)


def rows(text: str) -> list[list[str]]:
    header, _, *some = text.rstrip("\n").split("\n")
    return [header.split(), *(row.split() for row in some)]


def test_the_table_of_a_given_translation(entropy: Any, folder: Path) -> None:
    done = entropy("token", "-s", "s", "-t", "t")
    assert done.code == 0
    assert done.err == "phraseloom analyse: warning: token: 1 line with a blank side: left out\n"
    header, row = rows(done.out)
    assert header == ["model", "steps", "1", "2", "all", "uniform"]
    found = attention_entropy(Translator.from_pretrained(folder / "token"), LINES, list(reversed(LINES)))
    means = [*found.tokens.layers, found.tokens.whole, found.tokens.uniform]
    assert row == ["token", str(found.steps), *(f"{m.steps:.3f}" for m in means)]
    _, row = rows(entropy("token", "-s", "s", "-t", "t", "--mean", "sentences").out)
    assert row[2:] == [f"{m.sentences:.3f}" for m in means]
    assert means[-1].steps != pytest.approx(means[-1].sentences, abs=1e-3)


def test_several_models_on_their_own_translations(entropy: Any, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.json"
    done = entropy("token", "slots", "recurrent", "-s", "s", "--json", out, "--plot", tmp_path / "out.svg")
    assert done.code == 0
    found = {
        n: attention_entropy(Translator.from_pretrained(folder / n), [*LINES, ""]) for n in MODELS if n in done.out
    }
    assert list(found) == ["token", "slots", "recurrent"]
    warnings = [f"{name}: 1 line with a blank side" for name in found]
    unfinished = {name: plural(f.unfinished, "translation") for name, f in found.items() if f.unfinished}
    warnings += [f"{name}: {number} as long as allowed: the limit ended it" for name, number in unfinished.items()]
    assert len(warnings) > 3
    assert len(done.err.splitlines()) == len(warnings)
    assert all(f"phraseloom analyse: warning: {text}" in done.err for text in warnings)
    header, *lines = rows(done.out)
    assert header == ["model", "over", "steps", "1", "2", "3", "all", "uniform"]
    for line, (name, over) in zip(
        lines, [("token", "tokens"), ("slots", "tokens"), ("slots", "slots"), ("recurrent", "tokens")], strict=True
    ):
        reading = getattr(found[name], over)
        means = [*reading.layers, reading.whole, reading.uniform]
        assert line == [name, over, str(found[name].steps), *(f"{m.steps:.3f}" for m in means)]
    report = json.loads(out.read_text())
    assert (report["source"], report["target"], report["unit"]) == ("s", None, "nats")
    assert [s["model"] for s in report["systems"]] == ["token", "slots", "recurrent"]
    for of_model in report["systems"]:
        assert of_model == {"model": of_model["model"], **plain(asdict(found[of_model["model"]]))}
    assert (report["systems"][0]["own"], report["systems"][0]["slots"]) == (True, None)
    picture = (tmp_path / "out.svg").read_text()
    for text in ("token<", "recurrent<", "uniform<", "all<", "4 sentences", "each model's own translations"):
        assert text.replace("'", "&#x27;") in picture or text in picture, text


def test_trees(entropy: Any) -> None:
    done = entropy("trees", "token", "-s", "s", "-t", "t", "--trees", "trees.txt")
    assert done.code == 0
    with_tree = rows(done.out)
    done = entropy("token", "-s", "s", "-t", "t", "--trees", "trees.txt")
    assert "--trees has no effect" in done.err
    assert rows(done.out)[1] == with_tree[2]
    done = entropy("trees", "-s", "s", "--trees", "broken")
    assert done.code == 1
    assert done.err.startswith("phraseloom analyse: broken:3: ")
    done = entropy("token", "trees", "-s", "s")
    assert done.code == 2
    assert done.is_one_line_of("analyse")
    assert "trees" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fixed", "-s", "s"], 1, "attends to no source tokens"),
        (["token", "fixed", "-s", "s"], 1, "attends to no source tokens"),
        (["nothing", "-s", "s"], 1, "nothing"),
        (["token", "-s", "nothing"], 1, "nothing"),
        (["token", "-s", "s", "-t", "short"], 1, "short has 1 line"),
        (["token", "-s", "empty"], 1, "empty has no lines"),
        (["token", "token", "-s", "s"], 2, "token is given twice"),
        (["token"], 2, "--source"),
        (["token", "-s", "s", "--json", "."], 1, "this is a folder"),
        (["token", "-s", "s", "--plot", "x.txt"], 2, "x.txt"),
        ([*"abcdefgh", "-s", "s", "--plot", "x.png"], 2, "8 systems are too many for one picture"),
        (["token", "-s", "s", "--mean", "words"], 2, "words"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(
    entropy: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr("phraseloom.decoding.translator.Translator.translate", None)
    done = entropy(*arguments)
    assert done.code == code, done.err
    assert done.is_one_line_of("analyse")
    assert message in done.err


def test_nothing_to_look_at(entropy: Any, tmp_path: Path) -> None:
    (tmp_path / "blank").write_bytes(b"\n \n")
    done = entropy("token", "-s", tmp_path / "blank")
    assert (done.code, done.out) == (1, "")
    assert "no line has text on every side" in done.err
