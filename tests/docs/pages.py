"""What a page of the documentation holds: its code blocks, and the shell commands in them and between its backticks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MADE = {"docs/commands.md"}  # made from the parser itself
PAGES = [
    path
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "recipes").rglob("*.md")),
        ROOT / "benchmarks" / "README.md",
    )
    if path.relative_to(ROOT).as_posix() not in MADE
]
OURS = ("phraseloom", "make", "python", "torchrun", "pip", "pytest", "bash")
THEIRS = {
    "[", "awk", "cat", "cd", "comm", "cp", "curl", "cut", "diff", "echo", "export", "grep", "gunzip", "gzip", "head", "iconv",
    "join", "jq", "kill", "mkdir", "mv", "paste", "printf", "rm", "sacrebleu", "sed", "seq", "shuf", "sleep", "sort", "tail",
    "tee", "test", "time", "tr", "uniq", "wait", "wc", "zcat",
}  # fmt: skip
KEYWORDS = {"do", "then", "else", "{", "(", "!", "time"}
SHELLS = {"", "sh", "bash", "console", "shell"}


@dataclass(frozen=True)
class Block:
    """A block of code: the language of its fence (None: indented), its number of line, and its text."""

    language: str | None
    line: int
    text: str


@dataclass(frozen=True)
class Command:
    """One simple command of a page: its words, without redirections, and whether something is elided in it."""

    page: str
    line: int
    words: tuple[str, ...]
    elided: bool
    inline: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {' '.join(self.words)}"


def blocks(text: str) -> Iterator[Block]:
    """Fenced and indented blocks, in order. An indented block inside a list item is one too."""
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        fence = re.match(r"( *)(`{3,})(\w*)", lines[i])
        if fence:
            end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() == fence[2]), len(lines))
            yield Block(fence[3], i + 2, "".join(line[len(fence[1]) :] + "\n" for line in lines[i + 1 : end]))
            i = end + 1
        elif lines[i].startswith("    ") and (i == 0 or not lines[i - 1].strip() or lines[i - 1].startswith("    ")):
            end = i
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield Block(None, i + 1, "".join(line[4:] + "\n" for line in lines[i:end]).rstrip("\n") + "\n")
            i = end
        else:
            i += 1


def inline(text: str) -> Iterator[tuple[int, str]]:
    """(line, code) between single backticks, outside of fenced blocks."""
    bare = re.sub(r"(?ms)^ *```.*?^ *```", lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", bare):
        yield bare.count("\n", 0, found.start()) + 1, " ".join(found[1].split())


def logical_lines(block: Block) -> Iterator[tuple[int, str]]:
    """The lines of a block that a shell would read, those that end in a backslash joined with the next."""
    kept, start = "", 0
    for number, line in enumerate(block.text.split("\n"), block.line):
        start = start if kept else number
        kept += line
        if kept.endswith("\\"):
            kept = kept[:-1]
            continue
        if kept.strip():
            yield start, kept.strip()
        kept = ""


def simple_commands(line: str) -> list[list[str]]:
    """The words of each simple command of a line, redirections taken out; ValueError if it is no shell."""
    line = re.sub(r"(?<=\s)[12](?=>)", "", line)  # the number of a stream
    line = re.sub(r"(?<=\w)\|(?=\w)", "…", line)  # alternatives of a synopsis; pipes stand between blanks
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    skip = False
    for word in lexer:
        if set(word) <= set(";|&"):
            found.append([])
        elif word and set(word) <= set("<>&"):
            skip = True
        elif skip:
            skip = False
        else:
            found[-1].append(word)
    cleaned = []
    for words in found:
        while words and (words[0] in KEYWORDS or re.fullmatch(r"[A-Z_]+=.*", words[0])):
            words = words[1:]
        if words and words[0] not in ("for", "done", "fi", "if", "}", ")"):
            cleaned.append(words)
    return cleaned


def elided(words: list[str]) -> bool:
    """Whether words are left out (…), optional ([--so]), or of a form that a reader fills in (`VERB …`, <NAME>)."""
    return any("…" in w or w == "..." or w.startswith("[") or (w.endswith("]") and "[" not in w) for w in words)


def is_command(line: str) -> bool:
    """Whether a line of a block is a shell command (and not output, a recipe or Python)."""
    line = line.removeprefix("$ ")
    first = re.split(r"[\s;|]", line, maxsplit=1)[0]
    if re.match(r"(?:[A-Z_]+=\S* )+(?:phraseloom|python)\b", line) or re.match(r"for \w+ in .*; do ", line):
        return True
    return first in OURS or first in THEIRS - {"[", "test", "wait", "time", "join"}


def commands(path: Path) -> list[Command]:
    """Every simple command of a page: those of its shell blocks, and those between backticks that have arguments."""
    text = path.read_bytes().decode()
    page = path.relative_to(ROOT).as_posix()
    found = []
    for block in blocks(text):
        if block.language is not None and block.language not in SHELLS:
            continue
        for number, line in logical_lines(block):
            if not is_command(line):
                continue
            for words in simple_commands(line.removeprefix("$ ")):
                found.append(Command(page, number, tuple(words), elided(words)))
    for number, code in inline(text):
        if re.match(r"(?:phraseloom|make|python|torchrun|pip) \S", code) and "\\|" not in code:
            for words in simple_commands(code):
                if words[0] in OURS:
                    found.append(Command(page, number, tuple(words), elided(words), inline=True))
    return found
