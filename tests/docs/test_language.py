"""The worst phrases stay out of what a stranger reads first: the pages and the help of the commands.

`PHRASES` maps a pattern to what to write instead. Add a pattern when you mend a phrase everywhere. `NOT_YET` names the
pages that are not rewritten yet: take a page out when it is.
"""

from __future__ import annotations

import re

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

NOT_YET = {  # other owners, or a dated log; take a page out when it is rewritten
    "evaluation.md",
    "log.md",
    "report.md",
    "reproduce.md",
    "results.md",
}

PAGES = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in NOT_YET),
    *(path for folder in ("docs/papers", "docs/decisions") for path in sorted((ROOT / folder).glob("*.md"))),
    *sorted((ROOT / "recipes").rglob("*.md")),
]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_bytes().decode() for path in PAGES}
HELP = "--help"
TEXTS[HELP] = "\n".join(line for _, line in VERBS.values()) + "\n" + document()


def offences(text: str) -> list[str]:
    """`line: phrase → what to write` for each of the phrases in a text, also across the end of a line."""
    found = []
    for pattern, instead in PHRASES.items():
        spaced = pattern.replace(" ", r"\s+")
        for match in re.finditer(spaced, text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"line {line}: {' '.join(match[0].split())!r}; write: {instead}")
    return found


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


def test_the_list_of_pages_not_yet_covered_only_names_pages() -> None:
    assert not [name for name in NOT_YET if not (ROOT / "docs" / name).is_file()]
