"""Parts of a report (parts.py) on what is cut out of sentences, and on embeddings: segments, source phrases, neighbours."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

PLACES = ("segment", "inside", "split")
SHARES = ("chance", "posterior", "from_its_source")


def number(value: Any) -> float:
    """A number of a JSON file; TypeError for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"a number expected, not {value!r}")
    return float(value)


def segments(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of `analyse segments`, about the system `name`: how many subwords a source subword writes, and known phrases by kind."""
    forced = "left_out" in value
    lengths = [{"size": int(size), "count": int(count)} for size, count in value["lengths"].items()]
    phrases = []
    for kind, entry in value.get("phrases", {}).items():
        low, high = (number(end) for end in entry["interval"])
        shares = {key: _share(entry[key]) for key in (*PLACES, *SHARES)}
        phrases.append({"kind": str(kind), "phrases": int(entry["phrases"]), "low": low, "high": high, **shares})
    return {
        "forced": forced,
        "sentences": sum(one is not None for one in value["sentences"]),
        "left_out": sum(map(int, value["left_out"].values())) if forced else 0,
        "systems": [{"name": name, "lengths": lengths, "phrases": phrases}],
    }


def source_phrases(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Of `analyse phrases`, about the system `name`: sizes of phrases, and by level how much their weightiest subword counts.

    `greatest`: the mean over phrases of two and more subwords that have weights of the greatest weight, `even`: of 1 / size.
    `shares[i][j]`: how much of level i decoder layer j reads.
    """
    phrases = [phrase for sentence in value["sentences"] for phrase in sentence]
    sizes = Counter(len(phrase["pieces"]) for phrase in phrases)
    levels = []
    for level in range(max((len(phrase["weights"]) for phrase in phrases), default=0)):
        found = [phrase["weights"][level] for phrase in phrases if len(phrase["pieces"]) > 1]
        weighed = [[number(w) for w in weights] for weights in found if weights is not None]
        if weighed:
            greatest = statistics.fmean(max(weights) for weights in weighed)
            even = statistics.fmean(1 / len(weights) for weights in weighed if weights)
            levels.append({"level": level, "phrases": len(weighed), "greatest": greatest, "even": even})
    shares = None if value["shares"] is None else [[number(share) for share in row] for row in value["shares"]]
    counts = [{"size": size, "count": count} for size, count in sorted(sizes.items())]
    return {
        "sentences": sum(bool(sentence) for sentence in value["sentences"]),
        "cropped": int(value["cropped"]),
        "systems": [{"name": name, "phrases": len(phrases), "sizes": counts, "levels": levels, "shares": shares}],
    }


def neighbours(value: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Of `analyse neighbours`: the neighbours of each token in one model or two, and how far two agree."""
    tokens = [
        {"piece": str(t["piece"]), "count": t["count"], "shared": t.get("shared"), "neighbours": _near(t["neighbours"])}
        for t in value["tokens"]
    ]
    systems = []
    for i, model in enumerate(value["models"]):
        ranks = zip(*(token["neighbours"][i] for token in tokens), strict=True)
        systems.append({"name": str(model), "cosines": [statistics.fmean(c for _, c in some) for some in ranks]})
    keys = ("overlap", "chance", "pairs", "pearson", "spearman")
    return {
        "side": str(value["side"]),
        "neighbours": int(value["neighbours"]),
        "candidates": int(value["candidates"]),
        "agreement": {key: value[key] for key in keys} if len(systems) == 2 else None,
        "tokens": tokens,
        "systems": systems,
    }


def _near(models: Sequence[Any]) -> list[list[list[Any]]]:
    return [[[str(piece), number(cosine)] for piece, cosine in some] for some in models]


def _share(value: Any) -> float | None:
    return None if value is None else number(value)
