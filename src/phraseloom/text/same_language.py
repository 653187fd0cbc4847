r"""Are two texts in one language? How much of their words they have in common, against texts that are known to be in one.

    overlap(a, b) = Σ_w min(p_a(w), p_b(w))        p(w): the share of a word among the words of a text

Words are runs of letters in lower case; each Chinese character and each kana is a word. No list of languages is needed, and
frequent words, which every domain has, count most.

Measured on 84 texts in English, German, French, Turkish, Czech, Finnish, Swedish, Romanian and Chinese (captions, talks, news,
parliament, everyday sentences), the first 20,000 lines of each: 0.18 or more for two texts of one language, from different
collections; of 2,000 words of each, 0.135. At most 0.08 for two languages, but for the two sides of one text (0.12: names), and
for French and Romanian (0.14).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

LEAST_OVERLAP = 0.1  # of two texts of one language
FEWEST_WORDS = 2000  # of a text that can be told by it
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_\u3040-\u30ff\u3400-\u9fff]+")


def count_words(lines: Iterable[str]) -> Counter[str]:
    """The words of lines, with their counts."""
    return Counter(word for line in lines for word in _WORDS.findall(line.lower()))


def overlap(a: Mapping[str, int], b: Mapping[str, int]) -> float:
    """The overlap of two texts, from 0 to 1; 0 if one has no words."""
    of_a, of_b = sum(a.values()), sum(b.values())
    return sum(min(count / of_a, b[word] / of_b) for word, count in a.items() if word in b)
