"""`phraseloom report`: one page from real runs and from what other verbs wrote, and what a user can get wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_run_report import Checker

from .conftest import Command, phraseloom


@pytest.fixture(scope="module")
def material(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the project twice, its validation text as test text, translations, links and contrastive items."""
    folder = tmp_path_factory.mktemp("material")
    for name in ("run", "again"):
        shutil.copytree(project / "run", folder / name, symlinks=True)
    for side in ("en", "de"):
        shutil.copy(project / f"valid.{side}", folder / f"test.{side}")
    lines = (folder / "test.de").read_bytes().decode().split("\n")[:-1]
    sources = (folder / "test.en").read_bytes().decode().split("\n")[:-1]
    (folder / "out.de").write_bytes("".join(f"{line} hund\n" for line in lines).encode())
    (folder / "links").write_bytes(b"0-0\n" * len(lines))
    (folder / "lines.txt").write_bytes(b"1\n3\n4\n")
    items = [
        {"source": s, "correct": t, "wrong": t + " katze", "distance": n % 3}
        for n, (s, t) in enumerate(zip(sources, lines, strict=True))
    ]
    (folder / "items.jsonl").write_bytes("".join(json.dumps(i) + "\n" for i in items).encode())
    return folder


@pytest.fixture
def report(material: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`phraseloom report` in the folder of the material, its files written elsewhere."""
    monkeypatch.chdir(material)
    return lambda *arguments: command("report", *arguments, "-o", tmp_path / "r.html", "--json", tmp_path / "r.json")


TEXTS = ("-s", "test.en", "-r", "test.de")


def test_everything_of_two_runs(report: Any, tmp_path: Path) -> None:
    more = ("--gold", "links", "--contrastive", "items.jsonl", "--mwt", "lines.txt", "--bootstrap", "20")
    done = report("run", "seeds=again", *TEXTS, *more)
    assert (done.code, done.out) == (0, ""), done.err
    found = json.loads((tmp_path / "r.json").read_bytes())
    assert [part["kind"] for part in found["parts"]] == [
        "scores",
        "scores",
        "contrastive",
        "alignment",
        "entropy",
        "speed",
    ]
    assert {lack["what"] for lack in found["lacks"] if lack["system"]} == {"validation BLEU", "activation shares"}
    first, second = (system["summary"] for system in found["systems"])
    assert first["scores"]["BLEU"]["value"] == second["scores"]["BLEU"]["value"]
    assert second["scores"]["BLEU"]["difference"] == 0
    assert found["parts"][1]["of"] == {"file": "lines.txt", "sentences": 12}
    html = (tmp_path / "r.html").read_bytes().decode()
    assert f"{first['parameters']['mean']:,.0f}" in "".join(Checker(html).texts)


def test_the_numbers_are_those_of_the_single_verbs(report: Any, command: Command, tmp_path: Path) -> None:
    assert report("run", *TEXTS, "--outputs", "run=out.de", "--gold", "links", "--bootstrap", "30").code == 0
    parts = {part["kind"]: part for part in json.loads((tmp_path / "r.json").read_bytes())["parts"]}
    assert "speed" not in parts
    args = ("out.de", "-r", "test.de", "--metrics", "bleu,chrf", "--bootstrap", "30", "--output", "json")
    evaluated = json.loads(command("evaluate", *args).out)
    for result in evaluated["bootstrap"]["results"]:
        ours = parts["scores"]["systems"][0]["scores"][result["metric"]]
        assert [ours[k] for k in ("value", "low", "high")] == [result[k] for k in ("value", "low", "high")]
    command(
        "analyse", "alignment", "run", "-s", "test.en", "-t", "test.de", "-g", "links", "--json", tmp_path / "a.json"
    )
    (aligned,) = json.loads((tmp_path / "a.json").read_bytes())["systems"]
    keys = ("layer", "head", "method", "aer", "precision", "recall")
    assert parts["alignment"]["systems"][0]["settings"] == [{k: m[k] for k in keys} for m in aligned["settings"]]
    command("analyse", "entropy", "run", "-s", "test.en", "-t", "test.de", "--json", tmp_path / "e.json")
    (entropy,) = json.loads((tmp_path / "e.json").read_bytes())["systems"]
    layers = [layer["steps"] for layer in entropy["tokens"]["layers"]]
    assert parts["entropy"]["systems"][0]["tokens"]["layers"] == layers


def test_what_other_verbs_wrote_is_added(report: Any, command: Command, tmp_path: Path) -> None:
    verbs = {
        "scores": ("evaluate", "out.de", "-r", "test.de", "--bootstrap", "9", "--output", "json"),
        "contrastive": ("analyse", "contrastive", "run", "--items", "items.jsonl", "--output", "json"),
        "activation": ("analyse", "activation", "run", "-s", "test.en", "-t", "test.de", "--output", "json"),
    }
    added: list[str] = []
    for kind, arguments in verbs.items():
        (tmp_path / f"{kind}.json").write_bytes(command(*arguments).out.encode())
        added += ["--add", f"mine={tmp_path / kind}.json"]
    for kind, arguments in {
        "entropy": ("analyse", "entropy", "run", "-s", "test.en"),
        "alignment": ("analyse", "alignment", "run", "-s", "test.en", "-t", "test.de", "-g", "links"),
        "links": ("align", "evaluate", "links", "-g", "links"),
    }.items():
        assert command(*arguments, "--json", tmp_path / f"{kind}.json").code == 0
        added += ["--add", f"mine={tmp_path / kind}.json"]
    done = report("mine=run", *added)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "r.json").read_bytes())
    assert {part["kind"] for part in found["parts"]} == {*verbs, "entropy", "alignment", "links"}
    names = {part["kind"]: [s["name"] for s in part["systems"]] for part in found["parts"]}
    assert names["entropy"] == names["contrastive"] == names["activation"] == ["mine"]
    assert names["scores"] == ["out.de"]


def test_runs_that_count_as_one(report: Any, tmp_path: Path) -> None:
    done = report("both=run,again", "-r", "test.de", "--outputs", "both=out.de,test.de", "--outputs", "mt=out.de")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "r.json").read_bytes())
    scores = {s["name"]: s["scores"]["BLEU"] for s in found["parts"][0]["systems"]}
    assert scores["both"]["runs"][1] == pytest.approx(100)
    assert scores["both"]["value"] == pytest.approx(sum(scores["both"]["runs"]) / 2)
    assert scores["mt"]["runs"] == scores["both"]["runs"][:1]
    assert "have the same seed" in found["warnings"][0]


def test_scores_of_another_program(report: Any, material: Path, command: Command, tmp_path: Path) -> None:
    """`--scores` as in `evaluate`: the same mean, interval and p; also on the lines of --mwt, and on the page."""
    count = (material / "test.de").read_bytes().count(b"\n")
    (material / "a.comet").write_bytes("".join(f"{0.5 + n / 100}\n" for n in range(count)).encode())
    (material / "b.comet").write_bytes("".join(f"{0.6 + n % 3 / 50}\n" for n in range(count)).encode())
    outputs = ("--outputs", "run=out.de", "--outputs", "again=test.de", "--bootstrap", "30")
    more = ("--scores", "COMET=a.comet,b.comet", "--mwt", "lines.txt")
    done = report("run", "again", "-r", "test.de", *outputs, *more)
    assert done.code == 0, done.err
    whole, subset = json.loads((tmp_path / "r.json").read_bytes())["parts"]
    args = ("out.de", "test.de", "-r", "test.de", "--metrics", "bleu,chrf", "--bootstrap", "30", "--output", "json")
    evaluated = json.loads(command("evaluate", *args, "--scores", "COMET=a.comet,b.comet").out)
    expected = [result for result in evaluated["bootstrap"]["results"] if result["metric"] == "COMET"]
    ours = [system["scores"]["COMET"] for system in whole["systems"]]
    assert [[e[k] for k in ("value", "low", "high")] for e in ours] == [
        [e[k] for k in ("value", "low", "high")] for e in expected
    ]
    assert ours[1]["p"] is not None
    assert subset["systems"][0]["scores"]["COMET"]["value"] == pytest.approx((0.5 + 0.52 + 0.53) / 3)
    texts = Checker((tmp_path / "r.html").read_bytes().decode()).texts
    assert "COMET" in texts and f"{ours[0]['value']:.4f}" in texts and f"{ours[1]['difference']:+.4f}" in texts


def test_a_system_without_scores_beside_others_is_named(report: Any, tmp_path: Path) -> None:
    done = report("run", "again", "-r", "test.de", "--outputs", "run=out.de", "--bootstrap", "0")
    assert done.code == 0, done.err
    lacks = json.loads((tmp_path / "r.json").read_bytes())["lacks"]
    assert [(one["system"], one["why"]) for one in lacks if one["what"] == "test scores"] == [
        ("again", "not measured; give --test-source, or --outputs of this system")
    ]


def test_the_first_run_is_the_baseline_whatever_the_order_of_outputs(
    report: Any, material: Path, tmp_path: Path
) -> None:
    count = (material / "test.de").read_bytes().count(b"\n")
    for name, score in (("good", 1), ("bad", 0)):
        (material / f"{name}.score").write_bytes(f"{score}\n".encode() * count)
    outputs = ("--outputs", "again=test.de", "--outputs", "run=out.de", "--scores", "X=good.score,bad.score")
    done = report("run", "again", "-r", "test.de", *outputs, "--bootstrap", "30")
    assert done.code == 0, done.err
    (part,) = json.loads((tmp_path / "r.json").read_bytes())["parts"]
    assert part["bootstrap"]["baseline"] == "run"
    assert [(s["name"], s["scores"]["X"]["value"]) for s in part["systems"]] == [("run", 0), ("again", 1)]
    assert part["systems"][0]["scores"]["BLEU"]["difference"] is None
    assert "p vs. run" in Checker((tmp_path / "r.html").read_bytes().decode()).texts


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf_8(report: Any, material: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"run\xff")
    shutil.copytree(material / "run", tmp_path / name, symlinks=True)
    done = report(tmp_path / name, "-r", "test.de", "--outputs", f"{name}=out.de", "--bootstrap", "0")
    assert done.code == 0, done.err
    (part,) = json.loads((tmp_path / "r.json").read_bytes())["parts"]
    assert [system["name"] for system in part["systems"]] == [name]


def test_a_model_at_the_unigram_level_is_named(
    project: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Four updates teach nothing. Where its dataset is not at hand, a report cannot tell."""
    arguments = ("report", project / "run", "-o", tmp_path / "r.html", "--json", tmp_path / "r.json", "--overwrite")
    for folder, count in ((project, 1), (tmp_path, 0)):
        monkeypatch.chdir(folder)
        assert command(*arguments).code == 0
        found = json.loads((tmp_path / "r.json").read_bytes())
        assert len(found["warnings"]) == count
        level = found["systems"][0]["runs"][0]["unigram_perplexity"]
        assert (level is None) == (count == 0)
        assert ("has learned next to nothing" in (tmp_path / "r.html").read_bytes().decode()) == bool(count)


def test_the_same_command_writes_the_same_bytes(report: Any, tmp_path: Path) -> None:
    arguments = ("run", "-r", "test.de", "--outputs", "run=out.de", "--bootstrap", "9")
    assert report(*arguments).code == 0
    before = [(tmp_path / name).read_bytes() for name in ("r.html", "r.json")]
    assert report(*arguments, "--overwrite").code == 0
    assert [(tmp_path / name).read_bytes() for name in ("r.html", "r.json")] == before


def test_a_run_without_a_checkpoint_has_what_it_has(report: Any, material: Path, tmp_path: Path) -> None:
    shutil.copytree(material / "run", tmp_path / "young", ignore=shutil.ignore_patterns("checkpoints", "best", "last"))
    done = report("run", tmp_path / "young", *TEXTS, "--bootstrap", "9")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "r.json").read_bytes())
    assert [s["name"] for s in found["parts"][0]["systems"]] == ["run"]
    assert any((lack["system"], lack["what"]) == ("young", "model") for lack in found["lacks"])
    done = report(tmp_path / "young", *TEXTS, "--contrastive", "items.jsonl", "--overwrite")
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "r.json").read_bytes())
    whys = {lack["what"]: lack["why"] for lack in found["lacks"] if lack["system"] is None}
    assert "give" not in whys["contrastive accuracy"] + whys["attention entropy"] + whys["speed of translation"]


def test_the_same_file_by_another_path_is_the_same_system(report: Any, command: Command, tmp_path: Path) -> None:
    for path in ("./out.de", Path("out.de").resolve()):
        written = command("evaluate", path, "-r", "test.de", "--bootstrap", "0", "--output", "json").out
        (tmp_path / "scores.json").write_bytes(written.encode())
        added = ("--add", f"mine={tmp_path / 'scores.json'}", "--overwrite")
        done = report("run", "-r", "test.de", "--outputs", "run=out.de", "--bootstrap", "0", *added)
        assert done.code == 0, done.err
        assert [s["name"] for s in json.loads((tmp_path / "r.json").read_bytes())["systems"]] == ["run"]


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no run": (("nowhere",), 1, "nowhere"),
    "twice": (("run", "run"), 2, "given twice"),
    "ending": (("run", "-o", "report.pdf"), 2, ".html"),
    "no reference": (("run", "--outputs", "run=out.de"), 2, "--reference"),
    "mwt alone": (("run", "--mwt", "lines.txt"), 2, "--reference"),
    "gold alone": (("run", "--gold", "links"), 2, "--test-source"),
    "trees alone": (("run", "--trees", "test.en"), 2, "--test-source"),
    "not parallel": (("run", "-s", "test.en", "-r", "links2"), 1, "links2"),
    "short output": (("run", "-r", "test.de", "--outputs", "run=lines.txt"), 1, "lines.txt"),
    "outputs of runs": (("run", "-r", "test.de", "--outputs", "run=out.de,out.de"), 2, "2 files, but it has 1 run"),
    "scores alone": (("run", "-r", "test.de", "--scores", "COMET=links"), 2, "--outputs"),
    "scores of one": (
        ("run", "again", *TEXTS, "--outputs", "run=out.de", "--scores", "COMET=links"),
        2,
        "--outputs again=FILE",
    ),
    "no scores": (("run", "-r", "test.de", "--outputs", "run=out.de", "--scores", "COMET=links"), 1, "links:1"),
    "add": (("run", "--add", "run/run.json"), 2, "NAME=FILE"),
    "added": (("run", "--add", "x=run/run.json"), 1, "run.json"),
    "metric": (("run", "--metrics", "blue"), 2, "blue"),
    "labels alone": (("run", "--fertility-labels", "links"), 2, "go together"),
    "bins": (("run", "--bins", "9-1"), 2, "--bins"),
    "typo": (("run", "--contrastve", "x"), 2, "--contrastive"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_one_line(name: str, material: Path, command: Command, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(material)
    (material / "links2").write_bytes(b"a\n")
    arguments, code, said = WRONG[name]
    target = () if "-o" in arguments else ("-o", str(tmp_path / "r.html"))
    done = command("report", *arguments, *target)
    assert (done.code, done.is_one_line_of("report")) == (code, True), done.err
    assert said in done.err
    assert not (tmp_path / "r.html").exists()


def test_earlier_work_is_not_overwritten(report: Any, tmp_path: Path) -> None:
    (tmp_path / "r.html").write_bytes(b"mine")
    done = report("run")
    assert done.code == 2
    assert "--overwrite" in done.err
    assert (tmp_path / "r.html").read_bytes() == b"mine"
    assert not (tmp_path / "r.json").exists()


def test_the_real_command(material: Path, tmp_path: Path) -> None:
    done = phraseloom("report", "run", "-o", tmp_path / "r.html", cwd=material)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert Checker((tmp_path / "r.html").read_bytes().decode()).ids
