"""A model folder: what was saved is loaded, to the bit, ties and all; anything damaged or swapped is refused by name."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom.errors import CorruptError, ModelError, PhraseloomError, UsageError
from phraseloom.files import read_json, write_manifest
from phraseloom.models.build import build_model
from phraseloom.models.store import find_model, load_model, load_tensors, save_model
from phraseloom.options.model import ModelConfig
from phraseloom.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("text"))


def saved(folder: Path, tokenizer: Tokenizer, tied: str = "three_way", seed: int = 0, **parts: Any) -> torch.nn.Module:
    torch.manual_seed(seed)
    config = ModelConfig.model_validate({"preset": "tiny", "tied": tied, **parts})
    model = build_model(config, len(tokenizer.source.vocabulary), len(tokenizer.target.vocabulary))
    save_model(folder, model, config, tokenizer, languages=("en", "de"), generation={"beam": 3})
    return model


@pytest.mark.parametrize("tied", ["three_way", "two_way", "none"])
def test_round_trip_keeps_bits_and_ties(tmp_path: Path, tokenizer: Tokenizer, tied: str) -> None:
    model = saved(tmp_path / "m", tokenizer, tied)
    loaded, _, generation = load_model(tmp_path / "m")
    assert generation == {"beam": 3}
    before, after = dict(model.named_parameters()), dict(loaded.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    shared = loaded.target_embedding.weight.data_ptr() == loaded.output.weight.data_ptr()
    assert shared == (tied != "none")
    assert (loaded.source_embedding.weight is loaded.target_embedding.weight) == (tied == "three_way")
    assert torch.equal(loaded.source_embedding.positions(0, 9), model.source_embedding.positions(0, 9))
    assert not loaded.training


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_loading_draws_nothing(tmp_path: Path, tokenizer: Tokenizer, kind: str) -> None:
    """The caller's random numbers are those that come without it; orthogonal matrices of cells too."""
    layers = {"kind": kind, "layers": 1}
    model = saved(tmp_path / "m", tokenizer, encoder=layers, decoder=layers)
    before = torch.get_rng_state()
    loaded, _, _ = load_model(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, dict(loaded.named_parameters())[name]) for name, p in model.named_parameters())


def test_equal_models_are_equal_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("a", "b"):
        saved(tmp_path / name, tokenizer)
    assert read_json(tmp_path / "a" / "manifest.json") == read_json(tmp_path / "b" / "manifest.json")


def test_every_flipped_bit_and_cut_is_noticed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved(tmp_path / "m", tokenizer)
    chance = random.Random(4)
    for path in sorted(p for p in (tmp_path / "m").rglob("*") if p.is_file()):
        whole = path.read_bytes()
        for _ in range(4):
            place = chance.randrange(len(whole))
            path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :])
            with pytest.raises(PhraseloomError):
                load_model(tmp_path / "m")
            path.write_bytes(whole[:place])
            with pytest.raises(PhraseloomError):
                load_model(tmp_path / "m")
        path.write_bytes(whole)
    load_model(tmp_path / "m")


def test_parts_of_another_model_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved(tmp_path / "a", tokenizer, seed=1)
    saved(tmp_path / "b", tokenizer, seed=2)
    shutil.copy(tmp_path / "b" / "model.safetensors", tmp_path / "a" / "model.safetensors")
    with pytest.raises(CorruptError, match=r"model\.safetensors.*checksum"):
        load_model(tmp_path / "a")


def rewritten(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and make the manifest agree, as somebody would who builds a model folder by hand."""
    names = list(read_json(folder / "manifest.json")["files"])
    (folder / name).write_bytes(content)
    write_manifest(folder, names)


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved(tmp_path / "m", tokenizer)
    config = json.loads((tmp_path / "m" / "config.json").read_bytes())
    config["vocabularies"]["source"]["sha256"] = "0" * 64
    rewritten(tmp_path / "m", "config.json", json.dumps(config).encode())
    with pytest.raises(ModelError, match="source vocabulary"):
        load_model(tmp_path / "m")


def test_formats_of_the_future_and_other_shapes_are_refused_in_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved(tmp_path / "m", tokenizer)
    original = (tmp_path / "m" / "config.json").read_bytes()
    config = json.loads(original)
    rewritten(tmp_path / "m", "config.json", json.dumps({**config, "format": 9}).encode())
    with pytest.raises(ModelError, match="model format 9"):
        load_model(tmp_path / "m")
    wider = {**config, "model": {**config["model"], "ffn_width": 300}}
    rewritten(tmp_path / "m", "config.json", json.dumps(wider).encode())
    with pytest.raises(ModelError, match="has shape"):
        load_model(tmp_path / "m")
    rewritten(tmp_path / "m", "config.json", original)
    rewritten(tmp_path / "m", "model.safetensors", b"\xff" * 64)
    with pytest.raises(CorruptError, match="safetensors"):
        load_model(tmp_path / "m")


def test_manifest_cannot_lead_outside(tmp_path: Path, tokenizer: Tokenizer) -> None:
    saved(tmp_path / "m", tokenizer)
    manifest = read_json(tmp_path / "m" / "manifest.json")
    for name in ("../x", "/etc/passwd", "a//b", "tokenizer/../../x"):
        bad = {**manifest, "files": {**manifest["files"], name: {"bytes": 1, "sha256": ""}}}
        (tmp_path / "m" / "manifest.json").write_text(json.dumps(bad))
        with pytest.raises(CorruptError, match="outside"):
            load_model(tmp_path / "m")


def test_find_model_names_what_is_missing(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(PhraseloomError, match="no such folder"):
        find_model(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="neither"):
        find_model(tmp_path / "empty")
    saved(tmp_path / "m", tokenizer)
    (tmp_path / "m" / "manifest.json").unlink()
    with pytest.raises(ModelError, match="incomplete"):
        find_model(tmp_path / "m")


def test_a_pickle_under_the_name_of_the_weights_does_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    with pytest.raises(CorruptError):
        load_tensors(path)
    assert not marker.exists()


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "gpu", "abacus:1"])
def test_a_device_that_is_not_there(
    tmp_path: Path, tokenizer: Tokenizer, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    saved(tmp_path / "m", tokenizer)
    with pytest.raises(UsageError, match=device):
        load_model(tmp_path / "m", device)


@pytest.mark.parametrize("vocabularies", [[], None, "x", {"source": []}, {"source": {"sha256": []}}])
def test_vocabularies_of_another_shape(tmp_path: Path, tokenizer: Tokenizer, vocabularies: Any) -> None:
    saved(tmp_path / "m", tokenizer)
    config = json.loads((tmp_path / "m" / "config.json").read_bytes())
    rewritten(tmp_path / "m", "config.json", json.dumps(config | {"vocabularies": vocabularies}).encode())
    with pytest.raises((CorruptError, ModelError), match="vocabular"):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {"n" * 5000: {"bytes": 1, "sha256": ""}}}, "manifest names a path outside its folder: 'nnn"),
        ({"format": True}, "not a manifest of format 1"),
        ({"format": 1.0}, "not a manifest of format 1"),
    ],
)
def test_a_manifest_of_other_values(tmp_path: Path, tokenizer: Tokenizer, change: dict[str, Any], message: str) -> None:
    saved(tmp_path / "m", tokenizer)
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_bytes())
    (tmp_path / "m" / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(CorruptError, match=message) as caught:
        load_model(tmp_path / "m")
    assert len(str(caught.value)) < 500
    (tmp_path / "m" / "manifest.json").write_text('{"format": ' + "9" * 5000 + "}")
    with pytest.raises(CorruptError, match="not valid JSON"):
        load_model(tmp_path / "m")


def test_a_marian_folder_is_named_with_the_command_that_reads_it(tmp_path: Path) -> None:
    for name in ("config.json", "vocab.json", "source.spm"):
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(
        ModelError, match="a MarianMT folder of Hugging Face; make a model of it: phraseloom convert from-marian"
    ):
        load_model(tmp_path)


def test_tensors_are_written_as_their_library_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, in parts of any size; other types of numbers too."""
    import safetensors.torch

    from phraseloom.models import store

    tensors = {"b.weight": torch.randn(3, 5), "a": torch.randn(7), "ä": torch.randn(()), "empty": torch.zeros(0, 4)}
    tensors |= {"turned": torch.randn(4, 6).t()}
    for more in ({}, {"half": torch.ones(2, dtype=torch.float16)}):
        whole = {**tensors, **more}
        expected = safetensors.torch.save({name: tensor.contiguous() for name, tensor in whole.items()})
        for size in (1, 30, store.PART_BYTES):
            monkeypatch.setattr(store, "PART_BYTES", size)
            store.save_tensors(tmp_path / "file.safetensors", whole)
            assert (tmp_path / "file.safetensors").read_bytes() == expected
