"""The written folder: bytes are a function of the seed, files fit each other, bad requests are refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from phraseloom.cli.world import command
from phraseloom.errors import FileProblem, UsageError
from phraseloom.files import sha256_file
from phraseloom.phrases.trees import parse_tree
from phraseloom.world.generator import CONTEXTS, held_out_context
from phraseloom.world.lexicon import lexicon
from phraseloom.world.pair import parse_agreements, parse_phrases
from phraseloom.world.sampling import BLOCK
from phraseloom.world.writer import ENDINGS, write_world

SMALL = {"train": 300, "valid": 40, "test": 40, "challenge": 20, "contrastive": 21}
GOLDEN = "ce8865c5825842a2e49b075009a5e0738a197ca613c90d62cb5250379454d755"


def fingerprint(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return hashlib.sha256("".join(f"{n} {sha256_file(folder / n)}\n" for n in names).encode()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world") / "out"
    write_world(out, seed=7, **SMALL)
    return out


def lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def test_bytes_are_pinned(folder: Path) -> None:
    assert fingerprint(folder) == GOLDEN


def test_same_seed_same_bytes_other_seed_other_bytes(folder: Path, tmp_path: Path) -> None:
    write_world(tmp_path / "again", seed=7, **SMALL)
    write_world(tmp_path / "other", seed=8, **SMALL)
    assert fingerprint(tmp_path / "again") == fingerprint(folder)
    for name in ("train.en", "test.en", "contrastive.jsonl", "challenge-idioms.de"):
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()


def test_bytes_do_not_depend_on_processes_and_more_pairs_only_add(tmp_path: Path) -> None:
    few = {"valid": 0, "test": 0, "challenge": 0, "contrastive": 0}
    write_world(tmp_path / "one", train=BLOCK + 100, **few)
    write_world(tmp_path / "two", train=BLOCK + 100, processes=2, **few)
    write_world(tmp_path / "less", train=100, **few)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    assert lines(tmp_path / "one" / "train.en")[:100] == lines(tmp_path / "less" / "train.en")


def test_files_fit_each_other(folder: Path) -> None:
    summary = json.loads((folder / "world.json").read_text(encoding="utf-8"))
    for split, count in summary["pairs"].items():
        columns = [lines(folder / f"{split}.{ending}") for ending in ENDINGS]
        assert {len(column) for column in columns} == {count}
        for en, _de, _align, _trees, phrases, fertility, agreement, _ in zip(*columns, strict=True):
            assert len(fertility.split()) == len(en.split())
            parse_phrases(phrases)
            assert parse_agreements(agreement)
    assert set(summary["sha256"]) == {p.name for p in folder.iterdir()} - {"world.json"}
    assert all(sha256_file(folder / name) == digest for name, digest in summary["sha256"].items())
    items = [json.loads(line) for line in lines(folder / "contrastive.jsonl")]
    assert all(list(item) == ["phenomenon", "distance", "source", "correct", "wrong", "tree"] for item in items)
    assert all(parse_tree(item["tree"]).leaves == item["source"].split(" ") for item in items)


def test_challenge_idioms_are_in_contexts_that_training_never_shows(folder: Path) -> None:
    summary = json.loads((folder / "world.json").read_text(encoding="utf-8"))
    held = summary["idioms_held_out"]
    assert len(held) == len(lexicon().idioms) and set(held.values()) <= set(CONTEXTS[1:])
    wanted = {"kick the bucket": held_out_context(0)}
    assert held["kick the bucket"] == wanted["kick the bucket"] == "modal"
    modal = {"can", "must", "should", "to"}
    for split, inside in (("train", False), ("challenge-idioms", True)):
        for line in lines(folder / f"{split}.en"):
            words = line.split()
            for verb in ("kick", "kicks"):
                if f"{verb} the bucket" in line and words[words.index("bucket") - 2] == verb:
                    assert (words[words.index(verb) - 1] in modal) == inside
    found = sum("=idiom" in line for line in lines(folder / "challenge-idioms.phrases"))
    assert found == SMALL["challenge"]


@pytest.mark.parametrize("wrong", [{"train": -1}, {"seed": -3}, {"processes": 0}])
def test_a_number_out_of_range_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="give"):
        write_world(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_refused_unless_overwrite(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="not empty"):
        write_world(out, **SMALL)
    with pytest.raises(FileProblem, match="not a world of phraseloom"):
        write_world(out, overwrite=True, **SMALL)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (out / "mine.txt").unlink()
    write_world(out, seed=8, **SMALL)
    write_world(out, seed=7, overwrite=True, **SMALL)
    assert fingerprint(out) == fingerprint(folder)


def test_no_temporary_file_is_left(folder: Path) -> None:
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_command_writes_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(tmp_path / "out", seed=2, train=50, valid=5, test=5)
    assert "train 50, valid 5, test 5" in capsys.readouterr().out
    assert len(lines(tmp_path / "out" / "train.de")) == 50


def test_no_torch(root: Path) -> None:
    code = "import sys, phraseloom.cli.world, phraseloom.world.writer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_joined_sentences_keep_their_annotation(folder: Path, tmp_path: Path) -> None:
    """Line n of a joined split is its sentences side by side; links, phrases, agreement and trees are shifted with them."""
    out = tmp_path / "joined"
    summary = write_world(out, seed=7, train=100, valid=10, test=10, challenge=5, contrastive=21, join=(2, 3))
    assert summary["join"] == [2, 3] and summary["pairs"]["train"] == 100
    assert "joins 2 to 3 sentences" in (out / "README.md").read_text()
    assert lines(out / "challenge-long.en") == lines(folder / "challenge-long.en")[:5]
    single = {ending: iter(lines(folder / f"train.{ending}")) for ending in ENDINGS}
    for n, row in enumerate(zip(*(lines(out / f"train.{ending}") for ending in ENDINGS), strict=True)):
        joined = dict(zip(ENDINGS, row, strict=True))
        parts = {ending: [next(single[ending]) for _ in range(2 + n % 2)] for ending in ENDINGS}
        for side in ("en", "de", "fertility"):
            assert joined[side] == " ".join(parts[side])
        words, target = joined["en"].split(), joined["de"].split()
        assert parse_tree(joined["trees"]).leaves == words
        s = t = 0
        links, phrases, agreements = [], [], []
        for k, line in enumerate(parts["align"]):
            links += [f"{int(i) + s}-{int(j) + t}" for i, j in (link.split("-") for link in line.split())]
            phrases += [(words[p.source[0] + s : p.source[1] + s], p.label) for p in parse_phrases(parts["phrases"][k])]
            agreements += [
                (words[a.source_verb + s], target[a.target_verb + t], a.distance)
                for a in parse_agreements(parts["agreement"][k])
            ]
            s, t = s + len(parts["en"][k].split()), t + len(parts["de"][k].split())
        assert joined["align"].split() == links
        assert [(words[slice(*p.source)], p.label) for p in parse_phrases(joined["phrases"])] == phrases
        assert [
            (words[a.source_verb], target[a.target_verb], a.distance) for a in parse_agreements(joined["agreement"])
        ] == agreements
        assert all(b <= len(target) for p in parse_phrases(joined["phrases"]) for _, b in p.target)


def test_joined_training_does_not_depend_on_processes(tmp_path: Path) -> None:
    few = {"valid": 0, "test": 0, "challenge": 0, "contrastive": 0}
    write_world(tmp_path / "one", train=BLOCK + 50, join=(3, 3), **few)
    write_world(tmp_path / "two", train=BLOCK + 50, join=(3, 3), processes=2, **few)
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
