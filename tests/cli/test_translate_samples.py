"""Options of `translate` for samples, minimum Bayes risk, repetition and ensembles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Command, Outcome

from phraseloom.decoding.translator import Translator
from phraseloom.files import write_manifest

LINES = "a dog runs\n\ncat sleeps here\na red dog\n"


def test_samples_are_those_of_python_whatever_the_window(command: Command, project: Path) -> None:
    options = ["--sample", "--seed", "7", "--temperature", "0.7", "--top-k", "30", "--top-p", "0.9"]
    whole = command("translate", project / "run", *options, stdin=LINES.encode())
    assert whole.code == 0, whole.err
    assert command("translate", project / "run", *options, "--window", "1", stdin=LINES.encode()).out == whole.out
    assert command("translate", project / "run", *options[:1], "--seed", "8", stdin=LINES.encode()).out != whole.out
    translator = Translator.from_pretrained(project / "run", seed=7, temperature=0.7, top_k=30, top_p=0.9, sample=True)
    assert whole.out == "".join(t.text + "\n" for t in translator.translate(LINES.splitlines()))


def test_n_best_of_samples_and_of_mbr(command: Command, project: Path) -> None:
    for option in (["--sample"], ["--mbr", "5"], ["--mbr", "5", "--mbr-metric", "bleu"]):
        done = command("translate", project / "run", *option, "--n-best", "4", "--output", "json", stdin=LINES.encode())
        assert done.code == 0, done.err
        values = [json.loads(line) for line in done.out.splitlines()]
        key = "log_prob" if option == ["--sample"] else "score"
        for value in (value for value in values if not value["blank"]):
            ranked = [value[key], *(a[key] for a in value["alternatives"])]
            assert len(ranked) == 4 and ranked == sorted(ranked, reverse=True)


def test_repetition_and_ensembles(command: Command, project: Path, tmp_path: Path) -> None:
    run, links = project / "run", tmp_path / "links"
    alone = command("translate", run, stdin=LINES.encode())
    last = run / "last"
    for mean in ("probabilities", "log_probabilities"):
        twice = command("translate", run, "--ensemble", run, "--ensemble-mean", mean, stdin=LINES.encode())
        assert (twice.code, twice.out) == (0, alone.out), twice.err
    three = ("--ensemble", last, "--ensemble", run, "--alignments", links, "--no-repeat-ngram-size", "1")
    done = command("translate", run, *three, "--output", "json", stdin=LINES.encode())
    assert done.code == 0, done.err
    for line in done.out.splitlines():
        tokens = json.loads(line)["tokens"]
        assert len(set(tokens)) == len(tokens)
    assert len(links.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample", "--top-p", "0"], "top_p: should be greater than 0"),
        (["--sample", "--temperature", "0"], "temperature: should be greater than 0"),
        (["--top-k", "3"], "--top-k is for drawing samples, and search draws none; add --sample or --mbr N"),
        (["--sample", "--beam", "4"], "--beam is for search, and sampling is on; leave --beam out, or add --search"),
        (
            ["--mbr", "4", "--stop", "exact"],
            "--stop is for search, and minimum Bayes risk is on; leave --stop out, or add",
        ),
        (["--mbr", "4", "--alpha", "0.5"], "--alpha is for search, and minimum Bayes risk is on"),
        (["--mbr-metric", "bleu"], "--mbr-metric is for minimum Bayes risk; add --mbr N"),
        (["--ensemble-mean", "probabilities"], "--ensemble-mean is for an ensemble of models; add --ensemble MODEL"),
        (["--mbr", "2", "--n-best", "3", "--output", "json"], "n_best 3 is larger than mbr 2"),
        (["--ensemble", "nowhere"], "nowhere"),
    ],
)
def test_wrong_use_is_one_line(command: Command, project: Path, options: list[str], message: str) -> None:
    done = command("translate", project / "run", *options, stdin=b"a\n")
    assert done.code in (1, 2) and done.is_one_line_of("translate"), done.err
    assert message in done.err


def test_options_of_search_in_the_model_do_not_hinder_sampling(command: Command, project: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree((project / "run" / "best").resolve(), model)
    options = json.loads((model / "generation_config.json").read_bytes())
    names = json.loads((model / "manifest.json").read_bytes())["files"]

    def translated(stored: dict[str, Any], *given: str) -> Outcome:
        (model / "generation_config.json").write_text(json.dumps(options | stored))
        write_manifest(model, names)
        return command("translate", model, *given, stdin=b"a dog\n")

    assert translated({"beam": 3, "stop": "exact"}, "--sample", "--length-penalty", "none").code == 0
    refused = translated({"sample": True}, "--beam", "2")
    assert refused.code == 2 and "sampling is on; leave --beam out, or add --search" in refused.err
    assert translated({"sample": True}, "--beam", "2", "--search").code == 0


def test_an_ensemble_is_served(project: Path) -> None:
    from tests.cli.test_serve import serving
    from tests.serving.harness import call

    run = project / "run"
    with serving(f"both={run}", "--ensemble", f"both={run}", "--max-mbr", "4") as (_, port, _):
        assert call(port, "GET", "/models")[1]["models"][0]["description"].startswith("an ensemble of 2 models: ")
        status, found, _ = call(port, "POST", "/translate", {"text": "a dog", "beam": 2})
        assert status == 200
        assert found["translations"][0]["text"] == Translator.from_pretrained(run, beam=2).translate(["a dog"])[0].text
        assert call(port, "POST", "/explain", {"text": "a dog"})[0] == 200


def test_an_ensemble_of_an_unknown_name_is_refused(command: Command, project: Path) -> None:
    done = command("serve", f"a={project / 'run'}", "--ensemble", f"b={project / 'run'}")
    assert done.code == 2 and done.is_one_line_of("serve")
    assert "no served model has the name b; names: a" in done.err
