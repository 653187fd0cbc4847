"""Word alignments by external programs: fast_align (Dyer et al. 2013), eflomal (Östling and Tiedemann 2016).

A program reads each sentence pair as a line `1 2 3 ||| 4 5` of word numbers. So no text (`|||`, tabs, other white space) can
be misread, and case is distinguished unless `lowercase` is set, even by eflomal, which lowercases. Pairs with a blank side,
which stop fast_align, or with a very long side are left out and have no links. The programs write forward and backward links
as `links.py` defines them.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phraseloom.align.ibm import DIRECTIONS, BitextCounts, no_pairs, split, word_numbers
from phraseloom.align.links import Links, parse_links, symmetrize
from phraseloom.errors import FileProblem, PhraseloomError, UsageError, plural
from phraseloom.files import disk
from phraseloom.text.lines import read_lines, write_lines


class Command(NamedTuple):
    """The arguments of a call, and the file that its standard output goes to if the links are there."""

    arguments: list[str]
    output: Path | None


def _fast_align(program: str, text: Path, links: Mapping[str, Path], options: Sequence[str]) -> list[Command]:
    flags: dict[str, list[str]] = {"forward": [], "backward": ["-r"]}
    return [Command([program, "-i", str(text), *options, *flags[name]], path) for name, path in links.items()]


def _eflomal(program: str, text: Path, links: Mapping[str, Path], options: Sequence[str]) -> list[Command]:
    flags = {"forward": "-f", "backward": "-r"}
    outputs = [part for name, path in links.items() for part in (flags[name], str(path))]
    return [Command([program, "-i", str(text), *options, *outputs], None)]


@dataclass(frozen=True)
class Program:
    """A program: its file name, its calls, its default options, and a hint on how to install it."""

    file: str
    commands: Callable[[str, Path, Mapping[str, Path], Sequence[str]], list[Command]]
    options: str
    hint: str

    def find(self) -> str:
        """Its path, from PATH or from the folder of the running Python. Raises FileProblem."""
        path = shutil.which(self.file) or shutil.which(self.file, path=str(Path(sys.executable).parent))
        if path is None:
            raise FileProblem(f"the program {self.file} is not installed", hint=self.hint)
        return path


PROGRAMS = {
    "fast_align": Program(
        "fast_align",
        _fast_align,
        "-d -o -v",
        "build it from https://github.com/clab/fast_align and put it on the PATH, or remove --with",
    ),
    "eflomal": Program("eflomal-align", _eflomal, "", "pip install eflomal, or remove --with"),
}


@dataclass(frozen=True)
class NumberedText:
    """The input of a program in the file `path`, and the lengths of every pair; a pair that is left out has (0, 0)."""

    path: Path
    source_lengths: array[int]
    target_lengths: array[int]
    counted: BitextCounts


def write_numbers(
    pairs: Iterable[tuple[str, str]], path: Path, *, lowercase: bool = False, max_words: int | None = None
) -> NumberedText:
    """Write the (source, target) lines of a text as word numbers. Raises DataError if no pair is left."""
    numbers = [word_numbers() for _ in range(2)]
    lengths = [array("i") for _ in range(2)]
    blank = long = 0

    def lines() -> Iterator[str]:
        nonlocal blank, long
        for pair in pairs:
            words = [split(line, lowercase=lowercase) for line in pair]
            sizes = [len(side_words) for side_words in words]
            is_blank, is_long = not all(sizes), max_words is not None and max(sizes) > max_words
            for side, size in zip(lengths, sizes, strict=True):
                side.append(0 if is_blank or is_long else size)
            blank, long = blank + is_blank, long + (is_long and not is_blank)
            if not is_blank and not is_long:
                yield " ||| ".join(
                    " ".join(str(known[word]) for word in side) for known, side in zip(numbers, words, strict=True)
                )

    used = write_lines(path, lines())
    if not used:
        raise no_pairs()
    return NumberedText(path, lengths[0], lengths[1], BitextCounts(used, blank, long))


def run_program(
    program: Program,
    text: NumberedText,
    *,
    directions: Sequence[str] = DIRECTIONS,
    options: str | None = None,
    jobs: int = 1,
) -> dict[str, Path]:
    """Align a text; return the file of links of each direction, written beside the text.

    `options` replace the default options of the program, in shell syntax. With `jobs` 2, two calls run at once. Raises
    FileProblem, UsageError, and PhraseloomError if the program fails.
    """
    try:
        arguments = shlex.split(program.options if options is None else options)
    except ValueError as error:
        raise UsageError(f"the options {options!r} of {program.file} cannot be read ({error})") from error
    links = {name: text.path.with_name(f"{text.path.name}.{name}") for name in directions}
    commands = program.commands(program.find(), text.path, links, arguments)
    for first in range(0, len(commands), jobs):
        running: list[_Running] = []
        try:
            for number, command in enumerate(commands[first : first + jobs], first):
                running.append(_Running(command, text.path.with_name(f"{text.path.name}.{number}.messages")))
            for process in running:
                process.wait(program.file)
        finally:
            for process in running:
                process.end()
    return links


class _Running:
    """A running program."""

    def __init__(self, command: Command, messages: Path) -> None:
        self._messages = messages
        output = messages.with_suffix(".output") if command.output is None else command.output
        with disk.open(output, "wb") as out, disk.open(messages, "wb") as err:
            try:
                self._process = subprocess.Popen(command.arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            except OSError as error:
                raise FileProblem(f"cannot be run: {error.strerror or error}", file=command.arguments[0]) from error

    def wait(self, name: str) -> None:
        """Wait until it has ended. Raises PhraseloomError if it failed."""
        code = self._process.wait()
        if code:
            messages = [line for line in read_lines(self._messages, invalid="replace") if line.strip()]
            raise PhraseloomError(
                f"{name} failed (exit code {code}): {messages[-1].strip() if messages else 'no message'}"
            )

    def end(self) -> None:
        """Kill it if it is still running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def read_links(program: Program, text: NumberedText, files: Mapping[str, Path], method: str) -> Iterator[Links]:
    """The links of every pair, of one direction or of both combined by `method`; none for pairs that were left out.

    Raises PhraseloomError if the program did not write one line of links per pair, and DataError for an invalid line.
    """
    outputs = {name: _Output(f"{program.file}, {name}", path) for name, path in files.items()}
    for lengths in zip(text.source_lengths, text.target_lengths, strict=True):
        if lengths == (0, 0):
            yield frozenset()
            continue
        links = {name: output.next(lengths) for name, output in outputs.items()}
        yield links[method] if method in links else symmetrize(links["forward"], links["backward"], method)
    for output in outputs.values():
        output.finish()


class _Output:
    """A file of links that a program wrote."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._number = name, 0
        if not path.is_file():
            raise PhraseloomError(f"{name}: wrote no links", hint="check that the program runs on its own")
        self._lines = read_lines(path)

    def next(self, lengths: tuple[int, int]) -> Links:
        """The links of the next pair, which has `lengths` source and target words."""
        line = next(self._lines, None)
        if line is None:
            raise PhraseloomError(f"{self._name}: wrote only {plural(self._number, 'line')} of links for more pairs")
        self._number += 1
        return parse_links(line, file=f"links of {self._name}", line=self._number, lengths=lengths)

    def finish(self) -> None:
        """Check that no line is left. Raises PhraseloomError."""
        if next(self._lines, None) is not None:
            raise PhraseloomError(
                f"{self._name}: wrote more lines of links than the {plural(self._number, 'pair')} of its input"
            )
