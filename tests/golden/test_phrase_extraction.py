"""Phrases of one-to-many links, from candidates to the multi-word subset, against runs of published code.

`phrase_extraction_*.json`: invented text with its word alignment; every key of it is compared, in Python and by the commands.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from phraseloom.align.links import parse_links
from phraseloom.cli.main import run
from phraseloom.phrases.extract import AlignedLine, Candidates, extract
from phraseloom.phrases.fertility import fertility_class
from phraseloom.phrases.filter import Filtered, Filters, count_phrases, filter_candidates
from phraseloom.phrases.merge import fertilities, merge_aligned
from phraseloom.phrases.segmenters import index_phrases
from phraseloom.text.words import join_line
from tests.golden.folder import golden_files

KEYS = {"description", "stopwords", "source", "target", "alignments", "candidate_counts", "contiguous_ngram_pmi_log2"}
KEYS |= {
    "kept_phrases",
    "merged_target",
    "fertility_counts",
    "fertility4_labels",
    "fertility2_labels",
    "multi_word_subset",
}
FILES = golden_files("phrase_extraction_*.json")


@pytest.fixture(params=FILES, ids=lambda p: p.name)
def data(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_bytes())
    assert set(found) == KEYS
    return found


def lines(data: dict[str, Any]) -> list[AlignedLine]:
    rows = zip(data["source"], data["target"], data["alignments"], strict=True)
    return [AlignedLine(s.split(" "), t.split(" "), parse_links(a), t) for s, t, a in rows]


def candidates(data: dict[str, Any]) -> Candidates:
    return extract(lines(data))


def kept(data: dict[str, Any]) -> Filtered:
    filters = Filters(stop_words=frozenset(data["stopwords"]))
    return filter_candidates(candidates(data), filters, text=data["target"])


def test_candidates(data: dict[str, Any]) -> None:
    assert {c.phrase.replace(" ", "_"): c.count for c in candidates(data)} == data["candidate_counts"]


def test_pmi_of_all_adjacent_words(data: dict[str, Any]) -> None:
    """Of 2 to 4 words with two occurrences or more, over the ends of the lines; no other phrase has a PMI."""
    stream = " ".join(data["target"]).split(" ")
    found = Counter(" ".join(stream[i : i + n]) for n in (2, 3, 4) for i in range(len(stream) - n + 1))
    counts = count_phrases(data["target"], found)
    assert counts.phrases == found
    pmi = {p.replace(" ", "_"): counts.pmi(p) for p, count in counts.phrases.items() if count >= 2}
    assert pmi == pytest.approx(data["contiguous_ngram_pmi_log2"], abs=1e-12)


@pytest.mark.parametrize("characters", ["no-punctuation", "letters"])
def test_kept_phrases(data: dict[str, Any], characters: str) -> None:
    filters = Filters(stop_words=frozenset(data["stopwords"]), characters=characters)
    found = filter_candidates(candidates(data), filters, text=data["target"])
    assert {
        p.phrase.replace(" ", "_"): {
            "count": p.count,
            "pmi": pytest.approx(p.pmi, abs=1e-12),
            "most_frequent_source": p.sources[0].word,
        }
        for p in found.phrases
    } == data["kept_phrases"]


def test_merging_fertility_and_the_subset(data: dict[str, Any]) -> None:
    index = index_phrases(p.phrase for p in kept(data).phrases)
    text, counts, subset = [], [], []
    for number, line in enumerate(lines(data)):
        parts = merge_aligned(line.target, line.links, index, "released")
        text.append(join_line(line.target, [part.size for part in parts]))
        counts.append(fertilities(parts, line.target, line.links, len(line.source)))
        if len(parts) < len(line.target):
            subset.append(number)
    assert text == data["merged_target"]
    assert counts == data["fertility_counts"]
    for classes in (4, 2):
        assert [[fertility_class(c, classes) for c in row] for row in counts] == data[f"fertility{classes}_labels"]
    assert subset == data["multi_word_subset"]


def test_by_the_commands(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"s": data["source"], "t": data["target"], "a": data["alignments"], "stop": data["stopwords"]}
    for name, rows in texts.items():
        Path(name).write_bytes("".join(row + "\n" for row in rows).encode())
    pair = ["-s", "s", "-t", "t", "-a", "a"]
    assert run(["phrases", "extract", *pair, "-o", "c.tsv"]) == 0
    assert run(["phrases", "filter", "c.tsv", "-t", "t", "--stop-words", "stop", "-o", "p.tsv"]) == 0
    rows = [row.split("\t") for row in Path("p.tsv").read_bytes().decode().split("\n")[:-1]]
    expected = {
        phrase: [phrase.replace("_", " "), str(of["count"]), f"{of['pmi']:.6f}", of["most_frequent_source"]]
        for phrase, of in data["kept_phrases"].items()
    }
    assert {row[0].replace(" ", "_"): [*row[:3], row[4]] for row in rows} == expected
    capsysbinary.readouterr()
    joining = ["t", "--table", "p.tsv", "-s", "s", "-a", "a", "--fertility", "fertility"]
    assert run(["phrases", "segment", *joining]) == 0
    assert capsysbinary.readouterr().out == "".join(row + "\n" for row in data["merged_target"]).encode()
    numbers = [[int(n) for n in row.split(" ")] for row in Path("fertility").read_bytes().decode().split("\n")[:-1]]
    assert numbers == data["fertility_counts"]
    assert run(["phrases", "mwt", *pair, "--table", "p.tsv", "-o", "mwt"]) == 0
    chosen = [int(n) - 1 for n in Path("mwt/lines.txt").read_bytes().split()]
    assert chosen == data["multi_word_subset"]
    for name in ("s", "t"):
        assert Path("mwt", name).read_bytes().decode() == "".join(texts[name][n] + "\n" for n in chosen)
    joined = "".join(data["merged_target"][n] + "\n" for n in chosen)
    assert Path("mwt/t.joined").read_bytes().decode() == joined
