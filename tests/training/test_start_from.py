"""Runs that start from a model: equal outputs at first, what is new is said, and they go on without their origin."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.analysis.explain_kinds import joined_tokenizer
from tests.helpers import assert_same_end, run_records, toy_pairs, training_in_this_process

from phraseloom import files
from phraseloom.cli.main import run as phraseloom
from phraseloom.data.prepare import prepare
from phraseloom.data.tensors import make_batch
from phraseloom.errors import ModelError, UsageError
from phraseloom.models.build import build_language_model, build_model
from phraseloom.models.store import load_tensors, save_model
from phraseloom.models.tasks import build
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.training import differing_options
from phraseloom.phrases.segmenters import Segmenter, TableSegmenter, TreeSegmenter
from phraseloom.recipe import load_recipe
from phraseloom.text.extension import spelling
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.words import Words
from phraseloom.training.start import random_batch
from phraseloom.training.start_from import NewPieces, _match, _other_text, read_start

SIZE = 30
PLAIN = {"width": 16, "heads": 4, "ffn_width": 20, "encoder": {"layers": 2}, "decoder": {"layers": 2}}
GATED = ["queryk heterogeneous 1-2", "queryk heterogeneous 1-2-3 keys-per-order", "convkv heterogeneous 1-2",
         "queryk interleaved 1-2", "convkv interleaved 1-2-3"]  # fmt: skip
EQUAL = [*(f"{line} gated" for line in GATED), "queryk homogeneous 22", "convkv homogeneous 121"]


def model_of(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    return build_model(ModelConfig.model_validate({**PLAIN, **options}), SIZE, SIZE).double().eval()


def difference(one: Any, other: Any) -> float:
    batch = random_batch(source_size=SIZE, target_size=SIZE)
    with torch.no_grad():
        return float((one.score(batch) - other.score(batch)).abs().max())


# --- grafting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", EQUAL)
def test_grafted_attention_begins_with_equal_outputs_and_learns(line: str) -> None:
    origin, model = model_of(1), model_of(2, attention=line)
    assert difference(origin, model) > 0.1
    match = _match(origin, model, Path("m"), [])
    assert difference(origin, model) < 1e-12
    assert len(match.blocks) == 6 and not match.new and not match.left
    for padded in ([[5, 6, 7, 8], [9]], [[4], [5, 6]]):
        batch = make_batch(padded, [[5, 6], [7, 8, 9]])
        torch.testing.assert_close(model.score(batch), origin.score(batch), rtol=0, atol=1e-12)
    model.train()
    batch = random_batch(source_size=SIZE, target_size=SIZE)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model.loss(batch).objective.backward()
        optimizer.step()
    gates = [p for name, p in model.named_parameters() if name.endswith(".gate")]
    assert len(gates) == (6 if line.endswith("gated") else 0)
    assert all(gate.grad.all() and gate.all() for gate in gates)
    cross = model.decoder.layers[0].cross_attention.score
    start, _, wide = cross.layout.names["Wv_n2"]
    assert cross.weight.grad[start : start + 2 * wide].any(), "n-grams learn from the second step"


@pytest.mark.parametrize("line", EQUAL)
def test_biases_are_grafted_too(line: str) -> None:
    """As an imported model has them (docs/bridges.md)."""
    origin = model_of(1, attention_bias=True)
    with torch.no_grad():
        for parameter in origin.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    model = model_of(2, attention_bias=True, attention=line)
    match = _match(origin, model, Path("m"), [])
    assert len(match.blocks) == 6 and not match.new and not match.left
    assert difference(origin, model) < 1e-12
    with pytest.raises(ModelError, match="other sizes"):
        _match(origin, model_of(2, attention=line), Path("m"), [])


def test_what_begins_otherwise_is_refused_with_the_way_out() -> None:
    for line in GATED:
        with pytest.raises(
            UsageError, match=r"encoder\.layers\.0\.attention attends to tokens .*queryk heterogeneous 1-2 gated"
        ):
            _match(model_of(), model_of(attention=line), Path("m"), [])


def test_relative_positions_begin_without_influence() -> None:
    origin, model = model_of(1), model_of(2, attention={"encoder_self": "relative", "decoder_self": "relative"})
    _match(origin, model, Path("m"), [])
    assert difference(origin, model) < 1e-12


def test_a_phrasal_model_of_the_same_kind_is_continued_as_it_is() -> None:
    line = "queryk heterogeneous 1-2"
    origin, model = model_of(1, attention=line), model_of(2, attention=line)
    match = _match(origin, model, Path("m"), [])
    assert difference(origin, model) == 0.0 and not match.blocks


def test_a_recurrent_decoder_gets_phrasal_attention() -> None:
    recurrent = {"positions": {}, "decoder": {"kind": "recurrent", "layers": 1, "attention": "multihead"}}
    origin = model_of(1, **recurrent)
    model = model_of(2, attention={"cross": "queryk heterogeneous 1-2 gated"}, **recurrent)
    match = _match(origin, model, Path("m"), [])
    assert difference(origin, model) < 1e-12 and len(match.blocks) == 1
    ungated = model_of(2, attention={"cross": "queryk heterogeneous 1-2"}, **recurrent)
    with pytest.raises(
        UsageError, match=r"decoder\.attention\.block attends .* the line of model\.attention\.cross with"
    ):
        _match(origin, ungated, Path("m"), [])


def test_vectors_of_another_table_are_named_as_such() -> None:
    tokenizer = joined_tokenizer()
    words = tokenizer.target.subwords
    turned = Words(words.vocabulary, joined=True, vectors=np.roll(words.vectors, 1, axis=1))
    other = Tokenizer(tokenizer.text, "de", "en", tokenizer.source.subwords, turned)
    [said] = _other_text(other, tokenizer, {"source": "source", "target": "target"})
    assert said == "the target vectors are not those of the origin: its output points to other words"


def test_source_phrases_begin_at_zero_in_a_pre_norm_model() -> None:
    phrases = {"phrases": {"segments": {"kind": "fixed"}, "transparent": True, "transparent_tokens": False}}
    origin, model = model_of(1), model_of(2, **phrases)
    match = _match(origin, model, Path("m"), [])
    assert difference(origin, model) < 1e-12
    assert len(match.zero) == 8 and all("combination" in name for name in match.zero)
    assert any(name.startswith("phrases.") for name in match.new) and not match.left
    model.loss(random_batch(source_size=SIZE, target_size=SIZE)).objective.backward()
    assert all(dict(model.named_parameters())[name].grad.any() for name in match.zero), "they learn at once"
    origin, model = model_of(1, norm="post"), model_of(2, norm="post", **phrases)
    match = _match(origin, model, Path("m"), [])
    assert difference(origin, model) > 1e-6 and not match.zero, "one normalisation more, which the table says"


def test_a_combination_network_that_the_origin_lacks_begins_at_zero() -> None:
    """The origin attends to phrases, without the network."""
    phrases = {"segments": {"kind": "fixed"}}
    origin, model = model_of(1, phrases={**phrases, "combination_width": 0}), model_of(2, phrases=phrases)
    match = _match(origin, model, Path("m"), [])
    assert difference(origin, model) < 1e-12
    assert len(match.zero) == 4 and all(name.endswith("combination.down.weight") for name in match.zero)


# --- names and sizes --------------------------------------------------------------------------------------------------


def test_other_sizes_are_refused_by_name() -> None:
    with pytest.raises(ModelError) as caught:
        _match(model_of(), model_of(width=32), Path("m"), ["model.width: 16 → 32"])
    message = str(caught.value)
    assert "source_embedding.weight is 30 × 16 there and 30 × 32 here (" in message
    assert "these options differ: model.width: 16 → 32" in message and "\n" not in message


def test_what_is_new_and_what_is_left_out() -> None:
    match = _match(model_of(1), model_of(2, decoder={"layers": 1}, output={"bias": True}), Path("m"), [])
    assert match.new == ["output.bias"]
    assert match.left and all(name.startswith("decoder.layers.1.") for name in match.left)
    rows = match.table(model_of(2, decoder={"layers": 1}, output={"bias": True}))
    assert rows[1] == "  new       1 parameter: output.bias" and rows[2].startswith("  left out  ")


def test_shared_matrices() -> None:
    tied, apart = model_of(1), model_of(2, tied="none")
    _match(tied, apart, Path("m"), [])
    assert torch.equal(apart.output.weight, tied.output.weight) and difference(tied, apart) == 0.0
    with torch.no_grad():
        apart.output.weight.add_(1.0)
    folder = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phraseloom.training.start_from._tied", lambda folder: "none")
        with pytest.raises(ModelError, match=r"are one matrix here and differ in the origin.*model\.tied"):
            _match(apart, model_of(3), folder, [])


# --- whole runs -------------------------------------------------------------------------------------------------------

DATA = {"source_language": "en", "target_language": "de", "processes": 1,
        "subwords": {"kind": "subword_nmt", "merges": 60, "joint": True}}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    with training_in_this_process():
        yield


@pytest.fixture(scope="module")
def place(_one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, its dataset of 100 pairs, and a finished run of it in `plain`."""
    folder = tmp_path_factory.mktemp("place")
    pairs = toy_pairs(folder)
    whole = {
        "name": "small",
        "data": {**DATA, **pairs, "folder": str(folder / "dataset")},
        "model": PLAIN,
        "training": {
            "batch_tokens": 120,
            "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.01, "warmup": 4},
            "optimizer": {"weight_decay": 0.1},
            "max_updates": 6,
            "checkpoint_every": 2,
            "processes": 1,
        },
    }
    files.atomic_write_text(folder / "small.yaml", yaml.safe_dump(whole))
    prepare(load_recipe(folder / "small.yaml").data, data_root=folder)
    assert phraseloom(["train", str(folder / "small.yaml"), "--run", str(folder / "plain")]) == 0
    return folder


Train = Callable[..., int]


@pytest.fixture
def train(place: Path) -> Train:
    return lambda run, *more: phraseloom(["train", str(place / "small.yaml"), "--run", str(run), *more])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")


def validations(run: Path) -> dict[int, float]:
    return {r["update"]: r["validation"]["perplexity"] for r in run_records(run) if "validation" in r}


GRAFT = "model.attention=queryk heterogeneous 1-2 gated"


def test_a_run_begins_where_its_origin_ended_and_says_so(place: Path, tmp_path: Path, train: Train) -> None:
    before = validations(place / "plain")
    for name, more in (("same", ()), ("grafted", (GRAFT,))):
        assert train(tmp_path / name, f"training.start_from={place / 'plain'}", *more) == 0
        after = validations(tmp_path / name)
        assert sorted(after) == [0, 2, 4, 6]
        assert after[0] == pytest.approx(min(before.values()), rel=1e-6)
        log = (tmp_path / name / "train.log").read_text()
        assert f"start_from {place / 'plain'} (step_0000000" in log and ", optimiser fresh" in log
        assert "parameters, " in log.partition("  taken     ")[2].splitlines()[0]
        noted = json.loads((tmp_path / name / "run.json").read_text())["start_from"]
        assert noted["sha256"] == files.sha256_file(place / "plain/best/model.safetensors")
        assert noted["path"] == str(place / "plain") and noted["optimizer"] == "fresh"
    blocks = "encoder.layers.*.attention (2), decoder.layers.*.self_attention (2), decoder.layers.*.cross_attention (2)"
    assert f"  grafted   6 attention blocks: {blocks}\n" in log
    assert "  differs   " not in log, "the row of grafted blocks has told it"
    (line,) = [x for x in log.splitlines() if "  outputs   log p of random tokens" in x]
    assert float(line.rpartition(" ")[2]) < 1e-5


@pytest.mark.parametrize(
    "more", [(), (GRAFT, "training.freeze=[encoder]", "training.rates={'*.gate': 10, decoder: 0.5}")]
)
def test_resumed_without_the_origin_it_ends_with_the_same_bytes(
    place: Path, tmp_path: Path, train: Train, more: tuple[str, ...]
) -> None:
    shutil.copytree(place / "plain", tmp_path / "origin", symlinks=True)
    keys = (f"training.start_from={tmp_path / 'origin'}", *more)
    assert train(tmp_path / "whole", *keys) == 0
    assert train(tmp_path / "run", *keys, "training.max_updates=4") == 0
    shutil.rmtree(tmp_path / "origin")
    for step in (4, 2)[: 1 if more else 2]:  # as if killed after update 2, or right after the start
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_0000000{step}")
    assert train(tmp_path / "run", *keys) == 0
    assert_same_end(tmp_path / "whole", tmp_path / "run")
    assert (tmp_path / "whole/run.json").read_bytes() == (tmp_path / "run/run.json").read_bytes()


def test_other_source_phrases_are_a_difference(place: Path, tmp_path: Path) -> None:
    phrases = ["data.phrases={kind: table, file: x}", "model.phrases={segments: {kind: dataset}}"]
    recipe = load_recipe(place / "small.yaml", [f"training.start_from={tmp_path / 'origin'}", *phrases])
    tokenizer = Tokenizer.load(place / "dataset" / "tokenizer")
    theirs = TreeSegmenter()
    save_model(tmp_path / "origin", build(recipe.model, tokenizer), recipe.model, tokenizer, segmenter=theirs)

    def rows(own: Segmenter) -> list[str]:
        start = read_start(recipe, tokenizer, own)
        assert start is not None
        return [row for row in start.table if row.startswith("  differs")]

    assert rows(theirs) == []
    other = TreeSegmenter(max_tokens=2, min_chunks=100, floor=1)
    assert rows(other) == ["  differs   source phrases: parse trees (8, 6, 3) → parse trees (2, 100, 1)"]
    assert rows(TableSegmenter(["a b"])) == ["  differs   source phrases: parse trees (8, 6, 3) → table of 1 phrase"]


def test_options_of_training_alone_are_no_difference() -> None:
    def recurrent(of_encoder: Any, of_decoder: Any) -> dict[str, Any]:
        parts = {"encoder": {"kind": "recurrent", **of_encoder}, "decoder": {"kind": "recurrent", **of_decoder}}
        return ModelConfig.model_validate({**PLAIN, **parts}).model_dump(mode="json")

    rates = {"dropout": 0.3, "variational_dropout": {"inputs": 0.1, "states": 0.2}}
    assert differing_options(recurrent({}, {}), recurrent(rates, {**rates, "hidden_dropout": 0.0})) == []
    assert differing_options(recurrent({}, {}), recurrent({"cell": "gru"}, {})) == ["model.encoder.cell: lstm → gru"]

    def segmental(**options: Any) -> dict[str, Any]:
        parts = {"encoder": {"kind": "columns"}, "decoder": {"kind": "segmental", **options}}
        return ModelConfig.model_validate({"width": 16, **parts}).model_dump(mode="json")

    assert differing_options(segmental(), segmental(dropout=0.3, approximation={"negatives": 9})) == []


def test_frozen_modules_stay_and_rates_are_kept(place: Path, tmp_path: Path, train: Train) -> None:
    start = f"training.start_from={place / 'plain'}"
    assert (
        train(tmp_path / "run", start, "training.freeze=[encoder, output]", "training.rates={decoder.layers.1: 1e-9}")
        == 0
    )
    assert "frozen: " in (tmp_path / "run" / "train.log").read_text()
    before, after = weights(place / "plain" / "best"), weights(tmp_path / "run" / "last")
    moved = {name for name in before if not torch.allclose(before[name], after[name], rtol=0, atol=1e-6)}
    assert moved == {
        n for n in before if n.startswith("decoder.") and "layers.1." not in n and "self_attention.score" in n
    } | {n for n in before if n.startswith(("decoder.layers.0.", "decoder.norm"))}
    kept = {name.removeprefix("exp_avg.") for name in load_tensors(tmp_path / "run" / "last" / "optimizer.safetensors")}
    assert not [name for name in kept if name.startswith("encoder.") or "embedding" in name]


@pytest.mark.full
def test_a_rate_by_group_does_not_depend_on_the_processes(place: Path, tmp_path: Path, train: Train) -> None:
    keys = (f"training.start_from={place / 'plain'}", "training.rates={encoder: 0.1}", "training.max_updates=2")
    assert train(tmp_path / "one", *keys) == 0
    command = ["-m", "phraseloom", "train", str(place / "small.yaml"), "--run", str(tmp_path / "two"), *keys]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command, "training.processes=2"], check=True, capture_output=True, env=environment)
    for name, tensor in weights(tmp_path / "one" / "last").items():
        torch.testing.assert_close(weights(tmp_path / "two" / "last")[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_optimiser_is_taken_over_on_demand(place: Path, tmp_path: Path, train: Train) -> None:
    """Then a run of six updates from a checkpoint goes on as its origin does: the same schedule and moments."""
    origin = place / "plain" / "checkpoints" / "step_00000002"
    assert (
        train(
            tmp_path / "run", f"training.start_from={{path: {origin}, optimizer: continue}}", "training.max_updates=2"
        )
        == 0
    )
    state = json.loads((tmp_path / "run" / "last" / "state.json").read_text())
    assert (state["update"], state["applied"]) == (2, 4)
    rates = [[r["lr"] for r in run_records(run) if "lr" in r] for run in (tmp_path / "run", place / "plain")]
    assert rates[0] == rates[1][2:4]
    moments = [load_tensors(f / "optimizer.safetensors") for f in (tmp_path / "run/checkpoints/step_00000000", origin)]
    assert all(torch.equal(moments[0][name], moments[1][name]) for name in moments[1])


def test_a_schedule_that_has_ended_is_refused(
    place: Path, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would train at the rate 0 to the end."""
    origin = place / "plain" / "checkpoints" / "step_00000002"
    keys = (f"training.start_from={{path: {origin}, optimizer: continue}}", "training.max_updates=2")
    linear = "training.schedule={kind: linear, peak: 0.01, warmup: 1}"
    assert train(tmp_path / "run", *keys, linear, "training.schedule.updates=2") == 2
    said = capsys.readouterr().err
    assert "optimizer: continue begins at step 2, where schedule linear has the rate 0 since step 2" in said
    for updates in (2, 3):  # with 3, the first update alone would have a rate
        assert train(tmp_path / "run", *keys, linear, f"training.max_updates={updates}") == 2
        said = capsys.readouterr().err
        assert f"begins at step 2, but schedule linear ends at step {updates}, as if the {updates} updates" in said
        assert f"set training.schedule.updates to {2 + updates}, or" in said
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert train(tmp_path / "run", *keys, linear, "training.schedule.updates=4") == 0
    assert [r["lr"] for r in run_records(tmp_path / "run") if "lr" in r] == pytest.approx([0.01 / 3, 0])


def test_the_origin_is_not_in_the_average(
    place: Path, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = (f"training.start_from={place / 'plain'}", "training.max_updates=2", "training.average_last=2")
    assert train(tmp_path / "run", *keys, "training.checkpoint_every=2", "training.keep_last=3") == 0
    assert (tmp_path / "run" / "checkpoints" / "step_00000000").is_dir()
    assert not (tmp_path / "run" / "averaged").exists()
    assert "no average: training.average_last is 2, the run has 1 checkpoint" in capsys.readouterr().err


def test_a_plateau_is_continued_at_its_rate(place: Path, tmp_path: Path, train: Train) -> None:
    origin = shutil.copytree(place / "plain" / "checkpoints" / "step_00000002", tmp_path / "origin")
    state = json.loads((origin / "state.json").read_text())
    files.atomic_write_json(origin / "state.json", {**state, "rate_factor": 0.25})
    files.write_manifest(origin, files.verify_manifest(place / "plain" / "checkpoints" / "step_00000002"))
    keys = (f"training.start_from={{path: {origin}, optimizer: continue}}", "training.max_updates=1")
    assert train(tmp_path / "run", *keys, "training.schedule={kind: plateau, rate: 0.01}") == 0
    assert [r["lr"] for r in run_records(tmp_path / "run") if "lr" in r] == [pytest.approx(0.0025)]


def test_new_pieces_of_a_segmental_model_leave_its_marks_the_last() -> None:
    """The last two rows of its output are the start and the end of a segment."""
    parts: dict[str, Any] = {"width": 16, "encoder": {"kind": "columns"}, "decoder": {"kind": "segmental"}}
    config = ModelConfig.model_validate(parts)
    torch.manual_seed(1)
    origin, model = build_model(config, 20, 20), build_model(config, 23, 23)
    pieces = NewPieces(20, [[5], [6, 7], [8]])
    _match(origin, model, Path("m"), [], {"source": pieces, "target": pieces})
    ours, theirs = dict(model.named_parameters()), dict(origin.named_parameters())
    for name in ("target_embedding.weight", "output.weight"):
        assert torch.equal(ours[name][-2:], theirs[name][-2:]) and torch.equal(ours[name][:20], theirs[name][:20])
        assert torch.equal(ours[name][20], theirs[name][5]), name


def test_new_pieces_begin_as_the_mean_of_the_old_ones(place: Path, tmp_path: Path, train: Train) -> None:
    dataset = tmp_path / "dataset"
    domain = load_recipe(place / "small.yaml").data.model_dump(mode="json")
    for language in ("en", "de"):
        lines = ["blueberry greenhouse dogcat", "greenhouse blueberry", "dogcat"] * 20
        text = "".join(f"{x.upper() if language == 'de' else x}\n" for x in lines)
        files.atomic_write_text(tmp_path / f"train.{language}", text)
    own = [{"source": str(tmp_path / "train.en"), "target": str(tmp_path / "train.de")}]
    changes = {"folder": str(dataset), "train": own, "tokenizer": str(place / "plain"), "new_pieces": 4}
    recipe = load_recipe(place / "small.yaml").data
    prepare(recipe.model_validate({**domain, **changes}), data_root=place)
    keys = (f"data.folder={dataset}", f"training.start_from={place / 'plain'}", "training.max_updates=2")
    assert train(tmp_path / "run", *keys) == 0
    theirs, ours = (Tokenizer.load(f / "tokenizer").source for f in (place / "dataset", dataset))
    size = len(theirs.vocabulary)
    before, after = weights(place / "plain" / "best"), weights(tmp_path / "run" / "checkpoints" / "step_00000000")
    name = "source_embedding.weight"
    assert len(ours.vocabulary) == size + 4 and torch.equal(after[name][:size], before[name])
    for number, piece in enumerate(list(ours.vocabulary)[size:], start=size):
        parts = spelling(piece, theirs.vocabulary, separator="@@")
        mean = before[name][theirs.vocabulary.ids(parts)].mean(0)
        torch.testing.assert_close(after[name][number], mean)
    assert "  extended  target: 4 new pieces" in (tmp_path / "run" / "train.log").read_text()


# --- refused before anything is written -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong(place: Path) -> Path:
    """Origins that cannot be used."""
    folder = place / "wrong"
    folder.mkdir()
    tokenizer = Tokenizer.load(place / "dataset" / "tokenizer")
    config = LanguageModelConfig.model_validate({"width": 16, "heads": 2, "ffn_width": 8, "decoder": {"layers": 1}})
    save_model(folder / "lm", build_language_model(config, len(tokenizer.target.vocabulary)), config, tokenizer)
    files.atomic_write_text(folder / "other.txt", "".join(f"αβγ δεζ {n}\n" for n in range(30)))
    pair = [{"source": str(folder / "other.txt"), "target": str(folder / "other.txt")}]
    data = {**load_recipe(place / "small.yaml").data.model_dump(mode="json"), "train": pair, "valid": []}
    greek = load_recipe(place / "small.yaml").data.model_validate({**data, "folder": str(folder / "greek")})
    prepare(greek)
    model = ModelConfig.model_validate(PLAIN)
    other = Tokenizer.load(folder / "greek" / "tokenizer")
    sizes = len(other.source.vocabulary), len(other.target.vocabulary)
    save_model(folder / "vocabulary", build_model(model, *sizes), model, other)
    best = place / "plain" / "best"
    for name in ("half", "damaged", "no_tokenizer"):
        shutil.copytree(best.resolve(), folder / name)
    (folder / "half" / "manifest.json").unlink()
    data_bytes = bytearray((folder / "damaged" / "model.safetensors").read_bytes())
    data_bytes[-1] ^= 1
    (folder / "damaged" / "model.safetensors").write_bytes(bytes(data_bytes))
    shutil.rmtree(folder / "no_tokenizer" / "tokenizer")
    shutil.copytree(best.resolve(), folder / "model")
    for name in ("optimizer.safetensors", "state.json"):
        (folder / "model" / name).unlink()
    listed = [p.relative_to(folder / "model").as_posix() for p in (folder / "model").rglob("*") if p.is_file()]
    files.write_manifest(folder / "model", [n for n in listed if n != "manifest.json"])
    return folder


REFUSED: list[tuple[str, tuple[str, ...], str]] = [
    ("lm", (), "this is a language model, and the recipe trains a translation model; name a translation model"),
    ("vocabulary", (), "its source vocabulary is another: "),
    ("half", (), "manifest.json is missing: this model folder is incomplete"),
    ("damaged", (), "model.safetensors: training.start_from: "),
    ("no_tokenizer", (), "tokenizer"),
    ("nowhere", (), "training.start_from: "),
    ("model", ("model.width=32",), "these options differ: model.width: 16 → 32"),
    ("model", ("model.heads=2", "model.ffn_width=40"), "feed_forward.up.weight is 20 × 16 there and 40 × 16 here"),
    ("model", ("model.attention=queryk heterogeneous 1-2",), "gated"),
    ("model", ("training.freeze=[encodr]",), "did you mean encoder?"),
    ("model", ("training.rates={decodr: 0.1}",), "did you mean decoder?"),
    ("model", ("training.freeze=[encoder]", "training.rates={encoder.layers.0: 2}"), "encoder.layers.0 is frozen by"),
    ("model", ("training.start_from.optimizer=continue",), "needs a checkpoint of a run"),
]


@pytest.mark.parametrize(("origin", "more", "what"), REFUSED)
def test_what_does_not_fit_leaves_no_run(
    wrong: Path,
    tmp_path: Path,
    train: Train,
    capsys: pytest.CaptureFixture[str],
    origin: str,
    more: tuple[str, ...],
    what: str,
) -> None:
    capsys.readouterr()
    assert train(tmp_path / "run", f"training.start_from={{path: {wrong / origin}}}", *more) in (1, 2)
    message = capsys.readouterr().err
    assert what in message and message.count("\n") == 1, message
    assert not [p for p in (tmp_path / "run").iterdir() if p.name != ".lock"]


def test_the_moments_of_new_parameters_cannot_be_taken_over(
    place: Path, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", f"training.start_from={{path: {place / 'plain'}, optimizer: continue}}", GRAFT) == 2
    assert "has no moments for encoder.layers.0.attention.gate" in capsys.readouterr().err


def test_another_origin_is_refused_on_resume(place: Path, tmp_path: Path, train: Train) -> None:
    assert train(tmp_path / "run", f"training.start_from={place / 'plain'}", "training.max_updates=2") == 0
    assert train(tmp_path / "run", "training.start_from=elsewhere", "training.max_updates=2") == 2
    assert train(tmp_path / "run", "training.max_updates=2") == 2
