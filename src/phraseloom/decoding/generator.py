"""From prompts to text: the Python interface `TextGenerator.from_pretrained(folder).generate([...])`, and scores of lines.

Prompts are sorted by length, written on in batches by as many threads as there are cores, and put back into their order.
What is written for a line depends on the line, its number, the seed and the options, not on the lines around it.

Writing on from prompts, token by token: the best token each time, or one drawn at random.

Drawing: of p^(1/temperature) over the `top_k` best tokens, and of these over the fewest that hold `top_p` of the mass
(Holtzman et al. 2020), by inversion: with one uniform number u, the first token, in the order of the ids, at which the
summed probability is above u. The number is a function of (seed, line, sample, step) alone, so what is drawn for a line
depends neither on the batch that the line is in nor on how many threads work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phraseloom.config import validate
from phraseloom.data.batches import mix
from phraseloom.decoding.batching import map_batches, num_workers, plan_batches
from phraseloom.decoding.limits import NEVER, refuse_nan
from phraseloom.decoding.long_lines import crop, encode
from phraseloom.decoding.penalties import NoPenalty
from phraseloom.decoding.scoring import Score, score_lines
from phraseloom.layers.packed import pack_for_inference
from phraseloom.options.decoding import GenerationConfig
from phraseloom.text.lines import list_of_lines
from phraseloom.text.vocabulary import BOS, EOS, PAD, UNK

__all__ = [
    "BANNED",
    "Continuation",
    "SampledContinuation",
    "Sampling",
    "TextGenerator",
    "draw",
    "filtered",
    "uniform",
    "write_on",
]

BANNED = (PAD, UNK, BOS)


class SampledContinuation(NamedTuple):
    """One continuation: tokens without EOS; `log_prob` in nats under the model as it is, with EOS if it `ended` by itself."""

    tokens: list[int]
    log_prob: float
    ended: bool


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: see the head of this file. None in place of a Sampling means the best token each time."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def uniform(seed: int, line: int, sample: int, step: int) -> float:
    """A number from [0, 1), the same for the same arguments; 53 random bits."""
    return (mix(seed, line, sample, step) >> 10) * 2.0**-53


def filtered(log_probs_RV: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities (R, V) that are drawn from, in float64: after temperature, top-k and top-p, each row summing to 1.

    The best token always stays. Of equal tokens at the border of top-k or top-p those with the lower ids stay.
    """
    p_RV = (log_probs_RV.double() / sampling.temperature).softmax(-1)
    if sampling.top_k is None and sampling.top_p is None:
        return p_RV
    ranked, order = p_RV.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        ranked[:, sampling.top_k :] = 0.0
        ranked /= ranked.sum(-1, keepdim=True)
    if sampling.top_p is not None:
        before = ranked.cumsum(-1) - ranked
        ranked = ranked.masked_fill(before >= sampling.top_p, 0.0)
        ranked /= ranked.sum(-1, keepdim=True)
    return torch.zeros_like(p_RV).scatter(1, order, ranked)


def draw(p_RV: Tensor, u_R: Tensor) -> Tensor:
    """For each row the first column at which the summed probability is above u; never one of probability 0."""
    total = p_RV.cumsum(-1)
    columns = torch.searchsorted(total, (u_R * total[:, -1])[:, None], right=True)[:, 0]
    last = (p_RV > 0).int().cumsum(-1).argmax(-1)  # the sum may round to u itself
    return torch.minimum(columns, last)


def write_on(
    model: Any,
    prompts: Sequence[Sequence[int]],
    places: Sequence[tuple[int, int]],
    *,
    max_tokens: int,
    sampling: Sampling | None,
    seed: int,
    device: torch.device | str = "cpu",
) -> list[SampledContinuation]:
    """A continuation of each prompt (ids, maybe none), until EOS or `max_tokens`; `places` are (line, sample) of each prompt.

    Raises ModelError where the model gives NaN.
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
        hidden_RD, _ = model.step(torch.tensor(tokens, device=device), state)
        log_probs_RV = model.output.log_probs(hidden_RD).double()
        refuse_nan(log_probs_RV)
        free = [r for r, b in enumerate(active) if step >= sizes[b]]
        tokens = [prompts[b][step] if step < sizes[b] else EOS for b in active]
        if free:
            places_here = [(*places[active[r]], len(written[active[r]])) for r in free]
            chosen, values = _choose(log_probs_RV[free], sampling, seed, places_here)
            for r, token, value in zip(free, chosen, values, strict=True):
                b, tokens[r] = active[r], token
                log_prob[b] += value
                ended[b] = token == EOS
                if token != EOS:
                    written[b].append(token)
        step += 1
        stay = [r for r, b in enumerate(active) if not ended[b] and len(written[b]) < max_tokens]
        if len(stay) < len(active):
            active, tokens = [active[r] for r in stay], [tokens[r] for r in stay]
            state.keep(torch.tensor(stay, dtype=torch.long, device=device))
    return [SampledContinuation(*one) for one in zip(written, log_prob, ended, strict=True)]


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
    """What a model wrote on from a prompt.

    `continuation` begins with a space where a new word begins, so that `text`, prompt and continuation, is one after the
    other; `tokens` its subwords; `log_prob` in nats given the prompt, with the end of the line if it `ended` by itself
    and not at `max_tokens`. `cropped`: the model saw only the end of the prompt.
    """

    prompt: str
    continuation: str
    tokens: list[str]
    log_prob: float
    ended: bool
    cropped: bool = False

    @property
    def text(self) -> str:
        """Prompt and continuation."""
        return self.prompt + self.continuation

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

    `config` gives the defaults; every method takes the fields of `GenerationConfig` as keywords over them.
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

        `options` stand over the `generation_config.json` of the model. Raises FileProblem, CorruptError, ModelError,
        ConfigError.
        """
        from phraseloom.models.store import GENERATION, find_model, load_language_model

        found = find_model(folder)
        model, tokenizer, generation = load_language_model(found, device)
        pack_for_inference(model)
        config = validate(GenerationConfig, generation, file=found / GENERATION)
        return cls(model, tokenizer, _with(config, options))

    def options(self, **options: Any) -> GenerationConfig:
        """The options of this generator with some fields replaced. Raises ConfigError."""
        return _with(self.config, options)

    def generate(self, prompts: Sequence[str], *, first: int = 0, **options: Any) -> list[list[Continuation]]:
        """`samples` continuations of each prompt, in order; an empty prompt is the beginning of a line.

        `first`: the number of the first prompt, where they are part of a longer text; draws depend on it. Raises UsageError,
        ConfigError, ModelError.
        """
        prompts = list_of_lines(prompts, "prompts")
        config = _with(self.config, options)
        ids = self.side.encode_batch(list(prompts))
        kept = [i[-config.max_input_tokens :] for i in ids]
        jobs = [(n, sample) for n in range(len(ids)) for sample in range(config.samples)]
        sampling = Sampling(config.temperature, config.top_k, config.top_p) if config.sample else None
        workers = num_workers(config.workers, self.device)
        batches = plan_batches(
            [len(kept[n]) + config.max_tokens for n, _ in jobs],
            sentences=config.sentences_together,
            tokens=config.batch_tokens,
            workers=workers,
        )

        def work(batch: list[int]) -> list[SampledContinuation]:
            with torch.inference_mode():
                return write_on(
                    self.model,
                    [kept[jobs[i][0]] for i in batch],
                    [(first + jobs[i][0], jobs[i][1]) for i in batch],
                    max_tokens=config.max_tokens,
                    sampling=sampling,
                    seed=config.seed,
                    device=self.device,
                )

        found: list[list[Continuation]] = [[] for _ in prompts]
        done: dict[int, SampledContinuation] = {}
        for batch, part in zip(batches, map_batches(work, batches, workers=workers), strict=True):
            done.update(zip(batch, part, strict=True))
        for i, (n, _) in enumerate(jobs):
            found[n].append(self._continuation(prompts[n], kept[n], done[i], len(kept[n]) < len(ids[n])))
        return found

    def score(self, lines: Sequence[str], **options: Any) -> list[Score]:
        """The log-probability of each line, its end counted; a blank line is one that ends at once.

        A line of more than `max_input_tokens` subwords counts as the line that ends there, and its score says `cropped`.
        Raises UsageError, ConfigError, ModelError.
        """
        lines = list_of_lines(lines, "lines to score")
        config = _with(self.config, options)
        ids, cropped = crop(encode(self.side, lines, config.max_input_tokens), config.max_input_tokens)
        log_probs = score_lines(self.model, ids, config, self.device)
        piece, penalty = self.side.vocabulary.piece, NoPenalty()
        return [
            Score.of(of_tokens, [piece(i) for i in line], penalty, is_cropped)
            for of_tokens, line, is_cropped in zip(log_probs, ids, cropped, strict=True)
        ]

    def _continuation(
        self, prompt: str, ids: Sequence[int], written: SampledContinuation, cropped: bool
    ) -> Continuation:
        """The text that `written` adds: what the whole has beyond the prompt alone."""
        side = self.side
        head, whole = side.decode(ids), side.decode([*ids, *written.tokens])
        added = whole[len(head) :] if whole.startswith(head) else " " + side.decode(written.tokens)
        pieces = [side.vocabulary.piece(i) for i in written.tokens]
        return Continuation(prompt, added.replace("\n", " "), pieces, written.log_prob, written.ended, cropped)


def _with(config: GenerationConfig, options: dict[str, Any]) -> GenerationConfig:
    """`config` with some fields replaced, checked again; ConfigError for an unknown or impossible one."""
    if not options:
        return config
    return validate(GenerationConfig, {**config.model_dump(), **options})
