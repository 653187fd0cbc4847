"""`phraseloom analyse phrases`: the phrases and weights that are shown are those of the equations, on models of every kind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import Command
from tests.helpers import LINES, tiny_tokenizer
from tests.reference import phrases as reference

from phraseloom.analysis.phrases import source_phrases
from phraseloom.decoding.translator import Translator
from phraseloom.models.build import build_model
from phraseloom.models.store import save_model
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.segmenters import TreeSegmenter

SIZES = {"width": 16, "heads": 2, "ffn_width": 32, "encoder": {"layers": 2}, "decoder": {"layers": 2}, "norm": "post"}


def test_a_model_without_an_encoder(command: Command, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "text")
    size = len(tokenizer.source.vocabulary)
    config = ModelConfig.model_validate({**SIZES, "encoder": {"kind": "none"}, "phrases": {}})
    save_model(tmp_path / "model", build_model(config, size, size), config, tokenizer)
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES))
    done = command("analyse", "phrases", "model", "-s", "lines")
    assert done.code == 0 and done.out.count("\n") == len(LINES), done.err
    done = command("analyse", "phrases", "model", "-s", "lines", "--level", "1")
    assert done.code == 2 and "the levels of this model are 0 to 0" in done.err


def translator(folder: Path, phrases: Any, segmenter: Any = None) -> Translator:
    tokenizer = tiny_tokenizer(folder)
    torch.manual_seed(2)
    size = len(tokenizer.source.vocabulary)
    model = build_model(ModelConfig.model_validate({**SIZES, "phrases": phrases}), size, size)
    return Translator(model, tokenizer, segmenter=segmenter)


@pytest.mark.parametrize("attention", ["softmax", "gated"])
def test_weights_of_the_embeddings_are_those_of_the_loops(tmp_path: Path, attention: str) -> None:
    made = translator(tmp_path, {"attention": attention})
    found = source_phrases(made, [*LINES, ""])
    assert found.sentences[-1] == []
    assert made.model.phrases is not None
    scorer: Any = made.model.phrases.representations[0].scorer
    w = {"hidden": scorer.hidden.weight, "bias": scorer.hidden.bias, "score": scorer.score}
    if attention == "gated":
        w["score_bias"] = scorer.score_bias
    matrices = {name: value.detach().numpy() for name, value in w.items()}
    for line, sentence in zip(LINES, found.sentences, strict=False):
        ids = [*made.tokenizer.source.encode(line), 3]
        with torch.no_grad():
            x = made.model.source_embedding(torch.tensor([ids]))[0].numpy()
        n = reference.phrase_length(len(ids), max_tokens=8, min_chunks=6, floor=3)
        pieces = [made.tokenizer.source.vocabulary.piece(i) for i in ids]
        spans = reference.cut(len(ids), n)
        assert [p.pieces for p in sentence] == [[pieces[t] for t in span] for span in spans]
        for phrase, span in zip(sentence, spans, strict=True):
            _, expected = reference.phrase_vector([x[t] for t in span], "max", attention, matrices)
            np.testing.assert_allclose(phrase.weights[0] or [], expected, rtol=0, atol=1e-5)
            assert len(phrase.weights) == 3


def test_trees_decide_and_long_lines_are_cropped(tmp_path: Path) -> None:
    segmenter = TreeSegmenter(max_tokens=4, min_chunks=1, floor=1)
    made = translator(tmp_path, {"segments": {"kind": "dataset"}, "attention": "none"}, segmenter)
    trees = ["(S (NP (DT the) (JJ old) (NN man)) (VP (VBZ sleeps)) (. .))", "", "", ""]
    found = source_phrases(made, LINES, trees)
    ids = made.tokenizer.source.encode_batch(LINES)
    sizes = made.phrases_of(LINES, ids, trees)
    assert sizes is not None
    assert [[len(p.pieces) for p in sentence] for sentence in found.sentences] == sizes
    assert found.sentences[0][0].weights == [None, None, None]
    short = source_phrases(made.with_options(max_input_tokens=5), LINES, trees)
    assert short.cropped == 4
    assert all(sum(len(p.pieces) for p in sentence) == 6 for sentence in short.sentences)


def saved(folder: Path, phrases: Any) -> Path:
    tokenizer = tiny_tokenizer(folder / "t")
    config, size = ModelConfig.model_validate({**SIZES, "phrases": phrases}), len(tokenizer.source.vocabulary)
    torch.manual_seed(2)
    save_model(folder / "m", build_model(config, size, size), config, tokenizer, languages=("en", "de"))
    return folder / "m"


def test_what_is_printed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    model = saved(tmp_path, {})
    (tmp_path / "s").write_bytes("".join(f"{line}\n" for line in [*LINES, ""]).encode())
    done = command("analyse", "phrases", model, "-s", "s", "--level", "1")
    assert done.code == 0, done.err
    *lines, _, title, header, _, first, _, last = done.out.rstrip("\n").split("\n")
    assert len(lines) == 5
    assert lines[4] == ""
    for line in lines[:4]:
        for phrase in re.findall(r"\[([^\]]+)\]", line):
            assert abs(sum(int(item.rsplit(":", 1)[1]) for item in phrase.split(" ")) - 100) <= 3
    assert title.startswith("transparent attention") and "decoder layer 2" in header
    assert first.startswith("0 (embeddings)") and last.startswith("2")
    whole = json.loads(command("analyse", "phrases", model, "-s", "s", "--output", "json").out)
    assert len(whole["sentences"]) == 5
    assert np.allclose(np.sum(whole["shares"], 0), 1)


def test_what_cannot_be_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "s").write_bytes(b"the old man sleeps .\n")
    (tmp_path / "x").write_bytes(b"(S (NP the))\n")
    model = saved(tmp_path, {"attention": "none", "transparent": False})
    too_deep = command("analyse", "phrases", model, "-s", "s", "--level", "3")
    assert too_deep.code != 0
    assert "levels of this model are 0 to 2" in too_deep.err
    in_vain = command("analyse", "phrases", model, "-s", "s", "--trees", "x")
    assert in_vain.code != 0
    assert in_vain.err.count("\n") == 1
    assert command("analyse", "phrases", model, "-s", "s").out.startswith("[")
