"""docs/phrase_representations.md says what the code does: examples, keys and defaults, commands, Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from phraseloom.cli import analyse, phrases
from phraseloom.cli.main import VERBS, load_verb
from phraseloom.decoding.translator import Translator
from phraseloom.models.build import build_model
from phraseloom.options.data import TreeSegmenterConfig
from phraseloom.options.model import ModelConfig, PhrasesConfig
from phraseloom.phrases.segmenters import fixed_sizes, index_phrases, phrase_length, table_sizes, tree_sizes, with_end
from phraseloom.phrases.trees import parse_tree, skeleton
from tests.helpers import tiny_tokenizer

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "phrase_representations.md").read_bytes().decode()
TREE = (
    "(S (NP (DT a) (NN man) (PP (IN in) (NP (DT a) (JJ red) (NN shirt)))) (VP (VBZ is) (VP (VBG selling) (NP (NN fruit))"
    " (PP (IN at) (NP (DT the) (NN market))))) (. .))"
)
PIECES = {"selling": ["sell@@", "ing"], "market": ["mark@@", "et"]}


def test_the_sentence_is_cut_as_the_page_shows() -> None:
    words, joints = skeleton(parse_tree(TREE))
    counts = [len(PIECES.get(word, [word])) for word in words]
    tokens = [piece for word in words for piece in PIECES.get(word, [word])] + ["</s>"]
    tree, limit = with_end(joints, counts), phrase_length(len(tokens))
    assert f"s = {len(tokens)}, and with the defaults 8/6/3 n = {limit}" in PAGE
    cuts = {
        "fixed 8/6/3": fixed_sizes(len(tokens), limit),
        "fixed 8/4/2": fixed_sizes(len(tokens), phrase_length(len(tokens), 8, 4, 2)),
        "tree 8/6/3": tree_sizes(*tree, limit),
        "tree, n = 4": tree_sizes(*tree, 4),
        "table": table_sizes(words, counts, index_phrases(["in a red shirt", "at the market"])),
    }
    for name, sizes in cuts.items():
        remaining = iter(tokens)
        phrases = [f"[{' '.join(next(remaining) for _ in range(size))}]" for size in sizes]
        assert f"    {name:<12}  {' '.join(phrases)}\n" in PAGE


def test_keys_and_defaults() -> None:
    found = dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|", PAGE, re.MULTILINE))
    default: dict[str, Any] = PhrasesConfig().model_dump()
    segments = {f"segments.{key}": value for key, value in default.pop("segments").items()}
    written = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in (default | segments).items()
    }
    assert found == written
    tree = TreeSegmenterConfig()
    assert f"`{tree.max_tokens}`, `{tree.min_chunks}`, `{tree.floor}` | of `tree`" in PAGE


@pytest.mark.parametrize("line", re.findall(r"^    (phraseloom .+)$", PAGE, re.MULTILINE))
def test_commands_exist(line: str) -> None:
    _, verb, *rest = line.split()
    assert verb in VERBS
    if verb == "phrases":
        command = phrases.load_task(rest[0])
    elif verb == "analyse":
        command = analyse.load_analysis(rest[0])
    else:
        command = load_verb(verb)
    known = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"(?<= )--[\w-]+", line)) <= known


@pytest.mark.parametrize("segments", ["fixed", "dataset"])
def test_python(
    segments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from phraseloom.phrases.segmenters import TableSegmenter

    tokenizer = tiny_tokenizer(tmp_path)
    config = ModelConfig.model_validate({"preset": "tiny", "phrases": {"segments": {"kind": segments}}})
    size = len(tokenizer.source.vocabulary)
    model = build_model(config, size, size).eval()
    segmenter = TableSegmenter({"old man"}) if segments == "dataset" else None
    translator = Translator(model, tokenizer, segmenter=segmenter)
    monkeypatch.setattr(Translator, "from_pretrained", lambda path: translator)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(snippet, {})  # the page's own code
    assert capsys.readouterr().out.startswith("tensor([[")
