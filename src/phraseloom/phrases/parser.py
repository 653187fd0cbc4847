"""Parse English lines into one Penn-style tree per line with `link-parser` (link-grammar; Debian: link-grammar).

Child processes run the program and receive a few lines at a time. Each sentence is sent between two commands that print
unique numbers, so its output is unambiguous; a short last sentence makes the program flush. A child that is silent for too
long or dies is replaced, and its sentences are sent one by one; a line that fails alone is parsed in parts. Sentences are
cleaned first, so that no line is a command (`!…`) or a comment (`%…`) of the program.

A line that is too long, or has no parse in time, is cut after punctuation and its parts are parsed alone. Their trees become
the children of one root. A part without a tree is flat; a line has no tree if no part has one. `counts`, `in_parts`,
`flat_parts` and `first_flat` report what happened to the lines, so nothing is flattened silently.

Sleator and Temperley, "Parsing English with a Link Grammar" (1991); the constituents are those of link-grammar.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import selectors
import shutil
import subprocess
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from phraseloom.errors import FileProblem, PhraseloomError, UsageError
from phraseloom.files import available_cores
from phraseloom.phrases.trees import repair

PROGRAM = "link-parser"
HINT = "install link-grammar (Debian, Ubuntu: apt install link-grammar; macOS: brew install link-grammar)"
START_SECONDS = 60.0
POLL_SECONDS = 0.5
# Sentences that a child gets at once, so that it never waits; they fit into a pipe (64 KiB).
RUN = 16
MAX_BYTES = 2000  # link-parser exits at a line of 2,047
MAX_OUTPUT = 2**20
MAX_MEMORY = 2**32
# A child is replaced after this many sentences, because each new word increases its memory.
SENTENCES_PER_CHILD = 5000
FIRST_NUMBER = 20_000
STRONG, WEAK = (
    ".!?;:…",
    ",—–",
)  # a line may be cut after a word that ends with these and with closing quotes and brackets
CLOSING = "\"'”’»)]}"


class _LostError(Exception):
    """A child died, hung or printed too much."""


class _Child:
    """One `link-parser` process."""

    def __init__(self, command: list[str]) -> None:
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # in /, because it would read a dictionary from ./data
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd="/", env=environment, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._held = b""
        self.asked = 0
        if sys.platform == "linux":
            import resource

            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(self._process.pid, resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))

    def ask(self, sentences: Sequence[str], seconds: float, patience: float) -> list[str | None]:
        """The tree that the program prints for each cleaned sentence, or None.

        Raises _LostError if the program prints nothing for `seconds` of its processor time or `patience` of clock time.
        """
        first = FIRST_NUMBER + self.asked
        end = first + len(sentences)
        self.asked += len(sentences) + 1
        asked = "".join(f"!width={first + i}\n{s}\n" for i, s in enumerate(sentences))
        try:  # the program flushes its output when it reads the line after a parsed sentence
            self._input.write(f"{asked}!width={end}\nGo.\n!width={first}\n".encode())
        except OSError as error:
            raise _LostError from error
        trees: list[str | None] = [None] * len(sentences)
        current, size = -1, 0
        while True:
            line = self._line(seconds, patience)
            size += len(line)
            if size > MAX_OUTPUT:
                raise _LostError
            if line == b"width set to %d" % (first + current + 1):
                current += 1
                if current == len(sentences):
                    return trees
            elif current >= 0 and trees[current] is None and line.startswith(b"("):
                trees[current] = line.decode("utf-8", "replace")

    def _line(self, seconds: float, patience: float) -> bytes:
        while b"\n" not in self._held:
            self._wait(seconds, patience)
            fresh = os.read(self._output.fileno(), 65536)
            if not fresh or len(self._held) > MAX_OUTPUT:
                raise _LostError
            self._held += fresh
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _wait(self, seconds: float, patience: float) -> None:
        late, used = time.monotonic() + patience, self._computed()
        while not self._selector.select(min(POLL_SECONDS, max(0.0, late - time.monotonic()))):
            now = self._computed()
            if time.monotonic() > late or (now is not None and used is not None and now - used > seconds):
                raise _LostError

    def _computed(self) -> float | None:
        """Seconds of processor time that the program has used, or None if the system does not report it (Linux does)."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None

    def kill(self) -> None:
        """End the program now; `ask` in another thread raises _LostError."""
        self._process.kill()

    def close(self) -> None:
        """End the program and release its pipes."""
        self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                pipe.close()


def clean(line: str) -> str:
    """`line` without control characters and without the first characters of commands and comments."""
    text = "".join(" " if unicodedata.category(c) in ("Cc", "Cs") else c for c in line)
    return " ".join(text.split()).lstrip("!% ")


def split_line(line: str, max_words: int) -> list[str]:
    """Split a line into parts of at most `max_words` words that end with punctuation; without punctuation they are longer.

    A part ends after the last sentence or clause mark (. ! ? ; : …) that fits, else after the last comma or dash, else after
    the first mark of any kind. The parts joined by spaces are the words of the line.
    """
    words, parts, start = line.split(), [], 0
    while len(words) - start > max_words:
        marks = [w.rstrip(CLOSING)[-1:] for w in words[start:-1]]
        window = range(min(max_words, len(marks)))
        ends = [[i for i in window if marks[i] and marks[i] in kind] for kind in (STRONG, WEAK)]
        later = [i for i in range(len(marks)) if marks[i] and marks[i] in STRONG + WEAK]
        end = next((places[-1] for places in ends if places), later[0] if later else None)
        if end is None:
            break
        parts.append(" ".join(words[start : start + end + 1]))
        start += end + 1
    return [*parts, " ".join(words[start:])]


class LinkParser:
    """Parses English lines with `processes` parallel link-parsers; use it as a context manager.

    `seconds` is the time limit of a sentence. A sentence of more than `max_words` words (separated by white space) is parsed
    in parts (`split_line`); so is one without a parse, in parts of half its length. `linkages` is the number of analyses that
    the program compares. `counts` has the outcomes of the lines: "parsed", "blank", and for lines without a tree "too long",
    "no parse" (also out of time) and "lost" (the program died or hung). `in_parts` counts lines parsed in parts, `flat_parts`
    their flat parts. `first_flat` is the number (from 1) and outcome of the first line without a tree.
    Raises FileProblem if the program is missing, PhraseloomError if it does not answer.
    """

    def __init__(
        self,
        *,
        seconds: int = 2,
        max_words: int = 60,
        linkages: int = 1000,
        processes: int | None = None,
        program: str = PROGRAM,
        patience: float | None = None,
    ) -> None:
        processes = available_cores() if processes is None else processes
        for name, value in (("seconds", seconds), ("max_words", max_words), ("linkages", linkages)):
            if value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
        if processes < 1:
            raise UsageError(f"processes is {processes}; it must be at least 1")
        path = shutil.which(program)
        if path is None:
            raise FileProblem(f"the program {program} is not installed", hint=HINT)
        switches = f"-constituents=3 -graphics=0 -verbosity=0 -echo=0 -spell=0 -panic=0 -timeout={seconds}"
        self._command = [os.path.abspath(path), "en", *switches.split(), f"-limit={linkages}"]  # noqa: PTH100
        self.max_words = max_words
        self._seconds, self._patience = 2.0 * seconds + 1.0, 30.0 * seconds if patience is None else patience
        self.counts: Counter[str] = Counter()
        self.in_parts = self.flat_parts = 0
        self.first_flat: tuple[int, str] | None = None
        self._closed = False
        self._children: set[_Child] = set()
        self._free: queue.SimpleQueue[_Child | None] = queue.SimpleQueue()
        for _ in range(processes):
            self._free.put(None)
        self.window = 4 * RUN * processes  # a good number of lines for one call of `parse`
        self._pool = ThreadPoolExecutor(processes, "link-parser")

    def __enter__(self) -> LinkParser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all children; `parse` cannot be called afterwards."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in list(self._children):
            child.kill()
        self._pool.shutdown(wait=True)
        for child in list(self._children):
            self._end(child)

    def parse(self, lines: Sequence[str]) -> list[str]:
        """One tree per line, in order; "" for a blank line and for a line without a tree."""
        runs = [lines[i : i + RUN] for i in range(0, len(lines), RUN)]
        trees = []
        for tree, outcome, flat in itertools.chain.from_iterable(self._pool.map(self._parse, runs)):
            trees.append(tree)
            self.counts[outcome] += 1
            self.in_parts += flat is not None
            self.flat_parts += flat or 0
            if not tree and outcome != "blank" and self.first_flat is None:
                self.first_flat = (self.counts.total(), outcome)
        return trees

    def _parse(self, lines: Sequence[str]) -> list[tuple[str, str, int | None]]:
        """The tree of each line, its outcome in `counts`, and the number of flat parts if it was parsed in parts."""
        whole = self._whole(lines)
        return [
            (tree, outcome, None) if tree or outcome == "blank" else self._parts(line, outcome)
            for line, (tree, outcome) in zip(lines, whole, strict=True)
        ]

    def _parts(self, line: str, outcome: str) -> tuple[str, str, int | None]:
        """Parse a line in parts and put their trees under one root; no tree if no part has one."""
        words = len(line.split())
        parts = split_line(
            line, self.max_words if words > self.max_words else max(1, min(self.max_words, words - 1) // 2)
        )
        if len(parts) < 2:
            return "", outcome, None
        part_trees = [tree for tree, _ in self._whole(parts)]
        if not any(part_trees):
            return "", outcome, None
        trees = [tree or repair(part, "(S)") for part, tree in zip(parts, part_trees, strict=True)]
        return f"(S {' '.join(trees)})", "parsed", part_trees.count("")

    def _whole(self, lines: Sequence[str]) -> list[tuple[str, str]]:
        """The tree of each line, parsed as a whole, and its outcome in `counts`."""
        sentences = [clean(line) for line in lines]
        refused = [self._refused(line, s) for line, s in zip(lines, sentences, strict=True)]
        asked = [s for s, why in zip(sentences, refused, strict=True) if not why]
        answers = iter(self._answers(asked))
        result = []
        for line, why in zip(lines, refused, strict=True):
            output, outcome = ("", why) if why else next(answers)
            result.append((repair(line, output) if output else "", outcome))
        return result

    def _refused(self, line: str, sentence: str) -> str:
        """The outcome of a line that is not sent to the program, else ""."""
        if not sentence:
            return "no parse" if line.strip() else "blank"
        long = len(sentence.split()) > self.max_words or len(sentence.encode("utf-8")) > MAX_BYTES
        return "too long" if long else ""

    def _answers(self, sentences: list[str]) -> list[tuple[str, str]]:
        """The output of the program and the outcome for each sentence. If the child is lost, each sentence is sent alone."""
        if not sentences:
            return []
        child = self._free.get()
        try:
            child = child or self._start()
            trees = child.ask(sentences, self._seconds, self._patience)
            if child.asked >= SENTENCES_PER_CHILD:
                self._end(child)
                child = None
            return [(tree, "parsed") if tree else ("", "no parse") for tree in trees]
        except _LostError:
            self._end(child)
            child = None
        finally:
            self._free.put(child)
        if len(sentences) == 1:
            return [("", "lost")]
        return [answer for sentence in sentences for answer in self._answers([sentence])]

    def _start(self) -> _Child:
        """Start a child and wait for a first answer. Raises PhraseloomError if there is none."""
        try:
            child = _Child(self._command)
        except OSError as error:
            raise FileProblem(f"cannot be run: {error.strerror}", file=self._command[0], hint=HINT) from error
        self._children.add(child)
        try:
            answer = [None] if self._closed else child.ask(["Go."], START_SECONDS, START_SECONDS)
        except _LostError:
            answer = [None]
        if not answer[0]:
            self._end(child)
            raise PhraseloomError(
                f"{self._command[0]} does not answer",
                hint="echo 'A man runs.' | link-parser en -constituents=3 shows why",
            )
        return child

    def _end(self, child: _Child | None) -> None:
        if child is not None:
            self._children.discard(child)
            child.close()
