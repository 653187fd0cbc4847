"""Search in bf16, fp16 and int8: the products have that type, the scores are near those of fp32 and are fp32 themselves."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import LINES, tiny_tokenizer
from tests.losses.test_arithmetic import Products

from phraseloom.decoding import piece_search
from phraseloom.decoding.translator import Translator
from phraseloom.models import tasks
from phraseloom.models.device import arithmetic
from phraseloom.native.library import load
from phraseloom.options.decoding import DecodingConfig
from phraseloom.options.model import ModelConfig
from phraseloom.phrases.segmenters import FixedSegmenter


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("text"))
    torch.manual_seed(2)
    config = ModelConfig.model_validate(
        {"width": 32, "heads": 4, "ffn_width": 32, "attention": "queryk heterogeneous 1-2"}
    )
    return Translator(tasks.build(config, tokenizer), tokenizer, DecodingConfig(beam=3, kernels="eager", workers=1))


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_products_are_of_that_type_and_scores_are_near(
    translator: Translator, precision: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = translator.translate(LINES[:2], max_length=LENGTH)
    products = Products()

    def recorded(*args: Any) -> contextlib.ExitStack:
        """The search has a thread of its own, and modes of torch belong to a thread."""
        stack = contextlib.ExitStack()
        for context in (arithmetic(*args), products):
            stack.enter_context(context)
        return stack

    monkeypatch.setattr(piece_search, "arithmetic", recorded)
    found = translator.translate(LINES[:2], max_length=LENGTH, precision=precision)
    assert {kind for _, kind in products.counts} == {dtype}
    for one, other in zip(exact, found, strict=True):
        assert other.score == pytest.approx(one.score, rel=0.05)


LENGTH = {"factor": 0.0, "constant": 6}


def test_compiled_kernels_have_one_precision() -> None:
    with pytest.raises(ValueError, match="bf16 is for torch, and kernels is native"):
        DecodingConfig(precision="bf16", kernels="native")
    with pytest.raises(ValueError, match="int8 is for the compiled library, and kernels is eager"):
        DecodingConfig(precision="int8", kernels="eager")


@pytest.mark.skipif(load() is None, reason="the compiled library is not built")
def test_int8_is_near_float32_and_streams_the_same(translator: Translator) -> None:
    options: dict[str, Any] = {"kernels": "auto", "max_length": LENGTH}
    exact = translator.translate(LINES[:2], **options)
    found = translator.translate(LINES[:2], precision="int8", **options)
    for one, other in zip(exact, found, strict=True):
        assert one.score != other.score == pytest.approx(one.score, rel=0.05)
    assert found == translator.translate(LINES[:2], precision="int8", batch_sentences=1, **options)
    [greedy] = translator.translate(LINES[:1], precision="int8", beam=1, **options)
    assert "".join(translator.stream(LINES[0], precision="int8", beam=1, **options)) == greedy.text


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_stream_has_the_alignments_of_translate(precision: Any, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    torch.manual_seed(2)
    shape = {"width": 32, "heads": 4, "ffn_width": 32, "phrases": {"glance": "max", "attention": "softmax"}}
    model = tasks.build(ModelConfig.model_validate(shape), tokenizer)
    config, segmenter = DecodingConfig(beam=1, kernels="eager", workers=1), FixedSegmenter(max_tokens=3, floor=3)
    translator = Translator(model, tokenizer, config, segmenter=segmenter)
    options = {"precision": precision, "alignments": True, "max_length": LENGTH}
    steps = translator.stream(LINES[0], **options)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
    [expected] = translator.translate(LINES[:1], **options)
    assert found.alignment and found.alignment == expected.alignment
