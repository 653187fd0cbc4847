"""The overlap of texts against a loop, and what counts as a word."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from phraseloom.text.same_language import count_words, overlap


def test_words_are_letters_in_lower_case_and_single_characters_where_there_are_no_spaces() -> None:
    assert count_words(["The house's 3 doors_", "the Äpfel, 4"]) == Counter(the=2, house=1, s=1, doors=1, äpfel=1)
    assert count_words(["我喜欢NMT。", "かな"]) == Counter(["我", "喜", "欢", "nmt", "か", "な"])


def test_the_overlap_is_that_of_a_loop() -> None:
    rng = random.Random(1)
    a, b = ([rng.choice("abcdefg"[k:]) for _ in range(200)] for k in (0, 2))
    slow = sum(min(a.count(w) / 200, b.count(w) / 200) for w in set(a) | set(b))
    assert overlap(Counter(a), Counter(b)) == pytest.approx(slow)
    assert overlap(Counter(a), Counter(a)) == pytest.approx(1.0)
    assert overlap(Counter(a), Counter()) == overlap(Counter(), Counter(a)) == 0.0
