"""`--add-phrases` of translate and score."""

from __future__ import annotations

from pathlib import Path

from tests.decoding.test_added_phrases import SIZES, model, tokenizer

from phraseloom.models import store
from phraseloom.options.model import ModelConfig

from .conftest import Command


def test_phrases_are_added_for_one_run(tmp_path: Path, command: Command) -> None:
    t = tokenizer()
    config = ModelConfig.model_validate({**SIZES, "output": {"kind": "word_or_phrase"}, "tied": "two_way"})
    store.save_model(tmp_path / "m", model(t), config, t)
    (tmp_path / "more.tsv").write_bytes(b"quality of life\nof life\n")
    words = ["translate", str(tmp_path / "m"), "--add-phrases", str(tmp_path / "more.tsv")]
    done = command(*words, stdin=b"wir\n")
    assert done.code == 0, done.err
    assert "1 phrase added, 1 known before" in done.err
    pair = command("score", tmp_path / "m", stdin=b"wir\tquality of life\n")
    one_token = command(
        "score", tmp_path / "m", "--add-phrases", tmp_path / "more.tsv", stdin=b"wir\tquality of life\n"
    )
    assert (pair.code, one_token.code) == (0, 0) and "1 phrase added, 1 known before" in one_token.err
    assert pair.out != one_token.out
    (tmp_path / "more.tsv").write_bytes(b"quality\n")
    done = command(*words, stdin=b"wir\n")
    assert done.code == 1 and "more.tsv:1: 'quality' is not a phrase" in done.err
