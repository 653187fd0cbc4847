"""link-parser as child processes: every line keeps its place, whatever the program or the line does."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from phraseloom.errors import FileProblem, PhraseloomError, UsageError
from phraseloom.phrases.parser import MAX_BYTES, RUN, LinkParser, clean, split_line
from phraseloom.phrases.trees import parse_tree

FAKE = """\
import sys, time
print("verbosity set to 0")
for line in sys.stdin:
    words = line.split()
    if not words:
        sys.exit("asked for nothing")
    if line[0] == "!":
        print("width set to", line[1:].partition("=")[2].strip())
    elif "hang" in words:
        time.sleep(3600)
    elif "spin" in words:
        while True:
            pass
    elif "die" in words:
        sys.exit(1)
    elif "flood" in words:
        while True:
            print("(S " + "x" * 1000)
    elif "nonsense" in words:
        print("width set to\\n\\x00\\x01)))\\n(((((")
        sys.stdout.buffer.write(b"\\xff\\xfe\\n")
    elif "nothing" not in words:
        print("(S (NP " + " ".join(w + ".n" for w in words).replace("(", "{").replace(")", "}") + "))\\n")
    sys.stdout.flush()
"""
BROKEN = {"dead": "import sys; sys.exit(1)", "mute": "import sys; sys.stdin.read()", "babble": "print('hello')"}


def program(folder: Path, code: str) -> str:
    path = folder / "link-parser"
    path.write_bytes(f"#!{sys.executable} -IS\n{code}".encode())
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """A program that speaks link-parser's protocol and does what some words tell it."""
    return program(tmp_path, FAKE)


def expected(line: str) -> str:
    return f"(S (NP {line}))"


@pytest.mark.parametrize("processes", [1, 3])
def test_lines_keep_their_place_whatever_happens(fake: str, processes: int) -> None:
    lines = [f"line {i}" for i in range(2 * RUN + 5)]
    bad = {3: "we hang here", 4: "we die here", 20: "we flood it", 21: "say nothing", 30: "", len(lines) - 1: "die"}
    for place, line in bad.items():
        lines[place] = line
    with LinkParser(program=fake, processes=processes, patience=1.0) as parser:
        assert parser.parse(lines) == ["" if i in bad else expected(line) for i, line in enumerate(lines)]
        assert parser.parse(["one more", "die", "and another"]) == [expected("one more"), "", expected("and another")]
        assert parser.counts == {"parsed": len(lines) - 6 + 2, "lost": 5, "no parse": 1, "blank": 1}


def test_nonsense_of_the_program_gives_a_flat_tree(fake: str) -> None:
    with LinkParser(program=fake, processes=1) as parser:
        assert parser.parse(["a", "some nonsense here", "b"]) == [
            expected("a"),
            "(S some nonsense here)",
            expected("b"),
        ]


@pytest.mark.skipif(sys.platform != "linux", reason="processor time of a child is read on Linux only")
def test_a_program_that_computes_for_ever_is_ended_by_its_processor_time(fake: str) -> None:
    with LinkParser(program=fake, processes=1, seconds=1) as parser:
        parser._seconds = 0.2
        assert parser.parse(["a", "spin", "b"]) == [expected("a"), "", expected("b")]


def test_lines_that_are_not_tried(fake: str) -> None:
    lines = ["w " * 6, "w " * 5, "w" * (MAX_BYTES + 1), "ß" * (MAX_BYTES // 2), "die " * 10_000]
    with LinkParser(program=fake, processes=1, max_words=5) as parser:
        assert [bool(tree) for tree in parser.parse(lines)] == [False, True, False, True, False]
        assert parser.counts == {"too long": 3, "parsed": 2}


def test_a_long_line_is_parsed_in_parts(fake: str) -> None:
    lines = ["b", "a b c . d e, f g h", "a nothing . d", "nothing", "w w w w w w", "x y z v w u. a"]
    with LinkParser(program=fake, processes=1, max_words=5) as parser:
        found = parser.parse(lines)
        assert found[1] == "(S (S (NP a b c .)) (S (NP d e, f g h)))"
        assert found[2] == "(S (S a nothing .) (S (NP d)))"  # no parse of the whole; a part of it has one
        assert found[3] == found[4] == ""
        assert found[5] == "(S (S x y z v w u.) (S (NP a)))"  # nowhere to cut in the first five words
        assert [parse_tree(t).leaves for t in found if t] == [
            line.split() for line, t in zip(lines, found, strict=True) if t
        ]
        assert parser.counts == {"parsed": 4, "no parse": 1, "too long": 1}
        assert (parser.in_parts, parser.flat_parts, parser.first_flat) == (3, 2, (4, "no parse"))


def test_parts_are_the_words_of_the_line_in_their_order() -> None:
    assert split_line("a b c", 5) == ["a b c"]
    assert split_line("a b , c d . e f , g", 7) == ["a b , c d .", "e f , g"]
    assert split_line("a, b c d e", 3) == ["a,", "b c d e"]
    assert split_line('he said "no." and left, then ran', 4) == ['he said "no."', "and left, then ran"]
    for line in ("w " * 50, "w, " * 50, ". . . .", "a b c d e f."):
        for limit in (1, 3, 7):
            assert " ".join(split_line(line, limit)).split() == line.split()


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("!exit", "exit"),
        (" ! !exit", "exit"),
        ("% note", "note"),
        ("a\tb\x0bc\x00d\x1b[1m e\u2028f\x85g", "a b c d [1m e f g"),
        ("wait! 5%", "wait! 5%"),
        ("!%!", ""),
        ("été \ud800", "été"),
    ],
)
def test_no_line_is_a_command_or_comment(line: str, sent: str) -> None:
    assert clean(line) == sent


def test_a_child_is_replaced_now_and_then(fake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phraseloom.phrases.parser.SENTENCES_PER_CHILD", RUN + 1)
    with LinkParser(program=fake, processes=1) as parser:
        before = parser.parse(["a"]), set(parser._children)
        assert parser.parse(["a"] * 3 * RUN) == [expected("a")] * 3 * RUN
        assert before[0] == [expected("a")]
        assert not before[1] & parser._children


@pytest.mark.parametrize("kind", BROKEN)
def test_a_program_that_is_none(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phraseloom.phrases.parser.START_SECONDS", 2.0)
    with (
        LinkParser(program=program(tmp_path, BROKEN[kind]), processes=2) as parser,
        pytest.raises(PhraseloomError, match="does not answer"),
    ):
        parser.parse(["a", "b"])


def test_a_missing_program_and_wrong_options(tmp_path: Path, fake: str) -> None:
    with pytest.raises(FileProblem, match="is not installed; install link-grammar"):
        LinkParser(program=str(tmp_path / "none"))
    for name in ("seconds", "max_words", "linkages", "processes"):
        with pytest.raises(UsageError, match=f"{name} is 0"):
            LinkParser(program=fake, **{name: 0})


def test_closing_ends_the_children_at_once(fake: str) -> None:
    parser = LinkParser(program=fake, processes=2)
    parser.parse(["a", "b"] * RUN)
    children = [child._process for child in parser._children]
    assert children
    parser.close()
    assert all(child.poll() is not None for child in children)


real = pytest.mark.skipif(shutil.which("link-parser") is None, reason="needs link-grammar")

AWKWARD = [
    "The river's bank isn't wide.",
    "!exit",
    "!constituents=0",
    "% a comment",
    "* a star",
    "A man\truns\x01 .",
    "",
    "  \u2028 ",
    "Die Straße führt über Köln, 它们跑。",
    "(((" * 30,
    "-LRB- \\/ [x] {y} a_b 10:30am <b>&amp;",
    "width set to 20001",
    "exit",
    "quit",
    "A cat \ufffd sits.",
    "dog, " * 59,
    "x" * 1900,
    "the old man and the dog of " * 8,
    "no " * 10_000,
    "A cat sits.",
]


@real
def test_real_trees_have_the_leaves_of_their_lines_whatever_the_line() -> None:
    with LinkParser(processes=2, seconds=1) as parser:
        trees = parser.parse(AWKWARD)
    assert len(trees) == len(AWKWARD)
    for line, tree in zip(AWKWARD, trees, strict=True):
        assert not tree or "".join(parse_tree(tree).leaves) == "".join(line.split()), line
    assert trees[-1] == "(S (NP A cat) (VP sits) .)"
    assert trees[0] and trees[5] and not trees[6] and not trees[7] and not trees[-2]


@real
def test_real_trees_do_not_depend_on_the_processes_or_the_neighbours() -> None:
    lines = ["Two young dogs play with a red ball in the park.", "A man who wears a hat reads.", "Girl of the of."] * 8
    with LinkParser(processes=1) as one, LinkParser(processes=3) as three:
        trees = one.parse(lines)
        assert trees == three.parse(lines) == three.parse(lines[::-1])[::-1] == trees[:3] * 8


@real
def test_a_real_tree_is_plausible() -> None:
    with LinkParser(processes=1) as parser:
        (tree,) = parser.parse(["The dog of my neighbour sleeps in the garden."])
    assert "(NP the garden)" in tree
    assert "(NP The dog" in tree
    assert tree.endswith(" .)")
