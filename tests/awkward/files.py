"""The awkward text files: each holds one thing that some toolkit got wrong (reliability.md table T); most have 5 lines.

`python tests/awkward/files.py FOLDER` writes them, for tests of other programs as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

PLAIN = b"the house\na dog\nsmall birds\nthe garden\nall good\n"

FILES: dict[str, bytes] = {
    "plain.txt": PLAIN,
    # T1: what other readers take for line ends.
    "separators.txt": "a\u2028b\nc\u0085d\ne\x0bf\x0cg\nh\x1ci\rj\nlast\u2029one\n".encode(),
    # T2
    "crlf.txt": PLAIN.replace(b"\n", b"\r\n"),
    "lone_cr.txt": b"the\rhouse\na dog\rx\nsmall birds\n\rthe garden\nall good\n",
    "mixed.txt": b"the house\r\na dog\nsmall\rbirds\r\nthe garden\nall good\n",
    # T3
    "bom.txt": b"\xef\xbb\xbf" + PLAIN,
    "bom_inside.txt": PLAIN.replace(b"small", b"\xef\xbb\xbfsmall"),
    # T4: line 3, byte 7.
    "invalid_utf8.txt": PLAIN.replace(b"small birds", b"small \xff\xfebirds"),
    "latin1.txt": "schön\nMädchen\nStraße\nTür\nübel\n".encode("latin-1"),
    "truncated_utf8.txt": PLAIN[:-1] + "ü".encode()[:1],
    # T5
    "nul.txt": PLAIN.replace(b"a dog", b"a\0 \0dog"),
    "controls.txt": b"\x01\x02 a\n\x1b[31mred\n\x7f\x08\nb\x15c\n\t\t\n",
    # T6: three lines, the one in the middle of 100,000 words.
    "long_line.txt": b"the house\n" + b"word " * 99_999 + b"end\na dog\n",
    # T7: all kinds of blank.
    "blank.txt": "a dog\n\n \n\u3000\u00a0\nthe house\n".encode(),
    "only_blank.txt": b"\n\n\n\n\n",
    "empty.txt": b"",
    "no_last_end.txt": PLAIN[:-1],
    # T11: delimiters of our own and other formats, and special symbols, in user text.
    "delimiters.txt": (
        "a ||| b\tc\n@@ a@@ b@@@ @ @@@@\nquality_of_life quality of life _\n"
        "</s> <s> <unk> <pad> <0x41> </w> <blank>\n\u2581 a\u2581b \ue581 \ue5810 \u2585 \u2047\n"
    ).encode(),
    # T12: space-like pieces.
    "spaces.txt": "a\u00a0b\n\u3000c\u3000\nd\u2003\u2028e\n  f  g  \n\u200b\ufeffh\u200d\n".encode(),
    # T15
    "tabs.txt": b"a\tb\n\ta\n\t\t\na\t\n \t \n",
    "astral.txt": "𝕏 𐍈\n👩‍👩‍👧\n🇩🇪 e\u0301\n\U0010ffff\n\ue000\n".encode(),
}


def write(folder: Path) -> None:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write(Path(sys.argv[1]))
