"""Model and dataset folders, damaged at random: each loads as it was, or is refused by one line, in little memory.

Half of the damage is made good in the manifest and in the tokenizer, as the maker of a bad folder would, so that what lies
behind the checksums is reached too. Such a folder may load as another model, which then has to work.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phraseloom.config import validate
from phraseloom.data.corpus import Dataset
from phraseloom.data.prepare import prepare
from phraseloom.decoding.translator import Translator
from phraseloom.errors import PhraseloomError
from phraseloom.models.store import load_model, save_model
from phraseloom.models.tasks import build
from phraseloom.options.data import DataConfig
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.report.run.folders import describe
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import SPECIALS, Vocabulary
from phraseloom.text.words import Words

MEMORY = 2**30  # bytes of address space that a load may take beyond what the process has
SECONDS = 20  # a load that takes this long hangs
FEW, MANY = range(25), range(25, 4000)
LINES = ["the old man sleeps .", "a cow is small .", "we invite them tonight .", "the cow sleeps ."]
ODD: list[Any] = [
    -1, 0, 1, 3, 2**31, 2**63, 2**64, 10**400, 1.5, -0.5, 1e308, True, False, None, "", "x", "../x", "/etc/passwd", "\0",
    "\ud800", "日本", "a" * 5000, [], [[]], {}, {"": 0}, [1, 2], {"kind": []}, {"kind": "none"}, "none",
]  # fmt: skip


# What is damaged.


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset, a model with its tokenizer, and a model of words and phrases with vectors."""
    root = tmp_path_factory.mktemp("originals")
    for ending in ("en", "de"):
        for split in ("train", "valid"):
            (root / f"{split}.{ending}").write_bytes("".join(f"{line}\n" for line in LINES * 3).encode())
    (root / "table").write_bytes(b"old man\na cow\n")
    data = {
        "folder": str(root / "dataset"), "source_language": "en", "target_language": "de", "processes": 1,
        "train": [{"source": "train.en", "target": "train.de"}], "valid": [{"source": "valid.en", "target": "valid.de"}],
        "subwords": {"kind": "sentencepiece", "size": 50, "byte_fallback": False},
        "phrases": {"kind": "table", "file": "table"},
    }  # fmt: skip
    prepare(validate(DataConfig, data), data_root=root)
    tokenizer = Dataset.open(root / "dataset").tokenizer
    small = {"width": 16, "heads": 2, "ffn_width": 16, "encoder": {"layers": 1}, "decoder": {"layers": 1}}
    names = [*SPECIALS, *"abc", "a_b", "b_c"]
    words = Words(Vocabulary(names), joined=True, vectors=np.eye(len(names), 8, dtype=np.float32))
    of_words = Tokenizer(TextConfig(), "en", "de", Words(Vocabulary([*SPECIALS, "the", "cow"])), words)
    (root / "lexicon").write_bytes(b"the\tder\n")
    settings = {"beam": 2, "unknown": "replace", "lexicon": str(root / "lexicon")}
    segmenter = Dataset.open(root / "dataset").segmenter
    kinds: dict[str, tuple[dict[str, Any], Tokenizer]] = {
        "model": (small, tokenizer),
        "phrases": ({**small, "phrases": {"segments": {"kind": "dataset"}}}, tokenizer),
        "words": ({**small, "output": {"kind": "word_or_phrase", "fertility": {}}}, of_words),
    }
    for name, (model, own) in kinds.items():
        torch.manual_seed(1)
        config = ModelConfig.model_validate(model)
        rest = {"segmenter": segmenter if name == "phrases" else None, "generation": settings}
        save_model(root / name, build(config, own), config, own, languages=("en", "de"), **rest)
    return {name: root / name for name in ("dataset", *kinds)}


# How.


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size < 2**20)


def damage_bytes(path: Path, chance: random.Random, outside: Path) -> None:
    whole = bytearray(path.read_bytes())
    way = chance.randrange(6)
    if way == 0 and whole:
        for _ in range(chance.choice((1, 3, 50))):
            whole[chance.randrange(len(whole))] = chance.randrange(256)
    elif way == 1:
        del whole[chance.randrange(len(whole) + 1) :]
    elif way == 2:
        whole += chance.randbytes(chance.choice((1, 8, 4096)))
    elif way == 3:
        whole = bytearray()
    elif way == 4 and len(whole) > 8:
        start, length = chance.randrange(len(whole)), chance.randrange(64)
        whole[start : start + length] = whole[:length]
    else:
        whole = bytearray(
            chance.choice((b"\0" * 64, b"\xff" * 64, b"[" * 9000, b"null", b"{}", b"\xef\xbb\xbf{}", b"\n\n"))
        )
    path.write_bytes(whole)


def damage_place(path: Path, chance: random.Random, outside: Path) -> None:
    """Something else in the place of a file, or of its folder."""
    way = chance.randrange(9)
    if path.parent.name in ("tokenizer", "valid", "train", "segmenter") and chance.random() < 0.2:
        path = path.parent
    copy = outside / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.unlink(missing_ok=True)
    shutil.move(path, copy)
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.mkdir()
    elif way == 2:
        path.symlink_to(copy)
    elif way == 3:
        path.symlink_to("/dev/zero")
    elif way == 4:
        path.symlink_to(path.name)
    elif way == 5 and copy.is_file():
        os.link(copy, path)
    elif way == 6:
        with path.open("wb") as handle:
            handle.truncate(2**33)
    elif way == 7 and copy.is_file():
        shutil.copy(chance.choice(files_of(path.parent) or [copy]), path)
    # else: gone


def damage_json(path: Path, chance: random.Random, outside: Path) -> None:
    """A value, a key or the form of one of the JSON files."""
    value = json.loads(path.read_bytes())
    places: list[tuple[Any, Any]] = []

    def walk(inner: Any) -> None:
        for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
            places.append((inner, key))
            if isinstance(inner[key], dict | list):
                walk(inner[key])

    walk(value)
    if not places:
        value["x"] = chance.choice(ODD)
        places = [(value, "x")]
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        inner, key = chance.choice(places)
        way = chance.randrange(8)
        if isinstance(inner, dict) and way == 0:
            inner.pop(key, None)
        elif isinstance(inner, dict) and way == 1:
            inner[chance.choice(["", "x", "kind", "../x", "a" * 300, "\ud800", "lexicon", "\u202e", "A/b"])] = (
                inner.get(key)
            )
        elif way == 2 and isinstance(inner, list):
            inner.append(inner[0] if inner else 0)
        elif isinstance(inner, dict) or key < len(inner):
            inner[key] = chance.choice(ODD)
    text = json.dumps(value)
    if chance.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]  # every key twice
    elif chance.random() < 0.05:
        text = text.replace(": ", ": " + "[" * 70, 1).replace(",", "]" * 70 + ",", 1)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def damage_header(path: Path, chance: random.Random, outside: Path) -> None:
    """What a safetensors file says of its tensors."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    entry = header[chance.choice(names)]
    way = chance.randrange(9)
    if way == 0:
        entry["shape"] = chance.choice(
            ([2**40, 2**22], [0], [-1], [], [2**63], [1] * 40, "x", [1.5], entry["shape"][::-1])
        )
    elif way == 1:
        entry["dtype"] = chance.choice(("F64", "I32", "BOOL", "F8_E4M3", "F4", "", 3, None, "BF16"))
    elif way == 2:
        entry["data_offsets"] = chance.choice(([0, 4], [4, 0], [-4, 0], [2**62, 2**62 + 4], [0], "x", [0, len(data)]))
    elif way == 3:
        header[chance.choice(("日本", "", "x" * 9000, "\n", "encoder.layers.99.w"))] = header.pop(chance.choice(names))
    elif way == 4:
        header["twin"] = dict(entry)
    elif way == 5:
        header.pop(chance.choice(names))
    elif way == 6:
        data = chance.choice(
            (np.full(len(data) // 4, np.nan, "<f4").tobytes(), b"\xff" * len(data), b"\0" * len(data), data * 2)
        )
    elif way == 7:
        data = np.full(len(data) // 4, chance.choice((3e38, 1e-40, -1e30)), "<f4").tobytes()
    else:
        header["__metadata__"] = chance.choice(({"a": "b"}, {"a": 1}, [], "x", {"m" * 90000: "x"}))
    raw = json.dumps(header).encode()
    if way == 4 and chance.random() < 0.5:
        raw = raw[:-1] + b", " + raw[1:]
    claimed = chance.choice((len(raw), len(raw), len(raw), len(raw), 2**63, 0, len(raw) - 1))
    path.write_bytes(claimed.to_bytes(8, "little") + raw + data)


def plain(path: Path) -> bytes:
    """The bytes of a small regular file; nothing of anything else."""
    return path.read_bytes() if path.is_file() and path.stat().st_size < 2**20 else b""


def repair(folder: Path) -> None:
    """Make checksums and sizes fit again, from the inside out, where that can still be done."""
    try:
        tokenizer = folder / "tokenizer" / "tokenizer.json"
        described = json.loads(plain(tokenizer))
        for name in described["files"]:
            path = folder / "tokenizer" / name
            if path.is_file() and path.stat().st_size < 2**20:
                described["files"][name] = hashlib.sha256(path.read_bytes()).hexdigest()
        tokenizer.write_bytes(json.dumps(described).encode())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    try:
        manifest = json.loads(plain(folder / "manifest.json"))
        for name, entry in manifest["files"].items():
            path = folder / name
            if path.is_file() and isinstance(entry, dict):
                size = path.stat().st_size
                digest = hashlib.sha256(path.read_bytes()).hexdigest() if size < 2**20 else ""
                entry |= {"bytes": size, "sha256": digest}
        (folder / "manifest.json").write_bytes(json.dumps(manifest).encode())
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass


def damaged(original: Path, folder: Path, outside: Path, number: int) -> bool:
    """A copy of a folder with damage number `number`; whether checksums were made to fit again."""
    chance = random.Random(number)
    shutil.copytree(original, folder)
    for _ in range(chance.choice((1, 1, 2))):
        files = files_of(folder)
        by_kind: list[tuple[Callable[[Path, random.Random, Path], None], list[Path]]] = [
            (damage_bytes, files),
            (damage_place, files),
            (damage_json, [p for p in files if p.suffix == ".json"]),
            (damage_json, [p for p in files if p.name in ("config.json", "index.json", "generation_config.json")]),
            (damage_header, [p for p in files if p.suffix == ".safetensors"]),
        ]
        damage, chosen = chance.choice([kind for kind in by_kind if kind[1]])
        try:
            damage(chance.choice(chosen), chance, outside)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ):  # what was to be damaged has been already
            continue
    repaired = chance.random() < 0.6
    if repaired:
        repair(folder)
    return repaired


# The judgement.


@contextmanager
def bounded() -> Iterator[None]:
    """Within the limits of memory and of time."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"no answer in {SECONDS} seconds")

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    handler = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def read_model(folder: Path) -> Any:
    model, tokenizer, generation = load_model(folder)
    generation.pop("lexicon", None)
    return {n: p.tolist() for n, p in model.named_parameters()}, tokenizer.sha256, generation


def use_model(folder: Path) -> None:
    options = {"workers": 1, "beam": 2, "n_best": 1, "max_length": {"constant": 3}, "min_length": {"constant": 0}}
    translator = Translator.from_pretrained(folder, **options)
    assert len(translator.translate(["the cow sleeps", ""], max_input_tokens=8)) == 2


def read_dataset(folder: Path) -> Any:
    dataset = Dataset.open(folder)
    found: list[Any] = [dataset.tokenizer.sha256]
    for name in ("train", "valid"):
        split = dataset.split(name)
        found += [split.source_lengths.tolist(), split.target_lengths.tolist(), split.lines.tolist()]
        found += [part.tolist() for part in split.batch(range(min(5, len(split))))]
        found.append((split.phrase_sizes([0, 1]) if split.has_phrases else np.zeros(0)).tolist())
        found.append(split.text() if split.info.text_sha256 else None)
    return found


def one_line(error: PhraseloomError) -> None:
    text = str(error)
    assert text.isprintable() and len(text) < 6000, text


@pytest.fixture(scope="module")
def wholes(originals: dict[str, Path]) -> dict[str, Any]:
    """What each folder holds before the damage."""
    return {name: (read_dataset if name == "dataset" else read_model)(path) for name, path in originals.items()}


def judge(kind: str, number: int, originals: dict[str, Path], wholes: dict[str, Any], place: Path) -> None:
    folder, outside = place / "folder", place / "outside"
    outside.mkdir()
    repaired = damaged(originals[kind], folder, outside, number)
    with bounded():
        try:
            describe(folder, verify=False)  # which reads every byte of what may be gigabytes of holes
        except PhraseloomError as error:
            one_line(error)
        try:
            found = (read_dataset if kind == "dataset" else read_model)(folder)
            if not repaired:
                assert found == wholes[kind], "other content, and no error"
            if kind != "dataset":
                use_model(folder)
        except PhraseloomError as error:
            one_line(error)
    shutil.rmtree(place)


KINDS = ("dataset", "model", "phrases", "words")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_by_name(
    kind: str, originals: dict[str, Path], wholes: dict[str, Any], tmp_path: Path
) -> None:
    for number in FEW:
        (tmp_path / str(number)).mkdir()
        try:
            judge(kind, number, originals, wholes, tmp_path / str(number))
        except BaseException as error:
            raise AssertionError(f"damage {number} of {kind}") from error


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_much_damage_is_refused_by_name(
    kind: str, originals: dict[str, Path], wholes: dict[str, Any], tmp_path: Path
) -> None:
    for number in MANY:
        (tmp_path / str(number)).mkdir()
        try:
            judge(kind, number, originals, wholes, tmp_path / str(number))
        except BaseException as error:
            raise AssertionError(f"damage {number} of {kind}") from error
