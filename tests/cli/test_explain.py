"""`phraseloom explain`: which lines and models, what is written and what is said, and refusals before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.explain_kinds import KINDS, TREES, translator_of, tree_translator
from tests.cli.conftest import Command
from tests.helpers import tiny_tokenizer

from phraseloom.analysis.explain.sentence import explain
from phraseloom.cli.explain import parse_lines
from phraseloom.cli.options import named
from phraseloom.decoding.translator import Translator
from phraseloom.errors import UsageError
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.report.explain_page import explain_page

LINES = ["the old man sleeps .", "a cow .", "we invite them .", "the cow sleeps .", "a winter garden ."]


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder `small` in a folder of its own."""
    folder = tmp_path_factory.mktemp("models")
    return save("token", folder / "small", folder / "text")


def save(kind: str, folder: Path, text: Path) -> Path:
    """A model of a kind of `explain_kinds`, as a model folder."""
    tokenizer = tiny_tokenizer(text)
    save_model(folder, translator_of(kind, tokenizer).model, ModelConfig.model_validate(KINDS[kind]), tokenizer)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "s.en").write_bytes("".join(f"{line}\n" for line in LINES).encode())
    (tmp_path / "r.de").write_bytes("".join(f"{n} .\n" for n in range(1, 6)).encode())
    return tmp_path


def test_the_document_of_chosen_lines(command: Command, model: Path, text: Path) -> None:
    done = command(
        *("explain", model, "-s", "s.en", "--reference", "r.de", "--lines", "5,2-3", "--json", "d.json"),
        *("--beam", "2", "--use", "cross", "--alignment-layer", "1", "--alignment-head", "2"),
    )
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("phraseloom explain: d.json: 3 sentences, ")
    translator = Translator.from_pretrained(model, beam=2, alignment_layer=1, alignment_head=2)
    chosen = [LINES[1], LINES[2], LINES[4]]
    expected = explain({"small": translator}, chosen, references=["2 .", "3 .", "5 ."], lines=[2, 3, 5], uses=["cross"])
    assert read(text / "d.json") == json.loads(json.dumps(expected))


def test_how_phrases_are_read(command: Command, text: Path, tmp_path: Path) -> None:
    save("source phrases", tmp_path / "reads", tmp_path / "text")
    for use, layers in (("decoder-phrases", 3), ("encoder-phrases", 2)):
        done = command(
            "explain", "reads", "-s", "s.en", "--lines", "1", "--use", use, "--json", "d.json", "--overwrite"
        )
        assert done.code == 0, done.err
        (sentence,) = read(text / "d.json")["sentences"]
        assert [(e["use"], e["layer"]) for e in sentence["views"][0]["attention"]] == [
            (use, n + 1) for n in range(layers)
        ]


def test_given_targets_and_standard_input(command: Command, model: Path, text: Path) -> None:
    stdin = (text / "s.en").read_bytes()
    done = command(
        *("explain", model, "-s", "-", "-t", "r.de", "--max-sentences", "2", "--max-tokens", "3"),
        *("--json", "d.json"), stdin=stdin,
    )  # fmt: skip
    assert done.code == 0, done.err
    views = [s["views"][0] for s in read(text / "d.json")["sentences"]]
    assert [(v["target"], v["given"]) for v in views] == [("1 .", True), ("2 .", True)]
    assert "3 of 5 lines were left out (lines 3-5); --lines and --max-sentences choose" in done.err
    assert "small: the source was cropped to 3 subwords of" in done.err and done.err.rstrip().endswith("(line 2)")


def test_all_lines_that_are_left_out_or_cut_are_named(command: Command, model: Path, text: Path) -> None:
    """Those that are too many, blank, or too long, also more than a few of them."""
    lines = ["", "a cow .", *["the old man sleeps ."] * 8, " ", "a cow .", "a cow ."]
    (text / "s.en").write_bytes("".join(f"{line}\n" for line in lines).encode())
    asked = ("explain", model, "-s", "s.en", "--json", "d.json", "--overwrite", "--max-tokens", "4")
    done = command(*asked, "--max-sentences", "12")
    assert done.code == 0, done.err
    said = done.err.splitlines()
    assert "phraseloom explain: 1 of 13 lines were left out (line 13); --lines and --max-sentences choose" in said
    assert "phraseloom explain: small: the source is blank: the model does not see it (lines 1, 11)" in said
    assert any("the source was cropped to 4 subwords of" in line and line.endswith("(lines 3-10)") for line in said)
    done = command(*asked, "--lines", "2,5,7-9,12", "--max-sentences", "2")
    assert "4 of 6 lines were left out (lines 7-9, 12); --lines" in done.err


def test_the_page(command: Command, model: Path, text: Path) -> None:
    done = command("explain", model, "-s", "s.en", "-o", "page.html", "--json", "d.json")
    assert done.code == 0, done.err
    assert (text / "page.html").read_bytes().decode() == explain_page(read(text / "d.json"))
    assert "page.html: 5 sentences, " in done.err


def test_two_models_and_their_names(command: Command, model: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(model)
    (tmp_path / "deep" / "small").mkdir(parents=True)
    save("recurrent fixed", tmp_path / "deep" / "small" / "best", tmp_path / "text")
    done = command("explain", model, "deep/small", "-s", "s.en", "--lines", "1", "--json", "d.json")
    assert done.code == 0, done.err
    document = read(text / "d.json")
    assert [m["name"] for m in document["models"]] == [f"{model.parent.name}/small", "deep/small"]
    assert document["models"][1]["label"] == "deep/small"
    assert len(document["sentences"][0]["views"]) == 2
    assert command("explain", model, "other", "-s", "s.en", "--json", "e.json").is_one_line_of("explain")


def test_names() -> None:
    def names(*paths: str) -> list[str]:
        return list(named(paths))

    assert names("/a/runs/base", "/a/runs/phrasal") == ["base", "phrasal"]
    assert names("/a/x/run", "/a/y/run") == ["x/run", "y/run"]
    assert names("/a/base/best", "/a/run/checkpoints/0004") == ["base/best", "run/checkpoints/0004"]
    assert names("/a/x/best") == ["x/best"]
    with pytest.raises(UsageError, match="given twice"):
        names("/a/x", "/a/x/../x")
    assert named(["A=/a/run", "/b/run"]) == {"A": Path("/a/run"), "run": Path("/b/run")}
    assert named(["/a=b/run"]) == {"run": Path("/a=b/run")}
    assert names("run=/a/x", "/b/run") == ["run", "b/run"]
    with pytest.raises(UsageError, match="two models have the name A"):
        names("A=/a/x", "A=/a/y")
    for bad in ("=x", "A="):
        with pytest.raises(UsageError, match="is not NAME=FOLDER"):
            names(bad)


def test_line_numbers() -> None:
    assert parse_lines("3") == [3]
    assert parse_lines(" 9, 7-8,3,8") == [3, 7, 8, 9]
    for bad in ("", "3,", "a", "3-", "-3", "1.5", "²", "3--4"):
        with pytest.raises(UsageError, match="are no line numbers"):
            parse_lines(bad)
    for bad in ("0", "9-7", "0-3"):
        with pytest.raises(UsageError, match="is no range of lines"):
            parse_lines(bad)
    with pytest.raises(UsageError, match="more than a page can show"):
        parse_lines("1-999999999")


BAD = [
    (["-s", "s.en"], 2, "nothing would be written"),
    (["-s", "s.en", "-o", "x.html", "--json", "./x.html"], 2, "the same file"),
    (["-s", "s.en", "--json", "."], 1, "this is a folder"),
    (
        ["-s", "s.en", "--json", "blank"],
        2,
        "blank: the file is there already; choose another name or give --overwrite",
    ),
    (["-s", "no.en", "--json", "d"], 1, "no.en: text file not found"),
    (["-s", "empty", "--json", "d"], 1, "empty: no line with text"),
    (["-s", "blank", "--json", "d"], 1, "blank: no line with text"),
    (["-s", "s.en", "-t", "blank", "--json", "d"], 1, "blank: 2 lines, but s.en has 5"),
    (["-s", "s.en", "--reference", "empty", "--json", "d"], 1, "empty: 0 lines, but s.en has 5"),
    (["-s", "s.en", "--lines", "2,6", "--json", "d"], 1, "s.en: no line 6: there are 5"),
    (["-s", "s.en", "--lines", "2,x", "--json", "d"], 2, "--lines '2,x' are no line numbers"),
    (["-s", "-", "-t", "-", "--json", "d"], 2, "only one of the files can be -"),
    (["-s", "s.en", "--trees", "r.de", "--json", "d"], 2, "reads no phrases of parse trees"),
    (["-s", "s.en", "--alignment-layer", "7", "--json", "d"], 2, "alignment_layer 7"),
    (
        ["-s", "s.en", "--ensemble", "a", "--json", "d"],
        2,
        "each of its models has attention of its own; name two models",
    ),
    (["-s", "bad", "--json", "d"], 1, "bad:2: invalid UTF-8"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), BAD, ids=[said for *_, said in BAD])
def test_refusals(arguments: list[str], code: int, said: str, command: Command, model: Path, text: Path) -> None:
    (text / "empty").write_bytes(b"")
    (text / "blank").write_bytes(b" \n\n")
    (text / "bad").write_bytes(b"a\n\xff\n")
    before = sorted(text.iterdir())
    done = command("explain", model, *arguments)
    assert done.code == code, done.err
    assert said in done.err and done.is_one_line_of("explain")
    assert sorted(text.iterdir()) == before


def test_three_models_are_refused(command: Command, text: Path) -> None:
    done = command("explain", "a", "b", "c", "-s", "s.en", "--json", "d.json")
    assert done.code == 2 and "3 models: explain one model, or two side by side" in done.err
    assert command("explain", "-s", "s.en").code == 2


def test_overwrite_replaces(command: Command, model: Path, text: Path) -> None:
    (text / "d.json").write_bytes(b"mine")
    asked = ("explain", model, "-s", "s.en", "--lines", "1", "--json", "d.json")
    assert command(*asked).code == 2 and (text / "d.json").read_bytes() == b"mine"
    assert command(*asked, "--overwrite").code == 0 and read(text / "d.json")["format"] == 1


def test_models_without_attention_are_shown_and_it_is_said(command: Command, text: Path, tmp_path: Path) -> None:
    for kind, said in (("recurrent fixed", "attends to no source tokens"), ("segmental", "has no attention")):
        save(kind, tmp_path / kind, tmp_path / "text")
        done = command("explain", tmp_path / kind, "-s", "s.en", "--json", f"{kind}.json")
        assert done.code == 0
        (warning,) = (line for line in done.err.splitlines() if f"{kind}: this model {said}" in line)
        assert warning.endswith("(lines 1-5)")


def test_a_bad_tree_is_named_by_its_line(command: Command, text: Path, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "text")
    made = tree_translator(tokenizer)
    config = ModelConfig.model_validate(TREES)
    save_model(tmp_path / "trees", made.model, config, tokenizer, segmenter=made.segmenter)
    (text / "t").write_bytes(b"\n\n\n(S (NN cow))\n\n")
    asked = ("explain", tmp_path / "trees", "-s", "s.en", "--trees", "t", "--json", "d.json", "--lines")
    assert command(*asked, "1-3").code == 0
    done = command(*asked, "2,4", "--overwrite")
    assert done.code == 1 and done.err.startswith("phraseloom explain: t:4: ")
