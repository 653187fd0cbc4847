"""`phraseloom align MODEL` and `analyse alignment`: links of files, choices that are remembered, tables, faults."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.explain_kinds import KINDS, joined_tokenizer, translator_of
from tests.cli.conftest import Command
from tests.helpers import LINES, tiny_tokenizer

from phraseloom.align.links import METHODS as BOTH
from phraseloom.align.links import format_links, parse_links, read_gold
from phraseloom.analysis import alignment
from phraseloom.analysis.alignment import align_pairs
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError
from phraseloom.files import read_json
from phraseloom.metrics.aer import score_alignment
from phraseloom.models.build import build_model
from phraseloom.models.store import change_generation, save_model
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.segmenters import TreeSegmenter

SIZES = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 3}}
RECURRENT = {"kind": "recurrent", "layers": 1, "cell": "gru"}
SOURCES = [*LINES, "", "a  cow .", " \u3000", "tonight"]
TARGETS = ["zwei Büros .", *LINES[:3], "a", "we invite", "them", ""]
GOLD = ["0-0 1-1 2-1", "0-0", "1p2 2-2", "0-0 1p0", "", "1-1", "", ""]


def saved(folder: Path, text: Path, segmenter: Any = None, **keys: Any) -> Path:
    tokenizer, config = tiny_tokenizer(text), ModelConfig.model_validate({**SIZES, **keys})
    torch.manual_seed(4)
    model = build_model(config, len(tokenizer.source.vocabulary), len(tokenizer.source.vocabulary))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    save_model(folder, model, config, tokenizer, languages=("en", "de"), segmenter=segmenter)
    return folder


def written(folder: Path, **texts: list[str]) -> None:
    for name, lines in texts.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())


@pytest.fixture
def net(tmp_path: Path, command: Command) -> str:
    """A model folder `net`, and beside it s, t and gold."""
    saved(tmp_path / "net", tmp_path / "text")
    written(tmp_path, s=SOURCES, t=TARGETS, gold=GOLD)
    return "net"


FILES = ("-s", "s", "-t", "t")


def lines_of(text: str) -> list[str]:
    assert text.endswith("\n")
    return text.split("\n")[:-1]


def test_links_line_by_line(net: str, command: Command) -> None:
    done = command("align", net, *FILES)
    assert (done.code, done.err) == (0, "")
    found = [one.links for one in align_pairs(Translator.from_pretrained(net), SOURCES, TARGETS)]
    assert lines_of(done.out) == [format_links(links) for links in found]
    assert [bool(line) for line in lines_of(done.out)] == [
        bool(s.strip() and t) for s, t in zip(SOURCES, TARGETS, strict=True)
    ]
    assert command("align", "model", net, *FILES).out == done.out
    assert command("align", net, *FILES, "-o", "out").out == ""
    assert Path("out").read_bytes().decode() == done.out


def test_windows_do_not_show(net: str, command: Command, tmp_path: Path) -> None:
    written(tmp_path, s=SOURCES * 5, t=TARGETS * 5)
    whole = command("align", net, *FILES)
    for window in (1, 3, 40):
        change_generation(net, {"window": window})
        assert command("align", net, *FILES).out == whole.out


def test_a_line_that_cannot_be_aligned_is_named(net: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = alignment.word_of_piece

    def refuses(side: Any, line: str, ids: list[int]) -> list[int]:
        if line == "we invite":
            raise DataError("it cannot be told", hint="do this")
        return real(side, line, ids)

    monkeypatch.setattr(alignment, "word_of_piece", refuses)
    for window in (1, 4, 100):
        change_generation(net, {"window": window})
        done = command("align", net, *FILES, "-o", "out")
        assert done.code == 1
        assert done.err == "phraseloom align: t:6: it cannot be told; do this\n"
        assert not Path("out").exists()
    done = command("align", net, *FILES, "--select", "auto", "--gold", "gold")
    assert done.err == "phraseloom align: t:6: it cannot be told; do this\n"


def test_layer_head_and_method_are_asked_for(net: str, command: Command) -> None:
    plain = Translator.from_pretrained(net)
    seen = set()
    for flags, options in (
        (["--layer", "1"], {"alignment_layer": 1}),
        (["--head", "2"], {"alignment_head": 2}),
        (["--layer", "3", "--head", "1"], {"alignment_layer": 3, "alignment_head": 1}),
        (["--method", "union"], {"alignment_method": "union"}),
        (["--head", "max", "--method", "intersection"], {"alignment_head": "max", "alignment_method": "intersection"}),
        (["--layer", "1", "--head", "mean", "--method", "source-to-target"],
         {"alignment_layer": 1, "alignment_method": "source-to-target"}),
    ):  # fmt: skip
        done = command("align", net, *FILES, *flags)
        assert done.code == 0, done.err
        found = align_pairs(plain.with_options(**options), SOURCES, TARGETS)
        assert lines_of(done.out) == [format_links(one.links) for one in found]
        seen.add(done.out)
    assert len(seen) == 6


def test_scores_are_the_attention_of_each_link(net: str, command: Command) -> None:
    done, plain = (
        command("align", net, *FILES, "--scores", "--method", "union"),
        command("align", net, *FILES, "--method", "union"),
    )
    assert re.sub(r"=[01]\.\d{4}(?= |$)", "", done.out, flags=re.MULTILINE) == plain.out
    translator = Translator.from_pretrained(net, alignment_method="union")
    found = list(align_pairs(translator, SOURCES, TARGETS))
    weights = [float(w) for w in re.findall(r"=(\S+)", done.out)]
    assert weights == pytest.approx([one.weights[link] for one in found for link in sorted(one.links)], abs=6e-5)


def test_selection_prints_the_best_and_remembers_it(net: str, command: Command) -> None:
    before = command("align", net, *FILES).out
    done = command("align", net, *FILES, "--select", "auto", "--gold", "gold")
    assert done.code == 0, done.err
    head, names, _, *rows, last = [line for line in lines_of(done.out) if line]
    assert head == f"8 sentences, {3 * 4 * 7} settings; the best:"
    assert names.split() == ["layer", "head", "method", "AER", "precision", "recall", "links"]
    assert len(rows) == 5
    assert last == "stored in net"
    values = [row.split() for row in rows]
    errors = [float(v[3]) for v in values]
    assert errors == sorted(errors)
    after = command("align", net, *FILES)
    layer, which, method = values[0][:3]
    asked = command("align", net, *FILES, "--layer", layer, "--head", which, "--method", method)
    assert after.out == asked.out != before
    links = [parse_links(line) for line in lines_of(after.out)]
    gold = read_gold("gold", lines=list(zip(SOURCES, TARGETS, strict=True)))
    score = score_alignment(links, gold)
    assert 100 * score.aer == pytest.approx(errors[0], abs=0.005)
    assert score.links == int(values[0][6])
    kept = read_json(Path(net) / "generation_config.json")
    assert kept["alignment_selection"]["aer"] == score.aer
    assert kept["alignment_selection"]["gold"]["name"] == "gold"
    for other in range(1, 4):  # nothing scored better
        for name in ("target-to-source", "source-to-target", *BOTH):
            out = command("align", net, *FILES, "--layer", str(other), "--method", name).out
            assert score_alignment([parse_links(line) for line in lines_of(out)], gold).aer >= score.aer - 1e-12


def test_gold_links_of_joined_text_count_the_words_of_its_phrases(command: Command, tmp_path: Path) -> None:
    made, config = (
        translator_of("words or phrases", joined_tokenizer()),
        ModelConfig.model_validate(KINDS["words or phrases"]),
    )
    save_model(tmp_path / "net", made.model, config, made.tokenizer, languages=("de", "en"))
    written(tmp_path, s=["the cow sleeps", "cow"], t=["cow old_man .", "the_old_man"], gold=["0-0 1-1 1-2 2-3", "0-2"])
    select = command("align", "net", *FILES, "--select", "auto", "--gold", "gold")
    assert (select.code, select.err) == (0, "")
    table = command("analyse", "alignment", "net", *FILES, "--gold", "gold")
    assert (table.code, table.err) == (0, "")
    linked = [
        {int(link.split("-")[1]) for link in line.split()} for line in lines_of(command("align", "net", *FILES).out)
    ]
    assert linked[1] == {0, 1, 2}
    written(tmp_path, gold=["0-0", "0-3"])
    for arguments in (["align", "net", "--select", "auto"], ["analyse", "alignment", "net"]):
        wrong = command(*arguments, *FILES, "--gold", "gold")
        assert wrong.code == 1
        assert "gold:2" in wrong.err


def test_translate_follows_what_was_remembered(net: str, command: Command) -> None:
    flags = ("--alignment-layer", "3", "--alignment-head", "2", "--alignment-method", "union")
    text = "".join(f"{line}\n" for line in SOURCES).encode()

    def links(*more: str) -> bytes:
        done = command("translate", net, "--max-length", "6", "--alignments", "a", "--overwrite", *more, stdin=text)
        assert done.code == 0, done.err
        return Path("a").read_bytes()

    default, asked = links(), links(*flags)
    assert default != asked
    change_generation(net, {"alignment_layer": 3, "alignment_head": 2, "alignment_method": "union"})
    assert links() == asked
    assert links("--alignment-head", "2") == asked
    assert links("--alignment-layer", "3") == links("--alignment-layer", "3", "--alignment-head", "mean")
    assert links("--alignment-layer", "2", "--alignment-method", "target-to-source") == default


def test_run_folders_and_gold_of_other_forms(net: str, command: Command, tmp_path: Path) -> None:
    """A run folder remembers in its best checkpoint; gold links from 1 and the other way round are the same."""
    shutil.copytree(net, tmp_path / "run" / "checkpoints" / "step_00000001")
    (tmp_path / "run" / "best").symlink_to("checkpoints/step_00000001")
    first = command("align", net, *FILES, "--select", "auto", "--gold", "gold").out
    other = [re.sub(r"(\d+)([-p])(\d+)", lambda m: f"{int(m[3]) + 1}{m[2]}{int(m[1]) + 1}", line) for line in GOLD]
    written(tmp_path, other=other)
    again = command("align", "run", *FILES, "--select", "auto", "--gold", "other", "--base", "1", "--reverse")
    assert again.out == first.replace("stored in net", "stored in run/best")
    wrong = command("align", net, *FILES, "--select", "auto", "--gold", "other")
    assert wrong.code == 1
    assert "other:1: " in wrong.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--layer", "4"], 2, "alignment_layer 4: the decoder has 3 layers"),
        (["--head", "3"], 2, "alignment_head 3: layer 2 of the decoder attends with 2 heads"),
        (["--head", "0"], 2, "alignment_head: should be greater than or equal to 1 or max (given: 0)"),
        (["--head", "x"], 2, "alignment_head: should be"),
        (["--method", "best"], 2, "'best'"),
        (["--select", "auto"], 2, "--select auto and --gold go together"),
        (["--gold", "gold"], 2, "align evaluate scores links"),
        (["--base", "1"], 2, "about --gold"),
        (["--select", "auto", "--gold", "gold", "--layer", "1"], 2, "--select finds layer, head and method"),
        (["--select", "auto", "--gold", "gold", "-o", "x"], 2, "--select finds layer, head and method"),
        (["--select", "auto", "--gold", "none"], 1, "none"),
        (["--trees", "t"], 2, "this model reads no phrases of parse trees"),
    ],
)
def test_wrong_usage_is_one_line(net: str, command: Command, arguments: list[str], code: int, message: str) -> None:
    done = command("align", net, *FILES, *arguments)
    assert done.code == code
    assert done.is_one_line_of("align"), done.err
    assert message in done.err


def test_wrong_files_are_named(net: str, command: Command, tmp_path: Path) -> None:
    written(tmp_path, short=TARGETS[:3], long=[*TARGETS, "a"])
    for name, what in (("short", "3 lines, but s has more"), ("long", "more than 8 lines, but s has no more")):
        done = command("align", net, "-s", "s", "-t", name, "-o", "out")
        assert done.code == 1
        assert done.is_one_line_of("align")
        assert f"{name}: {what}" in done.err
        assert not Path("out").exists()
        done = command("analyse", "alignment", net, "-s", "s", "-t", name, "-g", "gold")
        assert done.code == 1
        assert done.is_one_line_of("analyse")
        assert name in done.err


def test_texts_may_come_from_pipes(net: str, tmp_path: Path, command: Command) -> None:
    plain = command("align", net, *FILES).out

    def pipe(name: str) -> str:
        reading, writing = os.pipe()
        os.write(writing, (tmp_path / name).read_bytes())
        os.close(writing)
        return f"/dev/fd/{reading}"

    assert command("align", net, "-s", pipe("s"), "-t", pipe("t")).out == plain
    done = command("align", net, "-s", pipe("s"), "-t", "t", "--select", "auto", "--gold", "gold")
    assert done.code == 2
    assert "cannot be a pipe" in done.err


def test_what_did_not_come_out_as_meant_is_said(net: str, command: Command, tmp_path: Path) -> None:
    change_generation(net, {"max_input_tokens": 6})
    (tmp_path / "t").write_bytes(b"\xff a\n" + "".join(f"{line}\n" for line in TARGETS[1:]).encode())
    done = command("align", net, *FILES)
    assert done.code == 0
    assert len(lines_of(done.out)) == 8
    warnings = lines_of(done.err)
    assert len(warnings) == 2
    assert re.search(
        r"warning: [34] of 8 pairs longer than 6 source or 32 target subwords: .* \(first: line 1\)$", warnings[0]
    )
    assert warnings[1].endswith("t: 1 line with invalid UTF-8, replaced (first: line 1)")


def test_long_pairs_are_counted_because_their_gold_links_are_missed(net: str, command: Command) -> None:
    expected = r": (\d) of 8 pairs longer than 6 source or 32 target subwords: .*; gold links there count as missed"
    change_generation(net, {"max_input_tokens": 6})
    done = command("analyse", "alignment", net, *FILES, "-g", "gold", "--json", "out.json")
    said = re.search("analyse: warning: net" + expected, done.err)
    number = sum(align.cropped for align in align_pairs(Translator.from_pretrained(net), SOURCES, TARGETS))
    assert said and int(said[1]) == number > 1, done.err
    assert json.loads(Path("out.json").read_bytes())["cropped"] == {"net": number}
    done = command("align", net, *FILES, "--select", "auto", "--gold", "gold")
    assert done.code == 0 and re.search("align: warning" + expected, done.err), done.err
    change_generation(net, {"max_input_tokens": 99})
    done = command("analyse", "alignment", net, *FILES, "-g", "gold", "--json", "out.json", "--overwrite")
    assert "warning" not in done.err and json.loads(Path("out.json").read_bytes())["cropped"] == {"net": 0}


def test_trees_beside_the_source(command: Command, tmp_path: Path) -> None:
    segmenter = TreeSegmenter(max_tokens=3, min_chunks=1, floor=1)
    saved(tmp_path / "net", tmp_path / "text", segmenter, phrases={"segments": {"kind": "dataset"}})
    change_generation("net", {"window": 1})
    written(tmp_path, s=["", "a cow", "a ."], t=["", "we", "them ."], gold=["", "0-0", "1-1"])
    written(tmp_path, trees=["", "(NP (D a) (N cow))", "(S (D a) (. .))"], bad=["", "", "(S (D the) (. .))"])
    done = command("align", "net", *FILES, "--trees", "trees")
    assert done.code == 0, done.err
    assert [bool(line) for line in lines_of(done.out)] == [False, True, True]
    assert command("align", "net", *FILES, "--trees", "trees", "--select", "auto", "--gold", "gold").code == 0
    for more in ([], ["--select", "auto", "--gold", "gold"]):
        bad = command("align", "net", *FILES, "--trees", "bad", *more)
        assert bad.code == 1
        assert "bad:3: the tree does not fit its line" in bad.err
    bad = command("analyse", "alignment", "net", *FILES, "-g", "gold", "--trees", "bad")
    assert "bad:3: the tree does not fit its line" in bad.err
    assert "needs parse trees to find source phrases" in command("align", "net", *FILES).err


def test_a_model_without_attention_says_so(command: Command, tmp_path: Path) -> None:
    saved(tmp_path / "net", tmp_path / "text", encoder=RECURRENT, decoder={**RECURRENT, "attention": "fixed"})
    written(tmp_path, s=SOURCES, t=TARGETS, gold=GOLD)
    for arguments in (
        ["align", "net", *FILES],
        ["align", "net", *FILES, "--select", "auto", "--gold", "gold"],
        ["analyse", "alignment", "net", *FILES, "-g", "gold"],
    ):
        done = command(*arguments)
        assert done.code == 1
        assert done.is_one_line_of(arguments[0]), done.err
        assert "attends to no source tokens" in done.err
    done = command("translate", "net", "--max-length", "3", "--alignments", "a", stdin=b"a cow\n")
    assert done.code == 1
    assert done.err.startswith("phraseloom translate: this model cannot align words")
    done = command("translate", "net", "--max-length", "3", "--output", "json", stdin=b"a cow\n\n")
    assert done.code == 0, done.err
    assert all("alignment" not in json.loads(line) for line in lines_of(done.out))


# --- analyse alignment ------------------------------------------------------------------------------------------------


def test_tables_and_json_of_several_models(net: str, command: Command, tmp_path: Path) -> None:
    recurrent = {"encoder": RECURRENT, "decoder": {**RECURRENT, "attention": "mlp"}}
    saved(tmp_path / "one", tmp_path / "text2", **recurrent)
    done = command("analyse", "alignment", net, "one", *FILES, "-g", "gold", "--json", "out.json")
    assert done.code == 0, done.err
    report = json.loads(Path("out.json").read_bytes())
    assert [report[key] for key in ("source", "target", "gold")] == ["s", "t", "gold"]
    assert [s["model"] for s in report["systems"]] == ["net", "one"]
    settings = {(s["model"], m["layer"], m["head"], m["method"]): m for s in report["systems"] for m in s["settings"]}
    assert len(settings) == 3 * 4 * 7 + 1 * 3 * 7
    first, by_mean, by_max, by_head = done.out.split("\n\n")[1::2]
    rows = [line.split() for line in first.split("\n")[2:]]
    assert [row[:2] for row in rows] == [["net", "1"], ["net", "2"], ["net", "3"], ["one", "1"]]
    for model, layer, *values in rows:
        mean = settings[model, int(layer), None, "union"]
        heads = [settings[model, int(layer), h, "union"] for h in (1, 2) if (model, int(layer), h, "union") in settings]
        best = min(heads, key=lambda m: (m["aer"], m["head"]))
        expected = [mean["aer"], mean["precision"], mean["recall"], best["aer"], best["precision"], best["recall"]]
        assert [float(v) for v in values[:3] + values[4:]] == pytest.approx([100 * v for v in expected], abs=0.006)
        assert int(values[3]) == best["head"]
    names = by_mean.split("\n")[0].split()[2:]
    for table, of_all in ((by_mean, None), (by_max, "max"), (by_head, "")):
        for line in lines_of(table.rstrip("\n") + "\n")[2:]:
            cells = re.split(r"  +", line.strip())
            for name, cell in zip(names, cells[2:], strict=True):
                value, _, number = cell.replace(")", "").partition(" (")
                head = int(number) if of_all == "" else of_all
                assert float(value) == pytest.approx(
                    100 * settings[cells[0], int(cells[1]), head, name]["aer"], abs=0.006
                )


def test_another_method_and_a_picture(net: str, command: Command) -> None:
    pytest.importorskip("matplotlib")
    done = command("analyse", "alignment", net, *FILES, "-g", "gold", "--method", "intersection", "--plot", "a.svg")
    assert done.code == 0, done.err
    assert done.out.startswith("8 sentences; intersection, in per cent: mean of the heads, and")
    done = command("analyse", "alignment", net, *FILES, "-g", "gold", "--heads", "max", "--json", "a.json")
    first = done.out.split("\n\n")[1].split("\n")[2].split()
    (system,) = json.loads(Path("a.json").read_bytes())["systems"]
    (wanted,) = [m for m in system["settings"] if (m["layer"], m["head"], m["method"]) == (1, "max", "union")]
    assert float(first[2]) == pytest.approx(100 * wanted["aer"], abs=0.006)
    assert done.out.startswith("8 sentences; union, in per cent: largest weight over the heads, and")
    picture = Path("a.svg").read_bytes().decode()
    assert "alignment error rate (%)" in picture
    assert "intersection of both directions" in picture


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net"], "net is given twice"),
        (["--plot", "a.jpeg"], "a.jpeg"),
        (["--json", "net"], "this is a folder"),
        (["--method", "x"], "'x'"),
    ],
)
def test_wrong_analyses_are_refused_before_any_work(
    net: str, command: Command, arguments: list[str], message: str
) -> None:
    done = command("analyse", "alignment", net, *arguments, *FILES, "-g", "gold")
    assert done.code in (1, 2)
    assert done.is_one_line_of("analyse"), done.err
    assert message in done.err
