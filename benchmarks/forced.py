"""Forced decoding with all attention kept, against plain forced decoding (scores of given translations).

Run: python benchmarks/forced.py [--dataset FOLDER] [--rows NAME...] [--width 512] [--layers 2]
Both feed every target through the decoder at once, in batches of their own making, with weights packed as for translating.
Scoring multiplies by the vocabulary and keeps a number a token; attention does not, and keeps the weights of every layer and
head, spread over tokens, as float32 arrays of each sentence. Subword segmentation is left out: the lines are ids. They take
turns in one process; ratios are medians over the rounds.

The bar: 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from common import finish, parser, table, take_cores
from corpora import add_data_options
from phrasal import take_turns

QUICK = {
    "rows": ["token", "queryk heterogeneous 1-2"],
    "vocabulary": 50,
    "width": 16,
    "layers": 1,
    "sentences": 4,
    "rounds": 1,
}

BAR = 1.3
RNN = {"kind": "recurrent"}
ROWS: dict[str, dict[str, Any]] = {
    "token": {},
    "queryk heterogeneous 1-2": {"attention": "queryk heterogeneous 1-2"},
    "convkv heterogeneous 1-2-3": {"attention": "convkv heterogeneous 1-2-3"},
    "queryk interleaved 1-2": {"attention": "queryk interleaved 1-2"},
    "no encoder": {"encoder": {"kind": "none"}},
    "lstm": {"encoder": RNN, "decoder": RNN},
}


def arguments() -> argparse.Namespace:
    result = parser(__doc__, quick=QUICK)
    add_data_options(result)
    result.set_defaults(vocabulary=6000)
    result.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    result.add_argument("--width", type=int, default=512)
    result.add_argument("--layers", type=int, default=2, help="in the encoder and in the decoder")
    result.add_argument("--sentences", type=int, default=500)
    result.add_argument("--rounds", type=int, default=5)
    result.add_argument("--workers", type=int, help="batches computed at a time; default: as translating does")
    return result.parse_args()


def translator_of(options: argparse.Namespace, name: str, vocabulary: int) -> Any:
    """An untrained model of a row, with ids for words."""
    import torch

    from decode_speed import Ids
    from phraseloom.decoding.translator import Translator
    from phraseloom.layers.packed import pack_for_inference
    from phraseloom.models.build import build_model
    from phraseloom.options.decoding import DecodingConfig
    from phraseloom.options.model import ModelConfig

    row, layers = ROWS[name], {"layers": options.layers}
    parts = {side: {**layers, **row.get(side, {})} for side in ("encoder", "decoder")}
    if parts["encoder"].get("kind") == "none":
        parts["encoder"] = {"kind": "none"}
    sizes = {"width": options.width, "heads": max(1, options.width // 64), "ffn_width": 4 * options.width}
    torch.manual_seed(1)
    model = build_model(ModelConfig.model_validate({**sizes, **row, **parts}), vocabulary, vocabulary).eval()
    pack_for_inference(model)
    config = DecodingConfig() if options.workers is None else DecodingConfig(workers=options.workers)
    return Translator(model, Ids(), config)


def lines_of(corpus: Any, count: int, number: int) -> tuple[list[str], list[str]]:
    """Random ids of the lengths of some sentence pairs, as decimal numbers."""
    import numpy as np

    from phraseloom.text.vocabulary import SPECIALS

    random = np.random.default_rng(number)
    chosen = random.choice(len(corpus.source), count)

    def text(lengths: Any) -> list[str]:
        return [" ".join(map(str, random.integers(len(SPECIALS), corpus.vocabulary, n))) for n in lengths]

    return text(corpus.source[chosen]), text(corpus.target[chosen])


def main() -> None:
    options = arguments()
    cores = take_cores(options.cores)
    import torch

    from phrasal_work import corpus_of
    from phraseloom.analysis.attention import forced_attention

    torch.set_num_threads(cores)
    corpus = corpus_of(options)
    translators = {name: translator_of(options, name, corpus.vocabulary) for name in options.rows}
    texts = [lines_of(corpus, options.sentences, number) for number in range(options.rounds + 1)]

    def work(candidate: str, number: int) -> float:
        name, kind = candidate.rsplit(", ", 1)
        sources, targets = texts[number]
        begin = time.perf_counter()
        if kind == "scores":
            found = len(translators[name].score(sources, targets))
        else:
            found = sum(1 for _ in forced_attention(translators[name], sources, targets))
        seconds = time.perf_counter() - begin
        assert found == len(sources)
        return seconds

    candidates = [f"{name}, {kind}" for name in translators for kind in ("scores", "attention")]
    times = take_turns(candidates, options.rounds, work)
    rows, ratios, figures = [], {}, {}
    for name in translators:
        plain, kept = times[f"{name}, scores"], times[f"{name}, attention"]
        quotients = [k / p for k, p in zip(kept, plain, strict=True)]
        ratio = ratios[f"{name}: attention / scores, time"] = statistics.median(quotients)
        figures[name] = {"scores": plain, "attention": kept}
        spread, seconds = max(quotients) - min(quotients), (statistics.median(plain), statistics.median(kept))
        rows.append([name, *seconds, ratio, spread, "yes" if ratio <= BAR else "NO"])
    print(
        f"{options.width} wide, {options.layers} + {options.layers} layers, {options.sentences} pairs of {corpus.said}, "
        f"{corpus.vocabulary} subwords; medians over {options.rounds} rounds"
    )
    table(["row", "scores, s", "attention, s", "ratio", "spread", f"<= {BAR}"], rows)
    finish("forced", options, ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
