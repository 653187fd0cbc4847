"""Greedy search and beam search in the compiled library: the loop of `decoding/beam.py`, one call a step.

At widths of some hundreds, one sentence at a time, the many small tensors of that loop take longer than the model. Hypotheses
and scores are the same to the bit.
"""

from __future__ import annotations

from ctypes import addressof, c_int64
from typing import Any
from weakref import finalize

import torch

from phraseloom.decoding.cancellation import raise_if_cancelled
from phraseloom.decoding.limits import NEVER, Hypothesis, Limits, SearchOptions
from phraseloom.native.library import SearchRulesStruct, check
from phraseloom.native.model import NativeModel, Programs

_MORE, _RARE = 1, 2
_POSITIONS = 64
"""Vectors of positions that are fetched at a time."""


def compiled_search(
    model: NativeModel, memory: Any, limits: Limits, options: SearchOptions
) -> list[list[Hypothesis]] | None:
    """What `greedy_search` or `beam_search` finds; None if the library cannot tell.

    It leaves to them: outputs that it does not have, forced prefixes, `no_repeat_ngram_size`, and the errors (NaN, nothing is
    allowed).
    """
    programs = model.programs
    if programs is None or limits.prefixes is not None or options.no_repeat_ngram_size or not len(limits.longest):
        return None
    state = model.start(memory, max_length=limits.capacity)
    steps = int(limits.longest.max()) + 1
    rules = _Rules(programs, state.has_gate, limits, options, steps)
    library = programs.library
    handle = library.pl_search_start(state.handle, addressof(rules.struct), steps)
    if not handle:
        raise MemoryError("no memory for the hypotheses of search; make batch_sentences smaller")
    end = finalize(rules, library.pl_search_end, handle)
    step, code, position = 0, _MORE, None
    while code == _MORE:
        raise_if_cancelled(options.should_cancel)
        if programs.positions is not None:
            if step % _POSITIONS == 0:
                positions = programs.positions(step, _POSITIONS).contiguous()
            position = positions[step % _POSITIONS].data_ptr()
        code = library.pl_search_step(handle, position)
        step += 1
    if code == _RARE:
        return None
    check(code)
    slots = len(limits.longest), rules.struct.kept
    tokens, lengths, cut = (torch.empty(*slots, n, dtype=torch.int64, device="cpu") for n in (step, 1, 1))
    log_probs, scores = (torch.empty(slots, dtype=torch.float64, device="cpu") for _ in range(2))
    library.pl_search_result(handle, *(x.data_ptr() for x in (tokens, lengths, log_probs, scores, cut)))
    end()
    rows = (x.flatten(0, 1).tolist() for x in (tokens, lengths[..., 0], log_probs, scores, cut[..., 0]))
    flat = [Hypothesis(row[:n], log_p, score, bool(at_end)) for row, n, log_p, score, at_end in zip(*rows, strict=True)]
    best = min(rules.struct.kept, options.n_best)
    starts = range(0, len(flat), rules.struct.kept)
    return [[h for h in flat[first : first + best] if h.score > NEVER] for first in starts]


class _Rules:
    """`SearchRules` of kernels.h, and what it points to."""

    def __init__(self, programs: Programs, has_gate: bool, limits: Limits, options: SearchOptions, steps: int) -> None:
        decoder, output = programs.decoder, programs.output
        greedy = options.beam == 1
        transformers = options.transformers and not greedy
        self._longest, self._shortest = limits.longest.contiguous(), limits.shortest.contiguous()
        self._divisors = options.penalty.divisor(
            torch.arange(steps + 1, dtype=torch.float64, device="cpu")
        ).contiguous()
        self._banned = (c_int64 * max(1, len(options.banned)))(*options.banned)
        self.struct = SearchRulesStruct(
            variant=decoder.variant,
            sentences=len(limits.longest),
            width=decoder.width,
            beam=options.beam,
            count=min(options.beam + 1, output.classes.n),
            kept=1 if greedy else options.beam if transformers else min(options.n_best, options.beam),
            begin=options.begin,
            end=options.end,
            num_banned=len(options.banned),
            gated=has_gate,
            weighed=has_gate and programs.reads_gate,
            until_finished=greedy or not (options.exact or transformers),
            bound_now=transformers,
            free_end=transformers,
            output=addressof(output),
            banned=addressof(self._banned),
            longest=self._longest.data_ptr(),
            shortest=self._shortest.data_ptr(),
            divisors=self._divisors.data_ptr(),
        )
