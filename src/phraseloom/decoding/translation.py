"""The result of translating a line, and counts over many lines."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from phraseloom.decoding.limits import Segment
    from phraseloom.decoding.parts import Replacement

Links = list[tuple[int, int]]


class PhraseLink(NamedTuple):
    """Target words t1 … t2-1 translate source words s1 … s2-1, with a weight from 0 to 1 (`decoding/alignment.py`)."""

    source: tuple[int, int]
    target: tuple[int, int]
    weight: float

    def __str__(self) -> str:
        """`s1:s2-t1:t2=weight`, half-open, four digits of the weight."""
        return f"{self.source[0]}:{self.source[1]}-{self.target[0]}:{self.target[1]}={self.weight:.4f}"

    def shifted(self, *, source: int = 0, target: int = 0) -> PhraseLink:
        """Shifted right by `source` and `target` words."""
        (s1, s2), (t1, t2), weight = self
        return PhraseLink((s1 + source, s2 + source), (t1 + target, t2 + target), weight)


@dataclass(frozen=True)
class Translation:
    """The translation of one line.

    `text`: detokenised. `score`: `log_prob` (nats, with EOS), plus the word bonus of each token, / length penalty; for a split
    line the mean over its parts, weighted by their tokens. `tokens`: the subwords; `words`: the target words before
    detokenisation. `alignment`: links (source word, target word) from 0; `phrases`: links of spans; both None unless requested.
    `segments`: of a segmental model, numbered in `tokens` and in subwords of the line; None for other models.
    `replaced`: the entries of `words` that replace unknown words (`tokens` still has UNK); None unless requested.
    `blank`: the line was blank, and the model did not run. `cropped`: the end of the line was left out. `parts`: the number
    of pieces of a split line. `hit_max_length`: the output was cut at its maximal length. `unmet`: the constraints that the
    text does not meet; None for a line without constraints. `rejected`: the text was removed because of its score.
    `alternatives`: the second to the n-th best.
    """

    text: str
    score: float
    log_prob: float
    tokens: list[str]
    words: list[str]
    alignment: Links | None = None
    phrases: list[PhraseLink] | None = None
    segments: list[Segment] | None = None
    replaced: list[Replacement] | None = None
    blank: bool = False
    cropped: bool = False
    parts: int = 1
    hit_max_length: bool = False
    unmet: list[str] | None = None
    rejected: bool = False
    alternatives: list[Translation] = field(default_factory=list)

    @property
    def n_best(self) -> list[Translation]:
        """This translation and its alternatives, best first."""
        return [self, *self.alternatives]

    def emptied(self) -> Translation:
        """This translation, rejected: without text, words and alternatives; its lists are empty, and its score remains."""
        names = ("alignment", "phrases", "segments", "replaced")
        lists: dict[str, Any] = {name: [] for name in names if getattr(self, name) is not None}
        return replace(self, text="", tokens=[], words=[], alternatives=[], unmet=None, rejected=True, **lists)

    def pharaoh(self) -> str:
        """The alignment as `i-j` pairs, source first, in the order of the target words."""
        return " ".join(f"{s}-{t}" for s, t in self.alignment or [])

    def pharaoh_phrases(self) -> str:
        """The phrase alignment as `s1:s2-t1:t2=weight` (half-open spans of words), in the order of the target words."""
        return " ".join(map(str, self.phrases or []))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for one JSON line."""
        result: dict[str, Any] = {
            "text": self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "tokens": self.tokens,
            "words": self.words,
        }
        if self.alignment is not None:
            result["alignment"] = [list(link) for link in self.alignment]
        if self.phrases is not None:
            result["phrases"] = [
                {"source": list(p.source), "target": list(p.target), "weight": p.weight} for p in self.phrases
            ]
        if self.segments is not None:
            result["segments"] = [
                {"source": s.source, "target": [s.start, s.end], "log_prob": s.log_prob} for s in self.segments
            ]
        if self.replaced is not None:
            result["replaced"] = [r._asdict() for r in self.replaced]
        result |= {
            "blank": self.blank,
            "cropped": self.cropped,
            "parts": self.parts,
            "hit_max_length": self.hit_max_length,
        }
        if self.unmet is not None:
            result["unmet"] = self.unmet
        if self.rejected:
            result["rejected"] = True
        if self.alternatives:
            result["alternatives"] = [a.as_dict() for a in self.alternatives]
        return result


BLANK = Translation("", 0.0, 0.0, [], [], blank=True)
BLANK_ALIGNED = Translation("", 0.0, 0.0, [], [], alignment=[], phrases=[], blank=True)


@dataclass
class TranslationReport:
    """Counts over the lines of one call or stream, and the number (from 1) of the first of each kind."""

    lines: int = 0
    blank: int = 0
    cropped: int = 0
    split: int = 0
    hit_max_length: int = 0
    unmet: int = 0
    first: dict[str, int] = field(default_factory=dict)

    def add(self, translation: Translation) -> None:
        """Count one line."""
        self.lines += 1
        flags = {
            "blank": translation.blank,
            "cropped": translation.cropped,
            "split": translation.parts > 1,
            "hit_max_length": translation.hit_max_length,
            "unmet": bool(translation.unmet),
        }
        for name in (name for name, is_set in flags.items() if is_set):
            setattr(self, name, getattr(self, name) + 1)
            self.first.setdefault(name, self.lines)

    def warnings(self, max_input_tokens: int) -> list[str]:
        """One sentence for each kind of problem: cropped, split, or cut lines, and lines with unmet constraints."""
        texts = {
            "cropped": f"longer than {max_input_tokens} subwords: the end was left out",
            "split": f"longer than {max_input_tokens} subwords: translated in pieces",
            "hit_max_length": "reached the maximal output length and may be incomplete",
            "unmet": "do not meet their constraints: the search found no output that does",
        }
        return [
            f"{getattr(self, name)} of {self.lines} lines {text} (first: line {self.first[name]})"
            for name, text in texts.items()
            if getattr(self, name)
        ]
