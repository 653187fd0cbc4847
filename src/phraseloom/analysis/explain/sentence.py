"""Explain translations: a plain JSON document with everything that the explorer page shows of sentences.

Format 1. Words and tokens count from 0, ranges are half-open, layers count from 1; weights and shares are from 0 to 1.

    Document
      format         1
      version        of phraseloom
      models         [Model]
      sentences      [Sentence]

    Model
      name, label    the key in the arguments of `explain`; the text to show
      parameters     number of parameters
      description    one line: encoder, decoder, the kinds of attention, the output
      languages      [source, target]
      level_shares   transparent attention: [level][decoder layer], the share of each encoder level (0: embeddings) that the
                     layer reads; null without it

    Sentence
      line           its number in the file (from 1), or null
      source         the raw line
      reference      a human translation, or null
      views          [View], one per model

    View
      target         the translation as text
      given          true: it was given and forced; false: the model's own translation
      log_prob       log p(target | source) in nats, including EOS, as in `Translator.score`; null if the target is not whole
                     or has no probability
      score          log_prob / length penalty
      notes          [text]: what was cropped, what the model lacks, …
      source_tokens  [label], EOS `</s>` last, if the model reads it (segmental models do not)
      target_tokens  [label], EOS last, unless the target is not whole
      source_word    [word of each source token; null for EOS]
      target_word    [(first) word of each target token; null for EOS]
      target_span    [[first word, last + 1] of each target token; null for EOS]; a phrase token has several words
      source_words   [word], those with tokens; all links count these
      target_words   [word]
      token_log_probs  [log p of each target token given the previous ones; null for -∞]
      attention      [Attention], cross, encoder-self, decoder-self, encoder-phrases, decoder-phrases, each from layer 1, if
                     the model has them
      shares         [Share]
      word_links     [[source word, target word, weight]], by the layer, head and method in the options of the translator
      phrase_links   [[[s0, s1], [t0, t1], weight]], words
      segments       [Segment] of a segmental model (NPMT), else null
      phrase_vectors [Phrases], one per encoder level, of a model with source phrase representations, else null
      gate           Gate of a model that writes words and phrases, else null

    Attention
      use            cross, encoder-self, decoder-self; encoder-phrases and decoder-phrases: attention of tokens to source
                     phrase representations (in the combination network, P001 §3.4)
      layer, heads   the number of the layer, the number of heads
      kind           `token`, `queryk heterogeneous 1-2`, … (`options/attention.py`); of recurrent decoders also mlp,
                     general; of phrases their origin: `phrases of embeddings`, `phrases of encoder 1`, `phrases of all
                     levels`
      rows           Axis of the queries: order 1 first, then n-grams (interleaved attention); for phrases all tokens of the
                     source or of the target
      columns        Axis of the slots: tokens first (if there are any), then n-grams; for phrases the source phrases
      weights        Packed [heads, rows, columns], as the model normalises them: a row sums to 1 (0 if it sees nothing)
      tokens         Packed [heads, T, S]: the queries of order 1, each slot spread evenly over its tokens; null if that is
                     `weights`, and for phrases. T and S are the tokens of rows and columns with `orders` 1 of the same use

    Axis
      labels         [text], `·` between words, `…` before a label that begins inside a word, `∅` for a place before the
                     sentence
      orders         [n], the number of tokens; ascending, but phrases are in the order of the sentence
      ends           [last token of each n-gram, an index into source_tokens or target_tokens; -1 is BOS]. In decoder-self the
                     axes hold the decoder input: BOS, then every target token but the last. A column is hidden from a row if
                     its end is greater; its weight is 0
      side           source or target

    Packed           {shape, scale, data}: base64 of zlib-deflated bytes in C order, value = byte / 255 · scale

    Share            use (not of phrases), layer, query (order of the queries: 1, and more where queries are n-grams) and
      heads          [{order of slots: share of the attention of the head}], null if the head has none

    Segment          source (word), target ([first, last + 1], the words it touches), source_token, target_tokens ([first,
                     last + 1]), log_prob: log p(segment | source position) in the model's own translation, log p(segment |
                     source position, the whole target) in a given target

    Phrases          stage (embeddings or encoder), layer (null for embeddings) and
      phrases        [{begin, end (source tokens, EOS is one), weights [of each of its tokens; empty without scorer], share
                     (the rest that a gated scorer leaves for the glance, 0 for the softmax scorer; null without scorer)}]

    Gate             classes ([name]: how many target words), fertility ([[p of each class] of each source token; null for
                     EOS]), word_share ([λ of each target token], the probability of a word instead of a phrase), is_phrase
                     ([bool of each target token]); without a fertility module classes is empty, the other two are null

A source or target of more than `max_tokens` subwords is cropped, because a document grows with their product. A blank source
has a view with only a note.
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
from phraseloom.errors import DataError, UsageError

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
    """The document of raw source lines with forced `targets`, or with the own translations of each model.

    `translators` has one or two by name, with their own options (beam, alignment_layer, …); of an ensemble, the first model is
    explained. `references` are only shown.
    `trees` of the sources are for models with phrases from parse trees. `prefixes` are forced prefixes of own translations.
    `lines` are the numbers of the sentences to show. `uses` selects the attentions. A sentence does not depend on its
    neighbours. Raises UsageError (numbers of models or lines, layers, heads, trees), DataError (a tree that does not fit, a
    prefix that is too long; line from 1), ModelError (NaN), and Cancelled if `should_cancel`, called at each step, returns
    True.
    """
    reads_trees = any(t.needs_trees for t in translators.values())
    translators = {name: translator.first_model() for name, translator in translators.items()}
    parallel = {"targets": targets, "references": references, "trees": trees, "prefixes": prefixes, "lines": lines}
    _require(translators, sources, parallel, uses, max_tokens)
    tree_models = [name for name, t in translators.items() if t.needs_trees]
    if trees is not None and not reads_trees:
        next(iter(translators.values())).require_trees(True)
    shown = [use for use in ORDER if use in uses]
    views = [
        _views(
            t,
            sources,
            targets,
            trees if name in tree_models else None,
            prefixes,
            lines,
            shown,
            max_tokens,
            should_cancel,
        )
        for name, t in translators.items()
    ]
    sentences = [
        {
            "line": None if lines is None else lines[n],
            "source": source,
            "reference": None if references is None else references[n],
            "views": [model_views[n] for model_views in views],
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
        raise UsageError(f"{len(translators)} models: explain one model, or two side by side")
    if unknown := [use for use in uses if use not in ORDER]:
        raise UsageError(f"no use {unknown[0]!r}", hint=f"one of {', '.join(ORDER)}")
    if max_tokens < 1:
        raise UsageError(f"max_tokens {max_tokens} is less than 1")
    if parallel["targets"] is not None and parallel["prefixes"] is not None:
        raise UsageError("targets are forced as a whole and cannot have prefixes", hint="give targets or prefixes")
    for name, values in parallel.items():
        if values is not None and len(values) != len(sources):
            raise UsageError(f"{len(sources)} sources, but {len(values)} {name}")


def _views(
    translator: Any,
    sources: Sequence[str],
    targets: Sequence[str] | None,
    trees: Sequence[str] | None,
    prefixes: Sequence[str] | None,
    lines: Sequence[int] | None,
    uses: Sequence[str],
    max_tokens: int,
    should_cancel: ShouldCancel | None,
) -> list[View]:
    """The view of each sentence by one model; each is translated alone, so that no digit depends on its neighbours.

    `lines`: their numbers, from 1, for a model that draws its translations; default: their places. Lines are not split into
    sentences, because one attention belongs to one translation.
    """
    side, splits = translator.tokenizer.target, translator.config.split_sentences
    totals = [len(ids) for ids in translator.tokenizer.source.encode_batch(list(sources))]
    limit = min(max_tokens, translator.config.max_input_tokens)
    translator = translator.with_options(max_input_tokens=limit, long_lines="crop", split_sentences=False, n_best=1)
    source_ids, sizes, _ = cropped_sources(translator, sources, trees)
    tags = len(translator.tokenizer.tag_ids(translator.config.tags))
    views = []
    for n, line in enumerate(sources):
        raise_if_cancelled(should_cancel)
        own, target = None, "" if targets is None else targets[n]
        if targets is None:
            inputs: dict[str, Any] = {"numbers": [n if lines is None else lines[n] - 1]}
            inputs |= {name: [values[n]] for name, values in (("trees", trees), ("prefixes", prefixes)) if values}
            try:
                (own,) = translator.translate([line], report=TranslationReport(), should_cancel=should_cancel, **inputs)
            except DataError as error:
                raise DataError(error.what, file=error.file, line=n + 1, hint=error.hint) from error
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
            tags=tags,
            target=target_ids[:max_tokens],
            source_total=totals[n],
            target_total=len(target_ids),
            phrases=None if sizes is None else sizes[n],
            translation=own,
            unsplit=splits and own is not None,
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
    """The view of a pair with a non-blank source. Raises ModelError (NaN), UsageError (no such layer or head)."""
    model = translator.model
    result = texts(translator.tokenizer, pair) | scores(translator, pair)
    result |= {"notes": notes(translator, pair)} | _empty()
    with torch.inference_mode():
        sizes = None if pair.phrases is None else [pair.phrases]
        batch = make_batch([pair.source], [pair.target], sizes).to(translator.device)
        return explainer_of(model).fill_view(result, translator, pair, batch, uses)


def blank_view(text: str, *, given: bool) -> View:
    """The view of a blank source, which models never see."""
    lists = ("source_tokens", "target_tokens", "source_word", "target_word", "target_span")
    more = ("source_words", "target_words", "token_log_probs")
    note = "the source is blank: the model does not see it"
    view = {"target": text, "given": given, "log_prob": None, "score": None, "notes": [note]}
    return view | {name: [] for name in (*lists, *more)} | _empty()


def _empty() -> View:
    """The values for a model without attention, segments, source phrases and gate."""
    lists: View = {name: [] for name in ("attention", "shares", "word_links", "phrase_links")}
    return lists | {"segments": None, "phrase_vectors": None, "gate": None}
