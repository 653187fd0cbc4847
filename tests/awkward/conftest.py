"""The awkward files as a folder, and a prepared small tokenizer of each kind to read them with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig
from phraseloom.text.tokenizer import Tokenizer, learn_subwords


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("awkward_files", Path(__file__).with_name("files.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds every awkward file."""
    folder = tmp_path_factory.mktemp("awkward")
    _module().write(folder)
    return folder


LINES = ["the house", "a dog", "small birds", "the garden", "all good", "a ||| b@@ c", "</s> <unk>"] * 20


@pytest.fixture(scope="session", params=["bpe", "unigram", "subword_nmt"])
def tokenizer_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder of each kind of subwords."""
    if request.param == "subword_nmt":
        config = SubwordNmtConfig(merges=20)
    else:
        config = SentencepieceConfig(model=request.param, size=300)
    subwords = learn_subwords(LINES, config)
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer(TextConfig(), "en", "en", subwords, subwords).save(folder)
    return folder
