"""The texts, tokens, words and probabilities of a sentence pair as plain data (schema: `analysis/explain/sentence.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from phraseloom.analysis.explain.model import explainer_of
from phraseloom.analysis.heatmap import tokens_of
from phraseloom.decoding.penalties import build_penalty
from phraseloom.decoding.scoring import Score, score_pairs
from phraseloom.decoding.translation import Translation
from phraseloom.text.tokenizer import Side
from phraseloom.text.vocabulary import EOS, UNK
from phraseloom.text.words import JOINER


@dataclass(frozen=True)
class ExplainedPair:
    """A sentence pair as input of a model.

    `source_line` and `target_line` are the raw lines; the target is "" if the model translated. `text` is the readable target.
    `source` and `target` are the subword ids that are shown, without EOS; the first `tags` ids of `source` are tags.
    `source_total` and `target_total` count the ids of the whole lines, without tags.
    `phrases` are the sizes of the source phrases, if the model needs them. `translation` is the model's own one, None for a
    given target. `unsplit`: the model would split this line into sentences.
    """

    source_line: str
    target_line: str
    text: str
    source: list[int]
    tags: int
    target: list[int]
    source_total: int
    target_total: int
    phrases: list[int] | None
    translation: Translation | None
    unsplit: bool = False

    @property
    def source_of_line(self) -> list[int]:
        """The ids of `source` that are not tags."""
        return self.source[self.tags :]

    @property
    def whole(self) -> bool:
        """Whether the whole target is shown, including EOS."""
        return len(self.target) == self.target_total


def texts(tokenizer: Any, pair: ExplainedPair) -> dict[str, Any]:
    """The target, tokens, words, and the words of each token."""
    source, target = tokenizer.source, tokenizer.target
    source_spans, spans = words_of_pair(tokenizer, pair)
    ends = [EOS] if pair.whole else []
    if pair.translation is None:
        target_words = _words(target, target.words(pair.target_line), pair.target, spans, whole=pair.whole)
    else:
        target_words = _words(target, pair.translation.words, pair.target, spans, whole=pair.whole)
    source_whole = len(pair.source_of_line) == pair.source_total
    return {
        "target": pair.text,
        "given": pair.translation is None,
        "source_tokens": _labels(source, [*pair.source, EOS]),
        "target_tokens": _labels(target, [*pair.target, *ends]),
        "source_word": [*(span.start for span in source_spans), None],
        "target_word": [*(span.start for span in spans), *(None for _ in ends)],
        "target_span": [*([span.start, span.stop] for span in spans), *(None for _ in ends)],
        "source_words": _words(source, source.words(pair.source_line), pair.source, source_spans, whole=source_whole),
        "target_words": target_words,
    }


def words_of_pair(tokenizer: Any, pair: ExplainedPair) -> tuple[list[range], list[range]]:
    """The words of each source token and of each target token, without EOS."""
    source, target = tokenizer.source, tokenizer.target
    return (
        source.words_of_piece(pair.source, source.pieces_of(pair.source_line, pair.source)),
        target.words_of_piece(pair.target, target.pieces_of(pair.target_line, pair.target)),
    )


def _labels(side: Side, ids: list[int]) -> list[str]:
    tokens = tokens_of(side, ids)
    return [tokens.label(1, i) for i in range(len(ids))]


def _words(side: Side, line_words: list[str], ids: list[int], spans: list[range], *, whole: bool) -> list[str]:
    """The words of the ids: those of the line if their number agrees, else the joined pieces of each word."""
    count = spans[-1].stop if spans else 0
    for words in (line_words, side.words_of(ids)):
        if len(words) == count or (len(words) > count and not whole):
            return words[:count]
    return [
        "".join(side.vocabulary.piece(i) for i, span in zip(ids, spans, strict=True) if w in span) for w in range(count)
    ]


def scores(translator: Any, pair: ExplainedPair) -> dict[str, Any]:
    """log p of the target as in `Translator.score`; None if the target is not whole or has no probability."""
    phrases = None if pair.phrases is None else [pair.phrases]
    ids = (pair.source, pair.target)
    (log_probs,) = score_pairs(translator.model, [ids], translator.config, translator.device, phrases)
    penalty, bonus = build_penalty(translator.config.length_penalty), translator.config.word_bonus
    score = Score.of(log_probs, [], penalty, word_bonus=bonus)
    is_known = pair.whole and math.isfinite(score.log_prob)
    shown = log_probs if pair.whole else log_probs[:-1]
    return {
        "log_prob": score.log_prob if is_known else None,
        "score": score.score if is_known else None,
        "token_log_probs": [p if math.isfinite(p) else None for p in shown],
    }


def notes(translator: Any, pair: ExplainedPair) -> list[str]:
    """Notes on what was cropped, what is unknown, and what the model lacks."""
    model, result = translator.model, []
    if pair.source_total > len(pair.source_of_line):
        result.append(f"the source was cropped to {len(pair.source_of_line)} subwords of {pair.source_total}")
    if not pair.whole:
        result.append(f"the target is shown up to its subword {len(pair.target)} of {pair.target_total}")
    if not pair.target_total:
        result.append("the target is blank")
    elif pair.translation is None and translator.tokenizer.target.joined and JOINER not in pair.target_line:
        result.append(
            "targets of this model are joined text, and this one has no joined phrase: it is read word by word"
        )
    if pair.unsplit:
        result.append(
            "the model translates sentence by sentence (split_sentences); here, the line is translated as a whole"
        )
    if pair.translation is not None and pair.translation.hit_max_length:
        result.append("the translation reached its maximal length and may be incomplete")
    for name, ids in (("source", pair.source_of_line), ("target", pair.target)):
        if UNK in ids:
            result.append(f"unknown to the model: {ids.count(UNK)} of {len(ids)} {name} subwords")
    if missing := explainer_of(model).note(model):
        result.append(missing)
    return result
