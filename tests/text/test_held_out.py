"""Training lines that are in held-out text: what counts as the same line, and what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from phraseloom.text.held_out import HeldOut, hash_line


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Isn't it 5 o'clock?", "isn ' t IT 5 o 'clock ?"),
        ("Über den Wolken …", "u\u0308ber den Wolken..."),  # composed and not
        ("»Das geht nicht«, sagte er.", '"Das geht nicht" , sagte er .'),
        ("most_likely a house", "most likely a house"),
        ("straße im regen", "STRASSE im Regen"),
        ("This is nice 😀", "this is nice ☺"),
        ("I love you so much ❤\ufe0f", "I love you so much"),
        ("press #\ufe0f\u20e3 or 1\ufe0f\u20e3", "press # or 1"),
        ("go \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f England go", "Go, England, go"),
        ("葛\U000e0100城 市 の", "葛城 市 の"),
        ("a family 👨\u200d👩\u200d👧 of three", "A family of three"),
        ("می\u200cخواهم به خانه", "میخواهم به خانه"),
        ("𝄞 see you soon 🇩🇪", "See you soon"),
        ("İstanbul büyük şehir", "istanbul büyük şehir"),
        ("ISPARTA büyük şehir", "ısparta büyük şehir"),
    ],
)
def test_case_punctuation_and_spaces_do_not_count(first: str, second: str) -> None:
    assert hash_line(first, 3) == hash_line(second, 3) is not None


def test_letters_digits_and_marks_count() -> None:
    lines = ["a b c", "a b d", "a b 1", "a b c̦", "की रात है", "का रात है"]
    lines += ["كَتب هو هنا", "كُتب هو هنا", "กิน ข้าว แล้ว", "กัน ข้าว แล้ว", "ᠠ᠋ ᠪ ᠭ", "ᠠ ᠪ ᠭ"]
    assert len({hash_line(line, 3) for line in lines}) == len(lines)
    assert hash_line("a , b !", 3) is None and hash_line("... !", 1) is None
    for line in ("I love you ok ❤\ufe0f", "I love you ok ☺\ufe0e 👩\u200d👧"):
        assert hash_line(line, 4) is not None and hash_line(line, 5) is None
    assert hash_line("葛\U000e0100城 市", 3) is None and hash_line("می\u200cخواهم به", 3) is not None
    assert hash_line("a b 😀", 3) is None and hash_line("𠀀 𠀁", 2) != hash_line("𠀀 𠀂", 2)


def test_a_pair_is_found_by_either_side(tmp_path: Path) -> None:
    held_out = HeldOut.of(2, {"source": ["das Haus", "ja"], "target": iter(["the house", "yes", "a dog"])})
    sides = {"source": ["Das Haus!", "ja", "the house", "x"], "target": ["x", "yes", "y", "A dog."]}
    assert held_out.found(sides).tolist() == [True, False, False, True]
    held_out.save(tmp_path)
    again = HeldOut.load(tmp_path)
    assert again is not None and again.words == 2
    assert again.found(sides).tolist() == [True, False, False, True]
    assert HeldOut.load(tmp_path / "none") is None
    assert not HeldOut.of(2, {"target": ["ja"]}).found({"target": ["a b"]}).any()
