"""Contrastive evaluation: what is read and refused, what counts as right, groups and numbers by hand."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.analysis.contrastive import JudgedItem, bins, contrastive_report, judge
from phraseloom.analysis.contrastive_items import (
    Item,
    first_change,
    read_items,
    read_lingeval,
    read_parallel,
    read_set,
    with_positions,
    with_trees,
)
from phraseloom.decoding.scoring import Score
from phraseloom.decoding.source_phrases import TREES
from phraseloom.decoding.translator import Translator
from phraseloom.errors import CorruptError, DataError, FileProblem, UsageError
from phraseloom.metrics.ratio import wilson
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.world.contrastive import contrasts
from phraseloom.world.writer import write_world

GOOD = {"source": "a dog runs", "correct": "ein Hund rennt", "wrong": "ein Hund rennen"}


def write(path: Path, *lines: str) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def test_items_of_json_lines(tmp_path: Path) -> None:
    extra = {**GOOD, "distance": 7, "phenomenon": "agreement", "other": [1]}
    path = write(tmp_path / "i", json.dumps(GOOD), json.dumps(extra), json.dumps({**extra, "category": "x"}))
    first, second, third = read_items(path)
    assert first == Item(**GOOD, category="", distance=None, file=str(path), line=1)
    assert second == Item(**GOOD, category="agreement", distance=7, file=str(path), line=2)
    assert third.category == "x"
    nothing = write(tmp_path / "n", json.dumps({**GOOD, "distance": None, "category": None, "phenomenon": None}))
    assert read_items(nothing)[0][3:5] == ("", None)
    for name, pack in (("i.gz", gzip.compress), ("i.xz", lzma.compress)):
        (tmp_path / name).write_bytes(pack(path.read_bytes()))
        assert [i[:5] for i in read_items(tmp_path / name)] == [first[:5], second[:5], third[:5]]


def test_items_of_the_world_are_read_as_they_are(tmp_path: Path) -> None:
    write_world(tmp_path / "w", seed=2, train=0, valid=0, test=0, challenge=0, contrastive=3)
    found = read_items(tmp_path / "w" / "contrastive.jsonl")
    expected = list(contrasts(2, 3))
    assert [(i.category, i.distance, i.source, i.correct, i.wrong) for i in found] == [
        (c.phenomenon, c.distance, c.source, c.correct, c.wrong) for c in expected
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"source": ' + "1" * 5000 + "}", "not JSON"),
        ("[1]", "not a JSON object but [1]"),
        ('{"source": "a", "correct": "b"}', "no 'wrong'"),
        ('{"correct": "a", "wrong": "b"}', "no 'source'"),
        (json.dumps({**GOOD, "correct": 3}), "correct is 3, not a text"),
        (json.dumps({**GOOD, "source": None}), "source is null, not a text"),
        (json.dumps({**GOOD, "wrong": "\ud800"}), "wrong holds half a surrogate pair"),
        (json.dumps({**GOOD, "category": 4}), "category is 4"),
        (json.dumps({**GOOD, "phenomenon": ["x"]}), 'phenomenon is ["x"]'),
        (json.dumps({**GOOD, "distance": -1}), "distance -1: not a whole number"),
        (json.dumps({**GOOD, "distance": 1.5}), "distance 1.5"),
        (json.dumps({**GOOD, "distance": "3"}), 'distance "3"'),
        (json.dumps({**GOOD, "distance": True}), "distance true"),
        (json.dumps({**GOOD, "distance": 10**12}), "distance 1000000000000"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "i", json.dumps(GOOD), line, json.dumps(GOOD))
    with pytest.raises(DataError) as caught:
        read_items(path)
    assert message in str(caught.value) and (caught.value.file, caught.value.line) == (str(path), 2)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        read_items(write(tmp_path / "i"))
    with pytest.raises(FileProblem, match="not found"):
        read_items(tmp_path / "none")
    (tmp_path / "i.gz").write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-5])
    with pytest.raises(CorruptError):
        read_items(tmp_path / "i.gz")
    (tmp_path / "b").write_bytes(b'{"source": "\xff"}\n')
    with pytest.raises(DataError, match=r"b:1: invalid UTF-8"):
        read_items(tmp_path / "b")


def test_parallel_files(tmp_path: Path) -> None:
    s, c, w = (write(tmp_path / name, *lines) for name, lines in (("s", "abc"), ("c", "def"), ("w", "ghi")))
    plain = read_parallel(s, c, w)
    assert [i[:5] for i in plain] == [("a", "d", "g", "", None), ("b", "e", "h", "", None), ("c", "f", "i", "", None)]
    assert (plain[2].file, plain[2].line) == (str(s), 3)
    known = read_parallel(s, c, w, distances=write(tmp_path / "d", " 4 ", "", "0"), category="np")
    assert [(i.category, i.distance) for i in known] == [("np", 4), ("np", None), ("np", 0)]
    for text in ("x", "-1", "1.0", "٣", "1" * 10):
        with pytest.raises(DataError, match=r"d:2: distance .* not a whole number"):
            read_parallel(s, c, w, distances=write(tmp_path / "d", "1", text, "2"))
    short = write(tmp_path / "short", "x", "y")
    for files in ((s, short, w), (s, c, short), (short, c, w)):
        with pytest.raises(DataError, match=r"lines; line n of both must be about item n"):
            read_parallel(*files)
    with pytest.raises(DataError, match="short: 2 lines"):
        read_parallel(s, c, w, distances=short)
    empty = write(tmp_path / "e")
    with pytest.raises(DataError, match="empty"):
        read_parallel(empty, empty, empty)


def test_sets_by_their_name(tmp_path: Path) -> None:
    for name, text in (("src.en", "s"), ("tgt.correct.de", "c"), ("tgt.incorrect.de", "w")):
        write(tmp_path / f"agree.mt.{name}", text)
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / f"{name}.gz").write_bytes(gzip.compress(f"{text}2\n".encode()))
        write(tmp_path / f"agree.{name}", f"{text}3")
    assert read_set(tmp_path / "agree.mt")[0][:4] == ("s", "c", "w", "agree.mt")
    assert read_set(tmp_path / "agree")[0][:4] == ("s3", "c3", "w3", "agree")
    assert read_set(tmp_path / "folder")[0][:4] == ("s2", "c2", "w2", "folder")
    with pytest.raises(FileProblem, match=r"no file agre.mt.src.\* in this folder; did you mean agree.mt\?"):
        read_set(tmp_path / "agre.mt")
    with pytest.raises(FileProblem, match="no such folder"):
        read_set(tmp_path / "none" / "agree")
    write(tmp_path / "agree.src.en.gz", "")
    with pytest.raises(UsageError, match=r"agree.src.en and agree.src.en.gz are both src of the set"):
        read_set(tmp_path / "agree")


@pytest.mark.parametrize(
    ("correct", "wrong", "position"),
    [
        ("a b c", "a x c", 1),
        ("a b c", "x b c", 0),
        ("a b c", "a b", 2),
        ("a b", "a b c", 2),
        ("a b c d", "a c d", 1),
        ("a  b", "a b ", None),
        ("", "", None),
        ("", "a", 0),
    ],
)
def test_position_of_the_first_change(correct: str, wrong: str, position: int | None) -> None:
    assert first_change(correct, wrong) == position


def test_an_estimate_never_hides_a_distance() -> None:
    assert [i.distance for i in with_positions([Item("s", "a b", "a c"), Item("s", "a", "a")])] == [1, None]
    with pytest.raises(UsageError, match=r"f:2: the items have distances"):
        with_positions([Item("s", "a", "b"), Item("s", "a", "b", distance=0, file="f", line=2)])


def test_bins() -> None:
    assert [b.label for b in bins()] == [*map(str, range(16)), ">15"]
    assert [b.label for b in bins([0, 4, 5])] == ["0", "1–4", "5", ">5"]
    assert [b.label for b in bins([2])] == ["0–2", ">2"]
    for edges in ([0, 4, 5], [3], list(range(16))):
        for distance in range(30):
            assert sum(b.holds(distance) for b in bins(edges)) == 1
    assert not any(b.holds(None) for b in bins())
    for wrong in ([], [3, 2], [1, 1], [-1, 2]):
        with pytest.raises(UsageError):
            bins(wrong)


class Toy:
    """Scores what a table says; a translator otherwise."""

    def __init__(self, log_probs: dict[str, float], needs_trees: bool = False, cropped: str = "") -> None:
        self.log_probs, self.needs_trees, self.cropped = log_probs, needs_trees, cropped
        self.calls: list[tuple[list[str], list[str], dict[str, Any]]] = []

    def score(self, sources: Sequence[str], targets: Sequence[str], **options: Any) -> list[Score]:
        self.calls.append(([*sources], [*targets], options))
        # `score`, which ranks by length, is the other way round: it must not be what counts
        return [
            Score(p := self.log_probs[t], -p, t.lower().split(), [p], s == self.cropped)
            for s, t in zip(sources, targets, strict=True)
        ]


def test_right_is_strictly_more_likely() -> None:
    toy = Toy({"a": -1.0, "b": -2.0, "c": -2.0, "A": -0.5}, cropped="long")
    items = [Item("s", c, w) for c, w in (("a", "b"), ("b", "a"), ("b", "c"), ("A", "a"), ("a", "A"))]
    items.append(Item("long", "a", "b"))
    found = judge(toy, items)
    assert found.right == [True, False, False, False, False, True]
    assert found.same == [False, False, False, True, True, False] and found.cropped == 1
    assert (found.correct[:2], found.wrong[:2]) == ([-1.0, -2.0], [-2.0, -1.0])


def test_a_pair_is_scored_once() -> None:
    toy = Toy({"a": -1.0, "b": -2.0, "c": -0.5})
    found = judge(toy, [Item("s", "a", "b"), Item("s", "a", "c"), Item("t", "a", "b"), Item("s", "a", "b")])
    assert found.right == [True, False, True, True]
    ((sources, targets, options),) = toy.calls
    assert sorted(zip(sources, targets, strict=True)) == [("s", "a"), ("s", "b"), ("s", "c"), ("t", "a"), ("t", "b")]
    assert options == {}


def test_trees_go_to_models_that_read_them(tmp_path: Path) -> None:
    table = {"a": -1.0, "b": -2.0}
    trees = write(tmp_path / "t", "(S (A s))", "(S (B t))")
    items = with_trees([Item("s", "a", "b", file="f", line=1), Item("t", "a", "b", file="f", line=2)], trees)
    reads, plain = Toy(table, needs_trees=True), Toy(table)
    judge(reads, items)
    judge(plain, items)
    ((sources, _, options),) = reads.calls
    assert [{"s": "(S (A s))", "t": "(S (B t))"}[s] for s in sources] == options["trees"]
    assert plain.calls[0][2] == {}

    class Refuses(Toy):
        def score(self, sources: Sequence[str], targets: Sequence[str], **options: Any) -> list[Score]:
            line = options["trees"].index("(S (B t))") + 1
            raise DataError("another sentence", file=TREES, line=line)

    with pytest.raises(DataError) as caught:
        judge(Refuses(table, needs_trees=True), items)
    assert (caught.value.file, caught.value.line) == (str(trees), 2)
    with pytest.raises(DataError, match=r"t: 2 lines; line n must be the tree of item n, but f has 1"):
        with_trees(items[:1], trees)


def test_a_model_agrees_with_a_forward_pass_of_each_pair(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    torch.manual_seed(4)
    sizes = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
    size = len(tokenizer.source.vocabulary)
    model = build_model(ModelConfig.model_validate({**sizes, "tied": "none"}), size, size).eval()
    translator = Translator(model, tokenizer).with_options(max_input_tokens=12)
    items = [Item(s, c, w) for s in LINES for c, w in zip(LINES, [*LINES[1:], LINES[0]], strict=True)]
    found = judge(translator, items)

    def log_prob(source: str, target: str) -> float:
        from phraseloom.data.tensors import make_batch

        ids = tokenizer.source.encode(source)[:12], tokenizer.target.encode(target)
        with torch.no_grad():
            scores = model.score(make_batch([ids[0]], [ids[1]]))
        assert scores.shape == (1, len(ids[1]) + 1)
        return float(scores.double().sum())

    for item, correct, wrong, right in zip(items, found.correct, found.wrong, found.right, strict=True):
        expected = log_prob(item.source, item.correct), log_prob(item.source, item.wrong)
        assert (correct, wrong) == pytest.approx(expected, abs=1e-4)
        assert right == (expected[0] > expected[1])
    assert 0 < sum(found.right) < len(items) and 0 < found.cropped < len(items)


def made(marks: str) -> JudgedItem:
    values = [float(m == "1") for m in marks]
    return JudgedItem(values, [0.5] * len(marks), [m == "=" for m in marks], 0)


def test_groups_by_hand() -> None:
    distances = [0, 0, 1, 5, None, None]
    items = [Item("s", "c", "w", "ab"[n > 3], d) for n, d in enumerate(distances)]
    report = contrastive_report(items, {"x": made("100=11"), "y": made("111110")}, [0, 2])
    names = [(g["category"], g["distance"], g["items"]) for g in report]
    assert names == [(None, None, 6), ("a", None, 4), ("b", None, 2), ("a", "0", 2), ("a", "1–2", 1), ("a", ">2", 1)]
    everything = report[0]["systems"]
    assert everything[0] == {
        "system": "x", "correct": 3, "accuracy": 0.5, "interval": list(wilson(3, 6)), "indistinguishable": 1
    }  # fmt: skip
    assert everything[1]["difference"] == pytest.approx(2 / 6)
    assert (everything[1]["won"], everything[1]["lost"], everything[1]["p"]) == (3, 1, 0.625)
    assert [s["correct"] for g in report[1:] for s in g["systems"]] == [1, 4, 2, 1, 1, 2, 0, 1, 0, 1]
    assert (report[-1]["low"], report[-1]["high"]) == (3, None)
    assert report[-1]["systems"][0]["indistinguishable"] == 1
    one = contrastive_report(items[:4], {"x": made("1111")})
    assert [(g["category"], g["distance"]) for g in one] == [(None, None), ("a", "0"), ("a", "1"), ("a", "5")]


LINGEVAL = [
    {
        "source": "Prague falls", "reference": "Prag stürzt", "origin": "newstest2009.1",
        "errors": [
            {"type": "np_agreement", "contrastive": "Der Prag stürzt", "distance": 2, "frequency": 2020},
            {"type": "polarity_particle_nicht_ins", "contrastive": "Prag stürzt nicht"},
            {"type": "subj_verb_agreement", "contrastive": "Prag stürzen", "distance": "0", "frequency": "0"},
        ],
    },
    {"source": "No error", "reference": "Kein Fehler", "origin": "newstest2009.2", "errors": []},
    {
        "source": "Dogs run", "reference": "Hunde rennen", "origin": "newstest2009.3",
        "errors": [{"type": "subj_verb_agreement", "contrastive": "Hunde rennt", "distance": 17}],
    },
]  # fmt: skip


def test_lingeval97(tmp_path: Path) -> None:
    path = tmp_path / "lingeval97.json.gz"
    path.write_bytes(gzip.compress(json.dumps(LINGEVAL, indent=2).encode()))
    found = read_lingeval(path)
    assert [(i.category, i.distance, i.line) for i in found] == [
        ("np_agreement", 2, 1), ("polarity_particle_nicht_ins", None, 1), ("subj_verb_agreement", 0, 1),
        ("subj_verb_agreement", 17, 3),
    ]  # fmt: skip
    assert found[0][:3] == ("Prague falls", "Prag stürzt", "Der Prag stürzt")
    agreement = read_lingeval(path, "subj_verb_agreement")
    assert agreement == [found[2], found[3]]
    judged = JudgedItem([-1.0, -2.0], [-3.0, -1.0], [False, False], 0)
    groups = contrastive_report(agreement, {"a": judged})
    assert [(g["distance"], g["systems"][0]["accuracy"]) for g in groups] == [(None, 0.5), ("0", 1.0), (">15", 0.0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"source": "a"}', "not a JSON list"),
        ('[{"source": "a", "reference": "b"}]', "l.json:1: entry 1 has no errors: "),
        ('[{"source": "a", "errors": []}]', "l.json:1: entry 1 has no reference: "),
        (
            '[{"source": "a", "reference": "b", "errors": []}, {"errors": []}]',
            "entry 2 has no source and no reference: ",
        ),
        ('[{"source": "a", "reference": "b", "errors": []}]', "l.json: no items: no entry has errors"),
        ("[7]", "entry 1 is 7, not an object with source, reference, errors"),
        ('[{"source": "a", "reference": "b", "errors": {"type": "x"}}]', "entry 1: errors is .*, not a list"),
        (
            '[{"source": "a", "reference": "b", "errors": ["x"]}]',
            'error 1 of entry 1 is "x", not an object with type, cont',
        ),
        ('[{"source": "a", "reference": "b", "errors": [{"type": "x"}]}]', "error 1 of entry 1 has no contrastive: "),
        ('[{"source": "a", "reference": "b", "errors": [{"type": "x", "contrastive": 3}]}]', "wrong is 3, not a text"),
        (
            '[{"source": "a", "reference": "b", "errors": [{"type": "x", "contrastive": "c", "distance": -1}]}]',
            "distance -1",
        ),
        ("[]", "no items"),
    ],
)
def test_what_is_not_lingeval97_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "l.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_lingeval(path)


def test_a_category_that_lingeval97_lacks(tmp_path: Path) -> None:
    path = tmp_path / "l.json"
    path.write_text(json.dumps(LINGEVAL))
    with pytest.raises(DataError, match="no errors of category subj_verb_agrement; did you mean subj_verb_agreement"):
        read_lingeval(path, "subj_verb_agrement")
