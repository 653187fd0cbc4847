"""Word alignments by other programs: fast_align (Dyer et al. 2013), eflomal (Östling and Tiedemann 2016).

A program reads each sentence pair as a line `1 2 3 ||| 4 5` of word numbers, so that nothing in a text (`|||`, tabs, blanks and
line ends other than ours) is taken for something else, and so that lower and upper case differ unless `lowercase` is asked for,
also with eflomal, which lowercases. Pairs with a blank side, at which fast_align stops, or with a very long one are not given
to it and have no links. The programs write forward and backward links as `symmetrize.py` has them.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from phraseloom.align.ibm import DIRECTIONS, BitextCounts, split
from phraseloom.align.links import Links, parse_links, symmetrize
from phraseloom.errors import DataError, FileProblem, PhraseloomError, UsageError, plural
from phraseloom.files import disk
from phraseloom.text.lines import read_lines, write_lines


class Command(NamedTuple):
    """What is called; `output`: the file that its standard output goes to, where that holds the links."""

    arguments: list[str]
    output: Path | None


def _fast_align(program: str, text: Path, links: Mapping[str, Path], options: Sequence[str]) -> list[Command]:
    turned = {"forward": [], "backward": ["-r"]}
    return [Command([program, "-i", str(text), *options, *turned[name]], path) for name, path in links.items()]


def _eflomal(program: str, text: Path, links: Mapping[str, Path], options: Sequence[str]) -> list[Command]:
    flags = {"forward": "-f", "backward": "-r"}
    wanted = [part for name, path in links.items() for part in (flags[name], str(path))]
    return [Command([program, "-i", str(text), *options, *wanted], None)]


@dataclass(frozen=True)
class Program:
    """A program: its file, how it is called, the options it gets where none are given, and how it is installed."""

    file: str
    commands: Callable[[str, Path, Mapping[str, Path], Sequence[str]], list[Command]]
    options: str
    hint: str

    def find(self) -> str:
        """Where it is: on the PATH, or beside the running Python. Raises FileProblem."""
        found = shutil.which(self.file) or shutil.which(self.file, path=str(Path(sys.executable).parent))
        if found is None:
            raise FileProblem(f"the program {self.file} is not installed", hint=self.hint)
        return found


PROGRAMS = {
    "fast_align": Program(
        "fast_align",
        _fast_align,
        "-d -o -v",
        "build it from https://github.com/clab/fast_align and put it on the PATH, or leave out --with",
    ),
    "eflomal": Program("eflomal-align", _eflomal, "", "pip install eflomal, or leave out --with"),
}


@dataclass(frozen=True)
class NumberedText:
    """The pairs that a program reads, in the file `path`; of every pair, also one left out (0, 0), the numbers of words."""

    path: Path
    source_lengths: array[int]
    target_lengths: array[int]
    counted: BitextCounts


def write_numbers(
    pairs: Iterable[tuple[str, str]], path: Path, *, lowercase: bool = False, max_words: int | None = None
) -> NumberedText:
    """Write the (source, target) lines of a text as numbers. Raises DataError where no pair is left."""
    numbers = [defaultdict[str, int](count().__next__) for _ in range(2)]
    lengths = [array("i") for _ in range(2)]
    blank = long = 0

    def lines() -> Iterator[str]:
        nonlocal blank, long
        for pair in pairs:
            words = [split(line, lowercase=lowercase) for line in pair]
            sizes = [len(some) for some in words]
            is_blank, is_long = not all(sizes), max_words is not None and max(sizes) > max_words
            for side, size in zip(lengths, sizes, strict=True):
                side.append(0 if is_blank or is_long else size)
            blank, long = blank + is_blank, long + (is_long and not is_blank)
            if not is_blank and not is_long:
                yield " ||| ".join(
                    " ".join(str(known[word]) for word in some) for known, some in zip(numbers, words, strict=True)
                )

    used = write_lines(path, lines())
    if not used:
        raise DataError(
            "there is no sentence pair to learn from", hint="pairs with a blank or a very long side do not count"
        )
    return NumberedText(path, lengths[0], lengths[1], BitextCounts(used, blank, long))


def run_program(
    program: Program,
    text: NumberedText,
    *,
    directions: Sequence[str] = DIRECTIONS,
    options: str | None = None,
    jobs: int = 1,
) -> dict[str, Path]:
    """Align a text; by direction, the file of links that was written beside it.

    `options`: what the program gets instead of its usual options, as in a shell. With `jobs` 2 both directions are learned at
    once where they are two calls. Raises FileProblem, UsageError; PhraseloomError where the program fails.
    """
    try:
        given = shlex.split(program.options if options is None else options)
    except ValueError as error:
        raise UsageError(f"the options {options!r} of {program.file} cannot be read ({error})") from error
    links = {name: text.path.with_name(f"{text.path.name}.{name}") for name in directions}
    commands = program.commands(program.find(), text.path, links, given)
    for first in range(0, len(commands), jobs):
        running: list[_Running] = []
        try:
            for number, command in enumerate(commands[first : first + jobs], first):
                running.append(_Running(command, text.path.with_name(f"{text.path.name}.{number}.messages")))
            for one in running:
                one.wait(program.file)
        finally:
            for one in running:
                one.end()
    return links


class _Running:
    """A program at work."""

    def __init__(self, command: Command, messages: Path) -> None:
        self._messages = messages
        output = messages.with_suffix(".output") if command.output is None else command.output
        with disk.open(output, "wb") as out, disk.open(messages, "wb") as err:
            try:
                self._process = subprocess.Popen(command.arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            except OSError as error:
                raise FileProblem(f"cannot be run: {error.strerror or error}", file=command.arguments[0]) from error

    def wait(self, name: str) -> None:
        """Wait until it has ended. Raises PhraseloomError where it failed."""
        code = self._process.wait()
        if code:
            said = [line for line in read_lines(self._messages, invalid="replace") if line.strip()]
            raise PhraseloomError(
                f"{name} failed (exit code {code}): {said[-1].strip() if said else 'it says nothing'}"
            )

    def end(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def read_links(program: Program, text: NumberedText, files: Mapping[str, Path], method: str) -> Iterator[Links]:
    """The links of every pair, one direction or both joined by `method`; none for pairs that were left out.

    Raises PhraseloomError where the program did not write a line of links for each pair, DataError for what are no links of it.
    """
    outputs = {name: _Output(f"{program.file}, {name}", path) for name, path in files.items()}
    for lengths in zip(text.source_lengths, text.target_lengths, strict=True):
        if lengths == (0, 0):
            yield frozenset()
            continue
        found = {name: output.next(lengths) for name, output in outputs.items()}
        yield found[method] if method in found else symmetrize(found["forward"], found["backward"], method)
    for output in outputs.values():
        output.finish()


class _Output:
    """A file of links that a program wrote."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._number = name, 0
        if not path.is_file():
            raise PhraseloomError(f"{name}: wrote no links", hint="does the program run by itself?")
        self._lines = read_lines(path)

    def next(self, lengths: tuple[int, int]) -> Links:
        """The links of the next pair, of so many source and target words."""
        line = next(self._lines, None)
        if line is None:
            raise PhraseloomError(
                f"{self._name}: wrote {plural(self._number, 'line')} of links, and more pairs were given"
            )
        self._number += 1
        return parse_links(line, file=f"links of {self._name}", line=self._number, lengths=lengths)

    def finish(self) -> None:
        """See that there is no line left."""
        if next(self._lines, None) is not None:
            raise PhraseloomError(
                f"{self._name}: wrote more lines of links than the {plural(self._number, 'pair')} given"
            )
