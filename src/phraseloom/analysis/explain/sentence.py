"""What models make of sentences, as one document of plain JSON: everything that a page needs to show why a translation is so.

Format 1. Words and tokens count from 0, ranges are half-open, layers count from 1; weights and shares are from 0 to 1.

    Document
      format         1
      version        of phraseloom
      models         [Model]
      sentences      [Sentence]

    Model
      name, label    the key that `explain` was given; what to show for it
      parameters     how many
      description    one line: encoder, decoder, the kinds of attention, the output
      languages      [source, target]
      level_shares   transparent attention: [level][decoder layer], how much of each encoder level (0: embeddings) the layer
                     reads; null without it

    Sentence
      line           its number in the file (from 1), null where there is none
      source         the raw line
      reference      a translation by people, or null
      views          [View], one a model

    View
      target         the translation as text
      given          true: it was given and forced; false: the model's own one
      log_prob       log p(target | source) in nats, EOS counted, as `Translator.score` gives it; null where the target is not
                     whole or has no probability
      score          log_prob / length penalty
      notes          [text]: what was cropped, what the model has not, …
      source_tokens  [label], EOS `</s>` last, of a model that reads it (segmental models do not)
      target_tokens  [label], EOS last, unless the target is not whole
      source_word    [word of each source token; null for EOS]
      target_word    [(first) word of each target token; null for EOS]
      target_span    [[first word, last + 1] of each target token; null for EOS]: a phrase token has several words
      source_words   [word], those that have tokens; the numbers of all links count these
      target_words   [word]
      token_log_probs  [log p of each target token given those before it; null for -∞]
      attention      [Attention], cross, encoder-self, decoder-self, encoder-phrases, decoder-phrases, each from layer 1; only
                     those that a model has
      shares         [Share]
      word_links     [[source word, target word, weight]], by the layer, head and method of the translator's options
      phrase_links   [[[s0, s1], [t0, t1], weight]], words
      segments       [Segment] of a segmental model (NPMT), else null
      phrase_vectors [Phrases], a level of the encoder each, of a model with source phrase representations, else null
      gate           Gate of a model that writes words or phrases, else null

    Attention
      use            cross, encoder-self, decoder-self; encoder-phrases and decoder-phrases: what tokens read of source phrase
                     representations (in the combination network, P001 §3.4)
      layer, heads   its number, how many heads it has
      kind           `token`, `queryk heterogeneous 1-2`, … (`options/attention.py`); of recurrent decoders also mlp,
                     general; of phrases what they are made of: `phrases of embeddings`, `phrases of encoder 1`,
                     `phrases of all levels`
      rows           Axis of the queries: those of order 1 first, then n-grams (interleaved attention); of phrases all tokens of
                     the source or of the target
      columns        Axis of the slots: tokens first (where there are any), then n-grams; of phrases the phrases of the source
      weights        Packed [heads, rows, columns], as the model normalises them: a row sums to 1 (to 0 where it sees nothing)
      tokens         Packed [heads, T, S]: the queries of order 1, each slot spread evenly over its tokens; null where that is
                     `weights`, and of phrases. T and S are the tokens of rows and columns with `orders` 1 of the same use

    Axis
      labels         [text], `·` between words, `…` before what begins inside a word, `∅` for what lies before the sentence
      orders         [n], how many tokens; ascending, but phrases stand in the order of the sentence
      ends           [last token of each n-gram, an index into source_tokens or target_tokens; -1 is BOS]. In decoder-self the
                     axes hold what the decoder reads: BOS, then every target token but the last. There a column is hidden from
                     a row if its end is greater; its weight is 0
      side           source or target

    Packed           {shape, scale, data}: base64 of zlib-deflated bytes in C order, value = byte / 255 · scale

    Share            use (not of phrases), layer, query (order of the queries: 1, and more where queries are n-grams) and
      heads          [{order of slots: share of what the head gives out}], null for a share of nothing

    Segment          source (word), target ([first, last + 1], the words it touches), source_token, target_tokens ([first,
                     last + 1]), log_prob: of the model's own translation log p(segment | source position), of a given target
                     log p(segment | source position, the whole target)

    Phrases          stage (embeddings or encoder), layer (null for embeddings) and
      phrases        [{begin, end (source tokens, EOS is one), weights [of each of its tokens; empty without scorer], share
                     (what a gated scorer leaves for the glance, 0 of the softmax scorer; null without scorer)}]

    Gate             classes ([name]: how many target words), fertility ([[p of each class] of each source token; null for
                     EOS]), word_share ([λ of each target token]: that it is a word, not a phrase), is_phrase ([bool of each
                     target token]); without a fertility module classes is empty, fertility and word_share are null

A source or target of more than `max_tokens` subwords is cropped to these: a document grows with their product. A blank source
has a view with a note and nothing else.

What one model makes of one sentence pair, as plain data: a View of the schema in `analysis/explain/sentence.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from phraseloom import __version__
from phraseloom.analysis.explain.model import describe, explainer_of
from phraseloom.analysis.explain.text import ExplainedPair, notes, scores, texts
from phraseloom.data.tensors import make_batch
from phraseloom.decoding.cancellation import ShouldCancel, raise_if_cancelled
from phraseloom.decoding.source_phrases import cropped_sources
from phraseloom.decoding.translation import TranslationReport
from phraseloom.errors import UsageError

FORMAT = 1
MAX_MODELS = 2
MAX_TOKENS = 250
ORDER = ("cross", "encoder-self", "decoder-self", "encoder-phrases", "decoder-phrases")


def explain(
    translators: Mapping[str, Any],
    sources: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    references: Sequence[str] | None = None,
    trees: Sequence[str] | None = None,
    prefixes: Sequence[str] | None = None,
    lines: Sequence[int] | None = None,
    uses: Sequence[str] = ORDER,
    max_tokens: int = MAX_TOKENS,
    should_cancel: ShouldCancel | None = None,
) -> dict[str, Any]:
    """The document of raw source lines with `targets`, which are forced, or with each model's own translations.

    `translators` by name, one or two, with their own options (beam, alignment_layer, …). `references` are shown, nothing more.
    `trees` of the sources go to the models whose phrases are made of them. `prefixes`: what own translations must begin with.
    `lines`: numbers of the sentences, to be shown. `uses`: which attentions. What a sentence gets does not depend on those
    around it. Raises UsageError (numbers of models or lines, layers, heads, trees), DataError (a tree that does not fit),
    ModelError (NaN), and Cancelled if `should_cancel`, called at each step, returns True.
    """
    parallel = {"targets": targets, "references": references, "trees": trees, "prefixes": prefixes, "lines": lines}
    _require(translators, sources, parallel, uses, max_tokens)
    wanting = [name for name, t in translators.items() if t.segmenter is not None and t.segmenter.needs_trees]
    if trees is not None and not wanting:
        next(iter(translators.values())).require_trees(True)
    shown = [use for use in ORDER if use in uses]
    views = [
        _views(t, sources, targets, trees if name in wanting else None, prefixes, shown, max_tokens, should_cancel)
        for name, t in translators.items()
    ]
    sentences = [
        {
            "line": None if lines is None else lines[n],
            "source": source,
            "reference": None if references is None else references[n],
            "views": [of_model[n] for of_model in views],
        }
        for n, source in enumerate(sources)
    ]
    models = [_model(name, translator) for name, translator in translators.items()]
    return {"format": FORMAT, "version": __version__, "models": models, "sentences": sentences}


def _require(
    translators: Mapping[str, Any],
    sources: Sequence[str],
    parallel: Mapping[str, Sequence[Any] | None],
    uses: Sequence[str],
    max_tokens: int,
) -> None:
    if not 1 <= len(translators) <= MAX_MODELS:
        raise UsageError(f"{len(translators)} models: one can be looked at, or two side by side")
    if unknown := [use for use in uses if use not in ORDER]:
        raise UsageError(f"no use {unknown[0]!r}", hint=f"one of {', '.join(ORDER)}")
    if max_tokens < 1:
        raise UsageError(f"max_tokens {max_tokens} is less than 1")
    if parallel["targets"] is not None and parallel["prefixes"] is not None:
        raise UsageError("targets are forced as they are: there is nothing that prefixes could begin")
    for name, given in parallel.items():
        if given is not None and len(given) != len(sources):
            raise UsageError(f"{len(sources)} sources, but {len(given)} {name}")


def _views(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str] | None,
    trees: Sequence[str] | None,
    prefixes: Sequence[str] | None,
    uses: Sequence[str],
    max_tokens: int,
    should_cancel: ShouldCancel | None,
) -> list[View]:
    """The view of each sentence by one model; each is translated by itself, so that not a digit is of those around it."""
    side = translator.tokenizer.target
    totals = [len(ids) for ids in translator.tokenizer.source.encode_batch(list(sources))]
    limit = min(max_tokens, translator.config.max_input_tokens)
    translator = translator.with_options(max_input_tokens=limit, long_lines="crop", n_best=1)
    source_ids, sizes, _ = cropped_sources(translator, sources, trees)
    views = []
    for n, line in enumerate(sources):
        raise_if_cancelled(should_cancel)
        own, target = None, "" if targets is None else targets[n]
        if targets is None:
            beside = {name: [of[n]] for name, of in (("trees", trees), ("prefixes", prefixes)) if of is not None}
            (own,) = translator.translate([line], report=TranslationReport(), should_cancel=should_cancel, **beside)
            text, target_ids = own.text, [side.vocabulary.id(token) for token in own.tokens]
        else:
            text, target_ids = side.plain(target), side.encode(target)
        if not source_ids[n]:
            views.append(blank_view(text, given=own is None))
            continue
        pair = ExplainedPair(
            source_line=line,
            target_line=target,
            text=text,
            source=source_ids[n],
            target=target_ids[:max_tokens],
            source_total=totals[n],
            target_total=len(target_ids),
            phrases=None if sizes is None else sizes[n],
            translation=own,
        )
        views.append(view(translator, pair, uses))
    return views


def _model(name: str, translator: Any) -> dict[str, Any]:
    model, tokenizer = translator.model, translator.tokenizer
    transparent = None if model.phrases is None else model.phrases.transparent
    return {
        "name": name,
        "label": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "description": describe(model),
        "languages": [tokenizer.source.language, tokenizer.target.language],
        "level_shares": None if transparent is None else transparent.shares().tolist(),
    }


View = dict[str, Any]


def view(translator: Any, pair: ExplainedPair, uses: Sequence[str]) -> View:
    """The view of a pair whose source is not blank. Raises ModelError (NaN), UsageError (no such layer or head)."""
    model = translator.model
    result = texts(translator.tokenizer, pair) | scores(translator, pair)
    result |= {"notes": notes(translator, pair)} | _nothing()
    with torch.inference_mode():
        sizes = None if pair.phrases is None else [pair.phrases]
        batch = make_batch([pair.source], [pair.target], sizes).to(translator.device)
        return explainer_of(model).fill_view(result, translator, pair, batch, uses)


def blank_view(text: str, *, given: bool) -> View:
    """The view of a blank source, which no model sees."""
    lists = ("source_tokens", "target_tokens", "source_word", "target_word", "target_span")
    more = ("source_words", "target_words", "token_log_probs")
    note = "the source is blank: the model does not see it"
    said = {"target": text, "given": given, "log_prob": None, "score": None, "notes": [note]}
    return said | {name: [] for name in (*lists, *more)} | _nothing()


def _nothing() -> View:
    """What a model without attention, segments, source phrases and gate has."""
    lists: View = {name: [] for name in ("attention", "shares", "word_links", "phrase_links")}
    return lists | {"segments": None, "phrase_vectors": None, "gate": None}
