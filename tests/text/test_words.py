"""Words as a vocabulary: which are in it, in which order; phrases beside them; their vectors; damage."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from phraseloom.config import validate
from phraseloom.errors import ConfigError, CorruptError, DataError, FileProblem
from phraseloom.options.text import TextConfig, WordsConfig
from phraseloom.text.tokenizer import Tokenizer, learn_subwords
from phraseloom.text.vectors import write_vectors
from phraseloom.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from phraseloom.text.word_vectors import RowTransform
from phraseloom.text.words import Coverage, Words, learn

TEXT = [
    "the quality_of_life is good .",
    "the house is in_all old , quality_of_life !",
    "the old_house is in_all quality",
    "  zebra  the  ",
    "",
]


def names(words: Words) -> list[str]:
    return list(words.vocabulary)[4:]


def joined(**more: Any) -> Words:
    return learn(TEXT, WordsConfig(joined=True, **more))


def vectors(tmp_path: Path, rows: dict[str, list[float]], name: str = "v.vec") -> str:
    write_vectors(tmp_path / name, list(rows), np.array(list(rows.values())))
    return str(tmp_path / name)


def test_most_frequent_first_then_by_code_point_then_phrases() -> None:
    words = joined(phrases=2)
    # quality: once alone; of, life: not at all, for their phrase is in the vocabulary; old and house: once more of old_house.
    assert names(words)[:10] == ["the", "is", "house", "old", "!", ",", ".", "good", "quality", "zebra"]
    assert names(words)[10:] == ["in_all", "quality_of_life"]
    assert words.first_phrase == 14 and words.vocabulary.piece(words.first_phrase) == "in_all"
    assert names(joined(size=3, phrases=1)) == ["the", "is", "quality", "in_all"]
    assert names(joined(min_frequency=2)) == ["the", "is", "quality", "all", "house", "in", "life", "of", "old"]
    assert names(joined(min_frequency=3, phrases=9)) == ["the", "is", "quality"]


def test_a_phrase_that_is_not_in_the_vocabulary_is_its_words() -> None:
    words = joined(phrases=1)
    ids = words.encode("the quality_of_life in_all old_zoo")
    assert words.decode(ids) == "the quality of life in_all old ⁇"
    assert words.pieces("quality_of_life in_all") == ["quality", "\ue5812of", "\ue5812life", "in_all"]
    assert names(joined())[3:5] == ["all", "house"] and joined().first_phrase == len(joined().vocabulary)


def test_without_joined_a_token_with_underscores_is_a_word() -> None:
    words = learn(TEXT, WordsConfig())
    assert "quality_of_life" in words.vocabulary and words.first_phrase == len(words.vocabulary)
    assert words.decode(words.encode("quality_of_life of")) == "quality_of_life ⁇"
    assert words.num_words(words.vocabulary.id("quality_of_life")) == 1


def test_coverage_counts_what_is_read() -> None:
    assert learn(["a a b", "c"], WordsConfig(size=1)).coverage == Coverage(3, 4, 2, 2, 0, 0)
    # a_b is kept; c_d is read as c and d, and d is unknown.
    found = learn(["a_b a_b c_d", "c c e"], WordsConfig(size=1, phrases=1, joined=True))
    assert names(found) == ["c", "a_b"]
    assert found.coverage == Coverage(
        types=4, tokens=7, unknown_types=2, unknown_tokens=2, split_types=1, split_tokens=1
    )


def test_nul_is_in_no_vocabulary_also_as_part_of_a_phrase() -> None:
    words = learn(["a\0b c_\0 c"], WordsConfig(joined=True))
    assert names(words) == ["c"] and words.encode("a\0b c") == [UNK, 4]


def test_nothing_to_learn_from() -> None:
    for lines in ([], ["", "  "]):
        with pytest.raises(DataError, match="no words to learn"):
            learn(lines, WordsConfig())
    with pytest.raises(DataError, match="no joined phrase") as caught:
        learn(["a b _ a_"], WordsConfig(joined=True, phrases=5))
    assert "phrases segment" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"phrases": 5}, "phrases needs joined: true"),
        ({"vectors_sha256": "0" * 64}, "no vectors"),
        ({"joint": True, "joined": True}, "joined is of one side"),
        ({"joint": True, "vectors": "x.vec"}, "vectors is of one side"),
        ({"joint": True, "source_size": 9}, "source_size is of one side"),
        ({"size": 0}, "greater than or equal to 1"),
        ({"vectors": ""}, "a file name is not empty"),
        ({"vector": "x"}, "vectors"),
    ],
)
def test_options_that_do_not_fit_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(WordsConfig, {"kind": "words", **given})


def test_options_of_the_source() -> None:
    config = WordsConfig(size=9, phrases=3, joined=True, vectors="x", min_frequency=2, sample_lines=7)
    assert config.of_source() == WordsConfig(size=9, min_frequency=2, sample_lines=7)
    assert config.model_copy(update={"source_size": 4}).of_source().size == 4


ROWS: dict[str, list[float]] = {
    "the": [3, 0, 4],
    "quality_of_life": [0, 5, 0],
    "is": [1e-4, 0, 0],
    "old": [0, 0, 0],
    "cat": [2, 2, 0],
    "dog": [0, -1, 1],
    "in_all": [1, 1, 1],
}


def test_the_table(tmp_path: Path) -> None:
    text = [*TEXT, "the is"]
    words = learn(text, WordsConfig(joined=True, phrases=1, vectors=vectors(tmp_path, ROWS)))
    assert names(words) == ["the", "is", "in_all"]  # the most frequent phrase, by code point; old: a vector of zeros
    table = words.vectors
    assert table is not None and table.dtype == np.float32 and table.shape == (7, 3)
    mean = np.mean([ROWS[n] for n in ("quality_of_life", "old", "cat", "dog")], axis=0)
    expected = {
        PAD: [0, 0, 0], BOS: [0, 0, 0], EOS: [3**-0.5] * 3, UNK: mean / np.linalg.norm(mean),
        4: [0.6, 0, 0.8], 5: [1, 0, 0], 6: [3**-0.5] * 3,
    }  # fmt: skip
    for number, row in expected.items():
        np.testing.assert_allclose(table[number], row, atol=1e-7, err_msg=str(number))
    # Of text without in_all the other phrase is there, and all of the rest is in the mean.
    other = learn(
        [line.replace("in_all", "x") for line in text],
        WordsConfig(joined=True, phrases=9, vectors=vectors(tmp_path, ROWS)),
    )
    assert names(other) == ["the", "is", "quality_of_life"]


def test_the_most_frequent_of_those_with_a_vector(tmp_path: Path) -> None:
    path = vectors(tmp_path, {"b": [1.0], "c": [1.0], "d": [1.0], "x": [1.0]})
    assert names(learn(["a a a b b c d d"], WordsConfig(size=2, vectors=path))) == ["b", "d"]


def test_a_vector_of_zeros_takes_no_place_and_covers_no_token(tmp_path: Path) -> None:
    path = tmp_path / "zeros.vec"
    path.write_text("4 2\na 0 0\nb 0.0 -0e+00 \nc 1 0\nd 0 1e-3\n")
    words = learn(["a a a b b c d d d d"], WordsConfig(size=2, vectors=str(path)))
    assert names(words) == ["d", "c"] and words.coverage is not None and words.coverage.without_vector == 5
    with pytest.raises(DataError, match=r"vectors for 37\.5% of the 8 tokens of the text, 2 of 4 different ones"):
        learn(["a a a b b c d d"], WordsConfig(size=2, vectors=str(path)))


@pytest.mark.parametrize(
    ("rows", "unknown"),
    [
        ({"a": [3.0, 4.0], "b": [3.0, 4.0]}, [0.6, 0.8]),  # no other token: those of the vocabulary
        ({"a": [3.0, 4.0], "x": [1.0, 0.0], "y": [-1.0, 0.0]}, [0.6, 0.8]),  # the others cancel
        ({"a": [3.0, 4.0], "b": [-3.0, -4.0]}, [-(0.5**0.5)] * 2),  # all cancel: minus EOS
    ],
)
def test_the_unknown_word_has_a_direction(tmp_path: Path, rows: dict[str, list[float]], unknown: list[float]) -> None:
    table = learn(["a b"], WordsConfig(vectors=vectors(tmp_path, rows))).vectors
    assert table is not None
    np.testing.assert_allclose(table[UNK], unknown, atol=1e-6)
    assert abs(np.linalg.norm(table[UNK]) - 1) < 1e-6


def test_rows_of_any_length_become_unit_vectors(tmp_path: Path) -> None:
    rows = {name: [scale, -scale] for name, scale in zip("abcd", (1e-30, 1e30, 1e-44, 7.0), strict=True)}
    table = learn(["a b c d"], WordsConfig(vectors=vectors(tmp_path, rows))).vectors
    assert table is not None
    np.testing.assert_allclose(table[4:], [[0.5**0.5, -(0.5**0.5)]] * 4, rtol=1e-6)


def test_wrong_files_of_vectors(tmp_path: Path) -> None:
    def fails(path: str, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            learn(["a b"], WordsConfig(vectors=path))

    fails(vectors(tmp_path, {"x": [1.0]}), DataError, "none of the 2 different words of the target text has a vector")
    fails(
        vectors(tmp_path, {"a": [0.0], "x": [1.0]}),
        DataError,
        "none of the 2 different words .* has a vector other than 0",
    )
    fails(str(tmp_path / "not.vec"), FileProblem, "not found")
    for content, match in [
        ("2 2\na 1 2\nb 1\n", "a row of 2 fields"), ("2 2\na 1 2\nx 1 y\n", "'y'"), ("2 1\na 1\na 2\n", "also in line 2"),
        ("3 1\na 1\nb 2\n", "cut"), ("hello\n", "first line"), ("1 1\nc 1\na 1\n", "more rows"),
    ]:  # fmt: skip
        (tmp_path / "w.vec").write_text(content)
        with pytest.raises(DataError) as caught:
            learn(["a b"], WordsConfig(vectors=str(tmp_path / "w.vec")))
        assert match in str(caught.value) + str(caught.value.hint) and caught.value.file, content


def test_vectors_of_other_tokens_are_not_kept(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(30_000)]
    path = tmp_path / "big.vec"
    path.write_text("".join([f"{len(tokens)} 100\n", *(f"{token} {' '.join('1' * 100)}\n" for token in tokens)]))

    def peak(text: str) -> int:
        tracemalloc.start()
        try:
            learn([text], WordsConfig(vectors=str(path)))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak("t3 t5")
    assert peak("t3 t5") < peak(" ".join(tokens)) / 3


def tokenizer(tmp_path: Path) -> Tokenizer:
    words = joined(phrases=2, vectors=vectors(tmp_path, ROWS))
    return Tokenizer(
        TextConfig(tokenize="moses", lowercase=True), "de", "en", learn(["das ist ,"], WordsConfig()), words
    )


def test_a_joined_side_takes_its_text_as_it_is_and_writes_plain_text(tmp_path: Path) -> None:
    words = learn(["The it 's a quality_of_life ( a&#95;b ) ! Rock&apos;n"], WordsConfig(joined=True, phrases=1))
    side = Tokenizer(
        TextConfig(tokenize="moses", lowercase=True), "de", "en", learn(["x"], WordsConfig()), words
    ).target
    line = "The it 's quality_of_life ( a&#95;b ) !"
    ids = side.encode(line)
    assert UNK not in ids and len(ids) == 8 and side.encode_batch([line, " "]) == [ids, []]
    assert side.decode(ids) == "The it's quality of life (a_b)!" == side.plain(line)
    assert side.words(line) == side.words_of(ids) == ["The", "it", "'s", "quality", "of", "life", "(", "a_b", ")", "!"]
    assert [(words[0], words[-1]) for words in side.words_of_piece(ids)] == [
        (0, 0), (1, 1), (2, 2), (3, 5), (6, 6), (7, 7), (8, 8), (9, 9),
    ]  # fmt: skip
    assert side.word_of_piece(ids) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert side.words_of_piece([4, UNK, side.vocabulary.id("quality_of_life"), EOS]) == [
        range(1), range(1, 2), range(2, 5), range(5, 5),
    ]  # fmt: skip
    assert side.plain("") == "" and side.words(" ") == [] == side.words_of([])


def test_a_side_that_is_not_joined_is_as_ever() -> None:
    words = learn(["it 's ( a _ b ) !"], WordsConfig())
    side = Tokenizer(TextConfig(tokenize="moses"), "en", "en", words, words).target
    line = "It's  (a_b)!"
    assert side.plain(line) == line and not side.joined
    assert side.decode(side.encode(line)) == "⁇'s (a _ b)!"
    assert side.words_of_piece(side.encode(line)) == [range(n, n + 1) for n in range(8)]


def test_saved_and_loaded_with_vectors(tmp_path: Path) -> None:
    first = tokenizer(tmp_path)
    folder = tmp_path / "t"
    folder.mkdir()
    saved = first.save(folder)
    assert set(saved) == {p.name for p in folder.iterdir()} == {
        "source.words.json", "source.vocab", "target.words.json", "target.vocab", "target.vectors.safetensors",
        "tokenizer.json",
    }  # fmt: skip
    again = Tokenizer.load(folder)
    assert again.sha256 == first.sha256 and again.source.kind == "words" and not again.joint
    old, new = first.target.subwords, again.target.subwords
    assert isinstance(old, Words) and isinstance(new, Words) and isinstance(again.source.subwords, Words)
    assert old.vectors is not None and new.vectors is not None and new.vectors.tobytes() == old.vectors.tobytes()
    assert new.vectors.flags.writeable  # torch.from_numpy warns otherwise
    assert (new.joined, new.first_phrase) == (True, old.first_phrase) and again.source.subwords.vectors is None
    assert new.coverage is None
    second = tmp_path / "u"
    second.mkdir()
    again.save(second)
    assert all((folder / name).read_bytes() == (second / name).read_bytes() for name in saved)


def test_a_transformation_is_stored_with_the_vectors(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(len(SPECIALS) + 1, 2)).astype(np.float32)
    for mean, moved, share in (
        (np.ones(2), None, 0.0),
        (np.zeros(2), None, 0.25),
        (np.ones(3), np.arange(6.0).reshape(3, 2), 0.5),
    ):
        words = Words(Vocabulary([*SPECIALS, "a"]), vectors=rows, transform=RowTransform(mean, moved, share))
        words.save(tmp_path, "x")
        again = Words.load(tmp_path, "x").transform
        assert again is not None and np.array_equal(again.mean_M, mean) and again.random_share == share
        assert moved is None if again.map_MK is None else np.array_equal(again.map_MK, moved)
    table = tmp_path / "x.vectors.safetensors"
    for arrays in (
        {"mean": np.ones(3)},
        {"map": np.ones((2, 2))},
        {"mean": np.ones(3), "map": np.ones((2, 2))},
        {"mean": np.ones(()), "map": np.ones(2)},
        {"mean": np.ones(2, np.float32)},
        {"mean": np.ones(2), "other": np.ones(1)},
        {"random_share": np.ones(1) / 2},
        {"mean": np.ones(2), "random_share": np.ones(2) / 2},
        {"mean": np.ones(2)},  # of other vectors
    ):
        table.write_bytes(safetensors.numpy.save({"vectors": rows, **arrays}))
        with pytest.raises(CorruptError, match=r"holds|another vocabulary"):
            Words.load(tmp_path, "x")
    table.write_bytes(safetensors.numpy.save({"vectors": rows, "mean": np.ones(2), "random_share": np.ones(1)}))
    with pytest.raises(CorruptError, match=r"random_share is 1\.0"):
        Words.load(tmp_path, "x")


def test_the_hash_knows_the_vectors_and_whether_text_is_joined(tmp_path: Path) -> None:
    def of(rows: dict[str, list[float]] | None, joined: bool = True) -> str:
        path = None if rows is None else vectors(tmp_path, rows)
        words = learn(["the is"], WordsConfig(joined=joined, vectors=path))
        return Tokenizer(TextConfig(), "de", "en", learn(["x"], WordsConfig()), words).sha256

    plain = {"the": [1.0, 2.0], "is": [2.0, 2.0]}
    assert len({of(plain), of({**plain, "is": [2.0, 3.0]}), of(None), of(None, joined=False)}) == 4
    assert of(plain) == of(dict(plain))


def test_damage_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    tokenizer(tmp_path).save(folder)
    Tokenizer.load(folder)
    description = folder / "tokenizer.json"
    whole = {p: p.read_bytes() for p in folder.iterdir()}
    table, about = folder / "target.vectors.safetensors", folder / "target.words.json"

    def refused(match: str, error: type[Exception] = CorruptError) -> None:
        with pytest.raises(error, match=match):
            Tokenizer.load(folder)
        for path, content in whole.items():
            path.write_bytes(content)

    def listed(change: dict[str, str | None]) -> None:
        value = json.loads(whole[description])
        value["files"] = {k: v for k, v in (value["files"] | change).items() if v is not None}
        description.write_text(json.dumps(value))

    table.write_bytes(whole[table][:-1] + b"\x01")
    refused("checksum differs")
    table.unlink()
    refused("not found", FileProblem)
    listed({"target.vectors.safetensors": None})
    table.unlink()
    refused("the file of vectors or its checksum here is missing")
    listed({"source.vectors.safetensors": "0" * 64})
    refused("not found|checksum", (CorruptError, FileProblem))  # type: ignore[arg-type]
    listed({"target.words.json": None})
    refused("lists unexpected files")
    # A table that tokenizer.json does not know is refused by its own description.
    listed({"target.vectors.safetensors": None})
    table.write_bytes(whole[table][:-1] + b"\x01")
    refused("vectors belong to another vocabulary")
    for content in (b"[]", b'{"format": 2, "joined": true, "vectors": null}', b'{"format": 1, "joined": 1}'):
        about.write_bytes(content)
        with pytest.raises(CorruptError, match="not the metadata"):
            Words.load(folder, "target")
    about.write_bytes(whole[about])
    for content in (b"", b"\0" * 100, whole[about]):
        table.write_bytes(content)
        with pytest.raises(CorruptError):
            Words.load(folder, "target")


def test_vocabularies_that_cannot_be() -> None:
    special = ("<pad>", "<unk>", "<s>", "</s>")
    with pytest.raises(CorruptError, match="after phrases"):
        Words(Vocabulary([*special, "a", "b_c", "d"]), joined=True)
    Words(Vocabulary([*special, "a", "b_c", "d"]))
    with pytest.raises(CorruptError, match="space"):
        Words(Vocabulary([*special, "a b"]))
    for table in (np.zeros((4, 3), np.float32), np.zeros((5, 3)), np.zeros(5, np.float32)):
        with pytest.raises(CorruptError, match="vectors of"):
            Words(Vocabulary([*special, "a"]), vectors=table)


def test_learned_through_the_table_of_kinds(tmp_path: Path) -> None:
    assert names(learn_subwords(["b a b"], WordsConfig())) == ["b", "a"]  # type: ignore[arg-type]
