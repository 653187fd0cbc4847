"""`translate --show`: the phrase alignment of a translation as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.cli.conftest import Command

from phraseloom.cli.show import ShownPair, show
from phraseloom.decoding.translation import PhraseLink, Translation

IDIOM = ShownPair(
    ("en", "de"),
    ["This", "man", "kicks", "the", "bucket", "."],
    ["Dieser", "Mann", "gibt", "den", "Löffel", "ab", "."],
    "Dieser Mann gibt den Löffel ab .",
    [
        PhraseLink((0, 1), (0, 1), 0.75),
        PhraseLink((1, 2), (1, 2), 0.25),
        PhraseLink((2, 5), (2, 5), 0.5),
        PhraseLink((5, 6), (6, 7), 1.0),
    ],
)
PICTURE = """\
de               Dieser Mann gibt den Löffel ab .
en               This man kicks the bucket .
Dieser           This                          75 % ██████
Mann                  man                      25 % ██
gibt den Löffel           kicks the bucket     50 % ████
ab               –
.                                          .  100 % ████████

"""


def test_the_picture() -> None:
    assert show(IDIOM, Console(width=80)) == PICTURE


def test_a_narrow_terminal_gets_blocks_of_the_source() -> None:
    text = show(IDIOM, Console(width=48))
    assert text.count("\nen ") == 2
    first, second = text.split("\n\n")[:2]
    assert "\ngibt den Löffel           kicks " in first and "\ngibt den Löffel  the bucket " in second


@pytest.mark.parametrize("width", [48, 60, 81, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    words = ["我们", "踢", "x" * 90, "a", "bucket"] * 7
    links = [PhraseLink((n, min(n + 3, 35)), (n, n + 1), 0.3) for n in range(35)]
    text = show(ShownPair(("zh", "en"), words, words, " ".join(words), links), Console(width=width))
    assert max(map(cell_len, text.split("\n"))) <= width


def test_a_span_of_wide_characters_is_below_its_place() -> None:
    pair = ShownPair(("zh", "de"), ["我们", "踢", "桶"], ["tot"], "tot", [PhraseLink((1, 3), (0, 1), 1.0)])
    _, source, row, *_ = show(pair, Console(width=60)).split("\n")
    assert cell_len(source[: source.index("踢")]) == cell_len(row[: row.index("踢")])


def test_emoji_of_several_characters_are_whole() -> None:
    words = ["I", "❤️", "❤️", "👨‍👩‍👧", "cats"]
    links = [PhraseLink((n, n + 1), (n, n + 1), 1.0) for n in range(5)]
    lines = show(ShownPair(("en", "en"), words, words, " ".join(words), links), Console(width=80)).split("\n")
    assert [line.split()[1] for line in lines[2:7]] == words


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in show(IDIOM, Console(width=80))
    assert "\x1b" in show(IDIOM, Console(width=80, force_terminal=True, color_system="standard"))


def test_text_cannot_control_the_terminal() -> None:
    translation = Translation("a\x1b[2J", 0.0, 0.0, [], ["a\x1b[2J"], phrases=[PhraseLink((0, 1), (0, 1), 1.0)])
    text = show(ShownPair.of(translation, ["\x07b"], ("en", "de")), Console(width=80))
    assert "\x1b" not in text and "\x07" not in text and "a\\x1b[2J" in text


def test_markup_of_rich_is_plain_text() -> None:
    pair = ShownPair(("en", "de"), ["[red]x[/red]"], ["[b]"], "[b]", [PhraseLink((0, 1), (0, 1), 1.0)])
    assert "[red]x[/red]" in show(pair, Console(width=80)) and "[b]" in show(pair, Console(width=80))


def test_the_command(command: Command, project: Path) -> None:
    plain = command("translate", project / "run", stdin=b"a red dog\n\na cat\n").out.split("\n")
    done = command("translate", project / "run", "--show", stdin=b"a red dog\n\na cat\n")
    assert done.code == 0, done.err
    first, blank, last, end = done.out.split("\n\n")
    assert not end and blank == "(blank line)" and "\x1b" not in done.out
    for block, source, target in ((first, "a red dog", plain[0]), (last, "a cat", plain[2])):
        lines = block.split("\n")
        assert lines[0].split()[0] == "de" and lines[0].split()[1:] == target.split()[: len(lines[0].split()) - 1]
        assert next(line for line in lines if line.startswith("en ")).split()[1:] == source.split()
        assert " % " in block


def test_show_is_text(command: Command, project: Path) -> None:
    done = command("translate", project / "run", "--show", "--output", "json", stdin=b"a\n")
    assert done.code == 2 and "--show draws text" in done.err
