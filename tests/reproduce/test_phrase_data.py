"""`data.target_phrases`: `prepare` joins phrases in plain text and learns vectors; `train` adds the fertility module."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests import forked
from tests.helpers import run_records, training_in_this_process

from phraseloom.align.aligner import learn_aligner, save_aligner
from phraseloom.align.ibm import IBMSettings, read_bitext
from phraseloom.cli.main import run
from phraseloom.config import validate
from phraseloom.data.corpus import Dataset
from phraseloom.data.survey import locate
from phraseloom.errors import ConfigError, DataError, FileProblem, PhraseloomError, UsageError
from phraseloom.models.store import load_model
from phraseloom.options.data import DataConfig, TargetPhrasesConfig
from phraseloom.options.text import VectorTraining
from phraseloom.recipe import load_recipe
from phraseloom.report.charts import curves
from phraseloom.reproduce import execute, phrase_data
from phraseloom.reproduce.phrase_data import TextOrigin, WrittenLines, find_labels, make_phrase_data, share_done
from phraseloom.reproduce.steps import Step, StepScope, changed, noted
from phraseloom.training import fertility_fit

pytest.importorskip("gensim")

SOURCE = [
    "das haus ist wahrscheinlich gross",
    "der mann ging heim",
    "das haus ging",
    "der mann ist gross",
    "wahrscheinlich ist das haus",
]
TARGET = [
    "the house is most likely big",
    "the man went home",
    "the house went",
    "the man is big",
    "most likely is the house",
]
RECIPE: dict[str, Any] = {
    "name": "phrases",
    "data": {
        "folder": "dataset",
        "source_language": "de",
        "target_language": "en",
        "train": [{"source": "train.de", "target": "train.en"}],
        "valid": [{"source": "valid.de", "target": "valid.en"}],
        "test": [{"source": "valid.de", "target": "valid.en"}],
        "text": {"tokenize": "moses", "truecase": True},
        "target_phrases": {},
        "subwords": {
            "kind": "words",
            "phrases": 100,
            "vectors": {"train": {"width": 8, "epochs": 1, "text": ["more.en"]}},
        },
    },
    "model": {
        "width": 8,
        "encoder": {"kind": "recurrent", "layers": 1},
        "decoder": {"kind": "recurrent", "layers": 1, "attention": "general"},
        "output": {"kind": "word_or_phrase"},
        "tied": "two_way",
        "dropout": 0.0,
    },
    "training": {
        "batch_tokens": 200,
        "schedule": {"kind": "linear", "peak": 0.01, "warmup": 1},
        "max_updates": 2,
        "checkpoint_every": 2,
        "best_by": "loss",
        "fertility": {"classes": 2, "widths": [8], "epochs": 1, "weights": [1.0, 2.0], "batch": 64, "max_tokens": 99},
    },
}


def write(folder: Path, recipe: dict[str, Any] = RECIPE) -> Path:
    for name, lines in (("de", SOURCE), ("en", TARGET)):
        (folder / f"train.{name}").write_text("\n".join(lines * 8) + "\n")
        (folder / f"valid.{name}").write_text("\n".join(lines) + "\n")
    (folder / "more.en").write_text("the man is most likely big\n" * 4)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def start(command: Sequence[str], **options: Any) -> Any:
    """A process of our program is forked; another program is started."""
    return (forked.Popen if command[1] == "-m" else subprocess.Popen)(command, **options)


@pytest.fixture(scope="module", autouse=True)
def steps_in_forked_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "subprocess", SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL))
        yield


@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe of this file, prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    recipe = write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["prepare", str(recipe.name)]) == 0
    return folder


@pytest.fixture
def prepared(prepared_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `prepared_once`, the current folder."""
    shutil.copytree(prepared_once, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def test_two_commands_give_a_model_with_a_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plain text to a trained model of words and phrases; steps that are done are not done again."""
    monkeypatch.chdir(tmp_path)
    recipe = write(tmp_path)
    said: list[str] = []
    config = load_recipe(recipe).data
    assert isinstance(config, DataConfig)
    first = make_phrase_data(config, say=said.append)
    assert "most likely" in first.table.read_text()
    joined = (tmp_path / first.config.train[0].target).read_text().splitlines()
    assert "most_likely" in joined[0].lower()
    assert len(joined) == len(SOURCE) * 8
    assert "most_likely " in first.vectors.read_text()
    assert first.mwt is not None
    assert (first.mwt / "lines.txt").read_text().split() == ["1", "5"]
    numbers = [line.split("]")[0] for line in said if line.startswith("[")]
    assert numbers == [f"[{n}/{first.steps}" for n in range(1, first.steps)]  # the last one is the dataset
    assert first.summary() == "phrases: 1 of 1 candidate; joined 16 times, 10.00% of 160 target tokens"

    done = len(said)
    make_phrase_data(config, say=said.append)
    assert all("steps are done already" in line for line in said[done:]), said[done:]

    (tmp_path / "more.en").write_text("the big man went home\n" * 4)
    done = len(said)
    make_phrase_data(config, say=said.append)
    again = [line.split(":")[0] for line in said[done:] if "] " in line]
    names = ["target_more_text", "target_more", "joined_more", "text_for_vectors", "vectors"]
    assert again == [f"[{first.steps - 5 + n}/{first.steps}] {name}" for n, name in enumerate(names)]

    capsys.readouterr()
    assert run(["prepare", str(recipe)]) == 0
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1] == f"[{first.steps}/{first.steps}] dataset: dataset"
    assert "--epochs 20" not in printed.out  # the default of data.subwords.vectors.train
    assert printed.out.count("\nphrases: 1 of ") == 1 and "\ntarget vectors: mean cosine" in printed.out
    commands = [shlex.split(line)[1:] for line in printed.out.splitlines() if line.startswith("    phraseloom ")]
    labels = find_labels(config)
    text, fertility = (path.read_text().splitlines() for path in labels["train"])
    assert [len(line.split()) for line in text] == [len(line.split()) for line in fertility]
    index = json.loads((tmp_path / "dataset" / "index.json").read_text())
    assert str(tmp_path) not in json.dumps(index)

    missing = labels["valid"][1]
    missing.rename(tmp_path / "elsewhere")
    capsys.readouterr()
    assert run(["train", str(recipe)]) == 1
    printed = capsys.readouterr().err.splitlines()[-1]
    assert f"{missing}: no labels for training.fertility; phraseloom prepare RECIPE --overwrite writes them" in printed
    assert not (tmp_path / "runs").exists()  # nothing was trained
    (tmp_path / "elsewhere").rename(missing)

    with training_in_this_process():
        capsys.readouterr()
        longer = ["training.bleu_every=1", "training.max_updates=150", "training.checkpoint_every=150"]
        assert run(["train", str(recipe), *longer]) == 0
        noted = re.search(r"BLEU (\S+) with the gate, (\S+) without it \((nrefs:.*)\)\n", capsys.readouterr().err)
        validated = run_records(tmp_path / "runs" / "phrases")[-1]["validation"]
        assert noted is not None and noted[1] != noted[2] != "0.00"
        assert (noted[2], noted[3]) == (f"{validated['bleu']:.2f}", validated["signature"])
        kept = json.loads((tmp_path / "runs" / "phrases" / "fertility_bleu.json").read_text())
        assert [f"{kept[key]:.2f}" for key in ("bleu", "bleu_without")] == [noted[1], noted[2]]
        model, _, _ = load_model(tmp_path / "runs" / "phrases" / "fertility")
        assert model.fertility is not None
        options = json.loads((tmp_path / "runs" / "phrases" / "fertility" / "fertility.json").read_text())["options"]
        assert (options["weights"], options["batch"], options["max_tokens"]) == ([1.0, 2.0], 64, 99)
        stored = (tmp_path / "runs" / "phrases" / "fertility" / "model.safetensors").stat().st_mtime_ns
        assert run(["train", str(recipe), *longer]) == 0  # finished: nothing is trained again
        printed = capsys.readouterr().err
        assert "fertility is finished already" in printed and noted[0] in printed
        (tmp_path / "runs" / "phrases" / "fertility_bleu.json").unlink()  # as if killed before the BLEU
        assert run(["train", str(recipe), *longer]) == 0
        assert noted[0] in capsys.readouterr().err
    assert (tmp_path / "runs" / "phrases" / "fertility" / "model.safetensors").stat().st_mtime_ns == stored

    assert commands[0] == ["translate", "runs/phrases/fertility", "<", "valid.de", ">", "phrases.test.en"]
    shutil.copy("valid.en", "phrases.test.en")
    capsys.readouterr()
    assert [run(command) for command in commands[1:]] == [0, 0, 0]
    printed = capsys.readouterr()
    assert "2 of 5 sentences" in printed.out and "5 sentences, 20 source tokens" in printed.out

    rare = config.model_copy(update={"target_phrases": config.target_phrases.model_copy(update={"min_count": 10_000})})
    with pytest.raises(DataError, match="no phrase is left"):
        make_phrase_data(rare, say=said.append)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_ends_the_fertility_stage_and_the_same_command_resumes(
    prepared: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    one_epoch, number = fertility_fit._one_epoch, getattr(signal, name)

    def signalled(*args: Any) -> float:
        os.kill(os.getpid(), number)
        return one_epoch(*args)

    if (before := signal.getsignal(number)) is signal.SIG_IGN:  # these tests under nohup; training would ignore it too
        signal.signal(number, signal.SIG_DFL)
        request.addfinalizer(lambda: signal.signal(number, before))
    handler = signal.getsignal(number)
    with training_in_this_process():
        monkeypatch.setattr(fertility_fit, "_one_epoch", signalled)
        assert run(["train", "recipe.yaml"]) == 3
        said = capsys.readouterr().err.splitlines()[-1]
        assert f"stopped by {name}; the same command trains the fertility module" in said
        assert signal.getsignal(number) == handler
        assert [path.name for path in (prepared / "runs" / "phrases").glob("fertility*")] == []
        monkeypatch.setattr(fertility_fit, "_one_epoch", one_epoch)
        assert run(["train", "recipe.yaml"]) == 0
    assert load_model(prepared / "runs" / "phrases" / "fertility")[0].fertility is not None


def test_a_signal_at_the_end_of_the_training_ends_it_before_the_fertility_stage(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(curves, "draw_after_training", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with training_in_this_process():
        assert run(["train", "recipe.yaml"]) == 3
    assert "stopped by SIGTERM after the training; the same command does the rest" in capsys.readouterr().err
    assert not (prepared / "runs" / "phrases" / "fertility").exists()


def test_labels_of_a_dataset_that_was_replaced_during_the_training_are_refused(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def replaced(*_: object) -> None:
        for language in ("de", "en"):
            lines = Path(f"train.{language}").read_text().splitlines()
            Path(f"train.{language}").write_text("".join(f"{line}\n" for line in lines[1:]))
        assert run(["prepare", "recipe.yaml", "--overwrite"]) == 0

    monkeypatch.setattr(curves, "draw_after_training", replaced)
    with training_in_this_process():
        assert run(["train", "recipe.yaml"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "dataset: the dataset was replaced during the training, so its labels are those of another text" in said
    assert not (prepared / "runs" / "phrases" / "fertility").exists()


def test_the_recipe_for_own_text_gives_a_model_with_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, but for its sizes."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    for path in tmp_path.glob("*.??"):
        path.rename(path.with_suffix({".de": ".source", ".en": ".target"}[path.suffix]))
    recipe = str(Path(__file__).parents[2] / "recipes" / "own" / "phrases.yaml")
    sizes = ["data.subwords.vectors.train.width=8", "data.subwords.vectors.train.epochs=1", "model.width=8"]
    sizes += ["training.batch_tokens=200", "training.max_updates=2", "training.checkpoint_every=2"]
    sizes += ["training.schedule.warmup=1", "training.fertility.widths=[8]", "training.fertility.epochs=1"]
    assert run(["prepare", recipe, *sizes]) == 0
    with training_in_this_process():
        assert run(["train", recipe, *sizes]) == 0
    model, _, _ = load_model(tmp_path / "runs" / "my-phrases" / "fertility")
    assert model.fertility is not None
    assert "most_likely" in (tmp_path / "datasets" / "my-phrases" / "tokenizer" / "target.vocab").read_text()
    assert (tmp_path / "runs" / "my-phrases" / "best" / "lexicon.tsv").exists()


def test_a_word_that_occurs_once_counts_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are learned on the text with joined phrases and without them, so `min_count: 2` keeps all words."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    for name, word in (("train.de", "einmal"), ("train.en", "rarely")):
        (tmp_path / name).write_text((tmp_path / name).read_text() + f"{word}\n")

    def has_vector(min_count: int) -> bool:
        train = {"width": 8, "epochs": 1, "min_count": min_count}
        subwords = {**RECIPE["data"]["subwords"], "vectors": {"train": train}}
        config = data_of({**RECIPE, "data": {**RECIPE["data"], "subwords": subwords}})
        return "rarely " in make_phrase_data(config, say=lambda _: None).vectors.read_text()

    assert has_vector(2) and not has_vector(3)


def test_the_model_takes_the_lexicon_of_the_steps(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["decoding.unknown=replace", "decoding.lexicon=auto", "training.fertility=null"]
    with training_in_this_process():
        assert run(["train", "recipe.yaml", *changes]) == 0
    (made,) = prepared.glob("dataset.phrases/steps/lexicon-*/lexicon.tsv")
    rows = [line.split("\t")[:2] for line in made.read_text().splitlines()]
    stored = (prepared / "runs" / "phrases" / "best" / "lexicon.tsv").read_text()
    assert ["haus", "house"] in rows and stored == "".join("\t".join(row) + "\n" for row in rows)

    made.unlink()
    capsys.readouterr()
    assert run(["train", "recipe.yaml", *changes, "--run", "other"]) == 1
    assert "no lexicon for decoding.lexicon: auto; phraseloom prepare RECIPE --overwrite" in capsys.readouterr().err
    assert not Path("other").exists()


def test_an_automatic_lexicon_needs_the_steps(prepared: Path) -> None:
    own = ["data.target_phrases=null", "data.subwords.joined=true", "data.subwords.vectors=more.vec"]
    plain = [*own, "training.fertility=null"]
    with pytest.raises(
        UsageError, match=r"the lexicon that prepare makes with data.target_phrases; for other data, name"
    ):
        load_recipe("recipe.yaml", [*plain, "decoding.lexicon=auto"])
    load_recipe("recipe.yaml", [*plain, "decoding.lexicon=made.tsv"])


def test_labels_of_other_phrases_than_those_of_the_dataset_are_refused(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of two tables of phrases are there; the dataset is of one of them."""
    other = ["data.target_phrases.min_count=5", "data.subwords.vectors.train.epochs=2"]
    assert run(["prepare", "recipe.yaml", "--overwrite", *other]) == 0
    capsys.readouterr()
    assert run(["train", "recipe.yaml"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "phraseloom train: dataset: this dataset was prepared with data.target_phrases: min_count 5, but the recipe has "
        "min_count 2; give train the same KEY=VALUE as prepare, or run phraseloom prepare RECIPE --overwrite"
    )
    assert not (prepared / "runs").exists()
    config = load_recipe("recipe.yaml", other[:1]).data  # vectors have no part in the labels
    assert isinstance(config, DataConfig)
    index = json.loads((prepared / "dataset" / "index.json").read_text())
    joined = Path(index["splits"]["train"]["files"][0]["target"])
    assert find_labels(config)["train"][1] == joined.with_name("fertility")

    lowercase = load_recipe("recipe.yaml", [*other, "data.text.lowercase=true", "data.text.truecase=false"]).data
    assert isinstance(lowercase, DataConfig)
    with pytest.raises(UsageError, match=r"prepared with data.text.lowercase: False, but the recipe has True"):
        find_labels(lowercase)

    (prepared / "train.de").write_text("das haus ist gross\n" * 40)  # and a prepare that is stopped before the dataset
    make_phrase_data(config, say=lambda _: None)
    with pytest.raises(UsageError, match="the train text of this dataset is not the text of the labels for"):
        find_labels(config)


UNGATED = ["training.fertility=null", "training.max_updates=1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.target_phrases.min_count=5", "data.target_phrases: min_count 2, but the recipe has min_count 5;"),
        ("data.target_phrases.rule=released", "from .*, which is not made with data.target_phrases of this recipe;"),
        ("data.text.lowercase=true", "data.text.lowercase: False, but the recipe has True;"),
        ("data.subwords.vectors.train.epochs=2", "data.subwords.vectors.train: epochs 1, but the recipe has epochs 2;"),
        ("data.subwords.vectors.train.text=[]", "the vectors .*vectors.vec, which are not made with this recipe;"),
    ],
)
def test_a_model_without_a_gate_is_not_trained_on_other_phrases_either(
    change: str, said: str, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [change, "data.text.truecase=false"] if "lowercase" in change else [change]
    if "lowercase" in change:
        said = said.replace("lowercase: False, but the recipe has True", "(lowercase|truecase): .*")
    assert run(["train", "recipe.yaml", *UNGATED, *changes]) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert re.search(
        rf"^phraseloom train: dataset: this dataset was prepared (with|from) .*{said.removeprefix('from ')}", shown
    )
    assert shown.endswith("give train the same KEY=VALUE as prepare, or run phraseloom prepare RECIPE --overwrite")
    assert not (prepared / "runs").exists()


def test_the_dataset_counts_where_the_recipe_has_other_words(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("dataset.phrases")  # a model needs no steps
    with training_in_this_process():
        assert run(["train", "recipe.yaml", *UNGATED, "data.subwords.size=9", "data.subwords.center=true"]) == 0
    shown = capsys.readouterr().err
    assert "this dataset was prepared with data.subwords.size: 50000, but the recipe has 9; the dataset counts" in shown
    assert "prepared with data.subwords.center: False, but the recipe has True; the dataset counts" in shown
    assert "vectors" not in shown
    noted = yaml.safe_load(Path("runs/phrases/config.yaml").read_bytes())["data"]["subwords"]
    assert (noted["size"], noted["center"]) == (50000, False)


def test_the_report_names_files_and_lines_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two training files, of which pairs are left out before the first step; changes of the target count as well."""
    monkeypatch.chdir(tmp_path)
    source, target = SOURCE * 4, TARGET * 4
    source[4], target[8] = "", "the house " * 200
    files = [{"source": f"{name}.de", "target": f"{name}.en"} for name in ("train", "second")]
    recipe = write(tmp_path, {**RECIPE, "data": {**RECIPE["data"], "train": files, "filter": {"decontaminate": 4}}})
    (tmp_path / "second.de").write_text("\n".join(source))
    (tmp_path / "second.en").write_bytes("\r\n".join(target).encode())
    for side in ("de", "en"):
        (tmp_path / f"valid.{side}").write_text("der mann ging heim\nthe man went home\n\n")
    assert run(["prepare", str(recipe)]) == 0
    printed = capsys.readouterr().out
    assert "left out 1 pair: the source is blank (first: second.de:5)" in printed
    assert "left out 1 pair: a side has more than max_tokens subwords (first: second.de:9)" in printed
    assert "second.en: 19 lines ended by \\r\\n, read as \\n (first: line 1)" in printed
    assert "warning: valid has 1 pair with a blank side, which are kept (first: valid.de:3)" in printed
    assert "out.txt:" not in printed

    assert run(["prepare", str(recipe), "--overwrite", "data.filter.max_tokens=1"]) == 1
    assert "phraseloom prepare: train.de: no train pair is left: " in capsys.readouterr().err


def test_a_line_of_a_step_has_a_place_in_the_files_of_the_recipe(tmp_path: Path) -> None:
    """Line 3 of the clean text is line 5 of all text."""
    (tmp_path / "lines.txt").write_text("1\n4\n5\n")
    origin = TextOrigin([("first", 3), ("second", 2)], tmp_path / "lines.txt")
    assert [origin.place(line) for line in (1, 2, 3)] == [("first", 1), ("second", 1), ("second", 2)]
    origin = TextOrigin([("first", 3), ("second", 2)])
    assert [origin.place(line) for line in (3, 4, 6)] == [("first", 3), ("second", 1), None]


def test_commands_name_what_there_is(prepared: Path) -> None:
    """Several files of test text are one file of a step; no subset without lines, no labels without a gate."""
    test = [*RECIPE["data"]["test"], {"source": "train.de", "target": "train.en"}]
    made = make_phrase_data(data_of({**RECIPE, "data": {**RECIPE["data"], "test": test}}), say=lambda _: None)
    names = {name: path.relative_to("dataset.phrases/steps").as_posix() for name, path in made.test.items()}
    assert re.sub("-[0-9a-f]{12}", "", names["target"]) == "target_test_text/out.txt"
    assert len((prepared / made.test["source"]).read_text().splitlines()) == len(SOURCE) * 9
    assert made.mwt is not None
    (made.mwt / "lines.txt").write_text("")
    commands = made.evaluation("runs/my run", has_gate=False, translations="my.en")
    assert commands == [
        f"phraseloom translate 'runs/my run' < {made.test['source']} > my.en",
        f"phraseloom evaluate --reference {made.test['target']} my.en",
    ]


def test_the_folder_of_the_steps_may_be_deleted(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As docs/continuous_output.md says: only a gate that is to be trained needs it."""
    shutil.rmtree("dataset.phrases")
    assert run(["train", "recipe.yaml"]) == 1
    assert "no labels for training.fertility; phraseloom prepare RECIPE --overwrite writes" in capsys.readouterr().err
    with training_in_this_process():
        assert run(["train", "recipe.yaml", "training.fertility=null"]) == 0
    assert not (prepared / "dataset.phrases").exists()


def test_pairs_in_held_out_text_are_left_out_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is learned from them: no word link, phrase, vector or label of fertility."""
    monkeypatch.chdir(tmp_path)
    recipe = write(tmp_path, {**RECIPE, "data": {**RECIPE["data"], "filter": {"decontaminate": 4}}})
    for side, lines in (("de", SOURCE), ("en", TARGET)):
        (tmp_path / f"valid.{side}").write_text(f"{lines[1]} .\n{lines[3].upper()}\n")
    assert run(["prepare", str(recipe)]) == 0
    printed = capsys.readouterr().out
    assert "\nleft out 16 pairs: a side is in valid or test\nphrases: 1 of 1 candidate; joined 16 times, " in printed
    config = load_recipe(recipe).data
    assert isinstance(config, DataConfig)
    text, fertility = (path.read_text() for path in find_labels(config)["train"])
    assert len(text.splitlines()) == len(fertility.splitlines()) == 24 and "heim" not in text
    assert json.loads((tmp_path / "dataset" / "index.json").read_text())["splits"]["train"]["read"] == 24
    raw, train = (tmp_path / "train.de").read_text().splitlines(), Dataset.open(tmp_path / "dataset").split("train")
    assert train.lines.tolist() == [n for n, line in enumerate(raw) if line not in (SOURCE[1], SOURCE[3])]


def test_repeated_pairs_count_once_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text that the recipe names twice gives the phrases and the vocabulary of the text."""
    monkeypatch.chdir(tmp_path)
    found = []
    for name, count, is_asked in (("once", 1, False), ("twice", 2, True)):
        data = {**RECIPE["data"], "folder": name, "filter": {"deduplicate": is_asked}}
        train = [dict(pair) for _ in range(count) for pair in RECIPE["data"]["train"]]
        write(tmp_path, {**RECIPE, "data": {**data, "train": train}})
        for side in ("de", "en"):
            path = tmp_path / f"train.{side}"
            lines = [f"{line} {number}" for number, line in enumerate(path.read_text().splitlines())]
            path.write_text("".join(f"{line}\n" for line in lines))
        assert run(["prepare", "recipe.yaml"]) == 0
        found.append(capsys.readouterr().out)
        split = json.loads((tmp_path / name / "index.json").read_text())["splits"]["train"]
        found.append((split["read"], (tmp_path / name / "tokenizer" / "target.vocab").read_bytes()))
    assert "left out 40 pairs: the same pair came before\n" in found[2] and "left out" not in found[0]
    assert found[1] == found[3]


def refused(folder: Path, recipe: dict[str, Any] = RECIPE) -> str:
    """The only line that `prepare` prints when it refuses its input; nothing is written."""
    said: list[str] = []
    with pytest.raises(PhraseloomError) as error:
        make_phrase_data(data_of(recipe), data_root=folder, say=said.append)
    assert said == [] and not (folder / "dataset.phrases").exists()
    assert "\n" not in str(error.value)
    return str(error.value).replace(f"{folder}/", "")


def data_of(recipe: dict[str, Any] = RECIPE) -> DataConfig:
    """The data section of a recipe."""
    subwords = {"joined": True, **recipe["data"]["subwords"]}
    return validate(DataConfig, {**recipe["data"], "subwords": subwords})


def test_text_in_the_source_language_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "more.en").write_text("das haus ist gross\n")
    assert refused(tmp_path) == (
        "more.en: data.subwords.vectors.train.text looks like the source language: 55% of its words in common with the source "
        "of the training text, 0% with the target; give text in en; 20,000 lines of each text are compared"
    )


def test_few_words_of_names_are_not_the_source_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One word of them is in the source, and none in the target."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "more.en").write_text("Die Hard .\nAlien 3 .\nTitanic .\n" * 3 + "der\n")
    (tmp_path / "train.de").write_text("der\n" + (tmp_path / "train.de").read_text())
    (tmp_path / "train.en").write_text("he\n" + (tmp_path / "train.en").read_text())
    vectors = VectorTraining(text=["more.en"])
    phrase_data._check_input(data_of(), TargetPhrasesConfig(), vectors, tmp_path, lambda *_: None)


FRENCH = "la maison est the plus grande , un homme va chez lui\n"


@pytest.mark.parametrize("valid", ["as many words", "few words", None])
def test_text_in_a_third_language_is_refused(
    valid: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word of it is in the target too. Whatever the validation text is: a short one has little in common with any."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    for name in ("train.de", "train.en"):
        (tmp_path / name).write_text((tmp_path / name).read_text() * 30)
    (tmp_path / "more.en").write_text(FRENCH * 300)
    recipe = RECIPE
    if valid is None:
        recipe = {**RECIPE, "data": {**RECIPE["data"], "valid": [], "test": []}}
    elif valid == "few words":
        (tmp_path / "valid.de").write_text("unbekannt\n")
        (tmp_path / "valid.en").write_text("unknown\n")
    assert refused(tmp_path, recipe) == (
        "more.en: data.subwords.vectors.train.text is not in the target language: 9% of its words in common with the target of "
        "the training text, at least 10% are expected; give text in en; 20,000 lines of each text are compared"
    )


@pytest.mark.parametrize("few", ["train.en", "more.en"])
def test_few_words_say_nothing_about_a_language(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    for name in ("train.de", "train.en"):
        (tmp_path / name).write_text((tmp_path / name).read_text() * (1 if name[:5] == few[:5] else 30))
    (tmp_path / "train.de").write_text("ein haus\n" * (tmp_path / "train.en").read_text().count("\n"))
    (tmp_path / "more.en").write_text(FRENCH * (1 if few == "more.en" else 300))
    phrase_data._check_input(
        data_of(), TargetPhrasesConfig(), VectorTraining(text=["more.en"]), tmp_path, lambda *_: None
    )


def test_files_of_unequal_length_and_a_bad_aligner_are_found_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    (tmp_path / "my.aligner").write_text("not one\n")
    of_file = {**RECIPE, "data": {**RECIPE["data"], "target_phrases": {"aligner": "my.aligner"}}}
    said = refused(tmp_path, of_file)
    assert said.startswith("my.aligner: not a whole safetensors file") and "align train makes" in said
    (tmp_path / "valid.en").write_text("\n".join(TARGET[:4]) + "\n")
    assert refused(tmp_path).startswith("valid.de:5: line counts differ: 5 in valid.de, 4 in valid.en; ")


def test_an_aligner_of_other_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)

    def said(sources: Sequence[str], targets: Sequence[str], **data: Any) -> str:
        bitext = read_bitext(zip(sources, targets, strict=True))
        save_aligner(tmp_path / "my.aligner", learn_aligner(bitext, IBMSettings(iterations=1)))
        return refused(
            tmp_path, {**RECIPE, "data": {**RECIPE["data"], "target_phrases": {"aligner": "my.aligner"}, **data}}
        )

    knows, where = (
        "my.aligner: data.target_phrases.aligner knows only ",
        "; it read 40 lines; name one of these languages",
    )
    both = "0% of the source words and 0% of the target words: it is of the other direction"
    assert said(TARGET, SOURCE).startswith(f"{knows}{both}{where}")
    assert said(SOURCE, SOURCE).startswith(f"{knows}0% of the target words{where}")
    config = data_of({**RECIPE, "data": {**RECIPE["data"], "text": {"tokenize": "moses", "lowercase": True}}})
    for lines, name in ((SOURCE, "de"), (TARGET, "en")):
        (tmp_path / f"train.{name}").write_text("".join(f"{line.upper()}.\n" for line in lines))
    own = read_bitext((f"{source} .", f"{target} .") for source, target in zip(SOURCE, TARGET, strict=True))
    save_aligner(tmp_path / "my.aligner", learn_aligner(own, IBMSettings(iterations=1)))
    phrase_data._check_aligner(config, tmp_path / "my.aligner", tmp_path)  # tokens as data.text makes them


def test_a_step_that_fails_is_one_message_and_no_other_step_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    said: list[str] = []
    program = (sys.executable, "-c", "import sys; sys.exit('it broke')")
    with pytest.raises(DataError, match=re.escape("source_train failed: it broke; its log is dataset.phrases/steps/")):
        make_phrase_data(data_of(), say=said.append, program=program)
    assert [line.split(":")[0] for line in said] == [
        "[1/28] source_train_text", "    done in 0 s", "[2/28] source_train",
    ]  # fmt: skip


def test_a_folder_in_the_way_of_a_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is that of the folder; there is no log of such a step."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    program = (sys.executable, "-c", "import sys; sys.exit('it broke')")
    with pytest.raises(DataError):
        make_phrase_data(data_of(), say=lambda _: None, program=program)
    (step,) = (tmp_path / "dataset.phrases" / "steps").glob("source_train-*")
    (step / "step.json").unlink()
    (step / "mine").write_text("keep me")
    with pytest.raises(
        FileProblem, match=r"in the way, and not made by phraseloom \(no step.json there\); move the folder away$"
    ):
        make_phrase_data(data_of(), say=lambda _: None, program=program)
    assert (step / "mine").is_file()


def phraseless(folder: Path, recipe: dict[str, Any]) -> str:
    """The only message about a recipe that gives no phrase, without the digits of steps."""
    with pytest.raises(DataError) as error:
        make_phrase_data(data_of(recipe), data_root=folder, say=lambda _: None)
    return re.sub(r"-[0-9a-f]{12}", "", str(error.value))


def test_links_without_a_candidate_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each target has one word, so no source word can have several."""
    monkeypatch.chdir(tmp_path)
    subwords = {**RECIPE["data"]["subwords"], "vectors": {"train": {"width": 8, "epochs": 1}}}
    write(tmp_path)
    (tmp_path / "train.en").write_text("house\n" * 39 + "\n")
    assert phraseless(tmp_path, {**RECIPE, "data": {**RECIPE["data"], "subwords": subwords}}) == (
        "no candidate for a phrase: in 40 pairs, no source word is linked to several target words (1 with a blank side, 0 "
        "without links); check that each line of data.train translates the line beside it, give more text, or name another "
        "data.target_phrases.aligner; the log is dataset.phrases/steps/candidates/log.txt"
    )


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        ({"min_pmi": 40}, "min_pmi 40 dropped 1"),
        ({"min_count": 17}, "min_count 17 dropped 1"),
        ({"max_words": 1}, "max_words 1 dropped 1"),
        ({"stop_words": "my.stop", "stop_rule": "any"}, "stop_words with stop_rule any dropped 1"),
    ],
)
def test_filters_without_a_phrase_are_named(prepared: Path, options: dict[str, Any], dropped: str) -> None:
    (prepared / "my.stop").write_text("likely\n")
    assert phraseless(prepared, {**RECIPE, "data": {**RECIPE["data"], "target_phrases": options}}) == (
        f"no phrase is left of the candidates: {dropped}; relax these keys of data.target_phrases, or give more text; "
        "dataset.phrases/steps/table/log.txt says how many candidates each filter dropped"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--preset paper --min-count 2 --max-words 4"),
        (
            {"stop_rule": "any", "stop_words": "my.stop", "min_pmi": 1.5, "repetition": True, "characters": "letters"},
            "--preset paper --min-count 2 --max-words 4 --characters letters --repetition --stop-words {root}/my.stop "
            "--stop-rule any --min-pmi 1.5",
        ),
        (
            {"filter": "released", "stop_words": "none", "min_count": 3},
            "--preset released --no-parts-of-speech --min-count 3 --max-words 4 --stop-words none",
        ),
    ],
)
def test_every_option_of_phrases_filter_reaches_it(options: dict[str, Any], words: str) -> None:
    phrases = TargetPhrasesConfig.model_validate(options)
    command = phrase_data._commands(data_of(), phrases, VectorTraining())["table"]["run"]
    assert " ".join(command[5:-2]) == words


@pytest.mark.parametrize(
    ("language", "list_of"), [("de", "de"), ("fr", "fr"), ("fr-CA", "fr"), ("DE", "de"), ("en_GB", None), ("tr", None)]
)
def test_the_stop_words_are_those_of_the_target(language: str, list_of: str | None) -> None:
    config = data_of({**RECIPE, "data": {**RECIPE["data"], "target_language": language}})
    commands = phrase_data._commands(config, TargetPhrasesConfig(), VectorTraining())
    assert commands["table"]["run"][11:-2] == ([] if list_of is None else ["--stop-words", list_of])
    assert commands["target_train"]["run"][2:4] == ["-l", language[:2].lower()]  # a step of other rules is another step


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--width 300 --epochs 20 --min-count 2 --sample 0.001 --seed 1"),
        (
            {"seed": 20240101, "sample": 0.00012345678},
            "--width 300 --epochs 20 --min-count 2 --sample 0.00012345678 --seed 20240101",
        ),
        ({"sample": 0, "seed": 2**32 - 2}, "--width 300 --epochs 20 --min-count 2 --sample 0 --seed 4294967294"),
    ],
)
def test_every_option_of_embeddings_train_reaches_it(options: dict[str, Any], words: str) -> None:
    vectors = VectorTraining.model_validate(options)
    command = phrase_data._commands(data_of(), TargetPhrasesConfig(), vectors)["vectors"]["run"]
    assert " ".join(command[7:]) == words


def test_a_seed_that_embeddings_train_refuses_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed"):
        validate(VectorTraining, {"seed": 2**32 - 1})


@pytest.mark.parametrize("name", ["some.text", "my text, {of} {aligner} [all]'s"])
@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_changed_file_is_noticed_whatever_its_name(name: str, is_absolute: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("das haus\n")
    given = str(path) if is_absolute else name
    phrases = {"aligner": given, "stop_words": given}
    data = {**RECIPE["data"], "train": [{"source": given, "target": given}], "target_phrases": phrases}
    config = data_of({**RECIPE, "data": data})
    steps = phrase_data._by_name(phrase_data._steps(config, *phrase_data._options(config), tmp_path))
    text = steps["source_train_text"]
    assert text.stdin == (path,)
    assert [steps[step].reads for step in ("source_train_text", "links_train", "table")] == [((given, path),)] * 3
    before = noted(text, [])
    path.write_text("das grosse haus\n")
    assert changed(text, before) == {given: "another size"}


def test_the_data_root_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The joined text beside the dataset has a name from the data root, and `..` goes up from the target of the link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disk" / "data").mkdir(parents=True)
    root = Path("data")
    root.symlink_to("disk/data")
    write(root)
    config = data_of()
    options = phrase_data._options(config)
    read = phrase_data._check_input(config, *options, root, lambda *_: None)
    steps = phrase_data._by_name(phrase_data._steps(config, *options, root))
    step = steps["source_train_text"]
    step.folder.mkdir(parents=True)
    (step.folder / "out.txt").write_text("das haus\n")
    data = phrase_data._result(config, steps, root, read, 1).config
    assert locate(root, data.train[0].source or "").read_text() == "das haus\n"


def test_the_steps_are_beside_the_dataset() -> None:
    for folder in ("dataset", "dataset/"):
        assert phrase_data.folder_of(data_of({**RECIPE, "data": {**RECIPE["data"], "folder": folder}})) == Path(
            "dataset.phrases"
        )


def test_without_a_list_of_the_target_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    said: list[str] = []
    program = (sys.executable, "-c", "import sys; sys.exit('it broke')")
    with pytest.raises(DataError):
        make_phrase_data(
            data_of({**RECIPE, "data": {**RECIPE["data"], "target_language": "tr"}}), say=said.append, program=program
        )
    assert said[0] == (
        "there is no list of stop-words for tr, so phrases are filtered by the English one; "
        "data.target_phrases.stop_words may name a file"
    )


def test_a_file_of_stop_words_drops_phrases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    phrases = {"stop_words": "my.stop", "stop_rule": "any", "filter": "released"}
    recipe = {**RECIPE, "data": {**RECIPE["data"], "target_phrases": phrases}}
    assert refused(tmp_path, recipe) == "my.stop: text file not found"
    (tmp_path / "my.stop").write_text("likely\n")
    with pytest.raises(DataError, match="no phrase is left"):
        make_phrase_data(data_of(recipe), say=lambda _: None)


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("phraseloom align: forward 3 of 5: 7.123 bits a word, tension 4.00", 0.3),
        ("phraseloom align: backward 5 of 5: 4.5 bits a word", 1.0),
        ("phraseloom embeddings: epoch 3 of 20: 50%", 0.125),
        ("phraseloom embeddings: epoch 20 of 20", 1.0),
        ("phraseloom phrases: 12 lines", None),
        ("", None),
    ],
)
def test_the_progress_of_a_step_is_read_from_its_log(line: str, share: float | None) -> None:
    assert share_done(line) == share


@pytest.mark.parametrize(
    "argv",
    [
        ["tokenize", "{text}", "-l", "de"],
        ["align", "apply", "aligner", "-s", "{text}", "-t", "other"],
        ["phrases", "segment", "{text}", "--table", "phrases.tsv"],
        ["phrases", "segment", "other", "--table", "phrases.tsv", "-s", "{text}", "-a", "links"],
    ],
    ids=" ".join,
)
def test_the_progress_of_a_step_is_the_share_of_lines_that_it_has_written(tmp_path: Path, argv: list[str]) -> None:
    text, output = tmp_path / "text", tmp_path / ".stdout.tmp"
    text.write_text("a line\n" * 8)

    def step(identity: str, *words: str, stdout: str | None = "out.txt") -> Step:
        place = None if stdout is None else tmp_path / stdout
        return Step("name", StepScope("", "data"), words, identity, tmp_path, stdout=place)

    running = step("1", *(word.replace("{text}", str(text)) for word in argv))
    written = WrittenLines()
    assert written.share(running) is None  # not begun
    output.write_text("")
    assert written.share(running) is None  # it reads the text a first time, or its model
    output.write_text("one\ntwo\nhal")
    assert written.share(running) == 0.25
    with output.open("a") as handle:
        handle.write("f\n")
    assert written.share(running) == 0.375
    assert written.share(step("2", *running.argv)) == 0.375  # another step: counted anew
    output.unlink()
    assert written.share(running) is None
    assert written.share(step("3", "concatenate")) is None
    assert written.share(step("4", "phrases", "extract", "-s", str(text), stdout=None)) is None


def test_a_terminal_shows_the_share_of_a_step_that_writes_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in place of ours writes half of the lines, and waits until that is shown."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    monkeypatch.setattr("phraseloom.reproduce.execute.PROGRESS_SECONDS", 0.0)
    half = (
        "import sys, time; from pathlib import Path; lines = Path(sys.argv[2]).read_text().splitlines(True)\n"
        "sys.stdout.write(''.join(lines[: len(lines) // 2])); sys.stdout.flush()\n"
        "while not Path('seen').exists(): time.sleep(0.01)\n"
        "sys.exit('it broke')"
    )
    told: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        told.append((stage, done, total))
        if done:
            Path("seen").touch()

    with pytest.raises(DataError, match="it broke"):
        make_phrase_data(data_of(RECIPE), say=lambda _: None, progress=progress, program=(sys.executable, "-c", half))
    stage, done, total = next(one for one in told if one[1])
    assert stage.split(" ")[1].startswith("source_train") and (done, total) == (500, 1000)
    assert "%" not in "".join(path.read_text() for path in Path("dataset.phrases").rglob("log.txt"))
