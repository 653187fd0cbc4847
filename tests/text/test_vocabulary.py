from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phraseloom.errors import CorruptError, FileProblem, ModelError
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

PIECES = st.lists(
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), min_size=1, max_size=8), unique=True
)


@settings(max_examples=200, deadline=None, database=None)
@given(PIECES)
def test_bytes_round_trip(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "vocabulary"
    vocabulary = Vocabulary([*SPECIALS, *pieces])
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary
    assert path.read_bytes() == vocabulary.to_bytes()
    assert vocabulary.ids(pieces) == list(range(4, 4 + len(pieces)))


def test_special_ids() -> None:
    assert (PAD, UNK, BOS, EOS) == (0, 1, 2, 3)
    plain = Vocabulary([*SPECIALS, "a"])
    assert [plain.id(name) for name in SPECIALS] == [UNK] * 4
    assert Vocabulary([*SPECIALS, "</s>"]).id("</s>") == 4


@pytest.mark.parametrize("pieces", [["a", "a"], [""], ["a\nb"], ["a\0b"]])
def test_impossible_pieces(pieces: list[str]) -> None:
    with pytest.raises(ModelError):
        Vocabulary([*SPECIALS, *pieces])


def test_ids_outside() -> None:
    for number in (-1, 4):
        with pytest.raises(ModelError, match="not in this vocabulary of 4"):
            Vocabulary(SPECIALS).piece(number)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\n", b"a\n", b"<pad>\n<unk>\n<s>\n</s>\na\na\n", b"<pad>\n<unk>\n<s>\n</s>"]
)
def test_files_that_are_no_vocabulary(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(CorruptError):
        Vocabulary.load(tmp_path / "v")
    with pytest.raises(FileProblem):
        Vocabulary.load(tmp_path)
