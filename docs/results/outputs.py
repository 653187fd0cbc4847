"""What the stored translations of two rows hold: phrases of the reference, rare words, repeated words; TER and chrF2; and BLEU
where the source alone promises a phrase, or not.

Run: python docs/results/outputs.py STEPS ROW,OTHER FOLDER ...   each FOLDER holds a table that `reproduce` wrote; STEPS is the
     folder `steps` of the run that wrote them (the phrases, the training text and the references are there)

For each row the mean over its seeds; then ROW minus OTHER, with the 95 % interval over seeds and sentences (metrics/seeds.py).
Of several folders, the mean over the tables follows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from phraseloom.metrics.bleu import make_scorer
from phraseloom.metrics.seeds import SeedDifference, SeedScores, compare_seeds, mean_of_comparisons
from phraseloom.options.text import TextConfig
from phraseloom.phrases.stop_words import STOP_WORDS
from phraseloom.reproduce.sentences import SENTENCES, TableSentences, read_sentences
from phraseloom.text.lines import read_lines
from phraseloom.text.normalize import Normaliser

SAMPLES, SEED = 500, 1
RARE = 20  # times in the training text
SURE = 0.5  # the least share of links in training that makes a source word promise a phrase
SCORES = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER (lower is better)"}
Words = Sequence[str]


class Text(NamedTuple):
    """The test set: references, their words and phrases; which sources promise a phrase; all phrases; rare training words."""

    references: list[str]
    words: list[Words]
    phrases: list[list[tuple[str, ...]]]
    promising: np.ndarray
    table: set[tuple[str, ...]]
    rare: set[str]


def read_text(steps: Path, language: str = "en") -> Text:
    """The steps that `reproduce` ran before the trainings."""

    def lines(name: str) -> list[str]:
        (path,) = steps.glob(name)
        return list(read_lines(path))

    references, normalised = lines("test_target-*/out.txt"), Normaliser(TextConfig(tokenize="moses"), language)
    table = {tuple(row.split("\t")[0].split(" ")) for row in lines("filter-*/phrases.tsv")}
    joined: list[list[tuple[str, ...]]] = [[] for _ in references]
    for number, line in zip(lines("mwt-*/mwt/lines.txt"), lines("mwt-*/mwt/target.txt.joined"), strict=True):
        joined[int(number) - 1] = [tuple(token.split("_")) for token in line.split() if "_" in token.strip("_")]
    links: Counter[str] = Counter()
    words: dict[str, int] = {}
    for phrase, word, count, times in (row.split("\t") for row in lines("extract-*/candidates.tsv")):
        links[word] += int(count) * (tuple(phrase.split(" ")) in table)
        words[word] = int(times)
    sure = {word for word, times in words.items() if times > 1 and links[word] / times >= SURE}
    promising = np.array([not sure.isdisjoint(line.split()) for line in lines("tok_test_source-*/source.txt")])
    counts = Counter(word for line in lines("tok_train_target-*/target.txt") for word in line.split())
    rare = {word for word, count in counts.items() if count <= RARE}
    return Text(references, [normalised(line).split() for line in references], joined, promising, table, rare)


def runs(words: Words, size: int) -> Counter[tuple[str, ...]]:
    """All runs of `size` adjacent words."""
    return Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))


def of_content(phrase: Words) -> bool:
    """Whether no word of the phrase is a stop-word."""
    return not any(word.lower() in STOP_WORDS["en"] for word in phrase)


def longest(words: Words, table: set[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The phrases of the table in a line: from the left, the longest match."""
    at, most = 0, max(map(len, table))
    while at < len(words):
        phrase = next(
            (p for n in range(most, 1, -1) if (p := tuple(words[at : at + n])) in table and len(p) == n), None
        )
        if phrase:
            yield phrase
        at += len(phrase or " ")


def found(phrases: Sequence[tuple[str, ...]], words: Words) -> tuple[int, int]:
    """How many of the phrases stand in a line, and how many there are."""
    return sum(runs(words, len(phrase))[phrase] > 0 for phrase in phrases), len(phrases)


def right(words: Words, of: Words, chosen: set[str]) -> tuple[int, int]:
    """How many of the chosen words of a line are in the other one too, each as often, and how many there are."""
    counts, others = Counter(w for w in words if w in chosen), Counter(of)
    return sum((counts & others).values()), counts.total()


def counted(text: Text) -> dict[str, Callable[[int, Words], tuple[int, int]]]:
    """Shares in per cent: what counts, and of how many, in line n of the output."""
    result: dict[str, Callable[[int, Words], tuple[int, int]]] = {}
    for kind, content in (("phrases of content words", True), ("other phrases", False)):

        def wanted(phrases: Iterable[tuple[str, ...]], content: bool = content) -> list[tuple[str, ...]]:
            return [phrase for phrase in phrases if of_content(phrase) == content]

        result |= {
            f"{kind} in the reference, found": lambda n, words, of=wanted: found(of(text.phrases[n]), words),
            f"{kind} in the output, right": lambda n, words, of=wanted: found(
                of(longest(words, text.table)), text.words[n]
            ),
            f"{kind} in 100 outputs": lambda _, words, of=wanted: (len(of(longest(words, text.table))), 1),
        }
    return result | {
        "rare words in the reference, found": lambda n, words: right(text.words[n], words, text.rare),
        "rare words in the output, right": lambda n, words: right(words, text.words[n], text.rare),
        "rare words in 100 outputs": lambda _, words: (sum(word in text.rare for word in words), 1),
        "lines with a word twice in a row": lambda _, words: (int(twice(words)), 1),
    }


def twice(words: Words) -> bool:
    """Whether a word follows itself."""
    return any(a == b and a.isalpha() for a, b in pairwise(words))


Measure = tuple[np.ndarray, Callable[[np.ndarray], float], np.ndarray]  # statistics (K, N, C), value of sums, lines


def share(sums: np.ndarray) -> float:
    """The first sum in per cent of the second."""
    return float(100 * sums[0] / sums[1])


def measures(stored: TableSentences, row: str, text: Text) -> dict[str, Measure]:
    """All measures of a row."""
    lines = [h.lines for h in sorted(stored.hypotheses, key=lambda h: h.seed) if h.row == row and "bleu" in h.metrics]
    normalised, every = Normaliser(TextConfig(tokenize="moses"), "en"), np.arange(len(text.references))
    words = [[normalised(line).split() for line in run] for run in lines]
    result: dict[str, Measure] = {}
    for name, count in counted(text).items():
        rows = np.array([[count(n, line) for n, line in enumerate(run)] for run in words], float)
        result[name] = (rows, share, every)
    for name, title in SCORES.items():
        scorer = make_scorer(name)
        rows = np.stack([scorer.statistics(run, [text.references]) for run in lines])
        result[title] = (rows, scorer.value, every)
        if name == "bleu":
            result["BLEU, the source promises a phrase"] = (rows, scorer.value, np.flatnonzero(text.promising))
            result["BLEU, it does not"] = (rows, scorer.value, np.flatnonzero(~text.promising))
    return result


def scores(measure: Measure) -> SeedScores:
    """The value of each run, and on resamples of the sentences, which are the same for all rows."""
    rows, value, lines = measure
    rng = np.random.default_rng(SEED)
    drawn = [rows[:, rng.choice(lines, len(lines))].sum(1) for _ in range(SAMPLES)]
    return SeedScores(
        np.array([value(sums) for sums in rows[:, lines].sum(1)]),
        np.stack([[value(sums) for sums in sample] for sample in drawn], 1),
    )


def shown(difference: SeedDifference) -> str:
    """The difference with its interval."""
    return f"{difference.mean:+.2f} ({difference.low:+.2f} … {difference.high:+.2f})".replace("-", "−")


def main(steps: str, compared: str, *folders: str) -> None:
    """Print a line for each measure and table."""
    text, (row, other) = read_text(Path(steps)), compared.split(",")
    content = [of_content(phrase) for phrases in text.phrases for phrase in phrases]
    print(f"{text.promising.sum():,} of {len(text.references):,} sources promise a phrase")
    print(f"{len(content):,} phrases are linked in the references, {sum(content):,} of content words")
    matches = [of_content(phrase) for words in text.words for phrase in longest(words, text.table)]
    per_100 = (100 * count / len(text.words) for count in (sum(matches), len(matches) - sum(matches)))
    print("phrases of content words, and others, in 100 references: {:.2f} and {:.2f}".format(*per_100))
    print(f"{row} − {other} in the last column")
    pairs: dict[str, list[tuple[SeedScores, SeedScores]]] = {}
    for folder in folders:
        stored = read_sentences(Path(folder) / SENTENCES)
        names = sorted({h.row for h in stored.hypotheses})
        of_rows = {name: {m: scores(of) for m, of in measures(stored, name, text).items()} for name in names}
        for name in of_rows[row]:
            numbers = {r: of[name].scores for r, of in of_rows.items()}
            means = "  ".join(f"{r} {x.mean():.2f} ± {x.std(ddof=min(1, len(x) - 1)):.2f}" for r, x in numbers.items())
            pairs.setdefault(name, []).append((of_rows[row][name], of_rows[other][name]))
            print(f"{stored.table:14} {name:46} {means}  {shown(compare_seeds(*pairs[name][-1]))}", flush=True)
    if len(folders) > 1:
        for name, of_tables in pairs.items():
            print(f"{'mean':14} {name:46} {shown(mean_of_comparisons(of_tables))}")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 3 else sys.exit(__doc__)
