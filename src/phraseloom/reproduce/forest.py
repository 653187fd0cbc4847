"""The claims of the short evidence table as one picture: each difference in BLEU with its 95 % interval, beside the paper's.

Equal claims stand below each other, from few updates to many, so that the picture shows the gain by budget too. The circle of
a verdict that is not bold in the table (with †, with a caveat, or not registered) is open. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from phraseloom.errors import DataError, escape_controls
from phraseloom.report.charts.picture import COLOURS, GREY, can_draw, figure, save
from phraseloom.reproduce.evidence import LOUD, ClaimEvidence, short_groups

VERDICTS = {"held": COLOURS[0], "did not hold": COLOURS[1], "undecided": GREY}
PANEL, LINE, LETTER = 4.5, 0.2, 0.068  # inches: width of the plot, height of a line, width of a letter
INDENT = "    "


def draw_claims(claims: Sequence[ClaimEvidence], path: str | Path) -> Path:
    """Draw the claims on BLEU among those of the short table. Raises UsageError without matplotlib, DataError without any."""
    can_draw(path)
    lines = list(_lines([claim for claim in claims if claim.short and claim.on_bleu]))
    if not lines:
        raise DataError("there is nothing to draw: no claim on BLEU with a short wording has several seeds")
    title = "Which claims hold? Differences in BLEU, with 95 % intervals"
    room = LETTER * max(len(text) for text, _ in lines)
    with figure(1, 1, title, size=(room + PANEL, 1.3 + LINE * len(lines))) as (drawn, ((ax,),)):
        for at, (_, claim) in enumerate(lines):
            if claim is not None:
                _interval(ax, at, claim)
        ax.axvline(0, color="black", lw=0.8)
        ax.set_yticks(range(len(lines)), [escape_controls(text) for text, _ in lines])
        for label, (text, claim) in zip(ax.get_yticklabels(), lines, strict=True):
            label.set_ha("left")
            label.set_size(8 if claim else 9)
            label.set_color(GREY if claim else "black")
            label.set_weight("bold" if not text.startswith(" ") else "normal")
        ax.tick_params(axis="y", length=0, pad=room * 72)
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.set_xlabel("BLEU")
        ax.grid(visible=False, axis="y")
        for verdict, colour in VERDICTS.items():
            ax.plot([], [], color=colour, marker="o", label=verdict)
        ax.plot([], [], color=GREY, marker="o", mfc="white", ls="none", label="open: not bold in the table")
        ax.plot([], [], color="black", marker="D", mfc="white", ls="none", label="the paper's difference")
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=5, handlelength=1.5, fontsize=8, borderaxespad=0.2)
        return save(drawn, Path(path))


def _lines(claims: Sequence[ClaimEvidence]) -> Iterator[tuple[str, ClaimEvidence | None]]:
    """What stands on each line: a paper, the wording of a claim, or the budget of a difference, which has one."""
    for title, group in short_groups(claims):
        yield title, None
        above = ""
        for claim in group:
            says, budget = claim.short[0], claim.short[4]
            if says != above:
                yield INDENT + says, None
            yield 2 * INDENT + budget, claim
            above = says


def _interval(ax: Any, at: int, claim: ClaimEvidence) -> None:
    colour = VERDICTS.get(claim.verdict, GREY)
    mean, low, high = claim.difference
    if low is not None and high is not None:
        ax.hlines(at, low, high, color=colour, lw=1.8)
    is_open = claim.verdict in LOUD and not claim.short[-1].startswith("**")
    ax.plot([mean], [at], marker="o", color=colour, mfc="white" if is_open else colour)
    if claim.papers is not None:
        ax.plot([claim.papers], [at], marker="D", color="black", mfc="white", ms=4.5, ls="none")
