"""Source phrases of parse trees and of a table, from the recipe to scored translations, on the built-in world."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phraseloom.cli.main import run as phraseloom
from phraseloom.data.shards import SplitFiles
from phraseloom.decoding.scoring import score_pairs
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, ModelError, UsageError
from phraseloom.files import write_manifest
from phraseloom.models.store import load_segmenter_of
from phraseloom.phrases.source import cut_sizes
from phraseloom.text.lines import write_lines
from phraseloom.training import validate
from phraseloom.training.checkpoint import average_checkpoints
from phraseloom.world.sampling import train_block

KINDS = ("tree", "table")

pytestmark = pytest.mark.usefixtures("one_process")


def recipe(folder: Path, kind: str | None) -> dict[str, Any]:
    def files(name: str) -> dict[str, str]:
        found = {"source": str(folder / f"{name}.en"), "target": str(folder / f"{name}.de")}
        return found | ({"trees": str(folder / f"{name}.trees")} if kind == "tree" else {})

    phrases = {"tree": {"kind": "tree"}, "table": {"kind": "table", "file": str(folder / "phrases.txt")}, None: None}
    return {
        "name": str(kind),
        "data": {
            "folder": str(folder / f"{kind}-dataset"),
            "source_language": "en",
            "target_language": "de",
            "train": [files("train")],
            "valid": [files("valid")],
            "subwords": {"kind": "subword_nmt", "merges": 80},
            "phrases": phrases[kind],
            "processes": 1,
        },
        "model": {
            "width": 16,
            "heads": 2,
            "ffn_width": 16,
            "encoder": {"layers": 1},
            "decoder": {"layers": 2},
            "phrases": {"segments": {"kind": "dataset"}},
            "output": {"bias": True},
        },
        "training": {
            "batch_tokens": 400,
            "max_updates": 4,
            "checkpoint_every": 2,
            "bleu_every": 1,
            "average_last": 2,
            "processes": 1,
            "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.01, "warmup": 2},
        },
        "decoding": {"beam": 2, "max_length": {"factor": 0.0, "constant": 8}, "workers": 1},
    }


@pytest.fixture(scope="module")
def place(one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, trees and a phrase table; for each kind a prepared dataset and a run that was stopped and resumed."""
    folder = tmp_path_factory.mktemp("phrases")
    pairs = [pair.annotations() for pair in train_block(3, 0, 92)]
    for name, part in (("train", pairs[:80]), ("valid", pairs[80:])):
        for ending in ("en", "de", "trees"):
            write_lines(folder / f"{name}.{ending}", [pair[ending] for pair in part])
    write_lines(folder / "phrases.txt", ["in the", "on the", "of the", "to the", "the old", "the beans"])
    for kind in KINDS:
        (folder / f"{kind}.yaml").write_bytes(yaml.safe_dump(recipe(folder, kind)).encode())
        assert phraseloom(["prepare", str(folder / f"{kind}.yaml")]) == 0
        run = ["train", str(folder / f"{kind}.yaml"), "--run", str(folder / kind)]
        assert phraseloom([*run, "training.max_updates=2"]) == 0
        assert phraseloom(run) == 0
    return folder


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str], str]]:
    """A command line: its exit code, the lines of its output, its messages."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = phraseloom([*map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out.split("\n")[:-1], err

    return call


def lines(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


def trees_of(place: Path, kind: str) -> list[str] | None:
    return lines(place / "valid.trees") if kind == "tree" else None


def test_a_resumed_run_is_the_uninterrupted_one(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And BLEU at its end is of translations of the kept trees, each with its line."""
    given: list[tuple[str, str]] = []
    translate = Translator.translate

    def spied(self: Translator, some: list[str], *, trees: list[str], **rest: Any) -> Any:
        given.extend(zip(some, trees, strict=True))
        return translate(self, some, trees=trees, **rest)

    monkeypatch.setattr(Translator, "translate", spied)
    monkeypatch.setattr(validate, "CHUNK", 5)
    assert phraseloom(["train", str(place / "tree.yaml"), "--run", str(tmp_path / "run")]) == 0
    for name in ("model.safetensors", "segmenter/segmenter.json", "config.json"):
        assert (tmp_path / "run/last" / name).read_bytes() == (place / "tree/last" / name).read_bytes()
    texts = [*zip(lines(place / "valid.en"), lines(place / "valid.trees"), strict=True)]
    assert given and given == texts * (len(given) // len(texts))


@pytest.mark.parametrize("kind", KINDS)
def test_the_segmenter_goes_with_every_model(place: Path, kind: str) -> None:
    of_dataset = load_segmenter_of(place / kind)
    for folder in ("checkpoints/step_00000002", "last", "averaged"):
        manifest = json.loads((place / kind / folder / "manifest.json").read_bytes())["files"]
        assert "segmenter/segmenter.json" in manifest
        assert ("segmenter/phrase_table.txt" in manifest) is (kind == "table")
        found = load_segmenter_of(place / kind / folder)
        assert found is not None and of_dataset is not None and found.sha256 == of_dataset.sha256


def test_translate_and_score_with_trees(place: Path, command: Callable[..., Any], tmp_path: Path) -> None:
    english, trees = (place / "valid.en").read_bytes(), place / "valid.trees"
    code, out, _ = command("translate", place / "tree", "--trees", trees, stdin=english)
    assert (code, len(out)) == (0, 12)
    _, rows, _ = command(
        "translate", place / "tree", "--trees", trees, "--output", "json", "--window", 5, stdin=english
    )
    whole = [json.loads(row) for row in rows]
    assert [t["text"] for t in whole] == out
    files = (place / "valid.en", place / "valid.de")
    _, found, _ = command("score", place / "tree", *files, "--trees", trees)
    translator = Translator.from_pretrained(place / "tree")
    wanted = translator.score(lines(files[0]), lines(files[1]), trees=lines(trees))
    assert [float(x) for x in found] == pytest.approx([s.log_prob for s in wanted], abs=1e-4)
    pairs = "".join(f"{s}\t{t}\n" for s, t in zip(lines(files[0]), lines(files[1]), strict=True)).encode()
    assert command("score", place / "tree", "--trees", trees, stdin=pairs)[1] == found
    (tmp_path / "flat").write_bytes(b"\n" * 12)
    others = command("score", place / "tree", *files, "--trees", tmp_path / "flat")[1]
    assert [float(x) for x in others] != pytest.approx([float(x) for x in found], abs=1e-4), "trees decide nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_that_of_the_search(place: Path, kind: str) -> None:
    """The source cropped or not: search and scoring read the same phrases, those of the line up to the cut."""
    translator = Translator.from_pretrained(place / kind)
    english, trees = lines(place / "valid.en")[:4], trees_of(place, kind)
    trees = None if trees is None else trees[:4]
    ids = translator.tokenizer.source.encode_batch(english)
    limit = sorted(map(len, ids))[1]
    phrases = translator.phrases_of(english, ids, trees)
    assert phrases is not None
    phrases = [n if len(i) <= limit else cut_sizes(n, 0, limit) for n, i in zip(phrases, ids, strict=True)]
    piece = translator.tokenizer.target.vocabulary.piece
    number = {piece(i): i for i in range(len(translator.tokenizer.target.vocabulary))}
    done = translator.translate(english, trees=trees, max_input_tokens=limit)
    targets = [[number[token] for token in t.tokens] for t in done]
    pairs = [(i[:limit], t) for i, t in zip(ids, targets, strict=True)]
    scores = score_pairs(translator.model, pairs, translator.config, translator.device, phrases)
    assert [sum(s) for s in scores] == pytest.approx([t.log_prob for t in done], abs=1e-4)
    german = lines(place / "valid.de")[:4]
    pairs = [(i, translator.tokenizer.target.encode(t)) for (i, _), t in zip(pairs, german, strict=True)]
    wanted = score_pairs(translator.model, pairs, translator.config, translator.device, phrases)
    longer = {"constant": 100}  # so that no target is cropped
    found = translator.score(english, german, trees=trees, max_input_tokens=limit, max_length=longer)
    assert [s.token_log_probs for s in found] == [pytest.approx(w, abs=1e-5) for w in wanted]
    assert [s.cropped for s in found] == [t.cropped for t in done] == [len(i) > limit for i in ids]


def test_a_table_works_on_text_alone(place: Path, command: Callable[..., Any]) -> None:
    english = (place / "valid.en").read_bytes()
    code, out, _ = command("translate", place / "table", stdin=english)
    assert (code, len(out)) == (0, 12)
    code, out, _ = command("score", place / "table", place / "valid.en", place / "valid.de")
    assert (code, len(out)) == (0, 12)
    code, out, err = command("translate", place / "table", "--trees", place / "valid.trees", stdin=english)
    assert (code, out) == (2, []) and "trees are given, but this model takes its phrases from: table" in err


def test_a_model_of_trees_asks_for_them(place: Path, command: Callable[..., Any]) -> None:
    for arguments in (["translate", place / "tree"], ["score", place / "tree", place / "valid.en", place / "valid.de"]):
        code, out, err = command(*arguments, stdin=b"a\n")
        assert (code, out, err.count("\n")) == (2, [], 1)
        assert "--trees" in err and "phraseloom phrases parse" in err


def test_trees_that_do_not_fit_the_input(place: Path, command: Callable[..., Any], tmp_path: Path) -> None:
    english, good = (place / "valid.en").read_bytes(), lines(place / "valid.trees")
    write_lines(tmp_path / "few", good[:7])
    code, _, err = command("translate", place / "tree", "--trees", tmp_path / "few", "--window", 5, stdin=english)
    assert code == 1 and "few: fewer trees than input lines (7)" in err
    write_lines(tmp_path / "more", [*good, good[0]])
    code, out, err = command("translate", place / "tree", "--trees", tmp_path / "more", stdin=english)
    assert code == 1 and len(out) == 12 and "more:13: more trees than input lines (12)" in err
    write_lines(tmp_path / "wrong", [*good[:8], "(S (X some) (X thing))", *good[9:]])
    for window in (5, 100):
        more = ["--trees", tmp_path / "wrong", "--window", window]
        code, _, err = command("translate", place / "tree", *more, stdin=english)
        assert code == 1 and f"{tmp_path / 'wrong'}:9: " in err
    files = [place / "valid.en", place / "valid.de"]
    code, out, err = command("score", place / "tree", *files, "--trees", tmp_path / "wrong")
    assert (code, out) == (1, []) and f"{tmp_path / 'wrong'}:9: " in err
    code, out, err = command("score", place / "tree", *files, "--trees", tmp_path / "more")
    assert (code, out) == (1, []) and "more has 13" in err
    code, _, err = command("translate", place / "tree", "--trees", tmp_path / "nothing", stdin=english)
    assert code == 1 and "tree file not found" in err


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_do_not_change_a_translation(place: Path, kind: str) -> None:
    translator = Translator.from_pretrained(place / kind)
    english, trees = lines(place / "valid.en"), trees_of(place, kind)
    whole = translator.translate(english, trees=trees, batch_sentences=12)
    order = [7, 2, 11, 0, 4]
    some = [english[i] for i in order]
    of_some = None if trees is None else [trees[i] for i in order]
    for size in (1, 3):
        again = translator.translate(some, trees=of_some, batch_sentences=size, alignments=True)
        assert [t.text for t in again] == [whole[i].text for i in order]
        assert [t.score for t in again] == pytest.approx([whole[i].score for i in order], abs=1e-4)
    streamed = translator.translate_iterable(iter(english), trees=None if trees is None else iter(trees), window=5)
    assert [t.text for t in streamed] == [t.text for t in whole]


@pytest.mark.parametrize("kind", KINDS)
def test_long_and_blank_lines(place: Path, kind: str) -> None:
    translator = Translator.from_pretrained(place / kind)
    english = ["", lines(place / "valid.en")[0], " "]
    trees = None if kind == "table" else ["", lines(place / "valid.trees")[0], ""]
    ids = translator.tokenizer.source.encode(english[1])
    assert len(ids) > 12
    blank, cropped, _ = translator.translate(english, trees=trees, max_input_tokens=12, long_lines="crop")
    assert blank.text == "" and cropped.cropped
    split = translator.translate(english, trees=trees, max_input_tokens=12, long_lines="split")[1]
    assert split.parts > 1


def test_the_python_interface_refuses_what_does_not_fit(place: Path) -> None:
    translator = Translator.from_pretrained(place / "tree")
    with pytest.raises(UsageError, match="2 lines, but 1 tree"):
        translator.translate(["a", "b"], trees=["(S (X a))"])
    with pytest.raises(UsageError, match="--trees"):
        translator.with_options(beam=1).score(["a"], ["b"])
    with pytest.raises(DataError, match="trees:2: "):
        translator.translate(["a", "b"], trees=["(S (X a))", "(S (X c) (X d))"])
    with pytest.raises(UsageError, match="its folder has no segmenter"):
        Translator(translator.model, translator.tokenizer).translate(["a"])


def test_a_model_of_its_own_phrases_does_not_read_those_of_the_dataset(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    monkeypatch.setattr(SplitFiles, "_check_phrases", lambda *_: pytest.fail("phrases were read"))
    arguments = ["train", str(place / "tree.yaml"), "--run", str(tmp_path / "run"), "training.max_updates=2"]
    assert phraseloom([*arguments, "model.phrases.segments={kind: fixed}"]) == 0
    assert not (tmp_path / "run/last/segmenter").exists() and load_segmenter_of(tmp_path / "run") is None
    code, _, err = command("translate", tmp_path / "run", "--trees", place / "valid.trees", stdin=b"a\n")
    assert code == 2 and "this model reads no phrases of parse trees" in err


def test_a_model_that_needs_phrases_and_a_dataset_without(
    place: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    (tmp_path / "none.yaml").write_bytes(yaml.safe_dump(recipe(place, None)).encode())
    for verb in ("prepare", "train"):  # the recipe does not fit itself
        code, _, err = command(verb, tmp_path / "none.yaml")
        assert code == 2 and "model.phrases.segments" in err and "data.phrases" in err
    assert phraseloom(["prepare", str(tmp_path / "none.yaml"), "model.phrases=null"]) == 0
    other = f"data.folder={place / 'None-dataset'}"  # the recipe does not fit its dataset
    code, _, err = command("train", place / "tree.yaml", "--run", tmp_path / "run", other)
    assert code == 2 and "model.phrases.segments" in err and "data.phrases" in err
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_models_with_other_phrases_are_not_mixed(place: Path, tmp_path: Path) -> None:
    one, two = place / "tree/checkpoints/step_00000002", tmp_path / "step_00000004"
    shutil.copytree(place / "tree/checkpoints/step_00000004", two)
    name = "segmenter/segmenter.json"
    other = json.loads((two / name).read_bytes()) | {"max_tokens": 9}
    (two / name).write_bytes(json.dumps(other).encode())
    names = [p.relative_to(two).as_posix() for p in two.rglob("*") if p.is_file() and p.name != "manifest.json"]
    write_manifest(two, names)
    with pytest.raises(ModelError, match=r"segmenter\.json differs"):
        average_checkpoints(tmp_path / "mean", [one, two])
    with pytest.raises(ModelError, match="segmenter is not the one"):
        Translator.from_pretrained(two)
    assert phraseloom(["inspect", str(two)]) == 0


def test_inspect_names_the_segmenter(place: Path, command: Callable[..., Any]) -> None:
    for folder in ("tree-dataset", "tree", "tree/averaged"):
        code, out, _ = command("inspect", place / folder)
        assert code == 0 and any("source phrases" in line and "parse trees" in line for line in out)
    assert any("table of 6 phrases" in line for line in command("inspect", place / "table")[1])
    assert not any("source phrases" in line for line in command("inspect", place / "table-dataset", "--help")[1])
