"""Beam search under constraints: the beam is divided among the amounts of progress (Post and Vilar 2018; Hu et al. 2019).

Bank c holds the hypotheses with c subwords of the required phrases (`constraint_tracker.py`); one more bank holds those that
would break a constraint of the other kind if they ended now. Each step the beam is divided equally among the banks that have
candidates, the remainder to the highest; what a bank cannot use goes to the best candidates of all (`allocate`). Candidates are
the best tokens of each hypothesis, and the tokens that begin or continue a required phrase. The bank of a candidate comes from
the trie at first, and from its decoded text once it is about to be chosen; the beam is then divided again.

A hypothesis may end only with all constraints met, so every result meets them, and with a beam as wide as the space of outputs
the result equals enumeration of the allowed ones. If none is left, the sentence continues without constraints and the result
is the one with the fewest violations. The other rules, ties and bounds are those of `beam.py`.

A line has its own beam (`ConstraintTracker.width`), so it does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phraseloom.decoding.cancellation import raise_if_cancelled
from phraseloom.decoding.constraint_tracker import ConstraintState, ConstraintTracker
from phraseloom.decoding.limits import NEVER, Hypothesis, Limits, SearchModel, SearchOptions, ban, refuse_nan
from phraseloom.errors import ModelError
from phraseloom.outputs.topk import best_columns


def allocate(totals_BN: Tensor, bank_BN: Tensor, width_B: Tensor, banks: int) -> Tensor:
    """Which of N candidates of each sentence get one of its `width_B` places in the beam, (B, N) bool.

    `totals_BN`: scores, -inf for no candidate. `bank_BN`: their banks, from 0 to `banks` - 1. Ties go to the earlier candidate.
    """
    order = torch.sort(totals_BN, dim=1, descending=True, stable=True).indices
    alive = totals_BN.gather(1, order) > NEVER
    bank = bank_BN.gather(1, order)
    member_BNG = (bank[:, :, None] == torch.arange(banks, device=bank.device)) & alive[:, :, None]
    rank = member_BNG.cumsum(1).gather(2, bank[:, :, None])[:, :, 0]  # from 1
    filled_BG = member_BNG.any(1)
    share, remainder = width_B // filled_BG.sum(1).clamp(min=1), width_B % filled_BG.sum(1).clamp(min=1)
    from_highest_BG = filled_BG.flip(1).cumsum(1).flip(1)
    quota_BG = share[:, None] + (from_highest_BG <= remainder[:, None])
    chosen = alive & (rank <= quota_BG.gather(1, bank))
    others = alive & ~chosen
    chosen |= others & (others.cumsum(1) <= (width_B - chosen.sum(1))[:, None])
    return torch.zeros_like(chosen).scatter(1, order, chosen)


def constrained_search(
    model: SearchModel, memory: Any, limits: Limits, options: SearchOptions, trackers: Sequence[ConstraintTracker]
) -> list[list[Hypothesis]]:
    """Up to `n_best` hypotheses that meet all constraints for each sentence, best first.

    A sentence without any has one hypothesis or more that break as few constraints as were found. Raises ModelError for NaN,
    and if no output has a probability above 0.
    """
    if not trackers:
        return []
    with torch.inference_mode():
        return _ConstrainedSearch(model, memory, limits, options, trackers).run()


class _ConstrainedSearch:
    """The search of one batch. `live`: rows per sentence, 1 and then the widest beam; `states`: those of its rows."""

    def __init__(
        self,
        model: SearchModel,
        memory: Any,
        limits: Limits,
        options: SearchOptions,
        trackers: Sequence[ConstraintTracker],
    ) -> None:
        self.model, self.limits, self.options, self.trackers = model, limits, options, trackers
        self.device = limits.longest.device
        num = len(trackers)
        self.widths = torch.tensor([t.width(options.beam) for t in trackers], device=self.device)
        self.width = int(self.widths.max())
        # The candidates of a row: as in beam.py, and one more for each token that only a forbidden phrase rules out.
        self.counts = self.widths + 2 + len(options.banned)
        self.banks = 2 + max(t.num_tokens for t in trackers)
        self.closing = options.penalty.divisor(limits.longest.double() + 1.0)
        self.slots = options.beam if options.transformers else min(options.n_best, options.beam)
        self.finished: list[list[tuple[int, Hypothesis]]] = [[] for _ in range(num)]  # with violations
        self.num_finished = [0] * num
        self.lifted = torch.zeros(num, dtype=torch.bool, device=self.device)  # sentences that go on without constraints
        self.active = torch.arange(num, device=self.device)
        self.scores = torch.zeros((num, 1), dtype=torch.float64, device=self.device)
        self.states: list[list[ConstraintState | None]] = [[tracker.start] for tracker in trackers]
        self.tokens = torch.full((num,), options.begin, dtype=torch.long, device=self.device)
        self.state = model.start(memory, beam=1, max_length=limits.capacity)

    def run(self) -> list[list[Hypothesis]]:
        """Search until every sentence is done."""
        for step in range(int(self.limits.longest.max()) + 1):
            raise_if_cancelled(self.options.should_cancel)
            totals, ids, bank, best_ids = self._candidates(step)
            parents = self._advance(totals, ids, bank, best_ids, step)
            if not self._move(parents, step):
                break
        best = min(self.options.n_best, self.options.beam)
        result = [[h for _, h in entries[:best]] for entries in self.finished]
        if not all(result):
            raise ModelError("no output of the allowed length has a probability above 0", hint="relax min_length")
        return result

    def _candidates(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Totals (B', live, K + F), tokens and banks of K best tokens and F required ones; the best token of each row."""
        end, banned, limits = self.options.end, self.options.banned, self.limits
        decoded = self.model.step(self.tokens, self.state)
        log_p_RV = self.model.output.log_probs(decoded.hidden, decoded.gate)
        num, live = self.scores.shape
        log_probs, ids = best_columns(log_p_RV, int(self.counts[self.active].max()))
        refuse_nan(log_probs)
        log_probs = ban(log_probs, ids, banned)
        best_ids = ids.gather(1, log_probs.argmax(1, keepdim=True)).view(num, live)
        beyond = torch.arange(ids.shape[1], device=self.device) >= self.counts[self.active, None]
        log_probs.masked_fill_(beyond.repeat_interleave(live, 0), NEVER)
        flat = [state for row in self.states for state in row]
        bank_R = torch.tensor([_bank(state) for state in flat], device=self.device)
        bank = bank_R[:, None].expand_as(ids)
        required = [sorted(state.next_tokens.items()) if state is not None else [] for state in flat]
        if most := max(map(len, required)):
            rows = [items + [(-1, 0)] * (most - len(items)) for items in required]
            next_RF, progress_RF = torch.tensor(rows, device=self.device).unbind(2)
            next_log_probs = log_p_RV.gather(1, next_RF.clamp(min=0)).double().clamp_(max=0.0)
            log_probs.masked_fill_((ids[:, :, None] == next_RF[:, None]).any(2), NEVER)
            log_probs = torch.cat([log_probs, next_log_probs.masked_fill_(next_RF < 0, NEVER)], dim=1)
            ids, bank = torch.cat([ids, next_RF.clamp(min=0)], dim=1), torch.cat([bank, progress_RF + 1], dim=1)
        ids = ids.view(num, live, -1).clone()
        totals = log_probs.view(num, live, -1) + self.scores[:, :, None]
        early = limits.shortest[self.active] > step
        totals.masked_fill_((ids == end) & early[:, None, None], NEVER)
        log_p = log_p_RV.view(num, live, -1)
        if (forced := limits.forced(step, self.active)) is not None:
            sentences, tokens = forced
            totals[sentences] = NEVER
            totals[sentences, 0, 0] = self.scores[sentences, 0] + log_p[sentences, 0, tokens].double()
            ids[sentences, 0, 0] = tokens
        closing = (limits.longest[self.active] == step).nonzero()[:, 0]
        if len(closing):
            end_log_probs = log_p[closing, :, end].double()
            if self.options.transformers:
                end_log_probs.zero_()
            totals[closing] = NEVER
            totals[closing, :, 0] = self.scores[closing] + end_log_probs.masked_fill(end_log_probs == NEVER, 0.0)
            ids[closing, :, 0] = end
        return totals, ids, bank.reshape(num, live, -1).clone(), best_ids

    def _advance(self, totals: Tensor, ids: Tensor, bank: Tensor, best_ids: Tensor, step: int) -> Tensor:
        """Choose and finish; set `scores`, `states`, `tokens` of the live hypotheses; return their parents (B', W)."""
        num, _, count = totals.shape
        totals, ids, bank = totals.view(num, -1), ids.view(num, -1), bank.view(num, -1)
        is_end = ids == self.options.end
        violations = torch.tensor([[1 if s is None else s.violations for s in row] for row in self.states])
        refused = is_end & (violations.to(self.device) > 0).repeat_interleave(count, 1)
        top = torch.tensor([self.trackers[b].num_tokens + 1 for b in self.active.tolist()], device=self.device)
        bank = torch.where(is_end, top[:, None], bank)
        evaluated = is_end | (totals == NEVER)
        children: dict[tuple[int, int], ConstraintState] = {}
        while True:
            usable = totals.masked_fill(refused & ~self.lifted[self.active, None], NEVER)
            ending = allocate(usable, bank, self.widths[self.active], self.banks) & is_end
            going_on = self._live(usable, is_end, bank)
            new = (going_on | allocate(usable, bank, self.widths[self.active], self.banks)) & ~evaluated
            if bool(new.any()):
                places = new.nonzero().tolist()
                for (i, n), token in zip(places, ids[new].tolist(), strict=True):
                    children[i, n] = self._child(i, n // count, token)
                bank[new] = torch.tensor([_bank(children[i, n]) for i, n in places], device=self.device)
                refused[new] = torch.tensor([children[i, n].is_dead for i, n in places], device=self.device)
                evaluated |= new
                continue
            stuck = self._stuck(going_on, ending)
            if not bool(stuck.any()):
                break
            self.lifted[self.active[stuck]] = True
        self._finish(usable.masked_fill(~ending, NEVER), count, best_ids, step)
        ranked, order = torch.sort(usable.masked_fill(~going_on, NEVER), dim=1, descending=True, stable=True)
        missing = max(0, self.width - ranked.shape[1])
        ranked = torch.nn.functional.pad(ranked[:, : self.width], (0, missing), value=NEVER)
        order = torch.nn.functional.pad(order[:, : self.width], (0, missing))
        self.scores = ranked
        chosen = zip(ranked.tolist(), order.tolist(), strict=True)
        self.states = [
            [children[i, n] if score > NEVER else None for score, n in zip(*row, strict=True)]
            for i, row in enumerate(chosen)
        ]
        self.tokens = ids.gather(1, order)
        return order.div(count, rounding_mode="floor")

    def _child(self, sentence: int, parent: int, token: int) -> ConstraintState:
        state = self.states[sentence][parent]
        assert state is not None
        return self.trackers[int(self.active[sentence])].extend(state, token)

    def _live(self, usable: Tensor, is_end: Tensor, bank: Tensor) -> Tensor:
        return allocate(usable.masked_fill(is_end, NEVER), bank, self.widths[self.active], self.banks)

    def _stuck(self, going_on: Tensor, ending: Tensor) -> Tensor:
        """The sentences that have no candidate, no result and still their constraints."""
        empty = torch.tensor([not self.finished[b] for b in self.active.tolist()], device=self.device)
        return empty & ~going_on.any(1) & ~ending.any(1) & ~self.lifted[self.active]

    def _finish(self, totals: Tensor, count: int, best_ids: Tensor, step: int) -> None:
        """Add the candidates above -inf to the finished hypotheses of their sentences."""
        divisor = float(self.options.penalty.divisor(torch.full((), step + 1.0, dtype=torch.float64)))
        at_bound = (self.limits.longest[self.active] == step).tolist()
        ranked, order = torch.sort(totals, dim=1, descending=True, stable=True)
        for i, n in (ranked > NEVER).nonzero().tolist():
            b, parent = int(self.active[i]), int(order[i, n]) // count
            state, log_prob = self.states[i][parent], float(ranked[i, n])
            assert state is not None
            cut = at_bound[i] and int(best_ids[i, parent]) != self.options.end
            hypothesis = Hypothesis(list(state.tokens), log_prob, log_prob / divisor, cut)
            entries = [*self.finished[b], (state.violations, hypothesis)]
            entries.sort(key=lambda entry: (entry[0], -entry[1].score))
            self.finished[b] = entries[: self.slots]
            self.num_finished[b] += 1

    def _move(self, parents: Tensor, step: int) -> bool:
        """Drop finished sentences and move the state to the live hypotheses; False if no sentence is left."""
        reachable = self.closing[self.active]
        if self.options.transformers:
            reachable = self.options.penalty.divisor(torch.full_like(reachable, step + 1.0))
        bound = (self.scores[:, 0] / reachable).tolist()
        remaining = [i for i, b in enumerate(self.active.tolist()) if self._is_open(b, bound[i])]
        if not remaining:
            return False
        if len(remaining) < len(self.active):
            kept = torch.tensor(remaining, device=self.device)
            self.active, self.scores, parents = self.active[kept], self.scores[kept], parents[kept]
            self.tokens, self.states = self.tokens[kept], [self.states[i] for i in remaining]
            self.state.keep(kept)
        self.tokens = self.tokens.reshape(-1)
        if step == 0:
            self.state.expand(self.width)
        else:
            first = torch.arange(len(self.active), device=self.device)[:, None] * self.width
            self.state.reorder((first + parents).reshape(-1))
        return True

    def _is_open(self, sentence: int, bound: float) -> bool:
        """Whether a live hypothesis, whose score cannot exceed `bound`, may still change the result."""
        entries = self.finished[sentence]
        if bool(self.lifted[sentence]) and entries:
            return False
        worst = entries[-1][1].score if len(entries) == self.slots else NEVER
        if bound <= worst:
            return False
        return self.options.exact or self.options.transformers or self.num_finished[sentence] < self.options.beam


def _bank(state: ConstraintState | None) -> int:
    return 0 if state is None or state.is_doubtful else state.progress + 1
