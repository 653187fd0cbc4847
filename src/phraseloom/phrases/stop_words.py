"""Words that make no phrase of their own: a list for English, that of the released code of PCoNMT, and lists in files."""

from __future__ import annotations

from pathlib import Path

from phraseloom.errors import DataError
from phraseloom.text.lines import read_lines

# Articles, pronouns, forms of be, have, do and modal verbs, prepositions, conjunctions, particles, and what Moses cuts off.
_ENGLISH = """
a an the this that these those
i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
it its itself they them their theirs themselves one oneself
who whom whose which what whoever whatever whichever
am is are was were be been being have has had having do does did doing done
can could may might must shall should will would ought cannot
and or but nor so yet if because as until while although though unless since whether than
of at by for with without about against between among into onto through during before after above below to from up down in
out on off over under upon within along across behind beyond near toward towards
again further then once here there when where why how
all any both each few more most other another some such every either neither many much several
no not only own same too very just also even still ever never now
s t d m o ll re ve don didn doesn isn aren wasn weren hasn haven hadn won wouldn couldn shouldn mustn needn ain
's 't 'd 'm 'll 're 've n't
&apos;s &apos;t &apos;d &apos;m &apos;ll &apos;re &apos;ve n&apos;t
"""

# Any of these in a phrase rules it out there (spec §4.7.3).
_RELEASED = "the an a ve ll i s d m re t"

STOP_WORDS = {"en": frozenset(_ENGLISH.split()), "released": frozenset(_RELEASED.split()), "none": frozenset[str]()}


def read_stop_words(path: str | Path) -> frozenset[str]:
    """The words of a file (plain, .gz, .xz), one a line, in lower case; blank lines are passed over. Raises DataError."""
    words = set()
    for number, line in enumerate(read_lines(path), 1):
        word = line.strip()
        if " " in word:
            raise DataError(f"{word!r} is more than one word", file=path, line=number, hint="one stop-word a line")
        words.add(word.lower())
    return frozenset(words - {""})
