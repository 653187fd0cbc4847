"""Embeddings from elsewhere: the right rows, in the right size; fixed ones stay, bit for bit, over resumes and averages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.analysis.explain_kinds import joined_tokenizer
from tests.helpers import assert_same_end, toy_pairs, training_in_this_process

from phraseloom import files
from phraseloom.cli.main import run as phraseloom
from phraseloom.data.prepare import prepare
from phraseloom.errors import DataError, FileProblem, ModelError, PhraseloomError, UsageError
from phraseloom.models.build import build_language_model
from phraseloom.models.store import load_model, load_tensors, save_model
from phraseloom.models.tasks import build
from phraseloom.models.translation import TranslationModel
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig
from phraseloom.options.training import EmbeddingsConfig, TrainingConfig
from phraseloom.recipe import check_recipe, load_recipe
from phraseloom.text.tokenizer import Tokenizer, learn_subwords
from phraseloom.text.vectors import write_vectors
from phraseloom.text.vocabulary import SPECIALS
from phraseloom.training import run as runs
from phraseloom.training.embeddings import fix, put, read_transfers

WIDTH = 8
ENGLISH = ["the old man sleeps .", "a cow is small , but a winter garden is dark .", "we invite them tonight ."]
GERMAN = ["der alte Mann .", "eine Kuh ist klein , aber ein Garten ist dunkel .", "zwei Büros ."]
MODEL = {"width": WIDTH, "heads": 2, "ffn_width": 8, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
DATA = {"folder": "d", "source_language": "en", "target_language": "de", "train": [{"source": "a", "target": "b"}]}


def recipe(embeddings: Any, **model: Any) -> Any:
    return check_recipe(
        {"name": "x", "data": DATA, "model": {**MODEL, **model}, "training": {"embeddings": embeddings}}
    )


def tokenizer(source: list[str] = ENGLISH, target: list[str] = GERMAN, *, joint: bool = False) -> Tokenizer:
    config = SentencepieceConfig(size=50, byte_fallback=False, joint=joint)
    sides = [learn_subwords(lines, config) for lines in ([source + target] if joint else [source, target])]
    return Tokenizer(TextConfig(), "en", "de", sides[0], sides[-1])


def by_merges(line: str) -> Tokenizer:
    sides = [learn_subwords([line] * 9, SubwordNmtConfig(merges=20))] * 2
    return Tokenizer(TextConfig(), "en", "de", *sides)


def new_model(wanted: Any, of: Tokenizer, seed: int = 3) -> TranslationModel:
    torch.manual_seed(seed)
    model = build(wanted.model, of)
    assert isinstance(model, TranslationModel)
    return model


def saved(folder: Path, of: Tokenizer, seed: int = 1, **model: Any) -> TranslationModel:
    """A model of other weights in `folder`."""
    wanted = recipe(None, **model)
    made = new_model(wanted, of, seed)
    save_model(folder, made, wanted.model, of)
    return made


# --- from models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sides", [("source",), ("target",), ("source", "target")])
def test_the_raw_matrices_of_a_model_with_the_same_pieces(tmp_path: Path, sides: tuple[str, ...]) -> None:
    pieces = tokenizer()
    giver = saved(tmp_path / "m", pieces, tied="two_way")
    wanted = recipe(dict.fromkeys(sides, str(tmp_path / "m")), tied="two_way")
    model, fresh = new_model(wanted, pieces), new_model(wanted, pieces)
    transfers = read_transfers(wanted, pieces)
    put(model, transfers)
    for side in ("source", "target"):
        ours, theirs, drawn = (getattr(m, f"{side}_embedding").weight for m in (model, giver, fresh))
        assert torch.equal(ours, theirs if side in sides else drawn)
    assert model.output.weight is model.target_embedding.weight
    others = [name for name, _ in model.named_parameters() if "embedding.weight" not in name]
    assert all(torch.equal(model.get_parameter(n), fresh.get_parameter(n)) for n in others)
    size = len(pieces.source.vocabulary)
    if "source" in sides:
        where = f"source embeddings: {size} of {size} rows taken from {tmp_path / 'm'}; 0 stay as they were drawn"
        assert str(transfers[0]) == where


def test_rows_of_another_vocabulary_are_matched_by_their_pieces(tmp_path: Path) -> None:
    theirs, ours = tokenizer(ENGLISH[:2], GERMAN[1:]), tokenizer()
    giver = saved(tmp_path / "m", theirs, tied="none")
    wanted = recipe(str(tmp_path / "m"), tied="none")
    model, fresh = new_model(wanted, ours), new_model(wanted, ours)
    transfers = read_transfers(wanted, ours)
    put(model, transfers)
    for transfer, side in zip(transfers, ("source", "target"), strict=True):
        there, here = (list(getattr(t, side).vocabulary) for t in (theirs, ours))
        weights = [getattr(m, f"{side}_embedding").weight for m in (model, giver, fresh)]
        common = 0
        for row, piece in enumerate(here):
            found = piece in there
            common += found
            assert torch.equal(weights[0][row], weights[1][there.index(piece)] if found else weights[2][row]), piece
        assert 10 < common < len(here)
        assert f"{common} of {len(here)} rows" in str(transfer) and f"; {len(here) - common} stay" in str(transfer)
    assert torch.equal(model.output.weight, fresh.output.weight)


def test_another_width_and_no_common_piece(tmp_path: Path) -> None:
    saved(tmp_path / "m", tokenizer())
    wide = recipe(str(tmp_path / "m"), width=2 * WIDTH)
    with pytest.raises(ModelError, match=r"its source embeddings have width 8; those of the recipe have 16"):
        read_transfers(wide, tokenizer())
    greek = by_merges("αβγ δεζ ηθι")
    with pytest.raises(ModelError, match="no piece of the source vocabulary is there, such as "):
        read_transfers(recipe(str(tmp_path / "m"), tied="none"), greek)


def test_only_the_sides_that_are_named_need_the_width(tmp_path: Path) -> None:
    pieces = joined_tokenizer()
    config = ModelConfig.model_validate({**MODEL, "width": 2 * WIDTH, "output": {"kind": "continuous"}})
    giver: Any = build(config, pieces)
    save_model(tmp_path / "m", giver, config, pieces)
    assert giver.target_embedding.weight.shape[1] == WIDTH
    options = {"width": 2 * WIDTH, "tied": "none"}
    [transfer] = read_transfers(recipe({"source": str(tmp_path / "m")}, **options), pieces)
    assert torch.equal(transfer.vectors_VD, giver.source_embedding.weight)
    with pytest.raises(ModelError, match=r"its target embeddings have width 8; those of the recipe have 16"):
        read_transfers(recipe(str(tmp_path / "m"), **options), pieces)


def test_language_models_give_and_take_none(tmp_path: Path) -> None:
    pieces = tokenizer(joint=True)
    config = LanguageModelConfig.model_validate({"width": WIDTH, "heads": 2, "ffn_width": 8, "decoder": {"layers": 1}})
    save_model(tmp_path / "m", build_language_model(config, len(pieces.target.vocabulary)), config, pieces)
    with pytest.raises(ModelError, match="this is a language model"):
        read_transfers(recipe(str(tmp_path / "m")), pieces)
    text = {"folder": "d", "language": "en", "train": [{"text": "a"}]}
    training = {"embeddings": str(tmp_path / "m")}
    own = check_recipe({"name": "x", "task": "language_model", "data": text, "training": training})
    with pytest.raises(UsageError, match="is for task: translation"):
        read_transfers(own, pieces)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match=r"nowhere: no such model folder or file.*training\.embeddings"):
        read_transfers(recipe(str(tmp_path / "nowhere")), tokenizer())
    assert read_transfers(recipe(None), tokenizer()) == []


# --- one matrix for all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_three_way_takes_the_matrix_of_the_side_that_is_named(tmp_path: Path, side: str) -> None:
    pieces = tokenizer(joint=True)
    giver = saved(tmp_path / "m", pieces, tied="two_way")
    wanted = recipe({side: str(tmp_path / "m")}, tied="three_way")
    model = new_model(wanted, pieces)
    transfers = read_transfers(wanted, pieces)
    put(model, transfers)
    theirs = getattr(giver, f"{side}_embedding").weight
    assert torch.equal(model.source_embedding.weight, theirs)
    assert model.output.weight is model.source_embedding.weight is model.target_embedding.weight
    assert str(transfers[0]).startswith("embeddings of both sides and output: ")


def test_three_way_has_one_origin(tmp_path: Path) -> None:
    pieces = tokenizer(joint=True)
    giver = saved(tmp_path / "tied", pieces, tied="three_way")
    saved(tmp_path / "two", pieces, tied="two_way")
    both = recipe(str(tmp_path / "tied"), tied="three_way")
    transfers = read_transfers(both, pieces)
    assert len(transfers) == 1 and torch.equal(transfers[0].vectors_VD, giver.output.weight)
    with pytest.raises(UsageError, match="names two origins"):
        paths = {"source": str(tmp_path / "tied"), "target": str(tmp_path / "two")}
        read_transfers(recipe(paths, tied="three_way"), pieces)
    with pytest.raises(UsageError, match=r"has one for each side; name it as training\.embeddings\.source"):
        read_transfers(recipe(str(tmp_path / "two"), tied="three_way"), pieces)
    write_vectors(tmp_path / "v.vec", ["."], np.ones((1, WIDTH)))
    assert len(read_transfers(recipe(str(tmp_path / "v.vec"), tied="three_way"), pieces)) == 1


# --- from files of vectors --------------------------------------------------------------------------------------------


def vectors(path: Path, tokens: list[str], width: int = WIDTH) -> dict[str, np.ndarray]:
    matrix = np.random.default_rng(4).normal(2, 9, (len(tokens), width)).astype(np.float32)
    write_vectors(path, tokens, matrix)
    return dict(zip(tokens, matrix, strict=True))


def test_whole_words_are_found_without_the_mark_of_their_beginning(tmp_path: Path) -> None:
    pieces = tokenizer()
    vocabulary = list(pieces.source.vocabulary)
    assert {"▁a", "▁is", "a", "▁"} <= set(vocabulary) and "is" not in vocabulary
    given = vectors(tmp_path / "v.vec", ["is", "a", "</s>", "s", "▁a", "unheard-of", "."])
    wanted = recipe({"source": str(tmp_path / "v.vec")}, tied="none")
    model, fresh = new_model(wanted, pieces), new_model(wanted, pieces)
    put(model, read_transfers(wanted, pieces))
    expected = {"▁is": "is", "a": "a", "▁a": "▁a"} | {p: p for p in ("s", ".") if p in vocabulary}
    expected |= {f"▁{p}": p for p in ("s", ".") if f"▁{p}" in vocabulary}
    rows = {vocabulary.index(piece): given[token] for piece, token in expected.items()}
    mean = np.mean([np.linalg.norm(row) for row in rows.values()])
    drawn = fresh.source_embedding.weight[len(SPECIALS) :].norm(dim=1).mean().item()
    for row in range(len(vocabulary)):
        ours = model.source_embedding.weight[row]
        if row in rows:
            torch.testing.assert_close(ours, torch.from_numpy(rows[row] / mean * drawn))
        else:
            assert torch.equal(ours, fresh.source_embedding.weight[row]), vocabulary[row]
    taken = model.source_embedding.weight[list(rows)]
    assert taken.norm(dim=1).mean().item() == pytest.approx(drawn, rel=1e-6)
    assert drawn == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("tied", ["none", "three_way"])
@pytest.mark.parametrize(
    "init",
    [{"kind": "fan_in_uniform", "embeddings": "small_uniform"}, "xavier_uniform", {"kind": "uniform", "range": 0.1}],
)
def test_vectors_get_the_length_of_drawn_rows(tmp_path: Path, init: Any, tied: str) -> None:
    pieces = tokenizer(joint=True)
    words = [piece for piece in pieces.source.vocabulary if piece not in SPECIALS][::2]
    vectors(tmp_path / "v.vec", words)
    wanted = recipe(str(tmp_path / "v.vec"), tied=tied, init=init)
    model, fresh = new_model(wanted, pieces), new_model(wanted, pieces)
    transfers = read_transfers(wanted, pieces)
    put(model, transfers)
    for transfer in transfers:
        side = f"{transfer.side}_embedding"
        ours, drawn = (getattr(m, side).weight.detach().norm(dim=1) for m in (model, fresh))
        assert ours[transfer.rows_V].mean().item() == pytest.approx(drawn[len(SPECIALS) :].mean().item(), rel=1e-5)


def test_embeddings_of_another_size_are_refused(tmp_path: Path) -> None:
    """The same matrix would count √width times as much, or as little."""
    pieces = tokenizer()
    for there, here in ((True, False), (False, True)):
        saved(tmp_path / f"{there}", pieces, scale_embeddings=there)
        wanted = recipe(str(tmp_path / f"{there}"), scale_embeddings=here)
        with pytest.raises(
            ModelError, match=rf"made for model.scale_embeddings {str(there).lower()}.*wrong by √{WIDTH};"
        ):
            read_transfers(wanted, pieces)


def test_pieces_of_subword_nmt_are_found_as_they_are(tmp_path: Path) -> None:
    pieces = by_merges("▁the old ▁old")
    assert {"▁old", "old"} <= set(pieces.source.vocabulary)
    vectors(tmp_path / "v.vec", ["old"])
    (transfer,) = read_transfers(recipe({"source": str(tmp_path / "v.vec")}, tied="none"), pieces)
    assert transfer.rows_V.tolist() == [list(pieces.source.vocabulary).index("old")]


def test_vectors_that_are_of_no_use(tmp_path: Path) -> None:
    pieces = tokenizer()
    for name, tokens, width in (("other", ["Δ"], WIDTH), ("wide", ["is"], 9)):
        vectors(tmp_path / name, tokens, width)
    write_vectors(tmp_path / "zero", ["is"], np.zeros((1, WIDTH)))
    expected: list[tuple[str, type[PhraseloomError], str]] = [
        ("other", ModelError, "no piece of the target vocabulary"),
        ("wide", DataError, r"wide:1: the vectors have width 9; 8 is needed"),
        ("zero", DataError, "are zero"),
    ]
    for name, kind, match in expected:
        side = "target" if name == "other" else "source"
        with pytest.raises(kind, match=match):
            read_transfers(recipe({side: str(tmp_path / name)}), pieces)


# --- fixed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tied", "sides", "fixed"),
    [
        ("none", ["source"], {"source_embedding.weight"}),
        ("none", ["target"], {"target_embedding.weight"}),
        ("two_way", ["source"], {"source_embedding.weight"}),
        ("two_way", ["target"], {"target_embedding.weight"}),
        ("two_way", ["source", "target"], {"source_embedding.weight", "target_embedding.weight"}),
        ("three_way", ["source"], {"source_embedding.weight"}),
        ("three_way", ["target"], {"source_embedding.weight"}),
    ],
)
def test_what_is_fixed(tied: str, sides: list[str], fixed: set[str]) -> None:
    wanted = recipe({**dict.fromkeys(sides, "x"), "fixed": True}, tied=tied, output={"bias": True})
    model = new_model(wanted, tokenizer(joint=True))
    fix(model, wanted.training.embeddings)
    assert {n for n, p in model.named_parameters() if not p.requires_grad} == fixed
    assert model.output.bias is not None and model.output.bias.requires_grad
    assert model.output.weight.requires_grad == (tied == "none" or (tied == "two_way" and sides == ["source"]))


def test_nothing_is_fixed_unless_asked_for() -> None:
    model = new_model(recipe("x"), tokenizer(joint=True))
    for config in (None, EmbeddingsConfig(source="x")):
        fix(model, config)
        assert all(p.requires_grad for p in model.parameters())


def test_one_path_is_that_of_both_sides() -> None:
    short, long = (
        TrainingConfig.model_validate({"embeddings": e}) for e in ("runs/a", {"source": "runs/a", "target": "runs/a"})
    )
    assert short == long == TrainingConfig.model_validate(short.model_dump(mode="json"))


def test_other_processes_are_sent_what_is_fixed() -> None:
    """It is in no flat buffer, and only the first process reads it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    sent: list[torch.Tensor] = []
    world = SimpleNamespace(size=2, send_=sent.append, send_text=lambda text: text)
    flat = SimpleNamespace(data=torch.zeros(9))
    optimizer = SimpleNamespace(moments={}, count=torch.zeros(()))
    job: Any = SimpleNamespace(world=world, state=runs.Progress(), model=model, flat=flat, optimizer=optimizer)
    runs.share_state(job)
    assert [t.data_ptr() for t in sent] == [t.data_ptr() for t in (flat.data, model[0].weight, optimizer.count)]


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(_one_process: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with fixed embeddings, its dataset of 100 pairs, and a model to take them from."""
    folder = tmp_path_factory.mktemp("place")
    pairs = toy_pairs(folder)
    subwords = {"kind": "subword_nmt", "merges": 60, "joint": True}
    whole = {
        "name": "small",
        "data": {**DATA, **pairs, "folder": str(folder / "dataset"), "subwords": subwords, "processes": 1},
        "model": {**MODEL, "tied": "three_way", "output": {"bias": True}},
        "training": {
            "embeddings": {"source": str(folder / "giver"), "fixed": True},
            "batch_tokens": 120,
            "schedule": {"kind": "inverse_sqrt_peak", "peak": 0.01, "warmup": 4},
            "optimizer": {"weight_decay": 0.1},
            "max_updates": 6,
            "checkpoint_every": 2,
            "average_last": 2,
            "processes": 1,
        },
    }
    files.atomic_write_text(folder / "small.yaml", yaml.safe_dump(whole))
    prepare(load_recipe(folder / "small.yaml").data, data_root=folder)
    saved(folder / "giver", Tokenizer.load(folder / "dataset" / "tokenizer"), tied="three_way", encoder={"layers": 2})
    return folder


@pytest.fixture(autouse=True, scope="module")
def _one_process() -> Iterator[None]:
    with training_in_this_process():
        yield


Train = Callable[..., int]


@pytest.fixture
def train(place: Path) -> Train:
    return lambda run, *more: phraseloom(["train", str(place / "small.yaml"), "--run", str(run), *more])


@pytest.fixture(scope="module")
def fixed(place: Path) -> Path:
    """A finished run."""
    assert phraseloom(["train", str(place / "small.yaml"), "--run", str(place / "fixed")]) == 0
    return place / "fixed"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")


NAME = "source_embedding.weight"


def test_fixed_embeddings_are_those_of_the_origin_in_every_folder(place: Path, fixed: Path) -> None:
    given = weights(place / "giver")[NAME]
    folders = [*(fixed / "checkpoints").iterdir(), fixed / "averaged"]
    assert len(folders) == 4
    for folder in folders:
        model, _, _ = load_model(folder)
        for matrix in (model.source_embedding.weight, model.target_embedding.weight, model.output.weight):
            assert torch.equal(matrix, given)
        files.verify_manifest(folder)
    first, last = (weights(fixed / "checkpoints" / f"step_0000000{n}") for n in (2, 6))
    moved = [name for name in first if not torch.equal(first[name], last[name])]
    assert set(moved) == set(first) - {NAME} and "output.bias" in moved
    assert not [n for n in load_tensors(fixed / "last" / "optimizer.safetensors") if NAME in n]


def test_a_run_says_where_its_embeddings_come_from(place: Path, fixed: Path) -> None:
    size = len(weights(fixed / "best")[NAME])
    log = (fixed / "train.log").read_bytes().decode()
    line = f"embeddings of both sides and output: {size} of {size} rows taken from {place / 'giver'}"
    assert f"{line}; 0 stay as they were drawn (fixed)\n" in log
    (noted,) = json.loads((fixed / "run.json").read_bytes())["embeddings"]
    assert noted["sha256"] == files.sha256_file(place / "giver" / "model.safetensors") and noted["rows"] == size


@pytest.mark.parametrize("fixed_too", ["true", "false"])
def test_resumed_without_the_origin_it_ends_with_the_same_bytes(
    place: Path, tmp_path: Path, train: Train, fixed_too: str
) -> None:
    shutil.copytree(place / "giver", tmp_path / "giver")
    keys = (f"training.embeddings.source={tmp_path / 'giver'}", f"training.embeddings.fixed={fixed_too}")
    assert train(tmp_path / "whole", *keys) == 0
    assert train(tmp_path / "run", *keys, "training.max_updates=4") == 0
    shutil.rmtree(tmp_path / "giver")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_00000004")  # as if killed after update 2
    assert train(tmp_path / "run", *keys) == 0
    assert_same_end(tmp_path / "whole", tmp_path / "run")


def test_embeddings_that_are_not_fixed_begin_there_and_go_on(place: Path, tmp_path: Path, train: Train) -> None:
    given = weights(place / "giver")[NAME]
    keys = ("training.schedule={kind: constant, rate: 1e-9}", "training.optimizer.weight_decay=0")
    assert train(tmp_path / "still", "training.embeddings.fixed=false", *keys) == 0
    still = weights(tmp_path / "still" / "last")[NAME]
    torch.testing.assert_close(still, given, rtol=0, atol=1e-7)
    assert train(tmp_path / "moved", "training.embeddings.fixed=false") == 0
    moved = weights(tmp_path / "moved" / "last")[NAME]
    assert ((moved - given).abs().amax(1) > 1e-3).float().mean() > 0.5


def test_another_origin_is_refused_on_resume(fixed: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(fixed, "training.embeddings.source=elsewhere") == 2
    assert "training.embeddings.source: " in capsys.readouterr().err
    assert train(fixed, "training.embeddings=null") == 2
    assert "training.embeddings" in capsys.readouterr().err


def test_a_wrong_origin_leaves_no_run(tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is said before anything is written, so that the recipe can be mended and the command given again."""
    assert train(tmp_path / "run", f"training.embeddings.source={tmp_path / 'no'}") == 1
    assert "no such model folder or file" in capsys.readouterr().err
    assert not [p for p in (tmp_path / "run").iterdir() if p.name != ".lock"]
    assert train(tmp_path / "run") == 0
