"""The picture of the claims: each one of the short table on BLEU, with its difference, interval, verdict and the paper's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from phraseloom.errors import DataError
from phraseloom.reproduce.evidence import ClaimEvidence, short_claims
from phraseloom.reproduce.forest import VERDICTS, draw_claims

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "docs" / "results"
CLAIM = ClaimEvidence(
    "002-x",
    "small",
    Path("table.md"),
    ("",),
    short=("better", "+1.00", "+2.00 (+1.00 … +3.00)", "3", "Text, 5 updates", "0.010", "**held**"),
    seeds=3,
    updates=5,
    verdict="held",
    difference=(2.0, 1.0, 3.0),
    papers=1.0,
    on_bleu=True,
)


def texts(path: Path) -> list[str]:
    return [text.strip() for text in re.findall(r">([^<>]+)</text>", path.read_text()) if text.strip()]


def test_equal_claims_stand_together_from_few_updates_to_many(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    more = replace(CLAIM, updates=9, short=(*CLAIM.short[:4], "Text, 9 updates", "", "undecided"), verdict="undecided")
    other = replace(CLAIM, table="001-x", short=("longer lines", *CLAIM.short[1:]), papers=None)
    path = draw_claims([more, other, CLAIM], tmp_path / "claims.svg")
    found = texts(path)
    wanted = [
        "Phrasal attention (papers 000 and 002)",
        "better",
        "Text, 5 updates",
        "Text, 9 updates",
        "Source phrase representations (paper 001)",
        "longer lines",
        "Text, 5 updates",
    ]
    at = found.index(wanted[0])
    assert found[at : at + len(wanted)] == wanted
    assert path.read_bytes() == draw_claims([more, other, CLAIM], tmp_path / "again.svg").read_bytes()


def test_a_claim_on_another_number_has_no_line(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match="no claim on BLEU"):
        draw_claims([replace(CLAIM, on_bleu=False)], tmp_path / "claims.svg")
    assert not list(tmp_path.iterdir())


def test_the_committed_picture_shows_the_committed_claims() -> None:
    """`phraseloom reproduce --evidence docs/results --plot docs/results/claims.svg --overwrite` draws it."""
    found = texts(COMMITTED / "claims.svg")
    claims = [claim for claim in short_claims(COMMITTED, recipes=ROOT / "recipes") if claim.on_bleu]
    assert len(claims) > 20
    for claim in claims:
        assert claim.short[0] in found and claim.short[4] in found
    assert len([text for text in found if text in {claim.short[4] for claim in claims}]) == len(claims)


def test_verdicts_that_are_not_bold_have_an_open_circle(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fallen_claim = replace(CLAIM, short=(*CLAIM.short[:-1], "held †"))
    bold, fallen = (
        draw_claims([one], tmp_path / f"{i}.svg").read_text() for i, one in enumerate((CLAIM, fallen_claim))
    )
    colour = VERDICTS["held"].lower()
    assert bold.lower().count(f"fill: {colour}") > fallen.lower().count(f"fill: {colour}") > 0
