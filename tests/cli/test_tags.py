"""`--tag` of the commands that run a model, and their warning without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command
from tests.helpers import bpe_tokenizer, tagged_tokenizer

from phraseloom.models.store import save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig
from phraseloom.text.vocabulary import EOS

WARNING = "warning: no --tag is given; the tags of this model are <2de>, <2fr>"
PAIR = ("-s", "s", "-t", "t")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with two tags, one that writes tokens (`m`) and one that writes segments (`npmt`)."""
    folder, tokenizer = tmp_path_factory.mktemp("tags"), tagged_tokenizer("<2de>", "<2fr>")
    sizes = {"width": 16, "heads": 2, "ffn_width": 16, "tied": "none", "init": "xavier_uniform"}
    layers = {"encoder": {"layers": 1}, "decoder": {"layers": 2}, "output": {"bias": True}}
    segmental = {
        "encoder": {"kind": "columns", "layers": 1},
        "decoder": {"kind": "segmental", "layers": 1, "max_segment": 8},
    }
    phrases = {**layers, "phrases": {}}
    for name, parts in (("m", {**layers, "attention": "queryk interleaved 1-2"}), ("npmt", segmental), ("p", phrases)):
        torch.manual_seed(3)
        config = ModelConfig.model_validate({**sizes, **parts})
        model = build(config, tokenizer)
        with torch.no_grad():
            if model.output.bias is not None:
                model.output.bias[EOS] = 2.0
        save_model(folder / name, model, config, tokenizer, languages=("en", "de"))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> None:
    lines = ["the old man sleeps", "a cow is small ."]
    (tmp_path / "s").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "t").write_text("".join(f"{line}\n" for line in reversed(lines)))
    (tmp_path / "gold").write_text("0-0\n0-0\n")
    (tmp_path / "phrases").write_text("0:2-0:1=x\n0:2-0:1=x\n")
    item = {"source": lines[0], "correct": lines[1], "wrong": f"{lines[1]} a"}
    (tmp_path / "items").write_text(json.dumps(item) + "\n")


def test_the_score_of_a_tagged_translation_is_that_of_translate(command: Command, folder: Path, text: None) -> None:
    """The translations are the forced prefixes, so that their subwords are those of the text."""
    forced = ("--prefixes", "t", "--max-length", "1", "--output", "json")
    log_probs = {}
    for tag in ("<2de>", "<2fr>"):
        found = command("translate", folder / "m", "--tag", tag, *forced, stdin=Path("s").read_bytes())
        assert found.code == 0 and "--tag" not in found.err, found.err
        translations = [json.loads(line) for line in found.out.splitlines()]
        assert [t["text"] for t in translations] == Path("t").read_text().splitlines()
        scored = command("score", folder / "m", "s", "t", "--tag", tag)
        assert scored.code == 0 and not scored.err, scored.err
        log_probs[tag] = [float(line) for line in scored.out.splitlines()]
        assert log_probs[tag] == pytest.approx([t["log_prob"] for t in translations], abs=1e-4)
    without = command("score", folder / "m", "s", "t")
    assert without.err == f"phraseloom score: {WARNING}\n"
    log_probs[""] = [float(line) for line in without.out.splitlines()]
    assert len({round(first, 3) for first, _ in log_probs.values()}) == 3
    refused = command("score", folder / "m", "s", "t", "--tag", "<2x>")
    assert (refused.code, refused.is_one_line_of("score")) == (2, True)
    assert "the tag <2x> is not known to this model; its tags: <2de>, <2fr>" in refused.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("align", "m", *PAIR),
        ("align", "m", *PAIR, "--select", "auto", "--gold", "gold"),
        ("analyse", "activation", "m", *PAIR),
        ("analyse", "alignment", "m", *PAIR, "-g", "gold"),
        ("analyse", "contrastive", "m", "--items", "items"),
        ("analyse", "coverage", "m", *PAIR, "--phrases", "phrases"),
        ("analyse", "entropy", "m", "-s", "s"),
        ("analyse", "heatmap", "m", "--sentence", "a cow", "-o", "map.svg", "--overwrite"),
        ("analyse", "phrases", "p", "-s", "s"),
        ("analyse", "segments", "npmt", *PAIR),
        ("explain", "m", "-s", "s", "-o", "page.html", "--overwrite"),
    ],
    ids=" ".join,
)
def test_other_commands_take_a_tag_and_warn_without(
    command: Command, folder: Path, text: None, arguments: tuple[str, ...]
) -> None:
    words = [folder / word if word in ("m", "npmt", "p") else word for word in arguments]
    without = command(*words)
    assert without.code == 0 and f"phraseloom {arguments[0]}: {WARNING}\n" in without.err, without.err
    tagged = command(*words, "--tag", "<2fr>")
    assert tagged.code == 0 and "--tag" not in tagged.err, tagged.err
    refused = command(*words, "--tag", "<2x>")
    assert refused.code == 2 and "the tag <2x> is not known to this model" in refused.err, refused.err


def test_comparisons_give_the_tag_to_the_models_that_have_tags(
    command: Command, folder: Path, text: None, tmp_path: Path
) -> None:
    """`diff` has the log P of `score --tag`, and `report` the entropy of `analyse entropy --tag`."""
    tokenizer, config = bpe_tokenizer(), ModelConfig.model_validate({"preset": "tiny"})
    save_model(tmp_path / "plain", build(config, tokenizer), config, tokenizer, languages=("en", "de"))
    warning = f"warning: no --tag is given; the tags of {folder / 'm'} are <2de>, <2fr>\n"
    for tag in ([], ["--tag", "<2de>"], ["--tag", "<2fr>"]):
        data = {}
        for verb, outputs in (("report", ("-o", "page.html", "--json")), ("diff", ("-o",))):
            given = ("plain", f"tagged={folder / 'm'}", "-s", "s", "-r", "t", *tag, "--overwrite", *outputs)
            done = command(verb, *given, f"{verb}.json")
            assert done.code == 0, done.err
            assert (f"phraseloom {verb}: {warning}" in done.err) == (not tag)
            assert (f"phraseloom {verb}: plain has no tags: --tag is left out\n" in done.err) == bool(tag)
            data[verb] = json.loads(Path(f"{verb}.json").read_text())
        listed = {sentence["line"]: sentence["systems"][1] for sentence in data["diff"]["sentences"]["listed"]}
        scored = command("score", folder / "m", "s", "t", *tag).out.split()
        assert [listed[n]["log_prob"] for n in (1, 2)] == pytest.approx([float(x) for x in scored], abs=1e-5)
        done = command("analyse", "entropy", folder / "m", "-s", "s", "-t", "t", *tag, "--json", "e", "--overwrite")
        assert done.code == 0, done.err
        wanted = json.loads(Path("e").read_text())
        [part] = [part for part in data["report"]["parts"] if part["kind"] == "entropy"]
        assert part["systems"][1]["tokens"]["whole"] == wanted["systems"][0]["tokens"]["whole"]["steps"]
        assert data["report"]["about"].get("tags") == (tag[1] if tag else None)
    for verb in ("report", "diff"):
        refused = command(verb, "plain", folder / "m", "-s", "s", "-r", "t", "-o", "x.html", "--tag", "<2x>")
        assert refused.code == 2 and "the tag <2x> is not known to this model" in refused.err, refused.err


def test_the_warning_names_each_of_several_models(command: Command, folder: Path, text: None, tmp_path: Path) -> None:
    tokenizer, config = bpe_tokenizer(), ModelConfig.model_validate({"preset": "tiny"})
    save_model(tmp_path / "plain", build(config, tokenizer), config, tokenizer, languages=("en", "de"))
    done = command("analyse", "entropy", "plain", folder / "m", "-s", "s", "-t", "t")
    assert done.code == 0, done.err
    assert f"warning: no --tag is given; the tags of {folder / 'm'} are <2de>, <2fr>\n" in done.err


def test_a_language_model_has_no_tags(command: Command, tmp_path: Path) -> None:
    from phraseloom.options.language_model import LanguageModelConfig

    tokenizer, config = bpe_tokenizer(), LanguageModelConfig.model_validate({"width": 8, "heads": 2, "ffn_width": 8})
    save_model(tmp_path / "lm", build(config, tokenizer), config, tokenizer, languages=("en", "en"))
    for option, value in (("--tag", "<2de>"), ("--phrase-odds", "2"), ("--gate-weight", "2")):
        done = command("score", "lm", option, value, stdin=b"a\n")
        assert (done.code, done.is_one_line_of("score")) == (2, True)
        assert f"{option} is for translations, and this is a language model" in done.err
