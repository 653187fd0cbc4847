"""Constraints of lines: what a phrase in a text is, the two kinds of files, and whole translations."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command
from tests.decoding.conftest import lines_of_words
from tests.helpers import LINES

from phraseloom.decoding.constraints import Constraints, canonical, contains, read_constraints, words_of
from phraseloom.decoding.terms import Terms
from phraseloom.decoding.translator import Translator
from phraseloom.errors import DataError, UsageError
from phraseloom.models.build import build_model
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import SentencepieceConfig, TextConfig
from phraseloom.text.tokenizer import Tokenizer, learn_subwords


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("das Haus.", "Haus", True),
        ("das Hausboot", "Haus", False),
        ("ein Hochhaus", "haus", False),
        ("Haus-Boot", "Haus", True),
        ("ein  Haus\u2028am See", "Haus am", True),
        ("das haus", "Haus", False),
        ("Das Haus", "das Haus", True),
        ("Dasselbe", "das", False),
        ("in Das", "das", False),
        ("cafe\u0301s", "cafe", False),
        ("cafe\u0301", "caf\u00e9", True),
        ("caf\u00e9", "cafe\u0301", True),
        ("Haus Hausboot Haus", "boot Haus", False),
        ("我买汽车了", "汽车", True),
        ("a.b", ".", True),
        ("x_y", "x", False),
        ("aaa a", "a", True),
    ],
)
def test_a_phrase_is_in_a_text(text: str, phrase: str, expected: bool) -> None:
    assert contains(canonical(text), canonical(phrase)) is expected
    assert contains(canonical(text), canonical(phrase), inside_words=True) is (
        canonical(phrase) in canonical(text) or canonical(text[0].lower() + text[1:]).startswith(phrase)
    )


def test_the_end_of_an_unfinished_text_is_open() -> None:
    assert not contains("das Haus", "Haus", open_end=True)
    assert contains("das Haus", "das", open_end=True)
    assert contains("das Haus.", "Haus.", open_end=True)
    assert contains("汽车", "汽车", open_end=True)


def test_words() -> None:
    assert words_of("Don't go-go, 汽车 x_1!") == ["Don", "'", "t", "go", "-", "go", ",", "汽", "车", "x_1", "!"]
    assert words_of("a b") == ["a", "b"] and words_of(" \u3000") == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", r"constraints:3: not JSON"),
        ("[" * 100_000, r"constraints:3: not JSON"),
        ("[1]", r"constraints:3: not an object; write \{"),
        ({"includes": ["a"]}, r"constraints:3: unknown field 'includes'; fields: include, exclude, inside_words"),
        ({"include": "a"}, r"constraints:3: include is not a list of phrases"),
        ({"exclude": ["a", 1]}, r"constraints:3: exclude is not a list of phrases"),
        ({"include": [" "]}, r"constraints:3: include has an empty phrase; remove it"),
        ('{"include": ["\\ud800"]}', r"constraints:3: include has half of a surrogate pair"),
        ({"inside_words": 1}, r"constraints:3: inside_words is neither true nor false"),
        ({"include": ["a b"], "exclude": ["b"]}, r"'a b' is required and contains 'b', which is forbidden; remove one"),
    ],
)
def test_bad_constraints_are_one_line(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_constraints(value, 3)
    assert "\n" not in str(error.value)


def test_constraints_are_read() -> None:
    assert read_constraints(' {"include": ["a  b", "a b"], "exclude": ["ab"]}', 1) == Constraints(("a b",), ("ab",))
    assert read_constraints({"include": ["Das"], "exclude": ["das"]}, 1).exclude == ("das",)
    assert read_constraints("", 1) == read_constraints(None, 1) == Constraints()
    assert read_constraints(Constraints(("a",)), 1) == Constraints(("a",))


def write(folder: Path, text: str) -> Path:
    path = folder / "terms.tsv"
    path.write_text(text, encoding="utf-8")
    return path


def test_terms_match_the_longest_phrase_first(tmp_path: Path) -> None:
    table = "school\tSchule\nschool bus\tSchulbus\nbus driver\tBusfahrer\n\nUS\tUSA\nbig  school\tgroße  Schule\n"
    terms = Terms.read(write(tmp_path, table))

    def found(line: str) -> list[str]:
        return [term.target for term in terms.matches(line)]

    assert found("The school bus driver left his school, the School.") == ["Schulbus", "Schule"]
    assert found("tell us, US!") == ["USA"]
    assert found("preschool and schools") == []
    assert found("a Big\u00a0school") == ["große Schule"]
    assert [term.line for term in terms.matches("US school")] == [5, 1]


def test_tables_of_phrases(tmp_path: Path) -> None:
    extracted = "quality of life\tLebensqualität\t7\t9\nlife quality\tLebensqualität\t2\t9\n"
    terms = Terms.read(write(tmp_path, extracted), lambda text: text.upper())
    assert [t.target for t in terms.matches("Die Lebensqualität")] == ["QUALITY OF LIFE"]
    filtered = "quality of life\t7\t3.5\t7\tLebensqualität\n"
    assert [t.target for t in Terms.read(write(tmp_path, filtered)).matches("Lebensqualität")] == ["quality of life"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a\tb\nc\n", r"terms.tsv:2: a row of 1 columns; write SOURCE<tab>TARGET in every row"),
        ("a\tb\tc\n", r"terms.tsv:1: a row of 3 columns"),
        ("a\t \n", r"terms.tsv:1: a phrase is empty"),
        ("a  b\tc\nd\te\na b\tx\n", r"terms.tsv:3: 'a b' has another target in line 1; keep one of the two"),
        ("\n", r"terms.tsv: the table has no terms"),
    ],
)
def test_bad_tables_are_one_line(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Terms.read(write(tmp_path, table))


ASKED = [
    Constraints(("winter garden",)),
    Constraints(("tonight", "cow"), ("the",)),
    Constraints((), ("is", "a")),
    None,
    Constraints(("cow",), ("tonight",), True),
]


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_meet_their_constraints_in_every_batch(translator: Translator, beam: int) -> None:
    lines = lines_of_words(10, seed=4)
    asked = [ASKED[i % len(ASKED)] for i in range(len(lines))]
    free = translator.translate(lines, beam=beam)
    assert sum(bool(a.unmet(t.text)) for a, t in zip(asked, free, strict=True) if a) > 4
    alone = [
        translator.translate([line], constraints=[own], beam=beam, alignments=True)[0]
        for line, own in zip(lines, asked, strict=True)
    ]
    for own, plain, translation in zip(asked, free, alone, strict=True):
        if own is None:
            assert (translation.text, translation.unmet) == (plain.text, None)
        else:
            assert own.unmet(translation.text) == translation.unmet == []
            assert translation.as_dict()["unmet"] == []
    together = translator.translate(lines, constraints=asked, beam=beam, alignments=True, workers=2)
    assert [(t.text, t.alignment) for t in together] == [(t.text, t.alignment) for t in alone]
    assert [t.score for t in together] == pytest.approx([t.score for t in alone], abs=1e-4)


def test_every_entry_of_an_n_best_list_meets_them(translator: Translator) -> None:
    own = {"include": ["dark"], "exclude": ["cow", "a"]}
    [best] = translator.translate(["the old man sleeps"], constraints=[own], beam=4, n_best=4)
    assert len(best.n_best) > 1
    assert all(t.unmet == [] and "dark" in words_of(t.text) for t in best.n_best)
    scored = translator.with_options(beam=4).score(["the old man sleeps"], [best.text])
    if scored[0].tokens == best.tokens:
        assert scored[0].score == pytest.approx(best.score, abs=1e-4)


def test_constraints_with_a_forced_prefix(translator: Translator) -> None:
    [best] = translator.translate(["we sleep"], prefixes=["the winter"], constraints=[{"include": ["winter garden"]}])
    assert best.text.startswith("the winter") and best.unmet == []
    with pytest.raises(DataError, match=r"constraints:1: the forced prefix contains a forbidden phrase"):
        translator.translate(["we"], prefixes=["the winter is"], constraints=[{"exclude": ["the"]}])


def test_what_the_search_cannot_meet_is_flagged_and_counted(translator: Translator) -> None:
    from phraseloom.decoding.translation import TranslationReport

    own = {"include": ["winter", "garden", "tonight", "sleeps"]}
    report = TranslationReport()
    found = translator.translate(["we", "we"], constraints=[None, own], max_length={"constant": 9}, report=report)
    assert found[0].unmet is None and found[1].unmet
    assert set(found[1].unmet) < set(own["include"])
    assert any("1 of 2 lines do not meet their constraints" in text for text in report.warnings(9))


def test_terms_in_translations(translator: Translator, tmp_path: Path) -> None:
    terms = translator.read_terms(write(tmp_path, "old man\twinter\nman\ttonight\n"))
    first, second = translator.translate(["the old man sleeps", "a man, a cow"], terms=terms, beam=2)
    assert first.unmet == second.unmet == []
    assert "winter" in words_of(first.text) and "tonight" in words_of(second.text)


def test_terms_are_matched_in_the_raw_line_also_after_tags(translator: Translator, tmp_path: Path) -> None:
    from dataclasses import replace

    from phraseloom.decoding.batching import Piece
    from phraseloom.decoding.constrained_lines import with_constraints

    tokenizer, line = translator.tokenizer, "the Q\u4e2d sleeps"
    terms = translator.read_terms(write(tmp_path, "Q\u4e2d\twinter\n"))
    piece = Piece(0, tokenizer.source.encode(line))
    assert "\u4e2d" not in tokenizer.source.decode(piece.ids)
    for own in (piece, replace(piece, ids=[5, *piece.ids], tags=1)):
        _, [read] = with_constraints(tokenizer, [line], [[own]], None, terms, translator.config)
        assert read.include == ("winter",)


def of_text(text: TextConfig, lines: Sequence[str] = LINES) -> Translator:
    """A random model for English of these text options."""
    subwords = learn_subwords([*lines, "the man 's cow ."], SentencepieceConfig(size=60, byte_fallback=False))
    torch.manual_seed(3)
    size = len(subwords.vocabulary)
    model = build_model(ModelConfig.model_validate({"preset": "tiny"}), size, size)
    return Translator(model, Tokenizer(text, "en", "en", subwords, subwords)).with_options(
        max_length={"factor": 1.0, "constant": 6}, beam=2
    )


COMPOSED, DECOMPOSED = (unicodedata.normalize(form, "zwei Büros") for form in ("NFC", "NFD"))
CASES = {
    "quotes": (TextConfig(normalize="moses", tokenize="moses"), LINES, "man's", "man’s"),
    "composed": (TextConfig(), LINES, COMPOSED, DECOMPOSED),
    "decomposed": (TextConfig(), [unicodedata.normalize("NFD", line) for line in LINES], DECOMPOSED, COMPOSED),
}


@pytest.mark.parametrize("case", CASES)
def test_phrases_count_in_the_characters_of_the_model(case: str, tmp_path: Path) -> None:
    """Typographic quotes that the text is normalised to, and composed and decomposed letters."""
    text, lines, usual, other = CASES[case]
    model = of_text(text, lines)
    for phrase in (usual, other):
        [required] = model.translate(["the cow"], constraints=[{"include": [phrase]}])
        assert required.unmet == [] and canonical(usual) in canonical(required.text)
        with pytest.raises(DataError, match="the forced prefix contains a forbidden phrase"):
            model.translate(["the cow"], constraints=[{"exclude": [phrase]}], prefixes=[f"the {usual} cow is"])
        for line in (usual, other):
            for terms in (Terms.of({phrase: "winter"}), model.read_terms(write(tmp_path, f"{phrase}\twinter\n"))):
                [translation] = model.translate([f"the {line} cow"], terms=terms)
                assert translation.unmet == [] and "winter" in words_of(translation.text)
        [translation] = model.translate(["the cow"], terms=model.read_terms(write(tmp_path, f"cow\t{phrase}\n")))
        assert translation.unmet == [] and canonical(usual) in canonical(translation.text)
    same = Terms.of({usual: "cow", "old": "dark", other: "winter"}) if case == "quotes" else None
    if same is not None:
        with pytest.raises(DataError, match=r"^terms:3: \"man's\" has another target in line 1; keep one of the two"):
            model.translate(["we"], terms=same)


def test_phrases_of_a_model_of_lower_case() -> None:
    model = of_text(TextConfig(lowercase=True))
    with pytest.raises(DataError, match="the forced prefix contains a forbidden phrase"):
        model.translate(["we"], constraints=[{"exclude": ["Cow"]}], prefixes=["the cow is small"])
    assert "cow" in words_of(model.translate(["we"], constraints=[{"include": ["Cow"]}])[0].text)
    terms = Terms.of({"US": "winter", "we": "Tonight"})  # the case of the line still counts
    first, second = model.translate(["tell us", "We tell"], terms=terms)
    assert "winter" not in words_of(first.text) and second.unmet == []
    assert "tonight" in words_of(second.text)


def test_requests_that_cannot_be_met_are_refused(translator: Translator, tmp_path: Path) -> None:
    cases = [
        (
            {"include": ["xylophon Q"]},
            {},
            r"constraints:2: the vocabulary of this model cannot spell 'xylophon Q'; remove",
        ),
        (
            {"include": ["winter garden"]},
            {"max_length": {"constant": 3}},
            r":2: 'winter garden' has \d+ subwords, but .* 3;",
        ),
    ]
    for own, options, message in cases:
        with pytest.raises(DataError, match=message):
            translator.translate(["a", "b"], constraints=[None, own], **options)
    with pytest.raises(DataError, match=r"constraints:1: the line is blank, and so is its translation"):
        translator.translate([" "], constraints=[{"include": ["cow"]}])
    assert translator.translate([" "], constraints=[{"exclude": ["cow"]}])[0].blank
    with pytest.raises(DataError, match=r"constraints:1: a line with constraints cannot be split"):
        translator.translate(["a cow " * 9], constraints=[{"exclude": ["a"]}], long_lines="split", max_input_tokens=5)
    with pytest.raises(UsageError, match="2 lines, but constraints for 1"):
        translator.translate(["a", "b"], constraints=[None])
    with pytest.raises(UsageError, match="constraints do not go with unknown: replace"):
        translator.translate(["a"], constraints=[{"exclude": ["a"]}], unknown="replace")
    with pytest.raises(DataError, match=r"terms.tsv:2: the vocabulary of this model cannot spell 'Q'"):
        translator.read_terms(write(tmp_path, "a\tcow\nb\tQ\n"))
    terms = translator.read_terms(write(tmp_path, "man\tthe cow\n"))
    with pytest.raises(
        DataError, match=r"terms.tsv:1: 'the cow' is required in line 1 and contains 'cow', .*forbidden"
    ):
        translator.translate(["a man"], constraints=[{"exclude": ["cow"]}], terms=terms)


def test_errors_about_terms_name_the_line_of_the_whole_input(translator: Translator, tmp_path: Path) -> None:
    terms = translator.read_terms(write(tmp_path, "cow\tdark\nman\twinter garden\n"))
    lines = ["we", "a man"]
    with pytest.raises(DataError, match=r"terms.tsv:2: 'winter garden' has \d+ subwords, but .* of line 42 at most 3"):
        translator.translate(lines, terms=terms, numbers=[40, 41], max_length={"constant": 3})
    options = {"long_lines": "split", "max_input_tokens": 5}
    with pytest.raises(DataError, match=r"terms.tsv:2: line 42 has this term and cannot be split"):
        translator.translate(["we", "a man " * 9], terms=terms, numbers=[40, 41], **options)


def test_errors_name_the_line_also_with_seeds(translator: Translator) -> None:
    """Seeds without numbers are for samples; they do not number the lines."""
    terms = Terms.of({"cow": "dark", "man": "winter garden"})
    with pytest.raises(DataError, match=r"^terms:2: 'winter garden' has \d+ subwords, but .* of line 2 at most 3"):
        translator.translate(["we", "a man"], terms=terms, seeds=[1, 1], max_length={"constant": 3})


def test_a_table_for_each_line(translator: Translator) -> None:
    first, second = Terms.of({"cow": "dark"}), Terms.of({"cow": "winter garden"})
    lines = ["a cow", "a cow", "a cow"]
    expected = [*translator.translate(["a cow"], terms=first), *translator.translate(["a cow"], terms=second)]
    assert translator.translate(lines, terms=[first, second, None]) == [*expected, *translator.translate(["a cow"])]
    with pytest.raises(UsageError, match="3 lines, but tables of terms for 1"):
        translator.translate(lines, terms=[first])


def test_models_that_write_segments_are_refused(translator: Translator) -> None:
    class Segmental:
        writes = "segments"

    from phraseloom.decoding.constrained_lines import check_model

    with pytest.raises(UsageError, match=r"need a model that writes tokens; this one writes segments \(NPMT\)"):
        check_model(Segmental(), translator.config)


def test_the_command(command: Command, model_folder: Path, tmp_path: Path) -> None:
    rows = ['{"include": ["winter garden"]}', "", '{"exclude": ["the", "a"]}']
    (tmp_path / "own.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "terms.tsv").write_text("cow\tdark\n")
    options = ("translate", model_folder, "--output", "json", "--constraints", "own.jsonl", "--terms", "terms.tsv")
    done = command(*options, stdin=b"we sleep\na cow\nthe man\n")
    assert done.code == 0, done.err
    first, second, third = map(json.loads, done.out.splitlines())
    assert "winter garden" in first["text"] and "dark" in second["text"].split()
    assert first["unmet"] == second["unmet"] == third["unmet"] == []
    assert not {"the", "a"} & set(words_of(third["text"]))
    plain = command("translate", model_folder, "--output", "json", stdin=b"we sleep\n")
    assert "unmet" not in json.loads(plain.out)
    for text, message in (
        ("\n{\n\n", "own.jsonl:2: not JSON"),
        ("\n", "own.jsonl: fewer constraints than input lines (1)"),
        ("\n\n\n\n", "own.jsonl:4: more constraints than input lines (3)"),
        ('\n{"include": ["Q"]}\n\n', "own.jsonl:2: the vocabulary of this model cannot spell 'Q'"),
    ):
        (tmp_path / "own.jsonl").write_text(text)
        done = command(*options, stdin=b"we sleep\na cow\nthe man\n")
        assert done.code == 1 and message in done.err and done.err.count("\n") == 1, done.err
    (tmp_path / "terms.tsv").write_text("cow\n")
    done = command(*options, stdin=b"a cow\n")
    assert done.code == 1 and "terms.tsv:1: a row of 1 columns" in done.err


def test_terms_are_the_longest_with_the_capitals_of_the_line_first() -> None:
    """The same as a look at every size of every place, on random lines of few words."""
    draw = random.Random(7)

    def some(longest: int) -> str:
        return " ".join(draw.choice(["a", "A", "b", "c", ","]) for _ in range(draw.randint(1, longest)))

    for _ in range(200):
        terms = Terms.of({some(4): f"t{n}" for n in range(6)})
        line = some(12)
        words = line.split()
        expected, start = [], 0
        while start < len(words):
            for size in range(len(words) - start, 0, -1):
                own = tuple(words[start : start + size])
                term = terms.terms.get(own) or terms.terms.get(tuple(word.lower() for word in own))
                if term is not None:
                    expected.append(term)
                    break
            else:
                size = 1
            start += size
        assert terms.matches(line) == list(dict.fromkeys(expected))
