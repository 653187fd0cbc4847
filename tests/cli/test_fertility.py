"""`phraseloom fertility train` and `evaluate` on files: tables, JSON, options that reach the module, faults."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Command
from tests.training import fertility_net as net

from phraseloom.analysis.fertility import evaluate_fertility
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError, ModelError
from phraseloom.metrics.ratio import Ratio, plain
from phraseloom.models.store import change_generation
from phraseloom.training import fertility as fertility_training
from phraseloom.training.fertility_fit import FertilityFitOptions

QUICK = ("--widths", "16,8", "--epochs", "4", "--learning-rate", "0.01", "--batch", "16")
TEXT = ("-s", "s", "--labels", "l")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, command: Command) -> None:
    net.saved(tmp_path / "net")
    sources, labels = net.lines(60)
    net.written(tmp_path, s=sources, l=labels, short=labels[:-1])


def test_train_and_evaluate(command: Command) -> None:
    done = command("fertility", "train", "net", *TEXT, "-o", "new", *QUICK)
    assert (done.code, done.out) == (0, "")
    said = done.err.split("\n")
    assert all(line.startswith("phraseloom fertility: ") for line in said[:-1])
    assert re.fullmatch(r"phraseloom fertility: new: as after epoch \d, validation loss 0\.\d{4}", said[-2])
    assert [line.split(": ")[1] for line in said[1:5]] == [f"epoch {n} of 4" for n in range(1, 5)]
    done = command("fertility", "evaluate", "new", *TEXT, "--json", "scores.json")
    assert (done.code, done.err) == (0, "")
    found = evaluate_fertility("new", Path("s"), Path("l"))
    data = json.loads(Path("scores.json").read_bytes())
    given = {"format": 1, "kind": "fertility", "model": "new", "source": "s", "labels": "l"}
    assert data == {**given, **plain(found.as_dict())}
    assert command("fertility", "evaluate", "new", *TEXT, "--json", "rows.json", "--by-sentence").code == 0
    rows = json.loads(Path("rows.json").read_bytes())["by_sentence"]["classes"]
    for name, of_class in rows.items():
        assert all(len(some) == found.sentences for some in of_class.values())
        made = {score: Ratio().value(np.array(some).sum(0)) for score, some in of_class.items()}
        assert made == pytest.approx({score: data["classes"][name][score] for score in ("precision", "recall", "f1")})
    assert rows.keys() == data["classes"].keys()
    assert len({tuple(row) for row in rows["2"]["f1"]}) > 3, "sentences differ"
    assert data["classes"]["2"]["recall"] > 0.9
    assert any(one.total != one.predicted for one in found.classes.values())
    for name, one in (found.classes | found.gate).items():
        percents = [one.total / found.tokens, one.precision, one.recall, one.f1]
        row = next(line for line in done.out.split("\n") if line.split()[:1] == [name])
        assert row.split() == [name, *(f"{100 * value:.2f}" for value in percents), str(one.total), str(one.predicted)]
    rows = [line.split()[0] for line in done.out.split("\n") if line]
    assert rows[3:7] == ["0", "1", "2", "3+"]
    assert rows[9:14] == ["word", "phrase", "phrase,", "phrase,", "phrase,"]
    trained, even = data["as_trained"], data["break_even"]
    assert "phrase, as trained" in done.out and even["precision"] == even["recall"]
    assert "phrase, recall 28" in done.out and 0.28 <= data["at_paper_recall"]["recall"] < 0.4
    assert data["paper_recall"] == 0.28
    assert trained["gate"]["phrase"]["predicted"] >= data["gate"]["phrase"]["predicted"]
    bins = data["calibration"]["bins"]
    assert sum(one["tokens"] for one in bins) == found.tokens
    error = sum(one["tokens"] * abs(one["probability"] - one["share"]) for one in bins) / found.tokens
    assert data["calibration"]["error"] == pytest.approx(error)
    assert f"expected calibration error {100 * error:.2f}" in done.out
    assert done.out.startswith(f"60 sentences, {found.tokens:,} source tokens; in per cent; accuracy ")


def test_the_recall_of_turkish(command: Command) -> None:
    assert command("fertility", "train", "net", *TEXT, "-o", "new", *QUICK).code == 0
    done = command("fertility", "evaluate", "new", *TEXT, "--json", "scores.json", "--recall", "0.10")
    assert done.code == 0, done.err
    data = json.loads(Path("scores.json").read_bytes())
    at_recall = data["at_paper_recall"]
    assert data["paper_recall"] == 0.1 and 0.1 <= at_recall["recall"] < 0.28
    row = next(line for line in done.out.split("\n") if line.startswith("phrase, recall "))
    assert row.split()[2] == "10" and row.split()[-1] == str(at_recall["predicted"])
    assert "recall 28" not in done.out
    for value in ("0", "1", "-0.1", "28", "nan"):
        done = command("fertility", "evaluate", "new", *TEXT, "--recall", value)
        expected = f"phraseloom fertility: a recall of {value} is not between 0 and 1; 10 % is 0.10\n"
        assert (done.code, done.out, done.err) == (2, "", expected)


def test_options_reach_the_training(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(model: Path, files: Any, output: Path, options: Any, **rest: Any) -> Any:
        seen.extend((model, files, output, options, rest["device"], rest["overwrite"]))
        return [fertility_training.Epoch(1, 0.5, 0.25)]

    monkeypatch.setattr(fertility_training, "train_fertility", spy)
    done = command(
        "fertility", "train", "net", *TEXT, "--valid-source", "s", "--valid-labels", "l", "-o", "new", "--classes", "2",
        "--inputs", "states", "--widths", "", "--weights", "1,2.5", "--no-downsample", "--epochs", "3",
        "--learning-rate", "0.1", "--batch", "9", "--max-tokens", "77", "--seed", "4", "--memory", "0.5", "--overwrite",
        "--no-calibrate",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.err == "phraseloom fertility: new: as after epoch 1, validation loss 0.2500\n"
    text = Path("s"), Path("l")
    assert seen[:3] == [Path("net"), fertility_training.Files(*text, *text), Path("new")]
    assert seen[3] == FertilityFitOptions(2, "states", (), (1.0, 2.5), False, 3, 0.1, 9, 4, 77, 2**29, calibrate=False)
    assert seen[4:] == ["cpu", True]
    seen.clear()
    assert command("fertility", "train", "net", *TEXT, "-o", "new").code == 0
    assert seen[3] == FertilityFitOptions()
    assert seen[4:] == ["cpu", False]


def test_the_score_and_the_odds_of_a_trained_gate(command: Command) -> None:
    """They are options of translate: nothing is trained again, and the folder stays as it is."""
    assert command("fertility", "train", "net", *TEXT, "-o", "new", *QUICK).code == 0
    before = {path.name: path.read_bytes() for path in Path("new").iterdir() if path.is_file()}

    def scores(*options: str) -> list[str]:
        done = command("translate", "new", "--output", "json", *options, stdin=Path("s").read_bytes())
        assert done.code == 0, done.err
        return done.out.splitlines()

    plain = scores()
    assert scores("--gate-score", "mixture", "--phrase-odds", "1", "--gate-weight", "1") == plain
    odds = scores("--phrase-odds", "0.2")
    eager = [json.loads(line)["score"] for line in scores("--phrase-odds", "0.2", "--kernels", "eager")]
    assert [json.loads(line)["score"] for line in odds] == pytest.approx(eager, abs=1e-4)
    others = [scores("--gate-score", score) for score in ("density", "released")]
    weighed = scores("--phrase-odds", "0.2", "--gate-weight", "0.5")
    assert len({str(lines) for lines in (plain, odds, weighed, *others)}) == 5
    phrases = ["quality of life", "high school"]
    fewer, usual, more = (
        sum(str(scores("--phrase-odds", odds)).count(phrase) for phrase in phrases) for odds in ("1e-6", "1", "1e6")
    )
    assert fewer < usual < more, (fewer, usual, more)
    assert before == {path.name: path.read_bytes() for path in Path("new").iterdir() if path.is_file()}
    without = command("translate", "net", "--phrase-odds", "2", stdin=b"an\n")
    assert without.is_one_line_of("translate")
    assert "this model has no gate between words and phrases; phraseloom fertility train adds one" in without.err


@pytest.mark.parametrize("gate", [("--phrase-odds", "0.2", "--gate-weight", "0.5"), ("--gate-score", "density")])
def test_the_score_of_another_gate_is_that_of_translate(command: Command, gate: tuple[str, ...]) -> None:
    assert command("fertility", "train", "net", *TEXT, "-o", "new", *QUICK).code == 0
    found = command("translate", "new", "--output", "json", *gate, stdin=Path("s").read_bytes())
    translations = [json.loads(line) for line in found.out.splitlines()]
    Path("out").write_text("".join(t["text"] + "\n" for t in translations))
    tempered, plain = (command("score", "new", "s", "out", "--output", "json", *options) for options in (gate, ()))
    assert tempered.code == 0, tempered.err
    scores = [json.loads(line) for line in tempered.out.splitlines()]
    same = [(s, t) for s, t in zip(scores, translations, strict=True) if s["tokens"][:-1] == t["tokens"]]
    assert same and [s["log_prob"] for s, _ in same] == pytest.approx([t["log_prob"] for _, t in same], abs=1e-4)
    assert tempered.out != plain.out
    without = command("score", "net", "s", "out", "--phrase-odds", "2")
    assert without.is_one_line_of("score") and "this model has no gate between words and phrases" in without.err


def test_the_gate_of_a_translator_in_use(command: Command) -> None:
    """A search that is compiled for one score is not used for another."""
    assert command("fertility", "train", "net", *TEXT, "-o", "new", *QUICK).code == 0
    lines = Path("s").read_text().splitlines()
    used, fresh = Translator.from_pretrained("new"), Translator.from_pretrained("new")
    before = used.translate(lines)
    used.set_gate(score="density", phrase_odds=0.5)
    used.set_gate(weight=0.7)
    fresh.set_gate(score="density", phrase_odds=0.5, weight=0.7)
    assert used.translate(lines) == fresh.translate(lines) != before
    used.set_gate(score="mixture", phrase_odds=1.0, weight=1.0)
    assert [t.text for t in used.translate(lines)] == [t.text for t in before]
    with pytest.raises(ConfigError, match="phrase_odds: should be greater than or equal to"):
        used.set_gate(phrase_odds=0.0)
    with pytest.raises(ConfigError, match="gate_weight: should be greater than or equal to 0"):
        used.set_gate(weight=-1.0)


def test_a_model_has_its_gate_options(command: Command) -> None:
    """As `decoding` of a recipe stores them; a call replaces them for itself, and another translator keeps its own."""
    assert command("fertility", "train", "net", *TEXT, "-o", "new", *QUICK).code == 0
    lines = Path("s").read_text().splitlines()
    plain = Translator.from_pretrained("new")
    before = plain.translate(lines)
    change_generation("new", {"phrase_odds": 1e5, "gate_weight": 0.9})
    stored = Translator.from_pretrained("new")
    assert (stored.config.phrase_odds, stored.config.gate_weight) == (1e5, 0.9)
    tempered = stored.translate(lines)
    assert tempered != before
    assert plain.translate(lines, phrase_odds=1e5, gate_weight=0.9) == tempered
    assert plain.translate(lines) == before
    neutral = stored.with_options(phrase_odds=1.0, gate_weight=1.0)
    assert neutral.translate(lines) == before and stored.translate(lines) == tempered
    targets = [translation.text for translation in before]
    assert stored.score(lines, targets) != plain.score(lines, targets) == neutral.score(lines, targets)
    told = command("translate", "new", "--phrase-odds", "1", "--gate-weight", "1", stdin=Path("s").read_bytes())
    assert told.out.splitlines() == targets

    change_generation("net", {"phrase_odds": 8.0})  # of no effect until the model has a gate
    without = Translator.from_pretrained("net")
    assert without.translate(lines)
    for call in (without.with_options, lambda **options: without.translate(lines, **options)):
        with pytest.raises(ModelError, match="this model has no gate between words and phrases"):
            call(phrase_odds=2.0)


def test_memory_without_a_limit(command: Command) -> None:
    done = command("fertility", "train", "net", *TEXT, "-o", "new", "--widths", "4", "--epochs", "1", "--memory", "inf")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("train", "net", "-s", "s", "--labels", "short", "-o", "new"), 1, "short: ends after 59 lines, but the source"),
        (("train", "net", "-s", "none", "--labels", "l", "-o", "new"), 1, "none: source text not found"),
        (("train", "net", *TEXT, "-o", "new", "--valid-source", "s"), 2, "a validation text and its labels go together"),
        (("train", "net", *TEXT, "-o", "new", "--widths", "4,x"), 2, "--widths '4,x': whole numbers from 1 to 65,536"),
        (("train", "net", *TEXT, "-o", "new", "--widths", "4,0"), 2, "--widths '4,0': whole numbers"),
        (("train", "net", *TEXT, "-o", "new", "--widths", "1.5"), 2, "--widths '1.5': whole numbers"),
        (("train", "net", *TEXT, "-o", "new", "--weights", "1,nan,1,1"), 2, "--weights '1,nan,1,1': positive numbers"),
        (("train", "net", *TEXT, "-o", "new", "--weights", "1,3"), 2, "one positive number for each of the 4 classes"),
        (("train", "net", *TEXT, "-o", "new", "--classes", "3"), 2, "'3' is not one of"),
        (("train", "net", *TEXT, "-o", "new", "--batch", "9" * 19), 2, "less than or equal to 2147483647"),
        (("train", "net", *TEXT, "-o", "net"), 2, "the model is made from one in this folder"),
        (("evaluate", "net", *TEXT), 1, "this model has no fertility module; phraseloom fertility train gives it one"),
        (("evaluate", "net", *TEXT, "--json", "."), 1, "a file to write expected, but this is a folder"),
        (("evaluate", "net", "-s", "s", "--labels", "none"), 1, "none: file of fertilities not found"),
    ],
)  # fmt: skip
def test_faults(arguments: tuple[str, ...], code: int, what: str, command: Command) -> None:
    done = command("fertility", *arguments)
    assert done.code == code, done.err
    assert what in done.err
    assert done.is_one_line_of("fertility")
    assert not Path("new").exists()


def test_a_model_of_another_kind(command: Command, tmp_path: Path) -> None:
    net.saved(tmp_path / "plain", {"kind": "continuous"})
    done = command("fertility", "train", "plain", *TEXT, "-o", "new")
    assert done.is_one_line_of("fertility")
    assert (
        "plain: this model has a continuous output; fertility chooses between words and phrases; train a model"
        in done.err
    )
