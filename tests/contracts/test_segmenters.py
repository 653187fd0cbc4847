"""What every segmenter must do, whatever it makes phrases from: the contract of `SEGMENTERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import LINES

from phraseloom.options.text import SentencepieceConfig, SubwordNmtConfig, TextConfig
from phraseloom.phrases.segmenters import SEGMENTERS, FixedSegmenter, Segmenter, TableSegmenter, TreeSegmenter
from phraseloom.phrases.source import cut_sizes, load_segmenter, segment_lines
from phraseloom.phrases.trees import Tree
from phraseloom.text.normalize import Normaliser
from phraseloom.text.tokenizer import Side, learn_subwords

BUILT: dict[str, Callable[[], Segmenter]] = {
    "fixed": FixedSegmenter,
    "fixed 1": lambda: FixedSegmenter(max_tokens=1, floor=1),
    "tree": TreeSegmenter,
    "tree 4, 2, 1": lambda: TreeSegmenter(max_tokens=4, min_chunks=2, floor=1),
    "table": lambda: TableSegmenter(["the old", "the old man", "old", "a cow is", "is small", "we we", "."]),
}
CONFIGS = (
    SentencepieceConfig(size=330),
    SentencepieceConfig(size=60, byte_fallback=False),
    SubwordNmtConfig(merges=40),
)
SIDES = [Side(Normaliser(TextConfig(), "en"), learn_subwords(LINES, config)) for config in CONFIGS]
WORDS = ["the", "old", "man", "a", "cow", "is", "small", ",", ".", "we", "winter", "€", "日本語", "x" * 30]

each = pytest.mark.parametrize("name", BUILT)


def test_every_kind_is_here() -> None:
    assert {segmenter().kind for segmenter in BUILT.values()} == set(SEGMENTERS)
    assert all(kind.kind == name for name, kind in SEGMENTERS.items())


@st.composite
def sentences(draw: st.DrawFn) -> tuple[str, str]:
    """A line, often blank or of one word, and a tree of it, which may cut its words, or none."""
    words = draw(st.lists(st.sampled_from(WORDS), max_size=12))
    spaces = draw(st.sampled_from([" ", " ", "  "]))
    parts: list[Tree] = []
    for word in words:
        cut = draw(st.integers(0, len(word)))
        parts += [Tree("W", [Tree(part)]) for part in (word[:cut], word[cut:]) if part]
    while len(parts) > 1 and draw(st.booleans()):
        first = draw(st.integers(0, len(parts) - 1))
        last = draw(st.integers(first + 1, len(parts)))
        parts[first:last] = [Tree("N", parts[first:last])]
    has_tree = bool(words) and draw(st.integers(0, 4)) > 0
    return spaces.join(words), str(Tree("S", parts)) if has_tree else ""


def segment(segmenter: Segmenter, side: Side, given: list[tuple[str, str]]) -> list[list[int]]:
    lines = [line for line, _ in given]
    trees = [tree for _, tree in given] if segmenter.needs_trees else None
    return segment_lines(segmenter, side, lines, side.encode_batch(lines), trees)


@each
@settings(max_examples=60, deadline=None)
@given(given=st.lists(sentences(), min_size=1, max_size=4), number=st.integers(0, len(SIDES) - 1))
def test_order_cover_and_independence(name: str, given: list[tuple[str, str]], number: int) -> None:
    segmenter, side = BUILT[name](), SIDES[number]
    found = segment(segmenter, side, given)
    assert len(found) == len(given)
    for (line, tree), sizes in zip(given, found, strict=True):
        # Runs from left to right without holes, as sizes say by themselves, over all subwords and the end.
        assert all(type(size) is int and size > 0 for size in sizes)
        assert sum(sizes) == len(side.encode(line)) + 1
        # The line alone gives the same: nothing depends on the lines around it, nor on what was segmented before.
        assert segment(BUILT[name](), side, [(line, tree)]) == [sizes]
    assert segment(segmenter, side, given[::-1]) == found[::-1]


@each
@pytest.mark.parametrize("side", SIDES)
def test_nothing_and_one_token(name: str, side: Side) -> None:
    segmenter = BUILT[name]()
    assert segment(segmenter, side, [("", ""), (" \t", ""), ("\u3000", "(())")]) == [[1], [1], [1]]
    word = next(word for word in ("a", ".", ",") if len(side.encode(word)) == 1)
    for tree in ("", f"(S {word})", f"(TOP (S (NP {word})))"):
        (sizes,) = segment(segmenter, side, [(word, tree)])
        assert sizes in ([2], [1, 1])
    assert segment(segmenter, side, []) == []


@each
def test_phrases_are_at_most_n_or_one_word(name: str) -> None:
    segmenter, side = BUILT[name](), SIDES[0]
    if isinstance(segmenter, TableSegmenter):
        pytest.skip("a match may have any length")
    for line in (*LINES, "small " * 30 + "x" * 30, "x" * 30):
        (sizes,) = segment(segmenter, side, [(line.strip(), "")])
        tokens = sum(sizes)
        limit = max(min(segmenter.max_tokens, -(-tokens // segmenter.min_chunks)), segmenter.floor)  # type: ignore
        words = {len(side.encode(word)) for word in line.split()}
        assert all(size <= limit or (size in words and name.startswith("tree")) for size in sizes)


@each
@settings(max_examples=40, deadline=None)
@given(sentence=sentences(), data=st.data())
def test_a_part_of_a_line(name: str, sentence: tuple[str, str], data: st.DataObject) -> None:
    segmenter, side = BUILT[name](), SIDES[0]
    (sizes,) = segment(segmenter, side, [sentence])
    tokens = sum(sizes) - 1
    start = data.draw(st.integers(0, tokens))
    end = data.draw(st.integers(start, tokens))
    part = cut_sizes(sizes, start, end)
    assert sum(part) == end - start + 1
    assert part[-1] == 1
    assert all(size > 0 for size in part)


@each
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    segmenter = BUILT[name]()
    names = segmenter.save(tmp_path / "a")
    assert sorted(names) == sorted(path.name for path in (tmp_path / "a").iterdir())
    loaded = load_segmenter(tmp_path / "a")
    assert loaded.kind == segmenter.kind
    assert loaded.sha256 == segmenter.sha256
    assert str(loaded) == str(segmenter)
    loaded.save(tmp_path / "b")
    for file in names:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    given = [(line, "") for line in LINES]
    assert segment(loaded, SIDES[0], given) == segment(segmenter, SIDES[0], given)
