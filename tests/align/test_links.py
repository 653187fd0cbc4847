"""Links as text: what goes in comes out, three gold formats, and errors that name file, line and field."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phraseloom.align.links import Gold, Links, format_links, parse_lines, parse_links, read_gold, read_links
from phraseloom.errors import DataError, FileProblem, UsageError

LINKS = st.frozensets(st.tuples(st.integers(0, 999), st.integers(0, 999)))
PAIR = [("a b c", "d e"), ("f", "g")]


def links(*pairs: tuple[int, int]) -> Links:
    return frozenset(pairs)


@pytest.fixture
def gold(tmp_path: Path) -> Any:
    """`gold("0-0\\n", base=1)`: what `read_gold` makes of that text."""

    def read(text: str, **options: Any) -> list[Gold]:
        (tmp_path / "gold").write_bytes(text.encode())
        return read_gold(tmp_path / "gold", **options)

    return read


# --- Pharaoh ----------------------------------------------------------------------------------------------------------


@given(found=LINKS)
def test_there_and_back(found: Links) -> None:
    assert parse_links(format_links(found)) == found
    assert parse_links(format_links(found), reverse=True) == {(t, s) for s, t in found}


def test_text_of_links() -> None:
    assert format_links(links((10, 0), (2, 11), (2, 3))) == "2-3 2-11 10-0"
    assert parse_links(" 2-3   2-3\t10-0 ") == links((2, 3), (10, 0))
    assert format_links(links()) == "" and parse_links("") == parse_links("  ") == links()


@pytest.mark.parametrize(
    "field", ["3", "3-", "-3", "a-1", "1-2-3", "1:2", "-1-2", "1.0-2", "٣-1", "1–2", "3P4", "1-2,", "12345678-1", "1?2"]
)
def test_bad_fields(field: str) -> None:
    with pytest.raises(DataError) as raised:
        parse_links(f"0-0 {field}", file="x.links", line=7)
    assert str(raised.value).startswith(
        f"x.links:7: field 2, '{field}', is not a link i-j; write word numbers, such as 0-2"
    )


def test_possible_links_have_no_place_in_pharaoh() -> None:
    with pytest.raises(DataError, match="field 1, '3p4', is not a link i-j; only the format talp has possible links"):
        parse_links("3p4")


def test_files_plain_and_packed(tmp_path: Path) -> None:
    text = b"0-0 2-1\r\n\n1-1"
    for name, data in {"a": text, "a.gz": gzip.compress(text), "a.xz": lzma.compress(text)}.items():
        (tmp_path / name).write_bytes(data)
        assert read_links(tmp_path / name) == [links((0, 0), (2, 1)), links(), links((1, 1))]
    with pytest.raises(FileProblem, match="not found"):
        read_links(tmp_path / "b")


def test_links_are_checked_against_the_text() -> None:
    assert parse_lines(["2-1", "0-0"], file="x", lines=PAIR) == [links((2, 1)), links((0, 0))]
    for rows, message in {
        ("2-1",): "x: 1 line of links, but the text has 2",
        ("2-1", "", ""): "x: 3 lines of links, but the text has 2",
        ("3-1", ""): r"x:1: 3-1: the source has 3 words, 0 to 2; does the file count from 1 \(--base 1\)\?",
        ("2-0", "0-1"): "x:2: 0-1: the target has 1 word, 0 to 0; are these the links of this text?",
        ("2-2", ""): r"x:1: 2-2: the target has 2 words, 0 to 1; does the file count from 1 \(--base 1\)\?$",
        ("0-2", ""): r"x:1: 0-2: the target has 2 words, 0 to 1; does the target word come first .use --reverse.\?",
        ("1-2", "0-0"): r"from 1 \(--base 1\)\? or does the target word come first .use --reverse.\?",
        ("9-9", ""): "x:1: 9-9: the source has 3 words, 0 to 2; are these the links of this text?",
    }.items():
        with pytest.raises(DataError, match=message):
            parse_lines(rows, file="x", lines=PAIR)
    with pytest.raises(DataError, match="x:1: 0-0: the target has 0 words; are these"):
        parse_lines(["0-0"], file="x", lines=[("a", " ")])


def test_words_are_between_blanks() -> None:
    """A no-break space or an ideographic space is a word or a part of one."""
    pair = ("a\u00a0b\u00a0c  \u3000 d ", "e")
    assert parse_lines(["2-0"], file="x", lines=[pair]) == [links((2, 0))]
    with pytest.raises(DataError, match="the source has 3 words"):
        parse_lines(["3-0"], file="x", lines=[pair])


# --- gold links -------------------------------------------------------------------------------------------------------


def test_sure_links_are_possible() -> None:
    gold = Gold(links((0, 0)), links((1, 1)))
    assert gold.possible == links((0, 0), (1, 1)) and gold.sure == links((0, 0))
    assert Gold(sure=links((0, 0))).possible == links((0, 0))
    assert Gold().possible == links()


SAME = [Gold(links((0, 1)), links((0, 1), (2, 0))), Gold(), Gold(links((0, 0)))]


@pytest.mark.parametrize(
    ("format", "base", "reverse", "text"),
    [
        ("talp", 0, False, "0-1 2p0\n\n0-0\n"),
        ("talp", 0, False, "2p0 0p1 0-1\n \n0-0"),
        ("talp", 1, False, "1-2 3p1\n\n1-1\n"),
        ("talp", 0, True, "1-0 0p2\n\n0-0\n"),
        ("talp", 1, True, "2-1 1p3\n\n1-1\n"),
        ("naacl", 0, False, "1 0 1 S\n1 2 0 P\n3 0 0 S\n"),
        ("naacl", 0, False, "3 0 0\n\n1 2 0 P\n1\t0\t1\n1 0 1 P\n"),
        ("naacl", 1, False, "0001 1 2 S\n0001 3 1 P\n0003 1 1 S\n"),
        ("naacl", 1, True, "1 2 1 S\n1 1 3 P\n3 1 1 S\n"),
    ],
)
def test_one_truth_in_many_forms(gold: Any, format: str, base: int, reverse: bool, text: str) -> None:
    assert gold(text, format=format, base=base, reverse=reverse) == SAME
    assert gold(text, base=base, reverse=reverse) == SAME
    lines = [("a b c", "d e"), ("", ""), ("f", "g")]
    assert gold(text, base=base, reverse=reverse, lines=lines) == SAME


def test_pharaoh_is_all_sure(gold: Any) -> None:
    assert gold("0-1 2-0\n\n") == gold("0-1 2-0\n\n", format="pharaoh") == [Gold(links((0, 1), (2, 0))), Gold()]
    with pytest.raises(DataError, match=r"gold:2: field 1, '1p1', is not a link i-j; only the format talp"):
        gold("0-1\n1p1\n", format="pharaoh")
    assert gold("0-1\n1p1\n")[1] == Gold(possible=links((1, 1)))


def test_rows_of_a_text(gold: Any) -> None:
    """Sentences at the end without rows are known from the text only."""
    assert gold("2 0 0 S\n") == [Gold(), Gold(links((0, 0)))]
    assert gold("1 0 0 S\n", lines=PAIR) == [Gold(links((0, 0))), Gold()]
    assert gold("\n", format="naacl", lines=PAIR) == [Gold(), Gold()]
    assert gold("\n", format="naacl") == []


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "gold: unknown format: the file has no link; name it with --format"),
        ("\n \n", {}, "gold: unknown format: the file has no link"),
        ("\nx y\n", {}, "gold:2: unknown format: 'x' begins neither links"),
        ("<s snum=1> 1 1\n", {}, "gold:1: unknown format: '<s' begins neither"),
        ("0-0\n0-0 1_1\n", {}, "gold:2: field 2, '1_1', is not a link i-j; write word numbers, such as 0-2"),
        (
            "0p0\n0-0 1_1\n",
            {},
            r"gold:2: field 2, '1_1', is not a link i-j \(sure\) or ipj \(possible\); write word numbers, such",
        ),
        (
            "0-0\n",
            {"base": 1},
            r"gold:1: 0-0: index 0, but words count from 1; does the file count from 0 \(--base 0\)",
        ),
        ("1-1 2p0\n", {"base": 1, "reverse": True}, "gold:1: 2p0: index 0, but"),
        ("0-1\n", {"lines": PAIR}, "gold: 1 line of links, but the text has 2"),
        ("4-1\n\n", {"lines": PAIR, "base": 1}, "gold:1: 4-1: the source has 3 words, 1 to 3; are these"),
        ("3p2\n\n", {"lines": PAIR}, "gold:1: 3p2: the source has 3 words, 0 to 2; does the file count from 1"),
        (
            "2-1\n\n",
            {"lines": PAIR, "reverse": True},
            "gold:1: 2-1: the target has 2 words, 0 to 1; does the file count from 1 .* or does the source word come first "
            ".without --reverse",
        ),
        ("1 0 0 S\n1 0\n", {}, r"gold:2: the row has 2 fields; write SENTENCE SOURCE TARGET \[S|P\], such as 1 0 2 S"),
        ("1 0 0 S 0.9\n", {}, "gold:1: the row has 5 fields; write"),
        ("1 0 0 S\n1 0-0\n", {}, "gold:2: the row has 2 fields"),
        ("1 0 x S\n", {}, "gold:1: 'x' is not a number; write"),
        ("1 0 0 Q\n", {}, r"gold:1: 'Q' is neither S \(sure\) nor P \(possible\); write"),
        ("0 0 0 S\n", {}, "gold:1: sentence 0: sentences count from 1"),
        ("1 0 0\n3 0 0\n", {"lines": PAIR}, "gold:2: sentence 3: the text has 2 sentences"),
        ("2 1 0 S\n", {"lines": PAIR}, "gold:1: 1 0: the source has 1 word, 0 to 0; are these"),
        ("1 0 0 S\n1 0 1 S\n", {"base": 1}, "gold:1: 0 0: index 0, but words count from 1"),
        ("1 0 0 S\n", {"format": "talp"}, r"gold:1: field 1, '1', is not a link i-j \(sure\) or ipj"),
        ("0-0\n", {"format": "naacl"}, "gold:1: the row has 1 field"),
    ],
)
def test_what_cannot_be_read(gold: Any, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        gold(text, **options)


def test_wrong_options(gold: Any) -> None:
    with pytest.raises(UsageError, match="no alignment format 'giza'; choose from auto, pharaoh, talp, naacl"):
        gold("0-0\n", format="giza")
    with pytest.raises(UsageError, match="base 2: words count from 0 or from 1"):
        gold("0-0\n", base=2)


# --- real gold links --------------------------------------------------------------------------------------------------

# name: (end of the file, base, source, target, sentences, sure, possible)
REAL = {
    "enfr": ("gold1.gz", 1, "en", "fr", 224, 2096, 8974),
    "roen": ("gold1.gz", 1, "ro", "en", 248, 6198, 6198),
    "zhen": ("gold1.gz", 1, "zh", "en", 225, 5424, 5511),
    "jaen": ("gold1.gz", 1, "ja", "en", 291, 6776, 6776),
    "encs": ("gold0.gz", 0, "en", "cs", 1250, 22497, 22497),
    "ensv": ("gold0.gz", 0, "en", "sv", 582, 11795, 11795),
}


@pytest.mark.parametrize("name", REAL)
def test_real_gold_links_fit_their_text(name: str, shared: Path) -> None:
    end, base, *languages, sentences, sure, possible = REAL[name]
    folder = shared / "data" / "gold_alignments"
    texts = [gzip.decompress((folder / f"{name}.{n}.gz").read_bytes()).decode().split("\n")[:-1] for n in languages]
    lines = list(zip(*texts, strict=True))
    gold = read_gold(folder / f"{name}.{end}", base=base, lines=lines)
    assert (len(gold), sum(len(g.sure) for g in gold), sum(len(g.possible) for g in gold)) == (
        sentences,
        sure,
        possible,
    )
    for wrong in ({"base": 1 - base}, {"base": base, "reverse": True}):
        with pytest.raises(DataError):
            read_gold(folder / f"{name}.{end}", lines=lines, **wrong)


def test_rows_and_lines_of_the_same_links(shared: Path) -> None:
    """One point of deen is outside its sentence, and the error says where."""
    folder = shared / "data" / "gold_alignments"
    assert read_gold(folder / "deen.ref.wa.gz") == read_gold(folder / "deen.gold0.gz")
    sides = [gzip.decompress((folder / f"deen.{n}.gz").read_bytes()).decode().split("\n")[:-1] for n in ("de", "en")]
    for file, message in {
        "deen.ref.wa.gz": r"deen.ref.wa.gz:776: 12 16: the target has 13 words, 0 to 12; are these the links",
        "deen.gold0.gz": r"deen.gold0.gz:63: 12-16: the target has 13 words",
    }.items():
        with pytest.raises(DataError, match=message):
            read_gold(folder / file, lines=list(zip(*sides, strict=True)))
