"""Runs on several corpora with weights: the log, resuming, and the number of processes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy
import yaml
from tests.helpers import run_records, training_in_this_process

from phraseloom import files
from phraseloom.cli.main import run as phraseloom
from phraseloom.data.mixture import Mixture

WORDS = ["one", "two", "three", "four", "five", "six", "red", "blue", "green", "cat", "dog", "house"]


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Any:
    with training_in_this_process():
        yield


def write_recipe(folder: Path, **data: Any) -> Path:
    """A recipe of two corpora of 60 and 20 pairs, whose targets are their sources backwards or in capitals."""
    for name, count, change in (("a", 60, str.upper), ("b", 20, str.title), ("valid", 10, str.upper)):
        lines = [" ".join(WORDS[(7 * n + k) % 12] for k in range(2 + n % 5)) for n in range(count)]
        files.atomic_write_text(folder / f"{name}.en", "".join(f"{x}\n" for x in lines))
        files.atomic_write_text(folder / f"{name}.de", "".join(f"{change(x)}\n" for x in lines))
    recipe = {
        "name": "small",
        "data": {
            "folder": str(folder / "dataset"),
            "source_language": "en",
            "target_language": "de",
            "train": [
                {"source": "a.en", "target": "a.de", "weight": 0.5},
                {"source": "b.en", "target": "b.de", "weight": 2.5},
            ],
            "valid": [{"source": "valid.en", "target": "valid.de"}],
            "subwords": {"kind": "subword_nmt", "merges": 40},
            "processes": 1,
            **data,
        },
        "model": {"width": 16, "heads": 2, "ffn_width": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}},
        "training": {"batch_tokens": 100, "max_updates": 20, "checkpoint_every": 5, "processes": 1, "log_every": 5},
    }
    path = folder / "small.yaml"
    files.atomic_write_text(path, yaml.safe_dump(recipe))
    assert phraseloom(["prepare", str(path), "--data-root", str(folder)]) == 0
    return path


def test_a_weighted_run_is_logged_and_resumes_bit_by_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    assert "corpus b.en: 20 pairs, 50 in an epoch (62.5 %)" in capsys.readouterr().out
    assert phraseloom(["train", str(recipe), "--run", str(tmp_path / "whole")]) == 0
    log = (tmp_path / "whole" / "train.log").read_text()
    assert "corpus a.en: 60 examples, 30 in an epoch (37.5 %)" in log
    assert "corpus b.en: 20 examples, 50 in an epoch (62.5 %)" in log
    records = run_records(tmp_path / "whole")
    assert {record["epoch"] for record in records if "epoch" in record} == {0, 1, 2}
    assert phraseloom(["train", str(recipe), "--run", str(tmp_path / "cut"), "training.max_updates=13"]) == 0
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step_00000013")  # as if killed after update 10
    assert phraseloom(["train", str(recipe), "--run", str(tmp_path / "cut")]) == 0
    for name in ("metrics.jsonl", "last/model.safetensors", "last/optimizer.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_other_weights_are_another_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write_recipe(tmp_path)
    run = ["train", str(recipe), "--run", str(tmp_path / "run")]
    assert phraseloom([*run, "training.max_updates=5"]) == 0
    assert phraseloom(["prepare", str(recipe), "--data-root", str(tmp_path), "--overwrite", "data.temperature=5"]) == 0
    capsys.readouterr()
    assert phraseloom(run) == 2
    assert "data" in capsys.readouterr().err


def test_the_examples_of_an_update_do_not_depend_on_the_processes(tmp_path: Path) -> None:
    """Every process plans the same updates and takes its micro-batches of them (loop.accumulate)."""
    data = toy.ToyData()
    mixture = Mixture("ab", [60, 30], [15, 75], seed=1)
    plans = [
        toy.BatchPlan(data.source_lengths, data.target_lengths, seed=1, batch_tokens=60, mixture=mixture)
        for _ in range(2)
    ]
    for update in (0, 7, 40):
        pieces = [plan.update(update) for plan in plans]
        assert [p.tolist() for p in pieces[0]] == [p.tolist() for p in pieces[1]]


@pytest.fixture(scope="module")
def tagged(_one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model writes capitals after <caps> and titles after <title>, or should."""
    folder = tmp_path_factory.mktemp("tagged")
    corpora = [
        {"source": "a.en", "target": "a.de", "tag": "<caps>"},
        {"source": "b.en", "target": "b.de", "tag": "<title>"},
    ]
    valid = [
        {"source": "valid.en", "target": "valid.de", "tag": "<caps>"},
        {"source": "b.en", "target": "b.de", "tag": "<title>"},
    ]
    recipe = write_recipe(folder, train=corpora, valid=valid)
    options = ["training.bleu_every=1", "training.max_updates=5"]
    assert phraseloom(["train", str(recipe), "--run", str(folder / "run"), *options]) == 0
    return folder / "run"


def test_a_line_is_translated_with_its_tag(tagged: Path) -> None:
    from phraseloom.decoding.translator import Translator

    translator = Translator.from_pretrained(tagged, max_length={"factor": 0, "constant": 6})
    source = translator.tokenizer.source
    ids = [*translator.tokenizer.tag_ids(["<title>"]), *source.encode("one red cat")]
    scores = {tag: translator.score(["one red cat"], ["One Red"], tags=[tag])[0].log_prob for tag in source.tag_ids}
    assert len(set(scores.values())) == 2
    from phraseloom.decoding.scoring import score_pairs

    pair = (ids, translator.tokenizer.target.encode("One Red"))
    [forced] = score_pairs(translator.model, [pair], translator.config, translator.device, None)
    assert scores["<title>"] == pytest.approx(sum(forced), rel=1e-6)
    for line in ("one", "one red cat", "one two three four five six red blue green"):
        [translation] = translator.translate([line], tags=["<caps>"], alignments=True)
        assert translation.alignment is not None and translation.phrases is not None
        assert all(s < len(line.split()) for s, _ in translation.alignment)
        assert all(0 <= p.source[0] < p.source[1] <= len(line.split()) for p in translation.phrases)
        assert not set(translation.tokens) & set(source.tag_ids)


def test_long_lines_have_the_tag_before_every_part(tagged: Path) -> None:
    from phraseloom.decoding.translator import Translator

    translator = Translator.from_pretrained(
        tagged, max_input_tokens=4, long_lines="split", max_length={"factor": 0, "constant": 6}
    )
    line = "one two three four five six red blue green cat dog house"
    [whole] = translator.translate([line], tags=["<caps>"])
    assert whole.parts > 1
    assert translator.translate([line])[0].log_prob != whole.log_prob


def test_bleu_of_the_validation_uses_the_tag_of_each_line(tagged: Path) -> None:
    from phraseloom.decoding.translator import Translator
    from phraseloom.training.validate import _outputs, corpus_bleu

    translator = Translator.from_pretrained(tagged / "last", beam=1)
    folder = tagged.parent
    lines = [(folder / name).read_text().splitlines() for name in ("valid.en", "b.en", "valid.de", "b.de")]
    tags = [("<caps>",)] * len(lines[0]) + [("<title>",)] * len(lines[1])
    outputs = _outputs(translator, lines[0] + lines[1], None, tags)
    records = run_records(tagged)
    logged = [record["validation"]["bleu"] for record in records if "validation" in record][-1]
    assert corpus_bleu(outputs, lines[2] + lines[3])["bleu"] == logged
    assert outputs[: len(lines[0])] == [t.text for t in translator.translate(lines[0], tags=["<caps>"])]


def test_translate_takes_a_tag(
    tagged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def translate(*options: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one red cat\n")))
        code = phraseloom(["translate", str(tagged), "--beam", "1", "--max-length", "6", *options])
        return code, *capsys.readouterr()

    code, out, err = translate("--tag", "<caps>")
    assert code == 0 and out.count("\n") == 1 and "tag" not in err
    code, out, err = translate()
    assert code == 0 and "warning: no --tag is given; the tags of this model are <caps>, <title>" in err
    code, out, err = translate("--tag", "<caps>", "--min-score", "0")
    assert code == 0 and out == "\n" and "1 of 1 translations are below --min-score: blank lines" in err
    code, out, err = translate("--tag", "<caps>", "--min-score", "-1000")
    assert code == 0 and out.strip() and "min-score" not in err
    code, out, err = translate("--tag", "<it>")
    assert code == 2 and err.count("\n") == 1 and "the tag <it> is not known to this model" in err


def test_links_guide_a_run_and_a_head_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path)
    for name, count in (("a", 60), ("b", 20)):
        sizes = [2 + n % 5 for n in range(count)]
        lines = [" ".join(f"{k}-{k}" for k in range(size)) for size in sizes]
        files.atomic_write_text(tmp_path / f"{name}.links", "".join(f"{x}\n" for x in lines))
    train = [{"source": f"{n}.en", "target": f"{n}.de", "links": f"{n}.links"} for n in "ab"]
    recipe.write_text(yaml.safe_dump(yaml.safe_load(recipe.read_text()) | {"name": "guided"}))
    data = f"data.train={json.dumps(train)}"
    guided = ["training.guided_alignment.weight=1.0", "training.guided_alignment.decay=0.5"]
    train_command = ["train", str(recipe), data, *guided, "training.schedule={kind: constant, rate: 0.01}", "--run"]
    assert phraseloom([*train_command, str(tmp_path / "early")]) == 2
    assert "this dataset has none" in capsys.readouterr().err
    assert phraseloom(["prepare", str(recipe), data, "--data-root", str(tmp_path), "--overwrite"]) == 0
    assert phraseloom([*train_command, str(tmp_path / "run")]) == 0
    records = run_records(tmp_path / "run")
    values = [record["guided"] for record in records if "guided" in record]
    assert len(values) == 20 and values[-1] < values[0]
    for record, weight in zip([r for r in records if "guided" in r], [0.5 ** (n // 8) for n in range(20)], strict=True):
        assert record["loss"] > weight * record["guided"]
    capsys.readouterr()
    assert phraseloom([*train_command, str(tmp_path / "other"), "training.guided_alignment.heads=[9]"]) == 2
    error = capsys.readouterr().err
    assert "training.guided_alignment.heads: no head 9: layer 1 has 2 heads" in error
    assert phraseloom(["train", str(recipe), *guided, "--run", str(tmp_path / "none")]) == 2
    assert "training.guided_alignment needs word links" in capsys.readouterr().err
