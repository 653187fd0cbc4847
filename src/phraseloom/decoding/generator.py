"""Generate text from prompts, and score lines: `TextGenerator.from_pretrained(folder).generate([...])`.

Prompts are sorted by length, continued in batches by one thread per core, and returned in their order. The continuation of a
line depends on the line, its number, the seed and the options, not on the lines around it.

The next token is the best one or a sample (`sampling.py`). A sample depends only on (seed, line, sample), neither on its batch
nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phraseloom.config import validate
from phraseloom.decoding.batching import map_batches, num_workers, plan_batches
from phraseloom.decoding.limits import NEVER, Sampling, refuse_nan
from phraseloom.decoding.long_lines import crop, encode
from phraseloom.decoding.penalties import NoPenalty
from phraseloom.decoding.sampling import draw, filtered, uniform
from phraseloom.decoding.scoring import Score, score_lines
from phraseloom.layers.packed import pack_for_inference
from phraseloom.options.decoding import GenerationConfig
from phraseloom.text.lines import list_of_lines
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK

__all__ = ["Continuation", "SampledContinuation", "TextGenerator", "generate_tokens"]

BANNED = (PAD, UNK, BOS)


class SampledContinuation(NamedTuple):
    """One continuation: tokens without EOS; `log_prob` in nats under the unchanged model, with EOS if the model `ended` it."""

    tokens: list[int]
    log_prob: float
    ended: bool


def generate_tokens(
    model: Any,
    prompts: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    *,
    max_tokens: int,
    sampling: Sampling | None,
    seed: int,
    device: torch.device | str = "cpu",
) -> list[SampledContinuation]:
    """A continuation of each prompt (ids, possibly empty), until EOS or `max_tokens`; `places` has its (line, sample).

    Without `sampling` each token is the best one. Raises ModelError if the model gives NaN.
    """
    sizes = [len(p) for p in prompts]
    state = model.start(len(prompts), beam=1, max_length=max(sizes, default=0) + max_tokens)
    written: list[list[int]] = [[] for _ in prompts]
    log_prob = [0.0] * len(prompts)
    ended = [False] * len(prompts)
    active = list(range(len(prompts)))
    tokens = [BOS] * len(prompts)
    step = 0
    while active:
        decoded = model.step(torch.tensor(tokens, device=device), state)
        log_probs_RV = model.output.log_probs(decoded.hidden, decoded.gate).double()
        refuse_nan(log_probs_RV)
        free = [r for r, b in enumerate(active) if step >= sizes[b]]
        tokens = [prompts[b][step] if step < sizes[b] else EOS for b in active]
        if free:
            steps = [(*places[active[r]], len(written[active[r]])) for r in free]
            chosen, values = _choose(log_probs_RV[free], sampling, seed, steps)
            for r, token, value in zip(free, chosen, values, strict=True):
                b, tokens[r] = active[r], token
                log_prob[b] += value
                ended[b] = token == EOS
                if token != EOS:
                    written[b].append(token)
        step += 1
        live = [r for r, b in enumerate(active) if not ended[b] and len(written[b]) < max_tokens]
        if len(live) < len(active):
            active, tokens = [active[r] for r in live], [tokens[r] for r in live]
            state.keep(torch.tensor(live, dtype=torch.long, device=device))
    return [SampledContinuation(*fields) for fields in zip(written, log_prob, ended, strict=True)]


def _choose(
    log_probs_RV: Tensor, sampling: Sampling | None, seed: int, places: list[tuple[int, int, int]]
) -> tuple[list[int], list[float]]:
    """The next token of each row and its log-probability under the model; `places` are (line, sample, step)."""
    allowed_RV = log_probs_RV.clone()
    allowed_RV[:, list(BANNED)] = NEVER
    if sampling is None:
        tokens_R = allowed_RV.argmax(-1)
    else:
        u_R = torch.tensor([uniform(seed, *place) for place in places], dtype=torch.float64, device=log_probs_RV.device)
        tokens_R = draw(filtered(allowed_RV, sampling), u_R)
    return tokens_R.tolist(), log_probs_RV.gather(1, tokens_R[:, None])[:, 0].tolist()


@dataclass(frozen=True)
class Continuation:
    """The continuation of a prompt.

    `continuation` begins with a space if it begins a new word. So `text` is prompt + continuation, without spaces at the end of
    the prompt if the tokenizer drops them. `tokens` are the subwords of the continuation; `log_prob` in nats given the prompt,
    with the end of the line if the model `ended` it before `max_tokens`. `cropped`: the model read only the end of the prompt.
    """

    prompt: str
    continuation: str
    text: str
    tokens: list[str]
    log_prob: float
    ended: bool
    cropped: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain data for one JSON line."""
        return {
            "continuation": self.continuation,
            "text": self.text,
            "tokens": self.tokens,
            "log_prob": self.log_prob,
            "ended": self.ended,
            "cropped": self.cropped,
        }


class TextGenerator:
    """A language model with its tokenizer and options.

    `config` has the defaults; every method takes the fields of `GenerationConfig` as keywords that override them.
    """

    def __init__(self, model: Any, tokenizer: Any, config: GenerationConfig | None = None) -> None:
        self.model, self.side, self.tokenizer = model.eval(), tokenizer.target, tokenizer
        self.config = config or GenerationConfig()
        self.device = next(model.parameters()).device

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, device: str | torch.device = "cpu", **options: Any
    ) -> TextGenerator:
        """Load a model folder, a run folder (its best checkpoint) or a checkpoint; every file is verified.

        `options` override the `generation_config.json` of the model. Raises FileProblem, CorruptError, ModelError,
        ConfigError.
        """
        from phraseloom.models.store import GENERATION, find_model, load_language_model

        folder = find_model(folder)
        model, tokenizer, generation = load_language_model(folder, device)
        pack_for_inference(model)
        config = validate(GenerationConfig, generation, file=folder / GENERATION)
        return cls(model, tokenizer, _with(config, options))

    def options(self, **options: Any) -> GenerationConfig:
        """The options of this generator with some fields replaced. Raises ConfigError."""
        return _with(self.config, options)

    def generate(self, prompts: Sequence[str], *, first: int = 0, **options: Any) -> list[list[Continuation]]:
        """`samples` continuations of each prompt, in order; an empty prompt is the beginning of a line.

        `first`: the number of the first prompt in a longer text; samples depend on it. Raises UsageError, ConfigError,
        ModelError.
        """
        prompts = list_of_lines(prompts, "prompts")
        config = _with(self.config, options)
        ids = self.side.encode_batch(list(prompts))
        cropped = [i[-config.max_input_tokens :] for i in ids]
        jobs = [(n, sample) for n in range(len(ids)) for sample in range(config.samples)]
        sampling = Sampling(config.temperature, config.top_k, config.top_p) if config.sample else None
        workers = num_workers(config.workers, self.device)
        batches = plan_batches(
            [len(cropped[n]) + config.max_tokens for n, _ in jobs],
            sentences=config.sentences_together,
            tokens=config.batch_tokens,
            workers=workers,
        )

        def work(batch: list[int]) -> list[SampledContinuation]:
            with torch.inference_mode():
                return generate_tokens(
                    self.model,
                    [cropped[jobs[i][0]] for i in batch],
                    [(first + jobs[i][0], jobs[i][1]) for i in batch],
                    max_tokens=config.max_tokens,
                    sampling=sampling,
                    seed=config.seed,
                    device=self.device,
                )

        result: list[list[Continuation]] = [[] for _ in prompts]
        done: dict[int, SampledContinuation] = {}
        for batch, part in zip(batches, map_batches(work, batches, workers=workers), strict=True):
            done.update(zip(batch, part, strict=True))
        for i, (n, _) in enumerate(jobs):
            result[n].append(self._continuation(prompts[n], cropped[n], done[i], len(cropped[n]) < len(ids[n])))
        return result

    def score(self, lines: Sequence[str], **options: Any) -> list[Score]:
        """The log-probability of each line with its end; a blank line is a line that ends at once.

        A line above `max_input_tokens` subwords is cropped, and its score has `cropped`. Raises UsageError, ConfigError,
        ModelError.
        """
        lines = list_of_lines(lines, "lines to score")
        config = _with(self.config, options)
        ids, cropped = crop(encode(self.side, lines, config.max_input_tokens), config.max_input_tokens)
        log_probs = score_lines(self.model, ids, config, self.device)
        piece, penalty = self.side.vocabulary.piece, NoPenalty()
        return [
            Score.of(token_log_probs, [piece(i) for i in line], penalty, is_cropped)
            for token_log_probs, line, is_cropped in zip(log_probs, ids, cropped, strict=True)
        ]

    def _continuation(
        self, prompt: str, ids: Sequence[int], written: SampledContinuation, cropped: bool
    ) -> Continuation:
        """The text of `written`: the decoded whole without the prompt."""
        side = self.side
        head, whole = side.decode(ids), side.decode([*ids, *written.tokens])
        added = whole[len(head) :] if whole.startswith(head) else " " + side.decode(written.tokens)
        added = added.replace("\n", " ")
        text = self._as_read(prompt) + added
        pieces = [side.vocabulary.piece(i) for i in written.tokens]
        return Continuation(prompt, added, text, pieces, written.log_prob, written.ended, cropped)

    def _as_read(self, prompt: str) -> str:
        """The prompt, without spaces at its end if the model does not see them."""
        bare = prompt.rstrip()
        if bare == prompt or self.side.encode(bare) != self.side.encode(prompt):
            return prompt
        return bare


def _with(config: GenerationConfig, options: dict[str, Any]) -> GenerationConfig:
    """`config` with some fields replaced, validated. Raises ConfigError for an unknown field or a bad value."""
    if not options:
        return config
    return validate(GenerationConfig, {**config.model_dump(), **options})
