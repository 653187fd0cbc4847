"""Source phrases from recipe to batch: what is refused, what is stored, and what a dataset without them keeps as it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import content

from phraseloom import files
from phraseloom.config import validate
from phraseloom.data import prepare as module
from phraseloom.data.corpus import Dataset, Split
from phraseloom.data.prepare import prepare
from phraseloom.data.tally import table
from phraseloom.data.tensors import from_padded, make_batch
from phraseloom.errors import ConfigError, CorruptError, DataError, PhraseloomError
from phraseloom.options.data import DataConfig, TextDataConfig
from phraseloom.phrases.source import load_segmenter, segment_lines
from phraseloom.text.lines import write_lines
from phraseloom.world.sampling import train_block

TREE: dict[str, Any] = {"phrases": {"kind": "tree"}}
TABLE: dict[str, Any] = {"phrases": {"kind": "table", "file": "phrases.txt"}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of the built-in world with their trees: files a (60), b (40), v (9), t (8), and a phrase table."""
    folder = tmp_path_factory.mktemp("text")
    pairs = [pair.annotations() for pair in train_block(1, 0, 117)]
    for name, part in (("a", pairs[:60]), ("b", pairs[60:100]), ("v", pairs[100:109]), ("t", pairs[109:])):
        for ending in ("en", "de", "trees"):
            write_lines(folder / f"{name}.{ending}", [pair[ending] for pair in part])
    write_lines(folder / "phrases.txt", ["spill the beans", "the old", "in the", "at the market"])
    return folder


def entry(name: str, *, trees: bool) -> dict[str, str]:
    return {"source": f"{name}.en", "target": f"{name}.de"} | ({"trees": f"{name}.trees"} if trees else {})


def section(folder: Path, *, trees: bool, **more: Any) -> dict[str, Any]:
    """The data section of a recipe."""
    return {
        "folder": str(folder),
        "source_language": "en",
        "target_language": "de",
        "train": [entry("a", trees=trees), entry("b", trees=trees)],
        "valid": [entry("v", trees=trees)],
        "test": [entry("t", trees=trees)],
        "subwords": {"kind": "subword_nmt", "merges": 60},
        "processes": 1,
        **more,
    }


def make(text: Path, folder: Path, *, trees: bool = False, **more: Any) -> Dataset:
    config = DataConfig.model_validate(section(folder, trees=trees, **more))
    return Dataset.open(prepare(config, data_root=text).folder)


def lines_of(text: Path, names: str, ending: str) -> list[str]:
    return [line for n in names for line in (text / f"{n}.{ending}").read_bytes().decode().split("\n")[:-1]]


@pytest.fixture(scope="module")
def tree_dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """In shards of 20 pairs or a few more, with a filter that drops some."""
    folder = tmp_path_factory.mktemp("tree") / "dataset"
    return make(text, folder, trees=True, shard_pairs=20, filter={"max_tokens": 70, "max_ratio": 1.5}, **TREE)


@pytest.fixture(scope="module")
def table_dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(text, tmp_path_factory.mktemp("table") / "dataset", **TABLE)


@pytest.fixture(scope="module")
def plain_dataset(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(text, tmp_path_factory.mktemp("plain") / "dataset")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a train file without trees": (
        {"train": [entry("a", trees=True), entry("b", trees=False)], **TREE},
        r"train\.1\.trees is missing.*b\.en",
    ),
    "valid without trees": ({"valid": [entry("v", trees=False)], **TREE}, r"valid\.0\.trees is missing"),
    "test without trees": ({"test": [entry("t", trees=False)], **TREE}, r"test\.0\.trees is missing"),
    "trees for nothing": ({}, r"train\.0\.trees is given, but there is no data\.phrases"),
    "trees beside a table": (TABLE, r"train\.0\.trees is given, but data\.phrases is table"),
    "a hash of no trees": (
        {"valid": [entry("v", trees=False) | {"trees_sha256": "0" * 64}], **TREE},
        "trees_sha256 is given, but no trees",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_trees_are_given_exactly_where_they_are_used(case: str) -> None:
    more, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        validate(DataConfig, section(Path("x"), trees=True, **more))


def test_text_of_one_language_has_no_phrases() -> None:
    given = {"folder": "x", "language": "en", "train": [{"text": "a.en"}]}
    TextDataConfig.model_validate(given)
    for wrong in ({**given, **TABLE}, {**given, "train": [{"text": "a.en", "trees": "a.trees"}]}):
        with pytest.raises(ConfigError, match="unknown key"):
            validate(TextDataConfig, wrong)


def expected(dataset: Dataset, split: Split, lines: list[str], trees: list[str] | None) -> list[list[int]]:
    """The phrases of every pair of a split, by its number among the raw lines."""
    chosen = split.lines.tolist()
    ids = [split.source(i).tolist() for i in range(len(split))]
    assert dataset.segmenter is not None
    of_lines = None if trees is None else [trees[i] for i in chosen]
    return segment_lines(dataset.segmenter, dataset.tokenizer.source, [lines[i] for i in chosen], ids, of_lines)


@pytest.mark.parametrize("kind", ["tree", "table"])
def test_the_phrases_of_every_pair_are_stored(text: Path, kind: str, request: pytest.FixtureRequest) -> None:
    dataset: Dataset = request.getfixturevalue(f"{kind}_dataset")
    for name, names in (("train", "ab"), ("valid", "v"), ("test", "t")):
        split, trees = dataset.split(name), lines_of(text, names, "trees") if kind == "tree" else None
        wanted = expected(dataset, split, lines_of(text, names, "en"), trees)
        sizes_BP = split.phrase_sizes(range(len(split)))
        assert sizes_BP is not None and sizes_BP.dtype == np.int64
        assert [[n for n in row if n] for row in sizes_BP.tolist()] == wanted
        assert (sizes_BP.sum(1) == split.source_lengths + 1).all()
        assert (sizes_BP > 0).sum(1).tolist() == split.phrase_counts.tolist() == [*map(len, wanted)]
        assert split.info.source_phrases == sum(map(len, wanted))
    if kind == "tree":
        train = dataset.split("train")
        assert len(train.info.shards) > 1 and {"too_long", "ratio"} <= set(train.info.dropped)
        assert max(map(len, wanted)) > 3, "several phrases a sentence, or this shows nothing"


def test_phrases_of_a_batch_stand_beside_its_tokens(tree_dataset: Dataset) -> None:
    train = tree_dataset.split("train")
    chosen = [len(train) - 1, 0, 41, 2]  # of several shards, not in order
    sizes_BP = train.phrase_sizes(chosen)
    assert sizes_BP is not None
    batch = from_padded(*train.batch(chosen), phrase_sizes=sizes_BP)
    assert batch.phrase_sizes_BP is not None
    assert batch.phrase_sizes_BP.sum(1).tolist() == batch.source_lengths_B.tolist()
    assert batch.phrase_sizes_BP.shape[1] == max((row > 0).sum() for row in sizes_BP)
    alone = train.phrase_sizes([41])
    assert alone is not None and alone[0].tolist() == [n for n in sizes_BP[2].tolist() if n]
    lists = [[n for n in row if n] for row in sizes_BP.tolist()]
    again = make_batch([train.source(i) for i in chosen], [train.target(i) for i in chosen], lists)
    assert again.phrase_sizes_BP is not None and again.phrase_sizes_BP.equal(batch.phrase_sizes_BP)
    assert again.to("cpu").phrase_sizes_BP is not None and again.source_BS.equal(batch.source_BS)
    with pytest.raises(IndexError):
        train.phrase_sizes([len(train)])


def test_duplicates_take_their_phrases_with_them(text: Path, tmp_path: Path) -> None:
    twice = section(tmp_path / "out", trees=True, filter={"deduplicate": True}, **TREE)
    twice["train"] = [entry("a", trees=True), entry("b", trees=True), entry("a", trees=True)]
    train = Dataset.open(prepare(DataConfig.model_validate(twice), data_root=text).folder).split("train")
    sizes_BP = train.phrase_sizes(range(len(train)))
    assert train.info.dropped["duplicate"].pairs >= 60
    assert sizes_BP is not None and (sizes_BP.sum(1) == train.source_lengths + 1).all()


@pytest.mark.parametrize("kind", ["tree", "table"])
def test_the_number_of_processes_changes_no_byte(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 15)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 0)
    phrases, trees = (TREE, True) if kind == "tree" else (TABLE, False)
    one = make(text, tmp_path / "one", trees=trees, **phrases)
    two = make(text, tmp_path / "two", trees=trees, **(phrases | {"processes": 2}))
    assert content(one.folder) == content(two.folder)


def test_trees_of_valid_and_test_are_kept(text: Path, tree_dataset: Dataset, table_dataset: Dataset) -> None:
    for name, file in (("valid", "v"), ("test", "t")):
        split = tree_dataset.split(name)
        assert split.trees() == lines_of(text, file, "trees")
        assert split.text() == (lines_of(text, file, "en"), lines_of(text, file, "de"))
        kept = (tree_dataset.folder / name / "trees.txt").read_bytes()
        assert split.info.text_sha256["trees"] == hashlib.sha256(kept).hexdigest()
        assert table_dataset.split(name).trees() is None
    assert tree_dataset.split("train").trees() is None
    manifest = json.loads((tree_dataset.folder / "manifest.json").read_bytes())["files"]
    assert {"valid/trees.txt", "segmenter/segmenter.json", "train/00000.source.phrases"} <= set(manifest)


def test_lines_without_a_tree_are_counted(text: Path, tmp_path: Path) -> None:
    for ending in ("en", "de", "trees"):
        lines = lines_of(text, "a", ending)
        if ending == "trees":
            lines[4] = lines[30] = ""
        else:
            lines[7] = ""
        lines[7] = "" if ending == "trees" else lines[7]
        write_lines(tmp_path / f"a.{ending}", lines)
    given = section(tmp_path / "out", trees=True, valid=[], test=[], **TREE)
    given["train"] = [entry("a", trees=True)]
    report = prepare(DataConfig.model_validate(given), data_root=tmp_path)
    train = Dataset.open(report.folder).split("train")
    assert train.info.no_tree is not None and train.info.no_tree.model_dump() == {
        "lines": 2,
        "first_file": "a.trees",
        "first_line": 5,
    }
    assert "2 lines without a parse tree" in table(report.index) and "a.trees:5" in table(report.index)
    assert Dataset.open(report.folder).split("train").phrase_sizes([4]) is not None


def spoil(tmp_path: Path, text: Path, name: str, change: dict[int, str]) -> Path:
    """A copy of the text in which some trees of a file are others."""
    for path in text.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = lines_of(text, name, "trees")
    for number, line in change.items():
        lines[number - 1] = line
    write_lines(tmp_path / f"{name}.trees", lines)
    return tmp_path


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["b", "v"])
def test_a_tree_of_another_line_stops_with_its_place(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, processes: int
) -> None:
    if processes == 2 and name == "v":
        pytest.skip("one case with processes is enough")
    monkeypatch.setattr(module, "CHUNK_PAIRS", 4)
    monkeypatch.setattr(module, "SMALL_CHUNKS", 0)
    spoil(tmp_path, text, name, {6: "(S (X another) (X line))"})
    if name == "b":  # the pair before it is left out, so that it is not the sixth of those that are cut
        german = lines_of(text, "b", "de")
        write_lines(tmp_path / "b.de", [*german[:4], "", *german[5:]])
    config = DataConfig.model_validate(section(tmp_path / "out", trees=True, **TREE) | {"processes": processes})
    with pytest.raises(DataError, match=rf"{name}\.trees:6: ") as caught:
        prepare(config, data_root=tmp_path)
    assert (caught.value.file, caught.value.line) == (str(tmp_path / f"{name}.trees"), 6)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_trees_are_surveyed_before_any_work(text: Path, tmp_path: Path) -> None:
    spoil(tmp_path, text, "b", {})
    good = lines_of(text, "b", "trees")
    english = lines_of(text, "b", "en")
    write_lines(tmp_path / "b.en", [*english[:9], "", *english[10:]])
    cases: list[tuple[bytes, str, dict[str, Any]]] = [
        (
            "\n".join([*good[:12], *good[13:], ""]).encode(),
            r"b\.trees:10: line counts differ: 39 in b\.trees, but 40",
            {},
        ),
        (b"(S\xff x)\n" * 40, r"b\.trees:1: .*UTF-8", {}),
        ("\n".join([*good, ""]).encode(), "SHA-256 is", {"trees_sha256": "0" * 64}),
    ]
    for data, message, more in cases:
        (tmp_path / "b.trees").write_bytes(data)
        given = section(tmp_path / "out", trees=True, **TREE)
        given["train"][1] |= more
        with pytest.raises(PhraseloomError, match=message):
            prepare(DataConfig.model_validate(given), data_root=tmp_path)
        assert not [p for p in tmp_path.iterdir() if p.is_dir()]


INDEX_KEYS = {
    "": {"format", "config", "token_type", "tokenizer_sha256", "subwords", "splits"},
    "config": {
        *("source_language", "target_language", "train", "valid", "test", "text", "subwords", "filter", "shard_pairs"),
    },
    "entry": {"source", "target", "source_sha256", "target_sha256"},
    "split": {"read", "pairs", "source_tokens", "target_tokens", "dropped", "files", "shards", "text_sha256"},
    "file": {"source", "target", "source_sha256", "target_sha256", "lines", "source_report", "target_report"},
    "shard": {"name", "pairs", "source_tokens", "target_tokens", "sha256"},
}


def test_a_dataset_without_phrases_is_what_it_was(plain_dataset: Dataset) -> None:
    """Its fingerprint is that of every run that was trained on it: no key may come into its index."""
    index = json.loads((plain_dataset.folder / "index.json").read_bytes())
    assert set(index) == INDEX_KEYS[""] and set(index["config"]) == INDEX_KEYS["config"]
    assert all(set(e) == INDEX_KEYS["entry"] for e in index["config"]["train"])
    for split in index["splits"].values():
        assert set(split) == INDEX_KEYS["split"]
        assert all(set(f) == INDEX_KEYS["file"] for f in split["files"])
        assert all(set(s) == INDEX_KEYS["shard"] for s in split["shards"])
        assert all(set(s["sha256"]) == {f"{a}.{b}" for a in ("source", "target") for b in ("tokens", "offsets")} | {"lines"}
                   for s in split["shards"])  # fmt: skip
    assert not (plain_dataset.folder / "segmenter").exists() and plain_dataset.segmenter is None
    split = plain_dataset.split("valid")
    assert split.phrase_sizes([0]) is None and split.trees() is None and not split.has_phrases
    assert from_padded(*split.batch([0])).phrase_sizes_BP is None


def damaged(dataset: Dataset, folder: Path, name: str, data: bytes) -> Path:
    """A copy of a dataset in which one file is another, and the manifest says so."""
    for path, old in content(dataset.folder).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(old)
    (folder / name).write_bytes(data)
    files.write_manifest(folder, [n for n in content(folder) if n != "manifest.json"])
    return folder


@pytest.mark.parametrize("change", ["moved", "zero"])
def test_phrases_that_do_not_cover_their_sentences_are_refused(
    tree_dataset: Dataset, tmp_path: Path, change: str
) -> None:
    name = "train/00001.source.phrases"
    sizes = np.frombuffer((tree_dataset.folder / name).read_bytes(), "<u2").copy()
    train = tree_dataset.split("train")
    number = train.info.shards[0].pairs  # the first pair of the shard
    first = int(train.phrase_counts[number]) - 1  # its last phrase
    if change == "moved":  # a token goes over to the next sentence: the sum stays
        sizes[first : first + 2] += np.array([1, -1]).astype("<u2")
    else:  # a phrase of nothing, inside a sentence
        sizes[0], sizes[1] = 0, sizes[0] + sizes[1]
    broken = Dataset.open(damaged(tree_dataset, tmp_path / "broken", name, sizes.tobytes())).split("train")
    broken.batch([0, number])  # who needs no phrases does not read them
    with pytest.raises(CorruptError, match="do not cover"):
        broken.phrase_sizes([number])


def test_the_segmenter_is_that_of_the_dataset(tree_dataset: Dataset, tmp_path: Path) -> None:
    name = "segmenter/segmenter.json"
    other = json.loads((tree_dataset.folder / name).read_bytes()) | {"max_tokens": 9}
    with pytest.raises(CorruptError, match="the segmenter belongs to another dataset"):
        Dataset.open(damaged(tree_dataset, tmp_path / "other", name, json.dumps(other).encode()))
    assert tree_dataset.segmenter is not None
    assert load_segmenter(tree_dataset.folder / "segmenter").sha256 == tree_dataset.segmenter.sha256


def test_phrases_are_stored_for_all_splits_or_none(tree_dataset: Dataset, tmp_path: Path) -> None:
    index = json.loads((tree_dataset.folder / "index.json").read_bytes())
    del index["splits"]["valid"]["source_phrases"]
    folder = damaged(tree_dataset, tmp_path / "part", "index.json", json.dumps(index).encode())
    with pytest.raises(CorruptError, match="phrases of valid are incomplete"):
        Dataset.open(folder)
