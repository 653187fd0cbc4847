"""Two rows of stored tables, by part of the test set: all sentences, the multi-word subset, the rest, and how the two differ.

Run: python docs/results/parts.py ROW,OTHER FOLDER ...   each FOLDER holds a table that `reproduce` wrote

BLEU of ROW minus BLEU of OTHER, with the 95 % interval over seeds and sentences (metrics/seeds.py), as it is and without the
brevity penalty. Of several folders, the mean over the tables follows. The multi-word subset is chosen by its reference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from phraseloom.metrics.seeds import SeedDifference, SeedScores, compare_seeds, mean_of_comparisons
from phraseloom.reproduce.sentences import SENTENCES, TableSentences, read_sentences

SAMPLES, SEED = 1000, 1
Score = Callable[[np.ndarray], np.ndarray]
Part = dict[str, SeedScores]


def bleu(sums: np.ndarray) -> np.ndarray:
    """BLEU of sums (…, 10): lengths of the translations and references, right n-grams and all n-grams of orders 1 to 4."""
    return without_penalty(sums) * np.exp(np.minimum(0.0, 1 - sums[..., 1] / sums[..., 0]))


def without_penalty(sums: np.ndarray) -> np.ndarray:
    """BLEU without its penalty for translations that are shorter than the references."""
    return 100 * np.exp(np.log(sums[..., 2:6] / sums[..., 6:10]).mean(-1))


def subset(stored: TableSentences, name: str = "mwt") -> list[int]:
    """The lines of the test set that are scored as `name`: a part in the same order, with the same translations."""
    lines = {(h.row, h.seed, metric): h.lines for h in stored.hypotheses for metric in h.metrics}
    runs = sorted((row, seed) for row, seed, metric in lines if metric == name and (row, seed, "bleu") in lines)
    whole = list(zip(*(lines[*run, "bleu"] for run in runs), strict=True))
    places: list[int] = []
    for line in zip(*(lines[*run, name] for run in runs), strict=True):
        places.append(whole.index(line, places[-1] + 1 if places else 0))
    return places


def by_part(stored: TableSentences, row: str, score: Score) -> Part:
    """The scores of a row in each part; the sentences of the subset and of the rest are drawn apart."""
    runs = [
        s.labels[""].array()
        for s in sorted(stored.statistics, key=lambda s: s.seed)
        if (s.row, s.metric) == (row, "bleu")
    ]
    counts_KNC, chosen = np.stack(runs), np.array(subset(stored))
    rest = np.setdiff1d(np.arange(counts_KNC.shape[1]), chosen)
    rng = np.random.default_rng(SEED)
    drawn = {"subset": [], "rest": []}
    for _ in range(SAMPLES):
        for name, places in (("subset", chosen), ("rest", rest)):
            drawn[name].append(counts_KNC[:, rng.choice(places, len(places))].sum(1))
    sampled = {name: np.stack(sums, 1) for name, sums in drawn.items()}
    sums = {"subset": counts_KNC[:, chosen].sum(1), "rest": counts_KNC[:, rest].sum(1)}
    both = [("all", sum(sums.values()), sum(sampled.values())), *((name, sums[name], sampled[name]) for name in sums)]
    found = {name: SeedScores(score(of), score(samples)) for name, of, samples in both}
    return {**found, "subset − rest": found["subset"].minus(found["rest"])}


def differences(folders: list[str], row: str, other: str, score: Score) -> Iterator[tuple[str, str, SeedDifference]]:
    """The difference of the rows in each part of each table, and in the mean of several tables."""
    tables = {Path(f).name: read_sentences(Path(f) / SENTENCES) for f in folders}
    rows = {name: (by_part(stored, row, score), by_part(stored, other, score)) for name, stored in tables.items()}
    for part in ("all", "subset", "rest", "subset − rest"):
        pairs = [(one[part], two[part]) for one, two in rows.values()]
        yield from ((name, part, compare_seeds(*pair)) for name, pair in zip(rows, pairs, strict=True))
        if len(pairs) > 1:
            yield "mean", part, mean_of_comparisons(pairs)


def main(compared: str, *folders: str) -> None:
    """Print a line for each part and table, with and without the penalty."""
    row, other = compared.split(",")
    scored = [list(differences([*folders], row, other, score)) for score in (bleu, without_penalty)]
    for (name, part, whole), (_, _, freed) in zip(*scored, strict=True):
        cells = [f"{d.mean:+.2f} ({d.low:+.2f} … {d.high:+.2f})".replace("-", "−") for d in (whole, freed)]
        print(f"{name:14} {row} − {other}  {part:14} {cells[0]:24} without penalty {cells[1]}")


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
