"""Folders and recipes of somebody else read nothing outside of themselves, do not wait, and take little memory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import SMALLEST_RECIPE, tiny_tokenizer
from torch import nn

from phraseloom.cli.main import run
from phraseloom.config import read_yaml
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ConfigError, CorruptError, FileProblem, ModelError, PhraseloomError
from phraseloom.files import FolderLock, read_json, verify_manifest, write_manifest
from phraseloom.models import store
from phraseloom.models.build import build_language_model, build_model
from phraseloom.models.store import find_model, load_language_model, load_model, read_generation, save_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.reading import MAX_HEADER, MIB, inside, nested_deeper, read_bounded
from phraseloom.recipe import load_recipe
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import SPECIALS, UNK, Vocabulary
from phraseloom.text.words import Words
from phraseloom.training.run_folder import prepare_folder

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
SECRET = "the\tSECRET\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("text"))


Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path, tokenizer: Tokenizer) -> Save:
    def written(name: str = "model", generation: dict[str, Any] | None = None) -> Path:
        config = ModelConfig.model_validate({**SMALL, "tied": "none", "output": {"kind": "softmax", "bias": True}})
        torch.manual_seed(5)
        size = len(tokenizer.source.vocabulary)
        model = build_model(config, size, size)
        with torch.no_grad():
            model.output.bias[UNK] = 6.0
        save_model(tmp_path / name, model, config, tokenizer, generation=generation)
        return tmp_path / name

    return written


@pytest.fixture
def model(save: Save) -> Path:
    return save()


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a model and make the manifest agree, as the maker of a model can."""
    names = {*read_json(folder / "manifest.json")["files"], name}
    (folder / name).write_bytes(content)
    write_manifest(folder, names)


def changed(folder: Path, name: str, **keys: Any) -> None:
    rewrite(folder, name, json.dumps({**read_json(folder / name), **keys}).encode())


# The lexicon (no path in a model's generation settings).


def test_a_lexicon_travels_with_the_model(save: Save, tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_bytes(b"the\tder\t3\t3\nold\talte\t1\t1\nman\tmann\nsleeps\tschl\n")
    folder = save("m", {"unknown": "replace", "lexicon": str(tmp_path / "own.tsv")})
    (tmp_path / "own.tsv").unlink()
    assert read_generation(folder) == {"unknown": "replace", "lexicon": "lexicon.tsv"}
    assert "lexicon.tsv" in verify_manifest(folder)
    assert (folder / "lexicon.tsv").read_bytes() == b"the\tder\nold\talte\nman\tmann\nsleeps\tschl\n"
    translator = Translator.from_pretrained(folder, workers=1, max_length={"constant": 4})
    (found,) = translator.translate(["the old man sleeps"])
    assert found.replaced
    assert {r.word for r in found.replaced} <= {"der", "alte", "mann", "schl"}
    loaded, tokenizer, generation = load_model(folder)
    config = ModelConfig.model_validate(read_json(folder / "config.json")["model"])
    save_model(tmp_path / "again", loaded, config, tokenizer, generation=generation)
    assert (tmp_path / "again" / "lexicon.tsv").read_bytes() == (folder / "lexicon.tsv").read_bytes()
    assert read_generation(tmp_path / "again") == read_generation(folder)


@pytest.mark.parametrize("name", ["{}/secret", "../secret", "lexicon.tsv", "tokenizer/tokenizer.json", 7, ["x"], {}])
def test_a_path_in_generation_settings_is_not_read(
    model: Path, tmp_path: Path, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    (model / "lexicon.tsv").write_text(SECRET)  # in the folder, but not in the manifest
    named = name.format(tmp_path) if isinstance(name, str) else name
    changed(model, "generation_config.json", unknown="replace", lexicon=named)
    translator = Translator.from_pretrained(model, workers=1, max_length={"constant": 4})
    (found,) = translator.translate(["the old man"])
    assert "SECRET" not in found.text
    assert "not a file of the model" in caplog.text
    own = Translator.from_pretrained(model, workers=1, max_length={"constant": 4}, lexicon=str(tmp_path / "secret"))
    assert "SECRET" in own.translate(["the the the"])[0].text


def test_a_lexicon_that_is_a_link_is_refused(save: Save, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    folder = save("m", {"unknown": "replace", "lexicon": str(tmp_path / "secret")})
    (folder / "lexicon.tsv").unlink()
    (folder / "lexicon.tsv").symlink_to("../secret")
    (tmp_path / "secret").write_text("the\tSECRET\n")
    with pytest.raises(CorruptError, match="link"):
        Translator.from_pretrained(folder)


def test_a_lexicon_too_large_for_a_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.tsv").write_bytes(b"the\tder\n" * 3)
    monkeypatch.setattr(store, "limit_of", lambda name: 20)
    with pytest.raises(ModelError, match="24 bytes; a model holds 20; align lexicon --min-count"):
        store.lexicon_bytes(tmp_path / "own.tsv")


# The header of the weights against the configuration.


@pytest.fixture
def only_meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fail at the first parameter with memory of its own, in any module that is built."""
    real, devices = store.build, []
    register = nn.Module.register_parameter

    def registered(self: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        assert parameter is None or parameter.is_meta, "memory was taken before the header was checked"
        register(self, name, parameter)

    def build(*arguments: Any) -> Any:
        devices.append(torch.empty(0).device.type)
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, "register_parameter", registered)
            return real(*arguments)

    monkeypatch.setattr(store, "build", build)
    yield devices


TOO_LARGE: dict[str, dict[str, Any]] = {
    "wide": {"width": 16384, "ffn_width": 65536},
    "deep": {"width": 4096, "encoder": {"layers": 100}, "decoder": {"layers": 100}},
    "many heads": {"width": 16384, "heads": 256, "encoder": {"layers": 30}, "decoder": {"layers": 30}},
    "phrases": {"width": 8192, "phrases": {"segments": {"kind": "fixed"}}},
    "orders": {"width": 8192, "attention": "convkv heterogeneous 1-2-3-4"},
    "encoder-free": {"width": 16384, "encoder": {"kind": "none"}},
    "recurrent": {"width": 16384, "encoder": {"kind": "recurrent"}, "decoder": {"kind": "recurrent"}},
    "segmental": {"width": 16384, "encoder": {"kind": "columns"}, "decoder": {"kind": "segmental"}, "reordering": {}},
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_configuration_larger_than_its_weights_is_refused_before_memory_is_taken(
    model: Path, kind: str, only_meta: list[str]
) -> None:
    changed(model, "config.json", model={"width": 16, "heads": 2, **TOO_LARGE[kind]})
    with pytest.raises(ModelError, match=r"missing|has shape|has 200 layers|has 60 layers"):
        load_model(model)


def test_a_continuous_output_larger_than_its_weights_is_refused(tmp_path: Path, only_meta: list[str]) -> None:
    import numpy as np

    names = [*SPECIALS, *"abc", "a_b"]
    vectors = np.eye(len(names), 8, dtype=np.float32)
    words = Words(Vocabulary(names), joined=True, vectors=vectors)
    tokenizer = Tokenizer(TextConfig(), "en", "de", Words(Vocabulary([*SPECIALS, "x"])), words)
    output = {"kind": "word_or_phrase", "fertility": {}}
    config = ModelConfig.model_validate({**SMALL, "output": output})
    with torch.device("cpu"):
        from phraseloom.models.tasks import build

        save_model(tmp_path / "m", build(config, tokenizer), config, tokenizer)
    wider = {**read_json(tmp_path / "m" / "config.json")["model"], "ffn_width": 65536}
    changed(tmp_path / "m", "config.json", model=wider)
    with pytest.raises(ModelError, match="has shape"):
        load_model(tmp_path / "m")
    assert only_meta == ["meta"]


def test_a_language_model_larger_than_its_weights_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, only_meta: list[str]
) -> None:
    config = LanguageModelConfig.model_validate({"width": 16, "heads": 2, "decoder": {"layers": 1}})
    save_model(tmp_path / "m", build_language_model(config, len(tokenizer.target.vocabulary)), config, tokenizer)
    changed(tmp_path / "m", "config.json", model={"width": 16384, "ffn_width": 65536, "decoder": {"layers": 2}})
    with pytest.raises(ModelError, match=r"missing|has shape"):
        load_language_model(tmp_path / "m")
    assert only_meta == ["meta"]


def test_a_model_larger_than_the_machine_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    with pytest.raises(ModelError, match="bytes of memory, this machine has 100"):
        load_model(model)


def test_weights_that_are_no_numbers_are_refused(model: Path) -> None:
    import safetensors.torch

    tensors = store.load_tensors(model / "model.safetensors")
    name = next(iter(tensors))
    for value, message in ((float("nan"), "NaN"), (float("inf"), "NaN or infinity")):
        broken = {**tensors, name: torch.full_like(tensors[name], value)}
        rewrite(model, "model.safetensors", safetensors.torch.save(broken))
        with pytest.raises(ModelError, match=message):
            load_model(model)
    whole = {**tensors, name: tensors[name].to(torch.int64)}
    rewrite(model, "model.safetensors", safetensors.torch.save(whole))
    with pytest.raises(ModelError, match="of type I64"):
        load_model(model)


# Regular files only.


def recipe(folder: Path, base: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "r.yaml").write_text(f"base: {base}\nname: r\n")
    return folder / "r.yaml"


BASE = SMALLEST_RECIPE + "training: {schedule: {kind: linear, peak: 0.1}, max_updates: 5}\n"


@pytest.mark.parametrize(
    "base", ["/dev/zero", "pipe", "socket", "linked", "missing", "../secret", "/etc/passwd", "[a]"]
)
def test_a_base_is_a_regular_file_of_the_same_tree(tmp_path: Path, base: str) -> None:
    folder = tmp_path / "theirs"
    path = recipe(folder, base)
    (tmp_path / "secret").write_text("password: 1234\n")
    os.mkfifo(folder / "pipe")
    (folder / "linked").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder / "socket"))
        with pytest.raises(PhraseloomError) as caught:
            load_recipe(path)
    assert "1234" not in str(caught.value)


def test_where_a_base_may_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("recipes/a", "recipes/b", "mine/below"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "base.yaml").write_text(BASE)
    assert load_recipe(recipe(tmp_path / "recipes" / "a", "../b/base.yaml")).training.max_updates == 5
    assert load_recipe(recipe(tmp_path / "mine", "below/base.yaml")).name == "r"
    assert load_recipe(recipe(tmp_path, "recipes/a/base.yaml")).name == "r"
    outside = recipe(tmp_path / "mine" / "below", "../../recipes/a/base.yaml")
    with pytest.raises(ConfigError, match=r"r\.yaml:1: base .* lies outside .* base=\.\./\.\./recipes"):
        load_recipe(outside)
    monkeypatch.chdir(tmp_path)
    assert load_recipe(outside, ["base=recipes/b/base.yaml"]).training.max_updates == 5
    (tmp_path / "mine" / "link.yaml").symlink_to(tmp_path / "recipes" / "a" / "base.yaml")
    with pytest.raises(ConfigError, match="lies outside"):
        load_recipe(recipe(tmp_path / "mine", "link.yaml"))


def test_a_recipe_is_a_regular_file_of_a_mebibyte(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match="recipe is not a regular file but a device"):
        read_yaml("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileProblem, match="a pipe"):
        read_yaml(tmp_path / "pipe")
    with (tmp_path / "large.yaml").open("wb") as handle:
        handle.truncate(2**34)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_yaml(tmp_path / "large.yaml")


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
@pytest.mark.parametrize("target", ["/dev/zero", "secret", "nothing"])
def test_the_facts_of_a_run_are_no_link(tmp_path: Path, name: str, target: str) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "base.yaml").write_text(BASE)
    loaded = load_recipe(tmp_path / "base.yaml")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).symlink_to(Path("..") / target)
    with pytest.raises(CorruptError, match="no link is followed"):
        prepare_folder(loaded, folder, "fingerprint", allow_changed=True)
    assert (tmp_path / "secret").read_text() == "{}"
    assert not (tmp_path / "nothing").exists()


def test_a_lock_that_is_another_file_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("chapter 1")
    (tmp_path / "run").mkdir()
    lock = tmp_path / "run" / ".lock"
    makers: list[Callable[[], None]] = [
        lambda: lock.symlink_to("../thesis"),
        lambda: os.link(tmp_path / "thesis", lock),
        lambda: os.mkfifo(lock),
        lambda: lock.mkdir(),
    ]
    for make in makers:
        make()
        with pytest.raises(FileProblem, match="not a plain file"), FolderLock(tmp_path / "run"):
            pass
        lock.rmdir() if lock.is_dir() else lock.unlink()
    assert (tmp_path / "thesis").read_text() == "chapter 1"


# Links out of a folder.


@pytest.mark.parametrize(
    "name", ["tokenizer", "manifest.json", "config.json", "model.safetensors", "README.md", "tokenizer/joint.vocab"]
)
def test_a_link_out_of_a_model_is_refused(model: Path, save: Save, name: str) -> None:
    other = save("other")
    target, path = other / name, model / name
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    else:
        path.unlink()
    path.symlink_to(target)
    with pytest.raises(PhraseloomError, match="link"):
        load_model(model)
    with pytest.raises(PhraseloomError, match="link"):
        verify_manifest(model)


def test_links_of_a_run_stay_in_it_and_a_link_to_a_model_is_fine(model: Path, save: Save, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(model)
    assert load_model(tmp_path / "mine")[2] == {}
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    model.rename(folder / "checkpoints" / "step_00000001")
    (folder / "best").symlink_to("checkpoints/step_00000001")
    assert find_model(folder) == folder / "best"
    load_model(folder)
    (folder / "best").unlink()
    (folder / "best").symlink_to(save("elsewhere"))
    with pytest.raises(CorruptError, match=r"leads out of its run folder; give the model folder itself: .*elsewhere"):
        load_model(folder)
    assert run(["inspect", str(folder)]) == 1


@pytest.mark.parametrize("make", ["pipe", "folder", "socket", "device"])
def test_other_things_than_files_in_a_model_are_refused(model: Path, make: str) -> None:
    path = model / "README.md"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        if make == "pipe":
            os.mkfifo(path)
        elif make == "folder":
            path.mkdir()
        elif make == "socket":
            listening.bind(os.path.relpath(path))
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(CorruptError, match="not a plain file"):
            load_model(model)


# Limits.


def sparse(path: Path, size: int) -> None:
    with path.open("r+b" if path.exists() else "wb") as handle:
        handle.truncate(size)


@pytest.mark.parametrize(
    ("name", "size"),
    [("manifest.json", 60 * MIB), ("README.md", 2**34), ("config.json", 2**33), ("tokenizer/joint.model", 2**34)],
)
def test_a_sparse_file_is_refused_by_its_size(
    model: Path, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_json(model / "manifest.json")
    sparse(model / name, size)
    if name != "manifest.json":
        manifest["files"][name]["bytes"] = size
        (model / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("phraseloom.files.sha256_file", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(CorruptError, match="larger than"):
        load_model(model)


def test_a_sparse_optimizer_and_a_sparse_weights_file_are_not_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phraseloom import files

    read: list[str] = []
    real = files.sha256_file
    monkeypatch.setattr(files, "sha256_file", lambda path: [read.append(Path(path).name), real(path)][1])
    manifest = read_json(model / "manifest.json")
    for name, message in (("optimizer.safetensors", "bytes for a model of"), ("model.safetensors", "the header says")):
        files_of = {**manifest["files"], name: {"bytes": 2**34, "sha256": ""}}
        sparse(model / name, 2**34)
        (model / "manifest.json").write_text(json.dumps({**manifest, "files": files_of}))
        with pytest.raises(PhraseloomError, match=message):
            load_model(model)
        (model / name).unlink() if name == "optimizer.safetensors" else None
    assert not {"optimizer.safetensors", "model.safetensors"} & set(read)


def test_a_long_header_is_refused(model: Path) -> None:
    with (model / "model.safetensors").open("wb") as handle:
        handle.write((90 * MIB).to_bytes(8, "little") + b"{")
        handle.truncate(100 * MIB)
    with pytest.raises(CorruptError, match=f"header of more than {MAX_HEADER >> 20} MiB"):
        store.load_tensors(model / "model.safetensors")


def test_depth_of_json() -> None:
    assert not nested_deeper(b'{"a": ["[[[[", "\\"[[[", {"b": 1}]}', 3)
    assert nested_deeper(b'{"a": ["[[[[", "\\"[[[", {"b": 1}]}', 2)
    assert nested_deeper(b"[" * 65 + b"]" * 65, 64)
    assert not nested_deeper(b"[" * 64 + b"]" * 64, 64)
    assert not nested_deeper(b'"[["', 0)


@pytest.mark.parametrize("text", ["[" * 65 + "]" * 65, '{"a":' * 5000 + "1" + "}" * 5000, '"\\"' + "[" * 99])
def test_deep_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "j").write_text(text)
    with pytest.raises(CorruptError, match=r"nested deeper|not valid"):
        read_json(tmp_path / "j")


def test_a_bounded_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 10)
    assert read_bounded(tmp_path / "f", "file", 10) == b"x" * 10
    with pytest.raises(CorruptError, match="larger than"):
        read_bounded(tmp_path / "f", "file", 9)
    with pytest.raises(FileProblem, match="a device"):
        read_bounded("/dev/zero", "file", 9)
    with pytest.raises(FileProblem, match="not found"):
        inside(tmp_path, "none")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "g").write_bytes(b"")
    (tmp_path / "l").symlink_to("d")
    with pytest.raises(CorruptError, match="link"):
        inside(tmp_path, "l/g")
    assert inside(tmp_path, "d/g").is_file()


def test_a_mapping_in_place_of_a_name_is_refused(model: Path) -> None:
    described = read_json(model / "config.json")["model"]
    changed(model, "config.json", model={**described, "preset": {"kind": []}})
    with pytest.raises(ConfigError, match="preset: should be tiny, small, base or big"):
        load_model(model)
