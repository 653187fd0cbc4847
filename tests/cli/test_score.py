from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.helpers import bpe_tokenizer

from phraseloom.models.store import save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig, WordsConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.words import learn


def test_score_of_a_translation_is_the_score_of_translate(command: Command, project: Path, tmp_path: Path) -> None:
    text = b"a dog runs\n\ncat sleeps here\na red dog\n"
    values = command("translate", project / "run", "--output", "json", stdin=text).out.rstrip("\n").split("\n")
    found = [json.loads(v) for v in values]
    (tmp_path / "s").write_bytes(text)
    (tmp_path / "t").write_text("".join(v["text"] + "\n" for v in found))
    for flag, key in ((["--normalise"], "score"), ([], "log_prob")):
        done = command("score", project / "run", "s", "t", "--output", "json", *flag)
        assert done.code == 0, done.err
        scores = [json.loads(v) for v in done.out.rstrip("\n").split("\n")]
        numbers = command("score", project / "run", "s", "t", *flag).out.rstrip("\n").split("\n")
        assert len(scores) == len(numbers) == 4
        same = 0
        for value, score, number in zip(found, scores, numbers, strict=True):
            assert abs(score[key] - float(number)) < 1e-5
            if score["tokens"][:-1] == value["tokens"]:
                assert abs(score[key] - value[key]) < 1e-4
                same += 1
        assert same >= 2


def test_pairs_from_standard_input(command: Command, project: Path, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a dog\na cat\n")
    (tmp_path / "t").write_text("ein hund\nein katze\n")
    files = command("score", project / "run", "s", "t")
    piped = command("score", project / "run", stdin=b"a dog\tein hund\na cat\tein katze\n")
    assert files.code == piped.code == 0
    assert files.out == piped.out
    assert all(float(line) < 0 for line in files.out.split())


def test_other_penalty(command: Command, project: Path) -> None:
    pair = b"a dog\tein hund\n"
    raw = float(command("score", project / "run", stdin=pair).out)
    arguments = ["--normalise", "--length-penalty", "sockeye", "--alpha", "1", "--beta", "0"]
    mean = float(command("score", project / "run", *arguments, stdin=pair).out)
    value = json.loads(command("score", project / "run", "--output", "json", stdin=pair).out)
    assert abs(mean - raw / len(value["token_log_probs"])) < 1e-5


def test_an_ensemble_averages_at_each_subword(command: Command, project: Path) -> None:
    """Both means, from the log-probabilities of each model alone."""
    first, second = (project / "run" / "checkpoints" / step for step in ("step_00000002", "step_00000004"))
    pairs = b"a dog\tein hund\na cat\tein katze\n"
    alone = [
        [
            json.loads(line)["token_log_probs"]
            for line in command("score", m, "--output", "json", stdin=pairs).out.splitlines()
        ]
        for m in (first, second)
    ]
    assert alone[0] != alone[1]
    means = {
        "probabilities": lambda a, b: math.log((math.exp(a) + math.exp(b)) / 2),
        "log_probabilities": lambda a, b: (a + b) / 2,
    }
    for mean, of in means.items():
        chosen = [] if mean == "probabilities" else ["--ensemble-mean", mean]
        done = command("score", first, "--ensemble", second, *chosen, "--output", "json", stdin=pairs)
        assert done.code == 0, done.err
        for line, a, b in zip(done.out.splitlines(), *alone, strict=True):
            score = json.loads(line)
            assert score["token_log_probs"] == pytest.approx(list(map(of, a, b)), abs=1e-5)
            assert score["log_prob"] == pytest.approx(sum(score["token_log_probs"]))
    done = command("score", first, "--ensemble-mean", "probabilities", stdin=pairs)
    assert (done.code, done.is_one_line_of("score")) == (2, True)
    assert "--ensemble-mean is for an ensemble of models; add --ensemble MODEL" in done.err


def test_plain_targets_of_a_model_of_joined_text_are_warned_of(command: Command, tmp_path: Path) -> None:
    words = learn(["the old man sleeps ."], WordsConfig(joined=True))
    tokenizer = Tokenizer(TextConfig(tokenize="moses"), "de", "en", learn(["der alte mann"], WordsConfig()), words)
    sizes = {"width": 8, "heads": 1, "ffn_width": 8, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
    config = ModelConfig.model_validate({**sizes, "tied": "none"})
    save_model(tmp_path / "words", build(config, tokenizer), config, tokenizer, languages=("de", "en"))
    done = command("score", "words", stdin=b"der mann\tthe old man sleeps.\n")
    assert done.code == 0
    assert (
        "targets of this model are joined text (phraseloom phrases segment), not plain text; 1 of 4 target" in done.err
    )
    assert command("score", "words", stdin=b"der mann\tthe old man sleeps .\n").err == ""


def test_a_pair_of_probability_0_is_null_in_json(command: Command, tmp_path: Path) -> None:
    tokenizer = bpe_tokenizer()
    sizes = {"width": 8, "heads": 1, "encoder": {"kind": "columns", "layers": 1}, "tied": "none"}
    config = ModelConfig.model_validate({**sizes, "decoder": {"kind": "segmental", "layers": 1, "max_segment": 2}})
    save_model(tmp_path / "npmt", build(config, tokenizer), config, tokenizer, languages=("en", "de"))
    pairs = b"a\tthe old man sleeps tonight .\nthe old man\ta\n"
    text = command("score", "npmt", stdin=pairs).out.splitlines()
    assert text[0] == "-inf" and float(text[1]) < 0
    lines = command("score", "npmt", "--output", "json", stdin=pairs)
    assert lines.code == 0, lines.err
    impossible, possible = map(json.loads, lines.out.splitlines())
    assert impossible["log_prob"] is impossible["score"] is None
    assert possible["log_prob"] == pytest.approx(float(text[1]), abs=1e-5)
    summary = command("score", "npmt", "--output", "summary", "--by-sentence", stdin=pairs)
    assert summary.code == 0, summary.err
    sums = json.loads(summary.out)
    assert sums["log_prob"] is sums["perplexity"] is sums["word_perplexity"] is None
    assert sums["by_sentence"]["perplexity"][0][0] is None and sums["by_sentence"]["perplexity"][1][0] > 0


def test_a_pair_that_is_left_out_has_a_row_of_zeros(command: Command, project: Path) -> None:
    asked = ("score", project / "run", "--output", "summary", "--by-sentence")
    rows, alone = (
        json.loads(command(*asked, stdin=pairs).out)["by_sentence"]["perplexity"]
        for pairs in (b"\t\na dog\tein hund\n\t\n", b"a dog\tein hund\n")
    )
    assert [rows[0], rows[2]] == [[0, 0], [0, 0]] and rows[1] == pytest.approx(alone[0], abs=1e-4)


def test_bad_input_is_refused_in_one_line(command: Command, project: Path, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a\nb\n")
    (tmp_path / "t").write_text("a\n")
    for options, message in (
        (("--alpha", "1"), "--alpha is for the normalised score; add --normalise, or --output json"),
        (("--normalise", "--output", "summary"), "--normalise is for the scores of pairs"),
    ):
        refused = command("score", project / "run", *options, stdin=b"a\tb\n")
        assert refused.code == 2 and message in refused.err
    different = command("score", project / "run", "s", "t")
    assert (different.code, different.is_one_line_of("score")) == (1, True)
    assert "2 lines, but t has 1" in different.err
    one = command("score", project / "run", "s")
    assert (one.code, one.is_one_line_of("score")) == (2, True)
    fields = command("score", project / "run", stdin=b"a\tb\na b\n")
    assert fields.code == 1
    assert "stdin:2: 1 tab-separated field instead of 2" in fields.err
    assert command("score", project / "run", "s", "nothing").code == 1
