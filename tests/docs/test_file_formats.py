"""docs/file_formats.md tells the versions that the code has, and the files that are there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "file_formats.md").read_bytes().decode()
VERSIONS = re.findall(r"^\| ([\w -]+) \|.*\| (\d+) \| `([\w.]+)\.(\w+)` \|$", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("what", "version", "module", "name"), VERSIONS, ids=[row[0] for row in VERSIONS])
def test_version(what: str, version: str, module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) == int(version)


def test_every_version_of_the_code_is_on_the_page() -> None:
    told = {module for _, _, module, _ in VERSIONS}
    source = ROOT / "src"
    for path in sorted(source.rglob("*.py")):
        if re.search(
            r"^(?:\w+, )*(?:FORMAT|VERSION)(?:, \w+)* = [\"\w ,]*\d", path.read_bytes().decode(), re.MULTILINE
        ):
            module = ".".join(path.relative_to(source).with_suffix("").parts)
            # the page that shows a document reads the version of the one that makes it
            assert module in told | {"phraseloom.report.explain_page"}, (
                f"{module} has a version; docs/file_formats.md has not"
            )


def test_every_kind_of_subword_file_is_on_the_page() -> None:
    from phraseloom.text.tokenizer import SUBWORDS

    assert [e for kind in SUBWORDS.values() for e in kind.endings if f"`{e}`" not in TEXT] == []


def test_every_kind_of_result_is_on_the_page() -> None:
    from phraseloom.results import BY_KIND

    rows = re.findall(r"^\| `(\w+)` \| `([a-z ]+?)(?: -[^`]*)?` \| `(\w+)` \|$", TEXT, re.MULTILINE)
    classes = {kind: (cls.command.partition(" --")[0], cls.__name__) for kind, cls in BY_KIND.items()}
    assert {kind: (command, name) for kind, command, name in rows} == classes


def test_a_line_of_translate() -> None:
    """Every key that `translate --output json` can write is on the page."""
    from phraseloom.decoding.translation import Translation

    whole = Translation("a", 0.0, 0.0, [], [], alignment=[], phrases=[], segments=[], replaced=[], alternatives=[])
    described = TEXT[TEXT.index("A line of `translate`:") : TEXT.index("Other documents")]
    told = set(re.findall(r"\w+", "\n".join(line[:40] for line in described.split("\n") if line.startswith("    "))))
    assert set(whole.as_dict()) | {"id", "alternatives"} <= told | {"hit_max_length"}


def test_files_of_a_model_and_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a small run really writes is on the page, name by name."""
    from phraseloom.cli.main import run

    monkeypatch.chdir(tmp_path)
    recipe = str(ROOT / "recipes" / "demo" / "world_trees.yaml")
    small = ["data.subwords.size=600", "model.width=16", "model.ffn_width=16", "model.encoder.layers=1"]
    small += ["model.decoder.layers=1", "training.max_updates=2", "training.checkpoint_every=1", "training.processes=1"]
    small += [
        "training.bleu_every=0",
        "training.schedule.warmup=1",
        "training.schedule.updates=99",
        "training.average_last=2",
    ]
    assert run(["world", "demo/world", "--train", "200", "--valid", "5", "--test", "5", "--contrastive", "10"]) == 0
    assert run(["prepare", recipe, "--data-root", "demo", *small]) == 0
    assert run(["train", recipe, "--run", "run", *small]) == 0
    written = [p for folder in ("demo/dataset-trees", "run") for p in Path(folder).rglob("*") if not p.is_dir()]
    assert len(written) > 30
    for path in written:
        name = path.name
        shard = re.sub(r"^\d{5}\.target\..*", "00000.target.…", re.sub(r"^\d{5}", "00000", name))
        told = any(form in TEXT for form in (name, shard)) or path.suffix in (".vocab", ".model")
        assert told, f"{path} is not on the page"
