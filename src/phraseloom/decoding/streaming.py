"""Streaming: the text of a translation while it is written, in pieces that join to the whole text.

A piece is yielded once no later token can change it. If detokenisation leaves text as it is, a token cannot change the text
before it, so the text of all tokens but the last is final, except a character whose bytes are not complete. The detokenisers of
Moses and jieba and the undoing of truecase work word by word from left to right and look at most one word ahead. So what the
text of the complete words and the text without the last of them have in common is final. In Czech, sacremoses looks at the end
of the line: there the text comes at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import torch

from phraseloom.decoding.batching import Piece
from phraseloom.decoding.beam import greedy_steps
from phraseloom.decoding.cancellation import ShouldCancel
from phraseloom.decoding.ensemble import averaged
from phraseloom.decoding.parts import PieceResult
from phraseloom.decoding.piece_search import encode_pieces, limits_of, link_pieces, search_options
from phraseloom.decoding.sampling import sample_steps
from phraseloom.errors import UsageError
from phraseloom.models.device import arithmetic
from phraseloom.native.model import fast
from phraseloom.options.decoding import DecodingConfig
from phraseloom.text.subwords import ESCAPE
from phraseloom.text.tokenizer import Side, Tokenizer

OPEN = "\ufffd " + ESCAPE  # a later token may change these characters at the end of a text


class StreamedText:
    """The text of one output, token by token; `begun`: see `Side.decode`."""

    def __init__(self, side: Side, begun: Sequence[str] = ()) -> None:
        self._side, self._begun = side, begun
        self._ids: list[int] = []
        self._sent = self._words = 0
        self._by_token, self._at_end = side.streams_by_token, side.streams_at_end

    def add(self, token: int) -> str:
        """The text that became final with the next token; often empty."""
        self._ids.append(token)
        if self._at_end:
            return ""
        ends = [len(self._ids) - 1, len(self._ids)]
        if not self._by_token:
            starts = [n for n, begins in enumerate(self._side.word_starts(self._ids)) if begins]
            if len(starts) == self._words:
                return ""
            self._words, ends = len(starts), starts[-2:]
        before, after = (self._text(end) for end in (ends[0], ends[-1]))
        common = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
        final = after[:common].rstrip(OPEN)
        return self._take(final) if len(final) > self._sent else ""

    def finish(self) -> str:
        """The rest of the text."""
        return self._take(self._text(len(self._ids)))

    def _text(self, end: int) -> str:
        return self._side.decode(self._ids[:end], self._begun[:end]).replace("\n", " ")

    def _take(self, text: str) -> str:
        start, self._sent = self._sent, len(text)
        return text[start:]


def check_stream(model: Any, config: DecodingConfig) -> None:
    """Raise UsageError for a model or an option that has no text before the whole output is known."""
    if model.writes != "tokens":
        raise UsageError("a segmental model (NPMT) cannot stream: its search orders whole outputs")
    if config.mbr:
        raise UsageError(f"mbr {config.mbr} cannot stream: it compares whole outputs", hint="set mbr to 0")
    if config.n_best > 1 or (config.beam > 1 and not config.sample):
        option = f"n_best {config.n_best}" if config.n_best > 1 else f"beam {config.beam}"
        raise UsageError(f"{option} cannot stream: only greedy search and one sample have final tokens")
    if config.split_sentences:
        raise UsageError("split_sentences cannot stream", hint="stream one sentence after the other")
    if config.unknown == "replace":
        raise UsageError(
            "unknown: replace cannot stream: the replacement needs the whole output",
            hint="choose unknown: keep or forbid",
        )


def stream_piece(
    model: Any, tokenizer: Tokenizer, piece: Piece, config: DecodingConfig, *,
    device: torch.device, alignments: bool, should_cancel: ShouldCancel | None,
) -> Generator[str, None, PieceResult]:  # fmt: skip
    """Yield the text of one piece as it becomes final; return its result. Raises Cancelled."""
    text, end = StreamedText(tokenizer.target, piece.begun), search_options(tokenizer, [piece], config).end
    steps = _steps(model, tokenizer, piece, config, device, alignments, should_cancel)
    with contextlib.closing(steps):
        while True:
            try:
                token = next(steps)
            except StopIteration as last:
                result: PieceResult = last.value
                break
            if token != end and (final := text.add(token)):
                yield final
    if rest := text.finish():
        yield rest
    return result


@torch.inference_mode()
def _steps(
    model: Any, tokenizer: Tokenizer, piece: Piece, config: DecodingConfig, device: torch.device, alignments: bool,
    should_cancel: ShouldCancel | None,
) -> Generator[int, None, PieceResult]:  # fmt: skip
    """Yield the tokens of one piece; return its result. The mode of torch holds only while this generator runs."""
    model = averaged(model, config.ensemble_mean)
    searched = fast(model, config.kernels, config.precision)
    with arithmetic(config.precision, device):
        memory = encode_pieces(searched, [piece], config, device)
    options = search_options(tokenizer, [piece], config, should_cancel)
    search = greedy_steps if options.sampling is None else sample_steps
    steps = search(searched, memory, limits_of([piece], config, device), options)
    while True:
        try:
            with arithmetic(config.precision, device):
                tokens = next(steps)
        except StopIteration as last:
            with arithmetic(config.precision, device):
                [result] = link_pieces(model, tokenizer, [piece], last.value, memory, config, alignments=alignments)
            return result
        yield int(tokens[0])
