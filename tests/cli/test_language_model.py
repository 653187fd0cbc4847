"""A language model from text to text by the real commands: prepare, train, resume, score, generate, inspect, average."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.helpers import LINES, run_records

from phraseloom.cli.main import run as phraseloom
from phraseloom.decoding.generator import TextGenerator
from phraseloom.models.build import build_language_model
from phraseloom.options.decoding import GenerationConfig
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.recipe import load_recipe
from phraseloom.text.tokenizer import Tokenizer, learn_subwords

from .conftest import Command

RECIPE = """\
name: lm
task: language_model
data:
  folder: dataset
  language: en
  train: [{text: train.txt}]
  valid: [{text: valid.txt}]
  subwords: {kind: sentencepiece, size: 300}
  processes: 1
model: {width: 32, heads: 4, ffn_width: 64, decoder: {layers: 1}, attention: queryk heterogeneous 1-2, dropout: 0.0}
training:
  batch_tokens: 400
  schedule: {kind: linear, peak: 0.02, warmup: 10}
  max_updates: 60
  checkpoint_every: 30
  average_last: 2
  processes: 1
  log_every: 30
"""
WORDS = ["one", "two", "three", "four", "five", "six"]


def text(count: int, seed: int) -> str:
    """Lines that count on from anywhere, over and over; what comes next is nearly certain."""
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        start, length = chance.randrange(6), chance.randint(2, 9)
        lines.append(" ".join(WORDS[(start + i) % 6] for i in range(length)) + "\n")
    return "".join(lines)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with text, recipe, dataset and a trained run."""
    folder = tmp_path_factory.mktemp("lm")
    (folder / "train.txt").write_bytes(text(400, 1).encode())
    (folder / "valid.txt").write_bytes((text(40, 2) + "\n").encode())
    (folder / "recipe.yaml").write_bytes(RECIPE.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert phraseloom(["prepare", "recipe.yaml"]) == 0
        assert phraseloom(["train", "recipe.yaml", "--run", "run"]) == 0
    return folder


@pytest.fixture
def generator(lm: Path) -> TextGenerator:
    return TextGenerator.from_pretrained(lm / "run", max_tokens=12)


def test_training_reports_both_perplexities_and_learns(lm: Path) -> None:
    records = run_records(lm / "run")
    last = records[-1]["validation"]
    lines = (lm / "valid.txt").read_bytes().decode().split("\n")[:-1]
    words = sum(len(line.split()) for line in lines) + len(lines)
    assert last["word_perplexity"] == pytest.approx(math.exp(last["nll"] * last["tokens"] / words))
    assert last["perplexity"] == pytest.approx(math.exp(last["nll"])) and last["perplexity"] < 3
    assert "bleu" not in last and all(r.get("source_tokens", 0) == 0 for r in records)
    assert load_recipe(lm / "run" / "config.yaml") == load_recipe(lm / "recipe.yaml")
    assert (lm / "run" / "averaged" / "model.safetensors").is_file()


def test_a_run_goes_on_to_the_same_bytes(lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(lm / "run", tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000060")
    (tmp_path / "run" / "last").unlink()
    monkeypatch.chdir(lm)
    assert phraseloom(["train", "recipe.yaml", "--run", str(tmp_path / "run")]) == 0
    for name in ("metrics.jsonl", "checkpoints/step_00000060/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (lm / "run" / name).read_bytes()


def test_score_of_lines(command: Command, lm: Path) -> None:
    lines = (lm / "valid.txt").read_bytes()
    scored = command("score", lm / "run", "--summary", stdin=lines)
    assert scored.code == 0
    values = [float(v) for v in scored.out.split("\n")[:-1]]
    validation = run_records(lm / "run")[-1]["validation"]
    assert len(values) == 41 and math.fsum(values) == pytest.approx(-validation["nll"] * validation["tokens"], rel=1e-5)
    per = f"perplexity {validation['perplexity']:.3f} per subword, {validation['word_perplexity']:.3f} per word"
    assert scored.err.startswith("phraseloom score: 41 lines, ") and scored.err.endswith(f"{per}\n")
    sums = json.loads(command("score", lm / "run", lm / "valid.txt", "--output", "summary").out)
    assert sums["perplexity"] == pytest.approx(validation["perplexity"], rel=1e-5)
    assert (sums["lines"], sums["unknown"]) == (41, 0) and sums["subwords"] + 41 == validation["tokens"]
    objects = command("score", lm / "run", "--output", "json", "--batch", "3", stdin=lines).out.split("\n")[:-1]
    for value, line in zip(values, map(json.loads, objects), strict=True):
        assert (
            line["log_prob"] == pytest.approx(value, abs=1e-4) == pytest.approx(sum(line["token_log_probs"]), abs=1e-4)
        )
        assert len(line["tokens"]) == len(line["token_log_probs"]) and line["tokens"][-1] == "</s>"
    good, bad = command("score", lm / "run", stdin=b"one two three four\none three two four\n").out.split("\n")[:-1]
    assert float(good) > float(bad) + 5


def test_a_warning_of_score_names_the_text(command: Command, lm: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"one two\r\nthree\n")
    assert f"warning: {tmp_path / 'text'}: 1 line ended by" in command("score", lm / "run", tmp_path / "text").err
    assert "warning: stdin: 1 line ended by" in command("score", lm / "run", stdin=b"one two\r\nthree\n").err


def test_greedy_writes_on(command: Command, lm: Path) -> None:
    prompts = b"one two three\n\nfour five\n"
    out = command("generate", lm / "run", "--max-tokens", "60", stdin=prompts)
    assert out.code == 0 and out.err == ""
    first, empty, third = out.out.split("\n")[:-1]
    assert first.startswith(" four five") and third.startswith(" six one") and empty.split()[0] in WORDS
    whole = command("generate", lm / "run", "--max-tokens", "60", "--with-prompt", stdin=prompts)
    assert whole.out.split("\n")[:-1] == ["one two three" + first, empty, "four five" + third]
    found = [
        json.loads(o) for o in command("generate", lm / "run", "--output", "json", stdin=prompts).out.split("\n")[:-1]
    ]
    assert [o["prompt"] for o in found] == ["one two three", "", "four five"]
    sample = found[0]["samples"][0]
    assert sample["text"] == "one two three" + sample["continuation"] and sample["ended"]
    both = json.loads(command("score", lm / "run", "--output", "json", stdin=sample["text"].encode() + b"\n").out)
    assert both["tokens"][-len(sample["tokens"]) - 1 : -1] == sample["tokens"]
    assert sample["log_prob"] == pytest.approx(sum(both["token_log_probs"][-len(sample["tokens"]) - 1 :]), abs=1e-3)


def test_samples_depend_on_seed_line_and_sample_alone(command: Command, lm: Path) -> None:
    prompts = ["one", "", "two three", "one", "six"]
    stdin = "".join(p + "\n" for p in prompts).encode()
    arguments = ("generate", lm / "run", "--sample", "--temperature", "3", "-n", "2", "--max-tokens", "6")
    together = command(*arguments, stdin=stdin).out
    assert together.count("\n") == 10
    for more in (("--batch", "1"), ("--window", "2"), ("--workers", "2"), ("--seed", "1")):
        assert command(*arguments, *more, stdin=stdin).out == together
    assert command(*arguments, "--seed", "2", stdin=stdin).out != together
    lines = together.split("\n")
    assert lines[0] != lines[1] and lines[:2] != lines[6:8]  # another sample, another line
    alone = command(*arguments, stdin=b"one\n").out
    assert together.startswith(alone)
    cold = command("generate", lm / "run", "--sample", "--top-k", "1", stdin=stdin).out
    assert cold == command("generate", lm / "run", stdin=stdin).out
    assert command("generate", lm / "run", stdin=b"").out == ""


@pytest.mark.parametrize("tokenize", ["none", "moses"])
def test_the_text_has_spaces_at_the_end_of_a_prompt_only_if_the_model_saw_them(
    tokenize: Literal["none", "moses"],
) -> None:
    """Moses drops them: they would make two spaces, or one inside a word that the model continues."""
    subwords = learn_subwords(LINES, SentencepieceConfig(size=60, byte_fallback=False))
    tokenizer = Tokenizer(TextConfig(tokenize=tokenize), "en", "en", subwords, subwords)
    config = LanguageModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 16, "decoder": {"layers": 1}})
    joined = 0
    for seed in range(6):
        torch.manual_seed(seed)
        model = build_language_model(config, len(tokenizer.target.vocabulary))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        generator = TextGenerator(model, tokenizer, GenerationConfig(max_tokens=5))
        for prompt in ("the old man", "a  cow", ""):
            (bare,), (spaces,) = generator.generate([prompt, prompt + "  "])
            assert spaces.prompt == prompt + "  " and bare.text == prompt + bare.continuation
            seen = tokenize == "none" and prompt != ""
            assert spaces.text == (spaces.prompt + spaces.continuation if seen else bare.text)
            joined += bool(prompt) and not bare.continuation.startswith(" ")
    assert joined


def test_long_prompts_lose_their_beginning(command: Command, lm: Path, generator: TextGenerator) -> None:
    long = " ".join(WORDS * 30)
    out = command(
        "generate", lm / "run", "--max-input-tokens", "3", "--max-tokens", "4", stdin=f"one\n{long}\n".encode()
    )
    assert out.code == 0 and len(out.out.split("\n")) == 3
    assert "1 of 2 prompts longer than 3 subwords: the beginning was left out (first: line 2)" in out.err
    found = generator.generate([long], max_input_tokens=3, max_tokens=4)[0][0]
    assert found.cropped and found.text == long + found.continuation and len(found.tokens) == 4 and not found.ended


def test_other_verbs_take_it(command: Command, lm: Path) -> None:
    shown = command("inspect", lm / "run")
    assert shown.code == 0 and "language_model" in shown.out and "per word" in shown.out and "?" not in shown.out
    shown = command("inspect", lm / "dataset")
    assert shown.code == 0 and "text in en, for language models" in shown.out and "source" not in shown.out
    assert (
        json.loads(command("inspect", lm / "run", "--output", "json").out)["model_folder"]["task"] == "language_model"
    )
    done = command("average", "mean", lm / "run", "--last", "2")
    assert done.code == 0, done.err
    assert command("score", "mean", stdin=b"one two\n").code == 0


def test_wrong_verbs_and_options_are_refused_in_one_line(command: Command, lm: Path, project: Path) -> None:
    expected = {
        ("translate", lm / "run"): (
            1,
            "this is a language model, where a translation model is needed; phraseloom generate and score take it",
        ),
        ("generate", project / "run"): (
            1,
            "this is a translation model, not a language model; use phraseloom translate or",
        ),
        ("generate", lm / "run", "--top-k", "3"): (
            2,
            "--top-k is for drawing tokens, and greedy search draws none; add --sample",
        ),
        ("generate", lm / "run", "-n", "3"): (2, "samples above 1 need sample"),
        ("generate", lm / "run", "--sample", "--top-p", "1.5"): (2, "should be less than or equal to 1"),
        ("generate", lm / "run", "--sample", "--temperature", "0"): (2, "temperature: should be greater than 0"),
        ("generate", lm / "nothing"): (1, "nothing: "),
        ("score", lm / "run", lm / "valid.txt", lm / "valid.txt"): (2, "TARGET is for translations"),
        ("score", lm / "run", "--normalise"): (2, "--normalise is for translations, and this is a language model"),
        ("score", lm / "run", "--ensemble", lm / "run"): (2, "--ensemble is for translations"),
        ("score", lm / "run", "--alpha", "1"): (2, "--alpha is for translations"),
        ("train", lm / "recipe.yaml", f"data.folder={project / 'dataset'}"): (
            2,
            "this dataset has pairs of two languages",
        ),
        ("train", project / "recipe.yaml", f"data.folder={lm / 'dataset'}"): (
            2,
            "this dataset has text of one language",
        ),
    }
    for arguments, (code, message) in expected.items():
        outcome = command(*arguments, stdin=b"one\n")
        assert outcome.code == code, outcome.err
        assert message in outcome.err and outcome.is_one_line_of(str(arguments[0]))


def test_summary_of_a_translation_model(command: Command, project: Path) -> None:
    pairs = b"a dog\tein hund\n\t\na cat runs\teine katze rennt\n"
    out = command("score", project / "run", "--summary", stdin=pairs)
    values = [float(v) for v in out.out.split("\n")[:-1]]
    assert len(values) == 3 and "phraseloom score: 2 lines, 5 words, " in out.err  # two blank lines are certain
    sums = json.loads(command("score", project / "run", "--output", "summary", stdin=pairs).out)
    assert sums["log_prob"] == pytest.approx(sum(values), abs=1e-4)
    assert sums["word_perplexity"] == pytest.approx(math.exp(-sum(values) / 7), rel=1e-4)
