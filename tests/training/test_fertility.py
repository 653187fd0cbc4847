"""Training of the fertility module: what is learned, which epoch stays, what does not change, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training import fertility_net as net

from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, DivergedError, FileProblem, ModelError, PhraseloomError, UsageError
from phraseloom.files import verify_manifest
from phraseloom.layers.fertility import Fertility
from phraseloom.models.store import load_model
from phraseloom.training import fertility as fertility_training
from phraseloom.training.fertility import Files, train_fertility
from phraseloom.training.fertility_data import Items, choose_items
from phraseloom.training.fertility_fit import FertilityFitOptions, best_epoch, fit, weighted_loss

CPU = torch.device("cpu")
SMALL = FertilityFitOptions(widths=(16, 8), epochs=2, rate=0.01, batch=16)


def told(text: str) -> None:
    """A report that nobody reads."""


def items(number: int, seed: int = 0, classes: int = 4) -> Items:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 6, generator=generator)
    return Items(x, (x[:, :classes].argmax(-1)))


def module(seed: int = 0) -> Fertility:
    torch.manual_seed(seed)
    return Fertility(2, 4, 4, "both", (12,))


def values(fertility: torch.nn.Module) -> list[float]:
    return [v for p in fertility.parameters() for v in p.detach().flatten().tolist()]


# Learning


def test_learns_what_can_be_learned() -> None:
    one, options = module(), replace(SMALL, epochs=12, rate=0.02)
    history = fit(one, items(600), items(200, 1), options, device=CPU, report=told)
    assert [e.epoch for e in history] == list(range(1, 13))
    found = one.classify(items(200, 1).inputs_NI).argmax(-1)
    assert (found == items(200, 1).labels_N).float().mean() > 0.9
    assert best_epoch(history).valid_loss < 0.3 * history[0].valid_loss


def test_the_best_epoch_stays() -> None:
    wrong = Items(items(200, 1).inputs_NI, (items(200, 1).labels_N + 1) % 4)  # each epoch makes it worse
    one, other = module(), module()
    history = fit(one, items(200), wrong, replace(SMALL, epochs=4), device=CPU, report=told)
    assert best_epoch(history).epoch == 1
    assert history[0].valid_loss < history[1].valid_loss < history[3].valid_loss
    fit(other, items(200), wrong, replace(SMALL, epochs=1), device=CPU, report=told)
    assert values(one) == values(other)
    assert weighted_loss(one, wrong, (1.0,) * 4, device=CPU) == history[0].valid_loss
    released = fit(module(), items(200), wrong, replace(SMALL, epochs=1, calibrate=False), device=CPU, report=told)
    assert released[0].valid_loss == weighted_loss(one, wrong, SMALL.class_weights, device=CPU) != history[0].valid_loss


def test_of_equal_epochs_the_first_stays() -> None:
    same = FertilityFitOptions(widths=(3,), epochs=3, rate=1e-30, batch=50)
    history = fit(one := module(), items(100), items(20), same, device=CPU, report=told)
    assert len({e.valid_loss for e in history}) == 1
    assert best_epoch(history).epoch == 1
    assert values(one) == values(module())


def test_updates_are_those_of_adam_on_the_weighted_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    real = Fertility.classify

    def spy(self: Fertility, joined: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.append(joined)
        return real(self, joined)

    data, one, other = items(40), module(), module()
    with monkeypatch.context() as patch:
        patch.setattr(Fertility, "classify", spy)
        options = replace(SMALL, epochs=1, batch=25, rate=5e-4, weights=(1, 1, 3, 3))
        fit(one, data, data, options, device=CPU, report=told)
    assert [len(x) for x in seen] == [25, 15]
    optimizer = torch.optim.Adam(other.parameters(), lr=5e-4)
    for x in seen:
        optimizer.zero_grad()
        logits, labels = other.classify(x), x[:, :4].argmax(-1)
        torch.nn.functional.cross_entropy(logits, labels, torch.tensor([1.0, 1.0, 3.0, 3.0])).backward()
        optimizer.step()
    torch.testing.assert_close(torch.tensor(values(one)), torch.tensor(values(other)), rtol=1e-5, atol=1e-7)


def test_every_item_once_an_epoch_in_orders_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    real = Fertility.classify

    def spy(self: Fertility, joined: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen.extend(joined[:, 0].tolist())
        return real(self, joined)

    monkeypatch.setattr(Fertility, "classify", spy)
    data = items(30)
    for seed in (1, 1, 2):
        fit(module(), data, data, replace(SMALL, epochs=2, seed=seed), device=CPU, report=told)
    parts = [seen[i : i + 30] for i in range(0, len(seen), 30)]
    assert all(sorted(part) == sorted(data.inputs_NI[:, 0].tolist()) for part in parts)
    assert parts[0:2] == parts[2:4]
    assert parts[0] != parts[1] != parts[4] != parts[0]


def test_the_loss_of_many_items_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    data, one = items(100), module()
    weights = torch.tensor([1.0, 1.0, 3.0, 3.0])
    expected = torch.nn.functional.cross_entropy(one.classify(data.inputs_NI), data.labels_N, weights).item()
    for chunk in (7, 100, 4096):
        monkeypatch.setattr("phraseloom.training.fertility_fit.CHUNK", chunk)
        assert weighted_loss(one, data, (1, 1, 3, 3), device=CPU) == pytest.approx(expected, rel=1e-5)


def test_a_loss_that_is_not_finite_ends_it() -> None:
    broken = Items(torch.full((4, 6), math.nan), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DivergedError, match="epoch 1: the loss is not finite"):
        fit(module(), broken, items(4), SMALL, device=CPU, report=told)
    with pytest.raises(DivergedError, match="epoch 1"):
        fit(module(), items(4), broken, SMALL, device=CPU, report=told)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"weights": (1.0, 2.0)}, "class weights 1, 2: one positive number for each of the 4"),
        ({"classes": 2, "weights": (1.0, 0.0)}, "each of the 2"),
        ({"weights": (1.0, 1.0, math.nan, 1.0)}, "nan"),
        ({"rate": 0.0}, "learning rate 0"),
        ({"rate": math.inf}, "learning rate inf"),
    ],
)
def test_options_that_cannot_be(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        FertilityFitOptions(**keys)


def test_default_weights() -> None:
    assert FertilityFitOptions().class_weights == (1.0, 1.0, 3.0, 3.0)
    assert FertilityFitOptions(classes=2).class_weights == (1.0, 3.0)
    assert FertilityFitOptions(classes=2, weights=(2.0, 5.0)).class_weights == (2.0, 5.0)


# The model folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model `net`, a text `s` and its labels `l`, and those for validation `vs`, `vl`."""
    net.saved(tmp_path / "net")
    pairs = ((("s", "l"), net.lines(40, 1)), (("vs", "vl"), net.lines(20, 2)))
    texts = {name: rows for names, both in pairs for name, rows in zip(names, both, strict=True)}
    net.written(tmp_path, **texts)
    return tmp_path


def shift_in(model: Path) -> list[float] | None:
    described: dict[str, Any] = json.loads((model / "config.json").read_bytes())["model"]["output"]["fertility"]
    return described.get("shift")


def trained(
    folder: Path, output: str = "new", options: FertilityFitOptions = SMALL, model: str = "net", **keys: Any
) -> Path:
    files = Files(folder / "s", folder / "l", folder / "vs", folder / "vl")
    train_fertility(folder / model, keys.pop("files", files), folder / output, options, **{"report": told, **keys})
    return folder / output


def test_all_else_stays_as_it_was(folder: Path) -> None:
    new = trained(folder)
    old, found = load_file(folder / "net/model.safetensors"), load_file(new / "model.safetensors")
    assert {name for name in found if not name.startswith("fertility.")} == set(old)
    assert all(torch.equal(found[name], old[name]) for name in old)
    assert {n: tuple(t.shape) for n, t in found.items() if n.startswith("fertility.") and n.endswith("weight")} == {
        "fertility.maps.0.weight": (16, 14),
        "fertility.maps.1.weight": (8, 16),
        "fertility.maps.2.weight": (4, 8),
    }
    before, after = (json.loads((place / "config.json").read_bytes()) for place in (folder / "net", new))
    described = {"classes": 4, "inputs": "both", "widths": [16, 8], "shift": shift_in(new)}
    assert after["model"].pop("output") == {**before["model"].pop("output"), "fertility": described}
    assert after.pop("parameters") == before.pop("parameters") + sum(
        t.numel() for n, t in found.items() if n not in old
    )
    assert after == before
    for name in ("generation_config.json", "tokenizer/tokenizer.json"):
        assert (new / name).read_bytes() == (folder / "net" / name).read_bytes()
    assert "fertility.json" in verify_manifest(new)
    assert sorted(p.name for p in folder.iterdir()) == ["l", "net", "new", "s", "vl", "vs"]


def test_the_new_model_has_a_gate_and_translates(folder: Path) -> None:
    model, tokenizer, generation = load_model(trained(folder))
    assert generation == {"beam": 1}
    ids = torch.tensor([tokenizer.source.encode("an Haus Lebensqualität")])
    memory = model.encode(ids, None)
    assert memory.shares_BS2 is not None
    assert memory.shares_BS2.shape == (1, 3, 2)
    found = Translator.from_pretrained(folder / "new").translate(["an Haus .", "zu"])
    assert len(found) == 2


def test_learned_and_told_how(folder: Path) -> None:
    lines: list[str] = []
    history = train_fertility(
        folder / "net",
        Files(folder / "s", folder / "l"),
        folder / "new",
        replace(SMALL, epochs=8),
        report=lines.append,
    )
    assert history[-1].valid_loss < 0.5 * history[0].valid_loss
    assert lines[0].startswith("38 sentences, ")
    assert "(by class: " in lines[0]
    assert "validation: 2 sentences" in lines[0]
    assert len(lines) == 9
    assert lines[3] == f"epoch 3 of 8: loss {history[2].train_loss:.4f}, validation {history[2].valid_loss:.4f}"
    origin = json.loads((folder / "new/fertility.json").read_bytes())
    assert origin["best_epoch"] == best_epoch(history).epoch
    assert [e["valid_loss"] for e in origin["history"]] == [e.valid_loss for e in history]
    assert origin["files"]["labels"]["name"] == "l"
    assert set(origin["files"]) == {"source", "labels"}
    assert origin["options"]["weights"] == [1.0, 1.0, 3.0, 3.0]
    assert origin["options"]["widths"] == [16, 8]


def test_only_as_many_words_as_phrases(folder: Path) -> None:
    numbers = [int(n) for line in (folder / "l").read_bytes().decode().split("\n") for n in line.split()]
    phrases = sum(n > 1 for n in numbers)
    assert phrases < len(numbers) / 2
    for downsample, count in ((True, 2 * phrases), (False, len(numbers))):
        new = trained(folder, options=replace(SMALL, epochs=1, downsample=downsample), overwrite=True)
        assert json.loads((new / "fertility.json").read_bytes())["items"] == count


def test_same_bytes_again_in_memory_or_in_a_file(folder: Path) -> None:
    options = {"a": SMALL, "b": SMALL, "c": replace(SMALL, memory=0), "d": replace(SMALL, seed=2)}
    weights = []
    for number, (name, of_run) in enumerate(options.items()):
        torch.manual_seed(number)
        weights.append((trained(folder, name, of_run) / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] == weights[2] != weights[3]


def test_the_seed_draws_words_and_held_out_sentences(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[tuple[str, int]] = []

    def spied(name: str) -> Any:
        real = getattr(fertility_training, name)

        def spy(*arguments: Any, **keys: Any) -> Any:
            seeds.append((name, keys["seed"]))
            return real(*arguments, **keys)

        return spy

    for name in ("choose_items", "held_out"):
        monkeypatch.setattr(fertility_training, name, spied(name))
    trained(folder, options=replace(SMALL, epochs=1, seed=7), files=Files(folder / "s", folder / "l"))
    assert seeds == [("held_out", 7), ("choose_items", 7)]


def test_the_callers_random_numbers_are_left_alone(folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained(folder)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("inputs", ["states", "embeddings"])
def test_a_module_is_replaced(folder: Path, inputs: str) -> None:
    first = trained(folder, "first", replace(SMALL, classes=2, inputs=inputs))
    again = trained(folder, "again", model="first")
    direct = trained(folder, "direct")
    assert (again / "model.safetensors").read_bytes() == (direct / "model.safetensors").read_bytes()
    width = {"states": 8, "embeddings": 6}[inputs]
    assert load_file(first / "model.safetensors")["fertility.maps.0.weight"].shape == (16, width)
    assert load_file(first / "model.safetensors")["fertility.maps.2.weight"].shape == (2, 8)


def test_over_an_older_one(folder: Path) -> None:
    first = trained(folder).joinpath("model.safetensors").read_bytes()
    (folder / "new/left").write_bytes(b"")
    with pytest.raises(UsageError, match="is not empty; choose another name or give --overwrite"):
        trained(folder)
    with pytest.raises(FileProblem, match="new/left: this is not a file of the model"):
        trained(folder, overwrite=True)
    (folder / "new/left").unlink()
    trained(folder, options=replace(SMALL, seed=3), overwrite=True)
    assert (folder / "new/model.safetensors").read_bytes() != first


def test_what_is_refused_before_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is read")

    monkeypatch.setattr(fertility_training, "load_model", never)
    (folder / "file").write_bytes(b"")
    (folder / "full").mkdir()
    (folder / "full/left").write_bytes(b"")
    cases: list[tuple[dict[str, Any], type[PhraseloomError], str]] = [
        ({"output": "file"}, FileProblem, "this is a file"),
        ({"output": "full"}, UsageError, "is not empty; choose another name or give --overwrite"),
        ({"output": "net", "overwrite": True}, UsageError, "the model is made from one in this folder"),
        ({"output": ".", "overwrite": True}, UsageError, "the model is made from one in this folder"),
        ({"output": "no/where"}, FileProblem, "no such folder"),
        ({"model": "nothing"}, FileProblem, "nothing"),
    ]
    for keys, kind, what in cases:
        with pytest.raises(kind, match=what):
            trained(folder, **keys)
    verify_manifest(folder / "net")


def test_only_an_output_of_words_and_phrases(folder: Path) -> None:
    net.saved(folder / "plain", {"kind": "continuous"})
    with pytest.raises(ModelError, match="this model has a continuous output; fertility chooses") as error:
        trained(folder, model="plain")
    assert "train a model with model.output: {kind: word_or_phrase}" in str(error.value)
    assert error.value.file == folder / "plain"
    assert not (folder / "new").exists()


def test_a_decoder_without_attention_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = {"kind": "recurrent", "layers": 1, "attention": "fixed", "initial": "final"}
    monkeypatch.setattr(net, "MODEL", {**net.MODEL, "decoder": decoder})
    net.saved(folder / "fixed")
    with pytest.raises(ModelError, match="the decoder of this model has no attention; it weighs the gate"):
        trained(folder, model="fixed")
    assert not (folder / "new").exists()


@pytest.mark.parametrize(
    ("sources", "labels", "kind", "what"),
    [
        (["an Haus"] * 3, ["1 1"] * 3, DataError, "no word gives a phrase: there is nothing to learn"),
        (["an Haus"], ["1 2"], DataError, "only one line can be used; give a validation text too"),
        (["", " \u3000"], ["", "1"], DataError, "no line of it can be used"),
        (["an " * 300], ["2 " * 300], DataError, "no line of it can be used"),
        (["an", "zu"], ["2 1", "1"], DataError, "2 numbers, but the source line has 1 word"),
    ],
)
def test_texts_that_do_not_serve(
    folder: Path, sources: list[str], labels: list[str], kind: type[Exception], what: str
) -> None:
    net.written(folder, s=sources, l=labels)
    with pytest.raises(kind, match=what):
        trained(folder, files=Files(folder / "s", folder / "l"))
    assert not (folder / "new").exists()


def test_files_that_are_not_there(folder: Path) -> None:
    with pytest.raises(FileProblem, match="file of fertilities not found"):
        Files(folder / "s", folder / "none")
    with pytest.raises(FileProblem, match="source text not found"):
        Files(folder / "s", folder / "l", folder / "none", folder / "vl")
    for half in ({"valid_source": folder / "vs"}, {"valid_labels": folder / "vl"}):
        with pytest.raises(UsageError, match="a validation text and its labels go together"):
            Files(folder / "s", folder / "l", **half)


def test_what_is_left_out_is_told(folder: Path) -> None:
    long = ["an " * 20, *["Hochschule zu"] * 9]
    net.written(folder, s=long, l=["1 " * 20, *["2 1"] * 9])
    lines: list[str] = []
    trained(folder, options=replace(SMALL, max_tokens=10), files=Files(folder / "s", folder / "l"), report=lines.append)
    assert lines[0] == f"{folder / 's'}: 1 line left out of more than 10 tokens"


# Calibration


def drawn_with(probability: torch.Tensor, seed: int) -> Items:
    """Two classes: items of which the input is one number x of a few, and phrases as likely as `probability[x]` says."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(len(probability), (60_000,), generator=generator)
    is_phrase = torch.rand(len(x), generator=generator, dtype=torch.float64) < probability[x]
    return Items(torch.nn.functional.one_hot(x, len(probability)).float(), is_phrase.long())


@pytest.mark.parametrize("downsample", [True, False])
def test_the_calibrated_module_recovers_known_probabilities(downsample: bool) -> None:
    """A share of phrases of 1.6 %, as in TED text. The released objective multiplies the odds by 184 with down-sampling."""
    probability = torch.tensor([0.001, 0.004, 0.01, 0.049], dtype=torch.float64)
    data, valid = drawn_with(probability, 1), drawn_with(probability, 2)
    labels = data.labels_N.numpy()
    share = labels.mean()
    assert 0.0145 < share < 0.0175
    options = FertilityFitOptions(classes=2, inputs="states", widths=(), epochs=30, rate=0.02, downsample=downsample)
    kept = choose_items(labels, 2, seed=1) if downsample else np.arange(len(labels))
    shift = fertility_training.shift_of(labels, kept, options)
    factor = 3 * (1 - share) / share if downsample else 3.0
    assert shift == pytest.approx((0.0, math.log(factor)))
    if downsample:
        assert abs(3 * (1 - 0.016) / 0.016 - 184.5) < 0.1
    torch.manual_seed(0)
    one = Fertility(0, 4, 2, "states", (), shift)
    fit(one, Items(data.inputs_NI[kept], data.labels_N[kept]), valid, options, device=CPU, report=told)
    with torch.no_grad():
        raw = one.classify(torch.eye(4))
        calibrated = one.shares(one.calibrate(raw))[:, 1]
        released = one.shares(raw)[:, 1]
    odds = torch.tensor([float(p / (1 - p)) for p in probability])
    counted = torch.stack([data.labels_N[data.inputs_NI[:, x] == 1].double().mean() for x in range(4)])
    assert torch.allclose(calibrated.double()[1:], counted[1:], rtol=0.25), (calibrated, counted)
    of_released = released / (1 - released) / odds
    assert torch.all(of_released[1:] / factor < 1.35) and torch.all(of_released[1:] / factor > 0.7)
    if downsample:  # "phrase" wins above a true probability of 0.54 %
        assert (released > 0.5).tolist()[2:] == [True, True] and float(released[0]) < 0.5
        assert not (calibrated > 0.5).any()


def test_the_shift_of_four_classes_and_of_own_weights() -> None:
    labels = np.array([0] * 6 + [1] * 2 + [2] * 3 + [3])
    kept = np.array([0, 1, 2, 6, 8, 9, 10, 11])
    options = FertilityFitOptions(weights=(1.0, 2.0, 3.0, 6.0))
    expected = [math.log(w) for w in (0.5 * 1, 0.5 * 2, 1 * 3, 1 * 6)]
    found = fertility_training.shift_of(labels, kept, options)
    assert found == pytest.approx([value - expected[0] for value in expected])
    whole = fertility_training.shift_of(labels, np.arange(12), FertilityFitOptions(weights=(1.0,) * 4))
    assert whole == (0.0,) * 4


def test_a_calibrated_model_uses_its_shift_and_an_old_one_has_none(folder: Path) -> None:
    calibrated = trained(folder, "calibrated", replace(SMALL, epochs=1))
    released = trained(folder, "released", replace(SMALL, epochs=1, calibrate=False))
    shift = shift_in(calibrated)
    assert not shift_in(released) and shift is not None and shift[0] == 0.0 and shift[3] > 0
    a, b = (load_model(path)[0] for path in (calibrated, released))
    source, lengths = torch.tensor([[5, 6, 7, 3]]), torch.tensor([4])
    states = a.source_states(source, lengths)
    assert torch.equal(a.fertility.classify(a.fertility.join(*states)), b.fertility.classify(b.fertility.join(*states)))
    assert torch.allclose(a.fertility(*states), b.fertility(*states) - torch.tensor(shift))
    lifted = (a.encode(source, lengths).shares_BS2 - b.encode(source, lengths).shares_BS2)[0, :, 0]
    assert torch.all(lifted[:-1] > 0) and lifted[-1] == 0  # a word is likelier; the end of the source stays a word
