"""BLEU, chrF and TER by sacreBLEU with their signatures; tokenised BLEU as in Moses and tensor2tensor; BLEU by length.

    BLEU = BP · exp(1/4 Σₙ log pₙ),   BP = min(1, exp(1 − r/c)),   pₙ = matched / all n-grams of the hypotheses

Every metric here is a function of sums over sentences. So a `Scorer` turns sentences into rows of counts (`statistics`), and
computes a score from the sum of any rows: the whole corpus, the sentences of one length, or a bootstrap resample. Papineni et
al. 2002; Post 2018 (sacreBLEU).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phraseloom.errors import DataError, UsageError, plural
from phraseloom.text.lines import check_parallel, read_lines
from phraseloom.text.normalize import moses_tokens

if TYPE_CHECKING:
    import numpy as np

LENGTH_EDGES = (15, 30, 45)
FETCHING = ("spm", "flores", "spBLEU")
PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
ASCII_SPACE = " \t\n\r\f\v"


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score. `signature` tells how it was computed; `detail` has its parts as text."""

    name: str
    value: float
    signature: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name}|{self.signature} = {self.value:.2f}" + (f" {self.detail}" if self.detail else "")


@dataclass(frozen=True)
class LengthGroup:
    """BLEU of the sentences whose source has more than `above` and at most `up_to` tokens (None: no limit)."""

    label: str
    above: int
    up_to: int | None
    sentences: int
    score: CorpusScore | None

    def holds(self, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
        """A mask of the lengths that belong to the group; 0 belongs to the first group."""
        import numpy as np

        counts = np.asarray(lengths)
        inside = counts > self.above if self.above else counts >= 0
        return inside if self.up_to is None else inside & (counts <= self.up_to)


class Scorer:
    """One metric: sentences → rows of counts → score of a sum of rows.

    `metric` is a metric of sacreBLEU (`given.py` has a scorer without one). `prepare` is applied to every line before it, and
    `tokens` says in the signature which tokens it makes.
    """

    def __init__(
        self,
        name: str,
        metric: Any,
        *,
        higher_is_better: bool = True,
        prepare: Callable[[str], str] | None = None,
        tokens: str = "none",
    ) -> None:
        self.name, self.higher_is_better = name, higher_is_better
        self._metric, self._prepare, self._tokens = metric, prepare, tokens

    def statistics(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """The counts of each sentence, float64 (sentences, counts). `references` has one list of lines per file."""
        import numpy as np

        check_parallel({"hypothesis": hypotheses} | {f"reference {i + 1}": r for i, r in enumerate(references)})
        if self._prepare is not None:
            hypotheses = [self._prepare(line) for line in hypotheses]
            references = [[self._prepare(line) for line in lines] for lines in references]
        return np.array(self._metric._extract_corpus_statistics(hypotheses, references), dtype=np.float64)

    def score(self, sums: np.ndarray) -> CorpusScore:
        """The score of summed counts."""
        result = self._score(sums)
        detail = getattr(result, "_verbose", "") or ""
        return CorpusScore(self.name, float(result.score), self.signature, detail)

    def value(self, sums: np.ndarray) -> float:
        """Only the number, for thousands of resamples."""
        return float(self._score(sums).score)

    def length_ratio(self, sums: np.ndarray) -> float | None:
        """Tokens of the hypotheses / tokens of the references, c/r in the brevity penalty of BLEU; None for other metrics.

        Also None if the references have no token.
        """
        from sacrebleu.metrics.bleu import BLEU

        if not isinstance(self._metric, BLEU) or not sums[1]:
            return None
        return float(sums[0] / sums[1])

    def _score(self, sums: np.ndarray) -> Any:
        whole = bool((sums == sums.round()).all())
        return self._metric._compute_score_from_stats((sums.astype(int) if whole else sums).tolist())

    @property
    def signature(self) -> str:
        """SacreBLEU's signature (known after the first `statistics`, which counts the references)."""
        signature = str(self._metric.get_signature().format())
        return signature.replace("|tok:none|", f"|tok:{self._tokens}|")

    def corpus(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> CorpusScore:
        """The score of a whole corpus."""
        return self.score(self.statistics(hypotheses, references).sum(0))


def _bleu(tokenize: str, lowercase: bool) -> Scorer:
    from sacrebleu.metrics.bleu import BLEU

    names = [name for name in BLEU.TOKENIZERS if not name.startswith(FETCHING)]
    if tokenize not in names:
        what, offer = f"no BLEU tokenizer {tokenize!r}", ", ".join(names)
        if tokenize in BLEU.TOKENIZERS:
            what += " here: sacreBLEU would fetch its model from the network, and phraseloom never uses the network"
        raise UsageError(what, hint=f"choose from {offer}")
    try:
        return Scorer("BLEU", BLEU(lowercase=lowercase, tokenize=tokenize, force=True))
    except (ImportError, RuntimeError, SystemExit) as error:
        reason = str(error).strip().partition("\n")[0]
        hint = f"pip install '{PACKAGES[tokenize]}'" if tokenize in PACKAGES else None
        raise UsageError(f"the BLEU tokenizer {tokenize!r} cannot be used here: {reason}", hint=hint) from error


def _chrf(tokenize: str, lowercase: bool) -> Scorer:
    from sacrebleu.metrics.chrf import CHRF

    return Scorer("chrF2", CHRF(lowercase=lowercase))


def _ter(tokenize: str, lowercase: bool) -> Scorer:
    from sacrebleu.metrics.ter import TER

    return Scorer("TER", TER(), higher_is_better=False)


def _moses(tokenize: str, lowercase: bool) -> Scorer:
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
    return Scorer("BLEU-tok", metric, prepare=ascii_tokens)


def _t2t(language: str, lowercase: bool) -> Scorer:
    from sacrebleu.metrics.bleu import BLEU
    from sacremoses import __version__ as version

    if not (language.isascii() and language.isalpha() and language.islower() and len(language) in (2, 3)):
        raise UsageError(f"{T2T}{language}: no language code after {T2T}", hint=f"such as {T2T}de")
    metric = BLEU(tokenize="none", smooth_method="none", lowercase=lowercase, force=True)
    tokens = f"{T2T}{language}-sacremoses-{version}"
    return Scorer("BLEU-t2t", metric, prepare=partial(compound_tokens, language=language), tokens=tokens)


T2T = "t2t-"
SCORERS: dict[str, Callable[[str, bool], Scorer]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "ter": _ter,
    "tokenized": _moses,
}


CHOICE = f"{', '.join(SCORERS)}, {T2T}LANGUAGE"


def make_scorer(name: str, *, tokenize: str = "13a", lowercase: bool = False) -> Scorer:
    """The scorer with this name in `SCORERS`.

    `tokenize` names a BLEU tokenizer of sacreBLEU that needs no network. `tokenized` is cased BLEU on the tokens of the input,
    without smoothing, as multi-bleu.perl of Moses prints it. `t2t-de`: the same on Moses tokens of German with compounds split
    at hyphens, as get_ende_bleu.sh of tensor2tensor computes it; so for any language code. Raises UsageError for an unknown
    name.
    """
    if name.startswith(T2T):
        return _t2t(name.removeprefix(T2T), lowercase)
    if name not in SCORERS:
        raise UsageError(f"no metric {name!r}", hint=f"choose from {CHOICE}")
    return SCORERS[name](tokenize, lowercase)


def ascii_tokens(line: str) -> str:
    """`line` with Unicode white space replaced, so that a later split gives the tokens between ASCII white space.

    multi-bleu.perl splits bytes, so a no-break space is part of a token. Each such character is mapped one to one into a
    private-use plane.
    """
    if line.isascii() and line.isprintable():
        return line
    return "".join(chr(0xF0000 + ord(c)) if c.isspace() and c not in ASCII_SPACE else c for c in line)


_HYPHEN = re.compile(r"(\S)-(\S)", re.ASCII)


def compound_tokens(line: str, *, language: str) -> str:
    """The Moses tokens of a line with hyphens inside words as tokens: `rich-text` → `rich ##AT##-##AT## text`.

    As in get_ende_bleu.sh, matches do not overlap: in `a-b-c` only the first hyphen is split.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", moses_tokens(line, language))


def count_tokens(lines: Sequence[str], *, tokenize: str = "13a") -> list[int]:
    """The number of tokens of each line as BLEU counts them; `none` counts the tokens of the input."""
    if tokenize == "none":
        return [len(ascii_tokens(line).split()) for line in lines]
    tokenizer = make_scorer("bleu", tokenize=tokenize)._metric.tokenizer
    return [len(tokenizer(line.rstrip()).split()) for line in lines]


def bleu_by_length(
    scorer: Scorer, statistics: np.ndarray, lengths: Sequence[int], *, edges: Sequence[int] = LENGTH_EDGES
) -> list[LengthGroup]:
    """The score inside each group of source lengths: (0, e₁], (e₁, e₂], …, > last edge.

    `statistics` has all sentences; `lengths` count source tokens before subword segmentation. Sentences without a token are in
    the first group, so that the groups add up to the corpus.
    """
    import numpy as np

    if list(edges) != sorted(set(edges)) or not edges or edges[0] < 1:
        raise UsageError(f"length edges must rise from 1: {','.join(map(str, edges))}")
    counts = np.asarray(lengths)
    if len(counts) != len(statistics):
        raise DataError(f"source has {plural(len(counts), 'line')}, but the hypotheses have {len(statistics)}")
    groups = []
    for above, up_to in zip((0, *edges), (*edges, None), strict=True):
        label = f">{above}" if up_to is None else f"≤{up_to}" if not above else f"{above + 1}–{up_to}"
        group = LengthGroup(label, above, up_to, 0, None)
        chosen = statistics[group.holds(counts)]
        if len(chosen):
            group = replace(group, sentences=len(chosen), score=scorer.score(chosen.sum(0)))
        groups.append(group)
    return groups


def read_line_numbers(path: str | Path, lines: int) -> list[int]:
    """The line numbers in a file, one per line, as sorted indices from 0; `lines` is the length of the texts.

    Raises FileProblem, and DataError (file and line) for anything but a number from 1 to `lines`, a repeated number, and a file
    without numbers.
    """
    place: dict[int, int] = {}
    for at, text in enumerate(read_lines(path), 1):
        digits = text.strip()
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else 0
        if not 1 <= number <= lines:
            hint = "write one number per line, as phrases mwt does in lines.txt"
            raise DataError(f"{text!r} is not a line number from 1 to {lines:,}", file=path, line=at, hint=hint)
        if place.setdefault(number, at) != at:
            raise DataError(f"{number} is also in line {place[number]}", file=path, line=at)
    if not place:
        raise DataError("the file has no line numbers: nothing to score", file=path)
    return sorted(number - 1 for number in place)


def take(texts: Iterable[Sequence[str]], chosen: Sequence[int]) -> list[list[str]]:
    """The chosen lines of each text."""
    return [[lines[i] for i in chosen] for lines in texts]
