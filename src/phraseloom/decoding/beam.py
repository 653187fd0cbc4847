"""Greedy search and beam search, with an optional exact stopping rule.

Each step ranks the extensions of the live hypotheses of a sentence by log-probability. Those that end with EOS within the
first `beam` ranks are finished; the first `beam` others stay live. The `n_best` finished hypotheses with the best score
(log P / divisor(|Y|), see penalties.py) are the result.

Exact stop: log P only falls and the divisor only grows, so no live hypothesis with log-probability L can end with a score
above L / divisor(longest). A sentence is done when this bound of its best live hypothesis is not above the worst of its
`n_best` finished ones. Further search could not change the result: with a beam as large as the space of outputs the result
equals enumeration, under every penalty.

With a length penalty this bound is loose, and the search runs long to prove a result that rarely changes. `exact=False` (the
default of a model: `stop: finished`) also ends a sentence when `beam` of its hypotheses have finished, as fairseq does.

`transformers=True` follows `generate` of the library transformers (5.23, `early_stopping=False`). It keeps the `beam` best
finished hypotheses; a sentence is done when there are `beam` of them and the best live hypothesis, with the penalty of its
current length, is not above the worst of them. It does not wait for longer outputs that could be better. The EOS that closes
an output at its longest length costs nothing (`forced_eos_token_id`).

Ties: at equal log-probability the extension of the hypothesis with the lower beam index goes first, then the lower token id;
at equal scores the hypothesis that finished first, then the one that ranked first.

Two integer tensors hold tokens and back-pointers of all steps; hypotheses become Python lists once, at the end. Finished
sentences leave the batch.

Greedy search takes the best token at each step until EOS. `greedy_steps` is a generator, so that a stream can stop it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from phraseloom.decoding.cancellation import raise_if_cancelled
from phraseloom.decoding.limits import (
    NEVER,
    Hypothesis,
    Limits,
    SearchModel,
    SearchOptions,
    ban,
    finish,
    hypotheses_of,
    nothing_allowed,
    refuse_nan,
)
from phraseloom.decoding.repetition import ban_repeats_, most_repeated, repeated_tokens
from phraseloom.outputs import DecoderOutput


def greedy_search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """One hypothesis per sentence of `memory`. Ties go to the lower token id.

    A sentence that reaches its longest length is closed with EOS, whose log-probability counts (an impossible EOS adds
    nothing); it is `cut` unless EOS was the best token.
    """
    return finish(greedy_steps(model, memory, limits, options))


def greedy_steps(
    model: SearchModel, memory: Any, limits: Limits, options: SearchOptions
) -> Generator[Tensor, None, list[list[Hypothesis]]]:
    """`greedy_search`, which yields the tokens of the sentences that are not finished at each step."""
    longest = limits.longest
    num, device = len(longest), longest.device
    if num == 0:
        return []
    last_step, fewest_longest = int(longest.max()), int(longest.min())
    most_shortest = int(limits.shortest.max())
    state = model.start(memory, beam=1, max_length=limits.capacity)
    history = torch.full((last_step + 1, num), options.end, dtype=torch.long, device=device)
    total_B = torch.zeros(num, dtype=torch.float64, device=device)
    cut_B = torch.zeros(num, dtype=torch.bool, device=device)
    active = torch.arange(num, device=device)
    tokens = torch.full((num,), options.begin, dtype=torch.long, device=device)
    for step in range(last_step + 1):
        raise_if_cancelled(options.should_cancel)
        decoded = model.step(tokens, state)
        written = history[:step, active] if options.no_repeat_ngram_size else history[:0]
        repeats = repeated_tokens(written.T, options.no_repeat_ngram_size)
        log_probs, ids = _allowed(
            model, decoded, 1 + int(step < most_shortest) + most_repeated(repeats), options.banned
        )
        ban_repeats_(log_probs, ids, repeats, options.end)
        if step < most_shortest:
            log_probs.masked_fill_((ids == options.end) & (limits.shortest[active] > step)[:, None], NEVER)
        best, place = log_probs.max(1)
        tokens = ids.gather(1, place[:, None])[:, 0]
        stuck = best == NEVER
        if (forced := limits.forced(step, active)) is not None:
            rows, forced_tokens = forced
            best[rows] = _log_probs_of(model, decoded.rows(rows), forced_tokens)
            tokens[rows] = forced_tokens
            stuck[rows] = False
        if repeats.numel() and bool(stuck.any()):
            raise nothing_allowed()
        if step >= fewest_longest:
            rows = ((longest[active] == step) & (tokens != options.end)).nonzero()[:, 0]
            if len(rows):
                tokens[rows] = options.end
                end_log_probs = _log_probs_of(model, decoded.rows(rows), tokens[rows])
                best[rows] = end_log_probs.masked_fill(end_log_probs == NEVER, 0.0)
                cut_B[active[rows]] = True
        if len(active) == num:
            total_B += best
            history[step] = tokens
        else:
            total_B[active] += best
            history[step, active] = tokens
        yield tokens
        done = tokens == options.end
        if bool(done.any()):
            live = (~done).nonzero()[:, 0]
            active, tokens = active[live], tokens[live]
            if len(active) == 0:
                break
            state.keep(live)
    refuse_nan(total_B)
    return [[hypothesis] for hypothesis in hypotheses_of(history, total_B, cut_B, options)]


def _allowed(model: SearchModel, decoded: DecoderOutput, count: int, banned: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """log p (float64) and ids of at least the `count` best tokens of each row that are not banned, best first; banned ones may
    stand among them with -inf."""
    allowed = getattr(model.output, "allowed", None)
    if allowed is not None:
        result: tuple[Tensor, Tensor] = allowed(decoded.hidden, count, banned, decoded.gate)
        return result
    log_probs, ids = model.output.candidates(decoded.hidden, count + len(banned), decoded.gate)
    return ban(log_probs, ids, banned), ids


def _log_probs_of(model: SearchModel, decoded: DecoderOutput, tokens_N: Tensor) -> Tensor:
    """log p of one token in each row, in float64."""
    log_probs: Tensor = model.output.gold_log_probs(decoded.hidden, tokens_N, decoded.gate)
    return log_probs.double()


def beam_search(model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> list[list[Hypothesis]]:
    """Up to `n_best` finished hypotheses for each sentence of `memory`, best first; at least one each."""
    if len(limits.longest) == 0:
        return []
    return _BeamSearch(model, memory, limits, options).run()


class _Finished:
    """The best finished hypotheses of B sentences: N slots each, best score first, empty slots -inf."""

    def __init__(self, num: int, slots: int, device: torch.device) -> None:
        self.score = torch.full((num, slots), NEVER, dtype=torch.float64, device=device)
        self.log_prob = torch.full((num, slots), NEVER, dtype=torch.float64, device=device)
        self.length = torch.zeros((num, slots), dtype=torch.long, device=device)
        self.beam = torch.zeros((num, slots), dtype=torch.long, device=device)
        self.cut = torch.zeros((num, slots), dtype=torch.bool, device=device)

    def add(self, rows: Tensor, score: Tensor, log_prob: Tensor, length: int, beam: Tensor, cut: Tensor) -> None:
        """Merge W candidates of each of `rows` (score -inf if there is none)."""
        slots = self.score.shape[1]
        scores = torch.cat([self.score[rows], score], dim=1)
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :slots]
        self.score[rows] = scores.gather(1, order)
        self.log_prob[rows] = torch.cat([self.log_prob[rows], log_prob], dim=1).gather(1, order)
        self.length[rows] = torch.cat([self.length[rows], torch.full_like(beam, length)], dim=1).gather(1, order)
        self.beam[rows] = torch.cat([self.beam[rows], beam], dim=1).gather(1, order)
        self.cut[rows] = torch.cat([self.cut[rows], cut], dim=1).gather(1, order)


class _BeamSearch:
    """The search of one batch. B' = its sentences, live = rows per sentence (1, then the beam), K = candidates per row."""

    def __init__(self, model: SearchModel, memory: Any, limits: Limits, options: SearchOptions) -> None:
        self.model, self.limits, self.options = model, limits, options
        longest = limits.longest
        num, width, device = len(longest), options.beam, longest.device
        self.steps = int(longest.max()) + 1
        self.fewest_longest = int(longest.min())
        self.most_shortest = int(limits.shortest.max())
        self.closing = options.penalty.divisor(longest.double() + 1.0)
        self.finished = _Finished(num, width if options.transformers else min(options.n_best, width), device)
        self.num_finished = torch.zeros(num, dtype=torch.long, device=device)
        self.token_history = torch.zeros((self.steps, num, width), dtype=torch.int32, device=device)
        self.parent_history = torch.zeros((self.steps, num, width), dtype=torch.int32, device=device)
        self.active = torch.arange(num, device=device)
        self.scores = torch.zeros((num, 1), dtype=torch.float64, device=device)
        self.tokens = torch.full((num,), options.begin, dtype=torch.long, device=device)
        self.none = torch.zeros(0, dtype=torch.long, device=device)
        self.identity = torch.arange(num * width, device=device)
        self.written = torch.zeros(
            (num, 1, 0), dtype=torch.long, device=device
        )  # (B', live, step) if no n-gram may repeat
        self.state = model.start(memory, beam=1, max_length=limits.capacity)

    def run(self) -> list[list[Hypothesis]]:
        """Search until every sentence is done."""
        for step in range(self.steps):
            raise_if_cancelled(self.options.should_cancel)
            decoded = self.model.step(self.tokens, self.state)
            totals, ids, best_ids = self._candidates(decoded, step)
            parents, tokens = self._advance(totals, ids, best_ids, step)
            if not self._move(parents, tokens, step):
                break
        return self._hypotheses()

    def _candidates(self, decoded: DecoderOutput, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities (B', live, K) and tokens of all allowed extensions, and the best token of each row."""
        end, banned, limits = self.options.end, self.options.banned, self.limits
        num, live = self.scores.shape
        repeats = repeated_tokens(self.written.flatten(0, 1), self.options.no_repeat_ngram_size)
        log_probs, ids = _allowed(self.model, decoded, self.options.beam + 1 + most_repeated(repeats), banned)
        ban_repeats_(log_probs, ids, repeats, end)
        log_probs, ids = log_probs.view(num, live, -1), ids.view(num, live, -1)
        totals = log_probs + self.scores[:, :, None]
        best_ids = ids.gather(2, log_probs.argmax(2, keepdim=True))[:, :, 0]
        if step < self.most_shortest:
            early = limits.shortest[self.active] > step
            totals.masked_fill_((ids == end) & early[:, None, None], NEVER)
        forced = limits.forced(step, self.active)
        closing = (limits.longest[self.active] == step).nonzero()[:, 0] if step >= self.fewest_longest else self.none
        if forced is None and not len(closing):
            return totals, ids, best_ids
        ids = ids.clone()
        if forced is not None:
            sentences, tokens = forced
            forced_log_probs = _log_probs_of(self.model, decoded.rows(sentences * live), tokens)
            totals[sentences] = NEVER
            totals[sentences, 0, 0] = self.scores[sentences, 0] + forced_log_probs
            ids[sentences, 0, 0] = tokens
        if len(closing):
            rows = (closing[:, None] * live + torch.arange(live, device=closing.device)).flatten()
            end_log_probs = _log_probs_of(self.model, decoded.rows(rows), torch.full_like(rows, end))
            if self.options.transformers:
                end_log_probs.zero_()
            end_log_probs = end_log_probs.masked_fill(end_log_probs == NEVER, 0.0).view(-1, live)
            totals[closing] = NEVER
            totals[closing, :, 0] = self.scores[closing] + end_log_probs
            ids[closing, :, 0] = end
        return totals, ids, best_ids

    def _advance(self, totals: Tensor, ids: Tensor, best_ids: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Rank the extensions, store the finished ones, keep the live ones in `scores`; return their parents and tokens."""
        num, _, count = totals.shape
        width = self.options.beam
        ranked, order = torch.sort(totals.view(num, -1), dim=1, descending=True, stable=True)
        ranked, order = ranked[:, : 2 * width], order[:, : 2 * width]
        tokens = ids.reshape(num, -1).gather(1, order)
        parents = order.div(count, rounding_mode="floor")
        if missing := max(0, width - ranked.shape[1]):
            ranked = pad(ranked, (0, missing), value=NEVER)
            tokens, parents = pad(tokens, (0, missing)), pad(parents, (0, missing))
        ended = tokens == self.options.end
        if bool(ended.any()):
            self._finish(ranked[:, :width], parents[:, :width], ended[:, :width], best_ids, step)
            order = torch.sort(ended.to(torch.uint8), dim=1, stable=True).indices[:, :width]
            ranked = ranked.masked_fill(ended, NEVER).gather(1, order)
            tokens, parents = tokens.gather(1, order), parents.gather(1, order)
        self.scores, tokens, parents = ranked[:, :width], tokens[:, :width], parents[:, :width]
        self.token_history[step, self.active] = tokens.int()
        self.parent_history[step, self.active] = parents.int()
        if self.options.no_repeat_ngram_size:
            before = self.written.gather(1, parents[:, :, None].expand(-1, -1, step))
            self.written = torch.cat([before, tokens[:, :, None]], 2)
        return parents, tokens

    def _finish(self, log_prob: Tensor, parents: Tensor, ended: Tensor, best_ids: Tensor, step: int) -> None:
        """Add the extensions that ended within the first `beam` ranks to the finished hypotheses."""
        ended = ended & (log_prob != NEVER)
        rows = ended.any(1).nonzero()[:, 0]
        if len(rows) == 0:
            return
        self.num_finished[self.active[rows]] += ended[rows].sum(1)
        log_prob, parents = log_prob[rows].masked_fill(~ended[rows], NEVER), parents[rows]
        divisor = float(self.options.penalty.divisor(torch.tensor(step + 1.0, dtype=torch.float64)))
        at_bound = (self.limits.longest[self.active[rows]] == step)[:, None]
        cut = at_bound & (best_ids[rows].gather(1, parents) != self.options.end)
        self.finished.add(self.active[rows], log_prob / divisor, log_prob, step, parents, cut)

    def _move(self, parents: Tensor, tokens: Tensor, step: int) -> bool:
        """Drop finished sentences and move the state to the live hypotheses; False if no sentence is left."""
        width = self.options.beam
        reachable = self.closing[self.active]
        if self.options.transformers:
            reachable = self.options.penalty.divisor(torch.full_like(reachable, step + 1.0))
        bound = self.scores[:, 0] / reachable
        refuse_nan(bound)
        unfinished = bound > self.finished.score[self.active, -1]
        if not (self.options.exact or self.options.transformers):
            unfinished &= self.num_finished[self.active] < width
        if not bool(unfinished.all()):
            remaining = unfinished.nonzero()[:, 0]
            if len(remaining) == 0:
                return False
            self.active, self.scores = self.active[remaining], self.scores[remaining]
            tokens, parents = tokens[remaining], parents[remaining]
            self.written = self.written[remaining]
            self.state.keep(remaining)
        self.tokens = tokens.reshape(-1)
        identity = self.identity[: len(self.tokens)]
        if step == 0:
            self.state.expand(width)
            return True
        rows = (identity.view(-1, width)[:, :1] + parents).reshape(-1)
        if not torch.equal(rows, identity):
            self.state.reorder(rows)
        return True

    def _hypotheses(self) -> list[list[Hypothesis]]:
        """Follow the back-pointers of all finished hypotheses together, from their last token to their first."""
        done = self.finished
        num, slots = done.score.shape
        length, cursor = done.length.reshape(-1), done.beam.reshape(-1)
        sentence = torch.arange(num, device=length.device).repeat_interleave(slots)
        longest = int(length.max())
        tokens = torch.zeros((num * slots, longest), dtype=torch.long, device=length.device)
        for step in range(longest - 1, -1, -1):
            here = (length > step).nonzero()[:, 0]
            at = (step, sentence[here], cursor[here])
            tokens[here, step] = self.token_history[at].long()
            cursor[here] = self.parent_history[at].long()
        rows = zip(
            tokens.tolist(),
            length.tolist(),
            done.log_prob.reshape(-1).tolist(),
            done.score.reshape(-1).tolist(),
            done.cut.reshape(-1).tolist(),
            strict=True,
        )
        flat = [Hypothesis(row[:size], log_prob, score, cut) for row, size, log_prob, score, cut in rows]
        best = min(slots, self.options.n_best)
        result = [[h for h in flat[b * slots : b * slots + best] if h.score > NEVER] for b in range(num)]
        if not all(result):
            raise nothing_allowed()
        return result
