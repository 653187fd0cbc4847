"""`phraseloom analyse` and `translate --phrases`, with a small phrasal model that was not trained."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.cli.analyse import ANALYSES
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig

QUADRANTS = ["token-to-token", "token-to-phrase", "phrase-to-token", "phrase-to-phrase"]
ATTENTION = {
    "encoder_self": "queryk homogeneous 22",
    "decoder_self": "convkv heterogeneous 1-2",
    "cross": "queryk interleaved 1-2",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    torch.manual_seed(2)
    sizes = {"width": 16, "heads": 4, "ffn_width": 32, "encoder": {"layers": 3}, "decoder": {"layers": 2}}
    config = ModelConfig.model_validate({**sizes, "tied": "none", "attention": ATTENTION})
    size = len(tokenizer.source.vocabulary)
    folder = tmp_path_factory.mktemp("model") / "m"
    limits = {"max_length": {"factor": 1.5, "constant": 3}}
    built = build_model(config, size, size)
    save_model(folder, built, config, tokenizer, languages=("en", "de"), generation=limits)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    (tmp_path / "s").write_bytes("".join(f"{line}\n" for line in [*LINES, ""]).encode())
    (tmp_path / "t").write_bytes("".join(f"{line}\n" for line in [*reversed(LINES), "x"]).encode())
    return ["-s", "s", "-t", "t"]


def test_activation_tables(command: Command, model: Path, texts: list[str]) -> None:
    done = command("analyse", "activation", model, *texts)
    assert done.code == 0, done.err
    assert done.err == "phraseloom analyse: warning: 1 pair with a blank side left out\n"
    tables = done.out.rstrip("\n").split("\n\n")
    assert [t.split("\n")[0].split(" (")[0] for t in tables] == [
        "cross: probability mass, within the queries of each kind",
        "cross: probability mass, all queries together",
        "cross: cells above tau = 0.1",
    ]
    for i, table in enumerate(tables):
        title, header, _, *rows = table.split("\n")
        assert "mean of 4" in title
        assert header.split() == ["layer", *QUADRANTS]
        values = [[float(v) for v in row.split()] for row in rows]
        assert [int(v[0]) for v in values] == [1, 2]
        assert [sum(v[1:]) for v in values] == pytest.approx([200 if i == 0 else 100] * 2, abs=0.03)


def test_activation_of_every_use(command: Command, model: Path, texts: list[str]) -> None:
    done = command("analyse", "activation", model, *texts, "--use", "all", "--output", "json", "--tau", "0.25")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["tau"], found["sentences"], found["blank"]) == (0.25, 4, 1)
    assert {use: len(layers) for use, layers in found["uses"].items()} == {
        "encoder-self": 3,
        "decoder-self": 2,
        "cross": 2,
    }
    assert list(found["uses"]["decoder-self"][0]["mass"]) == QUADRANTS[:2]
    # half of the heads attend to tokens only, the other half to bigrams only
    assert found["uses"]["encoder-self"][0]["mass"] == pytest.approx(dict.fromkeys(QUADRANTS[:2], 50), abs=1e-3)
    tables = command("analyse", "activation", model, *texts, "--use", "all", "--tau", "0.999").out
    assert tables.count("within the queries of each kind") == 3
    assert tables.count("all queries together") == 1  # where all queries are tokens it says the same
    assert re.search(r"\n +2 +– +–", tables), "no cell above 0.999"
    one = command("analyse", "activation", model, *texts, "--output", "json")
    mean = command("analyse", "activation", model, *texts, "--output", "json", "--mean-heads")
    assert json.loads(one.out)["uses"]["cross"][0]["mass"] == json.loads(mean.out)["uses"]["cross"][0]["mass"]
    assert json.loads(mean.out)["mean_heads"] is True


def test_activation_of_wrong_input(command: Command, model: Path, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"a\n")
    done = command("analyse", "activation", model, *texts)
    assert done.code == 1
    where = "no blank line tells where; the files must be parallel, line by line"
    assert done.err == f"phraseloom analyse: t has 1 line, but s has 5; {where}\n"
    (tmp_path / "s").write_bytes(b"\n")
    done = command("analyse", "activation", model, *texts)
    assert done.code == 1
    assert "no pair of lines has text on both sides" in done.err
    for arguments, code, text in (
        (["-s", "s", "-t", "nothing"], 1, "nothing"),
        ([*texts, "--tau", "1.5"], 2, "tau 1.5"),
        (["-s", "s"], 2, "--target"),
        ([*texts, "--use", "sideways"], 2, "sideways"),
    ):
        done = command("analyse", "activation", model, *arguments)
        assert done.code == code
        assert done.is_one_line_of("analyse")
        assert text in done.err


def test_heatmap(command: Command, model: Path, texts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = command("analyse", "heatmap", model, "--sentence", LINES[0], "-o", "a.png", "--layer", "2", "--head", "3")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    target = ["--target", "zwei Büros .", "-o", "a.svg"]
    assert command("analyse", "heatmap", model, *texts[:2], "--line", "1", *target).code == 0
    picture = (tmp_path / "a.svg").read_text()
    assert "Cross-attention, layer 1, mean of 4 heads" in picture
    assert ">…os·.<" in picture  # of `zwei Büros .`, cut into … B ü r os .
    assert ">the·o<" in picture  # of `the old …`, cut into the o ld
    for use, title in (("encoder-self", "Encoder self-attention, layer 2"), ("decoder-self", "Decoder self-attention")):
        done = command("analyse", "heatmap", model, "--sentence", LINES[0], "-o", f"{use}.svg", "--use", use)
        assert done.code == 0, done.err
        assert title in (tmp_path / f"{use}.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--sentence", "a", "--layer", "3"], 2, "layer 3: the decoder has layers 1 to 2"),
        (["--sentence", "a", "--use", "encoder-self", "--layer", "4"], 2, "layer 4: the encoder has layers 1 to 3"),
        (["--sentence", "a", "--head", "5"], 2, "head 5: this attention has heads 1 to 4"),
        (["--sentence", " "], 1, "the source is blank"),
        (["-s", "s", "--line", "9"], 1, "s: no line 9: the file has 5"),
        (["-s", "s", "--line", "0"], 2, "--line"),
        (["-s", "s"], 2, "--source FILE with --line N"),
        (["--sentence", "a", "--line", "1"], 2, "either --sentence TEXT, or --source FILE"),
        (["-s", "s", "--line", "1", "--sentence", "a"], 2, "either --sentence TEXT, or --source FILE"),
        ([], 2, "either --sentence TEXT, or --source FILE"),
        (
            ["--sentence", "a", "--tree", "(S a)"],
            2,
            "reads no phrases of parse trees; leave them out",
        ),
    ],
)
def test_heatmap_of_wrong_input(
    command: Command, model: Path, texts: list[str], tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    done = command("analyse", "heatmap", model, *arguments, "-o", "x.png")
    assert done.code == code, done.err
    assert done.is_one_line_of("analyse")
    assert text in done.err
    assert not (tmp_path / "x.png").exists()


def test_wrong_endings_and_models(command: Command, model: Path) -> None:
    done = command("analyse", "heatmap", model, "--sentence", "a", "-o", "x.jpeg")
    assert (done.code, "not 'x.jpeg'" in done.err) == (2, True)
    done = command("analyse", "heatmap", "nowhere", "--sentence", "a", "-o", "x.png")
    assert done.code == 1
    assert done.is_one_line_of("analyse")


def test_the_table_of_analyses(command: Command) -> None:
    done = command("analyse", "--help")
    assert done.code == 0
    for name, (_, line) in ANALYSES.items():
        assert f"  {name} " in done.out
        assert line.endswith((".", "?"))
    done = command("analyse", "activatoin")
    assert done.code == 2
    assert "No such command 'activatoin'" in done.err


# --- translate --phrases ----------------------------------------------------------------------------------------------

LINK = re.compile(r"(\d+):(\d+)-(\d+):(\d+)=([01]\.\d{4})\Z")


def test_phrase_file(command: Command, model: Path, tmp_path: Path) -> None:
    lines = [LINES[0], "", LINES[1], " "]
    text = "".join(f"{line}\n" for line in lines).encode()
    files = ["--phrases", "p", "--alignments", "a"]
    done = command("translate", model, *files, "--output", "json", "--beam", "3", "--n-best", "2", stdin=text)
    assert done.code == 0, done.err
    values = [json.loads(line) for line in done.out.rstrip("\n").split("\n")]
    rows = (tmp_path / "p").read_bytes().decode().split("\n")
    links = (tmp_path / "a").read_bytes().decode().split("\n")
    assert len(rows) == len(links) == 5
    assert (rows[1], rows[3], rows[4]) == ("", "", "")
    for value, row, link in zip(values, rows, links, strict=False):
        found = [LINK.match(part) for part in row.split()]
        assert all(found)
        numbers = [[int(n) for n in m.groups()[:4]] for m in found if m]
        assert numbers == [[*p["source"], *p["target"]] for p in value["phrases"]]
        assert [w for _, _, t1, t2 in numbers for w in range(t1, t2)] == list(range(len(value["words"])))
        assert link == " ".join(f"{s}-{t}" for s, t in value["alignment"])
        assert len(value.get("alternatives", [])) == (0 if value["blank"] else 1)
        assert all("phrases" in a for a in value.get("alternatives", []))
    alone = command("translate", model, "--phrases", "q", "--beam", "3", stdin=text)
    assert alone.out.split("\n")[0] == values[0]["text"]
    assert (tmp_path / "q").read_bytes() == (tmp_path / "p").read_bytes()


def test_phrase_file_of_a_token_model(command: Command, project: Path, tmp_path: Path) -> None:
    done = command("translate", project / "run", "--phrases", "p", "--alignments", "a", stdin=b"a dog\n\nred cat\n")
    assert done.code == 0, done.err
    links = re.sub(r"(\d+):\d+-(\d+):\d+=\d\.\d{4}", r"\1-\2", (tmp_path / "p").read_text())
    assert links == (tmp_path / "a").read_text()


def test_one_file_cannot_hold_both(command: Command, model: Path, tmp_path: Path) -> None:
    done = command("translate", model, "--phrases", "p", "--alignments", "p", stdin=b"a\n")
    assert (done.code, done.out) == (2, "")
    assert "the same file" in done.err
    failed = command("translate", model, "--phrases", "no/\0", "--alignments", "a", stdin=b"a\n")
    assert failed.code in (1, 2)
    assert not (tmp_path / "a").exists()
