"""From prompts to text: the Python interface `TextGenerator.from_pretrained(folder).generate([...])`, and scores of lines.

Prompts are sorted by length, written on in batches by as many threads as there are cores, and put back into their order.
What is written for a line depends on the line, its number, the seed and the options, not on the lines around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phraseloom.config import validate
from phraseloom.decoding.batching import map_batches, num_workers, plan_batches
from phraseloom.decoding.config import GenerationConfig
from phraseloom.decoding.long_lines import crop, encode
from phraseloom.decoding.penalties import NoPenalty
from phraseloom.decoding.sampling import SampledContinuation, Sampling, write_on
from phraseloom.decoding.scoring import Score, score_lines
from phraseloom.layers.packed import pack_for_inference
from phraseloom.text.lines import list_of_lines

__all__ = ["Continuation", "TextGenerator"]


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
