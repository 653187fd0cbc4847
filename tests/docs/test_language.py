"""The worst phrases stay out of the pages, the help of the commands, and the docstrings and texts of the source.

`PHRASES` maps a pattern to what to write instead, in pages and help; `IN_SOURCE` does so in the docstrings and string literals
of every module. Add a pattern when you correct a phrase everywhere.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

from phraseloom.cli.document import document
from phraseloom.cli.main import VERBS

PHRASES = {
    r"\bso many \w+ (?:more|on|of|or)\b": "a number: 'n more', 'at most n', 'this number of'",
    r"\b(?:at most|at least|from|hold) so (?:many|much)\b": "a number: 'at most N subwords', 'this size'",
    r"\bshall\b": "must, will, or the present tense",
    r"\bso long a\b": "as long as; the time that",
    r"\bthe same with\b": "say what is the same",
    r"\bof ours\b": "name the thing",
    r"\bbegins? shut\b": "is initialised to zero",
    r"\bwrit(?:e|es|ing) on from\b": "generate text from",
    r"\bgo(?:es|ing)? on (?:with (?:a|the|it)\b|where|from)": "resume",
    r"\bnothing better can come\b": "no better result is possible",
    r"\bis (?:said|told) on standard error\b": "goes to standard error",
    r"\b(?:is|are) told what\b": "gets, knows",
    r"\bwhat there is to\b": "name it",
    r"\bmade (?:again|anew)\b": "reproduced, rebuilt, translated again",
    r"\bnobody (?:wants|waits)\b": "cancelled",
    r"\bstands? (?:over|between blanks)\b": "overrides; is separated by spaces",
    r"\bbetween (?:single )?blanks\b": "separated by spaces",
    r"\b(?:what|those) (?:stands|stand) (?:in|at|beside)\b": "what is in, the contents of",
    r"\bwhere (?:it|this|that) is (?:so|not so)\b": "if it does, otherwise",
    r"\b(?:that is|that are|already) there\b": "existing",
    r"\bhow many \w+ are looked at\b": "the number of",
    r"\ba line a (?:sentence|pair|word)\b|\bone (?:sentence|phrase|tree|word|number) a (?:line|word)\b": "one … per …",
    r"\bcounted apart\b": "counted separately",
    r"\basks nobody\b": "loads nothing from a network",
    r"\bWhere to go on\b": "Next steps",
    r"\bis to be (?:measured|read|compared)\b|\bare to be (?:read|compared)\b": "you measure, compare",
}


WRITTEN = {  # texts that are data, or bytes on disk
    "phrases/stop_words.py": "stop-words",
    "world/writer.py": "the README of a world, whose checksum is stored",
}

IN_SOURCE = {
    r"\bso (?:many|much) (?!as)": "a number: 'n more', 'at most n'",
    r"\bwhat there is to\b": "name it",
    r"\bshall\b": "must, will, or the present tense",
    r"\bfalls? to\b": "is reduced to, becomes",
    r"\bthe same with\b": "say what is the same",
    r"\bof (?:whom|ours)\b": "say who",
    r"\bof which at least\b": "with at least",
    r"\bgo(?:es|ing)? on\b": "resumes, continues, has more",
    r"\b(?:is|are|were|unless) told\b": "gets, is set",
    r"\bbetween (?:single )?blanks\b": "separated by spaces",
    r"\bblank too many\b": "an extra space",
    r"\b(?:what|those) (?:stands|stand) (?:in|at|beside|between)\b": "the contents of",
    r"\bstands? (?:for|beside|between|before|behind|over|alone|last)\b": "is, represents",
    r"\bwhat (?:became|becomes) of\b": "the result of",
    r"\bwhat is (?:no|said|not)\b": "name it",
    r"\bnobody\b": "no caller, cancelled",
    r"\bcannot be told\b": "is unknown, is ambiguous",
    r"\blooked (?:at|into)\b": "read, analysed",
    r"\b(?:that is|that are|is twice|nothing) there\b": "existing",
    r"\b(?:made|run|drawn) (?:again|anew)\b": "reproduced, rebuilt, resampled",
    r"\bbegins? shut\b": "is initialised to zero",
    r"\bwhat .{1,20} makes of\b": "the result of",
    r"\b(?:a line a|one a|a row a|a sentence a|a line) (?:line|row|word|sentence|pair|phrase)\b": "one per …",
    r"\b(?:EOS|end symbols?|padding) counted\b": "including EOS",
    r"\bgold truth\b": "gold annotation",
    r"\bis to be had\b": "is available",
    r"\bNothing out of nothing\b": "0/0",
}

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(
        path
        for folder in ("docs/papers", "docs/decisions", "docs/experiments")
        for path in sorted((ROOT / folder).glob("*.md"))
    ),
    *(ROOT / "docs/results" / name for name in ("baselines.md", "performance.md", "continuous.md", "npmt.md")),
    *sorted((ROOT / "recipes").rglob("*.md")),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_bytes().decode() for path in PAGES}
HELP = "--help"
TEXTS[HELP] = "\n".join(line for _, line in VERBS.values()) + "\n" + document()


STORED = [
    *sorted((ROOT / "recipes" / "tables").glob("*.yaml")),
    *sorted((ROOT / "docs" / "results").glob("*/*/table.[jm]*")),
]


def test_pages_say_in_which_sense_no_test_sentence_is_in_the_training_text() -> None:
    """Letter by letter is not all: `phraseloom decontaminate` finds pairs that differ in case and punctuation."""
    texts = TEXTS | {str(path): path.read_bytes().decode() for path in STORED}
    said = {
        name for name, text in texts.items() if re.search(r"No (test )?sentence (of either )?is in the training", text)
    }
    exact = {
        name for name in said if re.search(r"in the training text letter by letter.{1,99}punctuation", texts[name])
    }
    assert said == exact and len(said) >= 7, said - exact


SOURCES = sorted((ROOT / "src/phraseloom").rglob("*.py"))


def offences(text: str, phrases: dict[str, str] = PHRASES, first: int = 1) -> list[str]:
    """`line: phrase; write: instead` for each of the phrases in a text, also across the end of a line."""
    result = []
    for pattern, instead in phrases.items():
        spaced = pattern.replace(" ", r"\s+")
        for match in re.finditer(spaced, text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + first
            result.append(f"line {line}: {' '.join(match[0].split())!r}; write: {instead}")
    return result


def texts(code: str) -> list[tuple[int, str]]:
    """The line and text of each docstring and string literal; the parts of an f-string are one text, with … for values."""
    result, parts = [], set[ast.AST]()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            values = (str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
            result.append((node.lineno, "".join(values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            result.append((node.lineno, node.value))
    return result


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "docs/glossary.md"])  # which has to name them
def test_plain_english(name: str) -> None:
    assert not offences(TEXTS[name]), name


@pytest.mark.parametrize(
    "text",
    [
        "The same with so many source words more before it",
        "how the new model shall know them",
        "So long a client may be silent",
        "A gate that begins\nshut",
        "Write on from prompts",
        "the same command goes on where it was stopped",
        "words between blanks",
        "Replace files that are there.",
    ],
)
def test_the_phrases_are_recognised(text: str) -> None:
    assert offences(text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src/phraseloom").as_posix())
def test_plain_english_in_the_source(path: Path) -> None:
    if (name := path.relative_to(ROOT / "src/phraseloom").as_posix()) in WRITTEN:
        pytest.skip(WRITTEN[name])
    wrong = [offence for line, text in texts(path.read_bytes().decode()) for offence in offences(text, IN_SOURCE, line)]
    assert not wrong


@pytest.mark.parametrize(
    "code",
    [
        '"""The same with so many source words more before it."""',
        'raise ValueError(f"{number} words, of whom {others} are known")',
        'def f():\n    """What there is to say."""',
        'text = f"the {kind} falls " f"to {bound}"',
        'x = "words stand between\\nblanks"',
    ],
)
def test_the_phrases_are_recognised_in_source(code: str) -> None:
    assert [offence for line, text in texts(code) for offence in offences(text, IN_SOURCE, line)]


def test_the_lists_only_name_files() -> None:
    assert not [name for name in WRITTEN if not (ROOT / "src/phraseloom" / name).is_file()]
