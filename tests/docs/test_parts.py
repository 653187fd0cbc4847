"""docs/results/parts.py and outputs.py: their figures on the page of paper 003, and small texts counted by hand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from tests.docs.pages import ROOT

from phraseloom.reproduce.measure import MeasuredValue
from phraseloom.reproduce.sentences import SENTENCES, write_sentences

PARTS, OUTPUTS = (runpy.run_path(str(ROOT / "docs" / "results" / f"{name}.py")) for name in ("parts", "outputs"))
FORM = r"([+−]?\d+\.\d\d \([+−]\d+\.\d\d … [+−]\d+\.\d\d\))"


def test_bleu_of_sums_is_that_of_sacrebleu() -> None:
    bleu = BLEU(force=True)
    lines, references = (
        ["a cat sat on the mat", "dogs run fast in here"],
        ["a cat sat on the mat today", "dogs run fast in there"],
    )
    sums = np.array(bleu._extract_corpus_statistics(lines, [references]), float).sum(0)
    score = bleu.corpus_score(lines, [references])
    assert PARTS["bleu"](sums) == pytest.approx(score.score)
    assert PARTS["without_penalty"](sums) == pytest.approx(score.score / score.bp)


def test_the_subset_is_found_by_its_translations(tmp_path: Path) -> None:
    """Two lines are equal in one run; all runs together tell them apart."""
    whole = {1: ["a", "b", "a", "c"], 2: ["a", "b", "d", "c"]}
    part = {seed: [lines[2], lines[3]] for seed, lines in whole.items()}
    counts = np.arange(40.0).reshape(4, 10)

    def measured(lines: list[str], rows: np.ndarray) -> MeasuredValue:
        return MeasuredValue(1.0, statistics={"": rows}, hypotheses=tuple(lines), signature="")

    write_sentences(
        tmp_path / SENTENCES,
        "t",
        "small",
        {
            ("de-en", "x", "bleu"): {seed: measured(lines, counts) for seed, lines in whole.items()},
            ("de-en", "x", "mwt"): {seed: measured(lines, counts[2:]) for seed, lines in part.items()},
        },
    )
    stored = PARTS["read_sentences"](tmp_path / SENTENCES)
    assert PARTS["subset"](stored) == [2, 3]


def test_counts_of_one_line() -> None:
    table = {("hot", "dog"), ("in", "front", "of"), ("in", "front")}
    assert list(OUTPUTS["longest"](["a", "hot", "dog", "in", "front", "of", "in", "front"], table)) == [
        ("hot", "dog"),
        ("in", "front", "of"),
        ("in", "front"),
    ]
    text = OUTPUTS["Text"](
        [],
        [["a", "hot", "dog", "in", "front", "of", "him"]],
        [[("hot", "dog"), ("in", "front", "of")]],
        None,
        table,
        {"hot", "him"},
    )
    counts = OUTPUTS["counted"](text)
    output = ["the", "the", "hot", "dog", "in", "front", "hot"]
    assert {name: count(0, output) for name, count in counts.items()} == {
        "phrases of content words in the reference, found": (1, 1),
        "phrases of content words in the output, right": (1, 1),
        "phrases of content words in 100 outputs": (1, 1),
        "other phrases in the reference, found": (0, 1),
        "other phrases in the output, right": (1, 1),
        "other phrases in 100 outputs": (1, 1),
        "rare words in the reference, found": (1, 2),
        "rare words in the output, right": (1, 2),
        "rare words in 100 outputs": (2, 1),
        "lines with a word twice in a row": (1, 1),
    }


def steps(folder: Path) -> Path:
    files = {
        "test_target-1/out.txt": "He sees a hot dog.\nA man sleeps.\n",
        "mwt-1/mwt/lines.txt": "1\n",
        "mwt-1/mwt/target.txt.joined": "He sees a hot_dog .\n",
        "filter-1/phrases.tsv": "hot dog\t9\t1.0\t10\tHotdog\n",
        "extract-1/candidates.tsv": "hot dog\tHotdog\t6\t10\nhot dog\tHund\t1\t10\nbig\tgroß\t9\t9\n",
        "tok_test_source-1/source.txt": "Er sieht einen Hotdog .\nEin Hund schläft .\n",
        "tok_train_target-1/target.txt": "a a a a a a a a a a a a a a a a a a a a a hot dog\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_the_text_of_a_run(tmp_path: Path) -> None:
    text = OUTPUTS["read_text"](steps(tmp_path))
    assert text.words == [["He", "sees", "a", "hot", "dog", "."], ["A", "man", "sleeps", "."]]
    assert text.phrases == [[("hot", "dog")], []]
    assert text.promising.tolist() == [True, False]
    assert text.rare == {"hot", "dog"}


def test_the_page_has_the_figures_of_parts(capsys: pytest.CaptureFixture[str]) -> None:
    tables = [
        ROOT / "docs" / "results" / "small" / f"003-{name}" for name in ("seeds", "multi30k", "converged", "annealed")
    ]
    PARTS["main"]("pconmt,conmt", *map(str, tables))
    printed = {}
    for line in capsys.readouterr().out.splitlines():
        found = re.fullmatch(rf"(\S+) +pconmt − conmt  (.+?) +{FORM} +without penalty {FORM}", line)
        assert found
        name, part, *cells = found.groups()
        printed[name, part] = cells
    page = (ROOT / "docs" / "results" / "paper_003.md").read_bytes().decode()
    section = page.split("## Where do phrases gain?")[1].split("\n## ")[0]
    rows = {"all": "all", "subset": "multi-word", "rest": "the others", "subset − rest": "multi-word minus the others"}
    for part, begins in rows.items():
        (row,) = (line for line in section.splitlines() if line.startswith(f"| {begins} |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")][2:]
        assert cells == [*printed["003-seeds", part], *printed["mean", part]], part
