"""Validation: perplexity and BLEU on held-out text, shared out among the processes, the same figures for any number of them.

Perplexity is exp of the mean negative log-likelihood per target token, end symbols counted, without label smoothing; of a
language model also per word of the raw text (metrics/perplexity.py). The loss is what training minimises, without dropout.
Of continuous output there is the cosine loss as well, the mean of 1 - cos(ê, e) over the same tokens (P003; spec §4.3).
BLEU is sacreBLEU on detokenised raw text, and comes with its signature.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from phraseloom.data.batches import evaluation_batches
from phraseloom.metrics.perplexity import exp_mean
from phraseloom.training.logbook import finite
from phraseloom.training.loop import TrainingJob, ValidationInterrupted, autocast

if TYPE_CHECKING:
    from phraseloom.decoding.translator import Translator
    from phraseloom.options.decoding import DecodingConfig
    from phraseloom.phrases.source import Segmenter
    from phraseloom.text.tokenizer import Tokenizer

__all__ = ["Validator", "corpus_bleu"]

CHUNK = 256  # sentences translated between looks at the signals


class Validator:
    """Callable that validates a job's model, in evaluation mode, and returns plain numbers.

    `text` is that of both sides, for BLEU; `trees` and `segmenter` as a Translator takes them.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        batch_of: Callable[[np.ndarray], Any],
        *,
        text: tuple[Sequence[str], Sequence[str]] | None = None,
        trees: Sequence[str] | None = None,
        tokenizer: Tokenizer | None = None,
        segmenter: Segmenter | None = None,
        decoding: DecodingConfig | None = None,
        words: int | None = None,
    ) -> None:
        self.lengths = source_lengths, target_lengths
        self.batch_of, self.text, self.tokenizer, self.decoding = batch_of, text, tokenizer, decoding
        self.trees, self.segmenter, self.words = trees, segmenter, words

    def __call__(self, job: TrainingJob) -> dict[str, Any]:
        """`perplexity`, `loss`, `nll` (per token), `tokens`, with words `word_perplexity`; at times `bleu`, `signature`.

        Of continuous output also `cosine_loss`.
        """
        objective, nll, tokens, cosine_loss = self._sums(job)
        results: dict[str, Any] = {"perplexity": exp_mean(nll, tokens)}
        if self.words is not None:
            results["word_perplexity"] = finite(exp_mean(nll, self.words + len(self.lengths[1])))
        if math.isfinite(objective):
            results["loss"] = objective / max(1, tokens)
        if math.isfinite(cosine_loss):
            results["cosine_loss"] = cosine_loss / max(1, tokens)
        results |= {"nll": nll / max(1, tokens), "tokens": tokens}
        every = job.config.bleu_every
        finite_so_far = math.isfinite(results["perplexity"])  # a model that gives NaN has nothing to search
        if every and finite_so_far and self.text is not None and (job.state.validations + 1) % every == 0:
            results |= self._bleu(job, *self.text)
        return results

    def check(self, model: torch.nn.Module) -> None:
        """Refuse now what the first BLEU would refuse much later. Raises as `Translator.check`."""
        if self.text is not None:
            training = model.training
            self._translator(model).check()
            model.train(training)

    def _translator(self, model: torch.nn.Module, **options: Any) -> Translator:
        from phraseloom.decoding.translator import Translator

        assert self.decoding is not None
        return Translator(model, self.tokenizer, self.decoding.model_copy(update=options), segmenter=self.segmenter)

    def _sums(self, job: TrainingJob) -> tuple[float, float, int, float]:
        """Objective and nll, summed over all target tokens that the model can give a probability, the number of these, and
        their cosine losses (NaN where the output has none)."""
        batches = list(evaluation_batches(*self.lengths, job.config.valid_tokens))
        world = job.world
        sums = torch.zeros(4, len(batches), dtype=torch.float64, device=world.device)
        for begin in range(0, len(batches), world.size):
            _leave_if_signalled(job)
            if begin + world.rank < len(batches):
                with torch.no_grad(), autocast(job):
                    loss = job.loss(self.batch_of(batches[begin + world.rank]))
                sums[0, begin + world.rank] = torch.as_tensor(loss.objective).double()
                sums[1, begin + world.rank] = torch.as_tensor(loss.nll).double()
                sums[2, begin + world.rank] = loss.tokens
                sums[3, begin + world.rank] = math.nan if loss.cosine_loss is None else loss.cosine_loss
        objective, nll, tokens, cosine_loss = (_sum(row) for row in world.sum_(sums).tolist())
        return objective, nll, int(tokens), cosine_loss

    def _bleu(self, job: TrainingJob, sources: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
        assert self.tokenizer is not None
        translator = self._translator(job.model, beam=job.config.bleu_beam, workers=1)
        own = list(sources[job.world.rank :: job.world.size])
        trees = None if self.trees is None else list(self.trees[job.world.rank :: job.world.size])
        longest = -(-len(sources) // job.world.size)
        outputs: list[str] = []
        for begin in range(0, longest, CHUNK):
            _leave_if_signalled(job)
            with _quiet("phraseloom.decoding"):
                part = slice(begin, begin + CHUNK)
                of_part = None if trees is None else trees[part]
                outputs += [t.text for t in translator.translate(own[part], trees=of_part)]
        plain = self.tokenizer.target.plain
        return corpus_bleu(job.world.gather_lines(outputs), [plain(line) for line in references])


def _sum(values: list[float]) -> float:
    """The exact sum; of values that are not finite, or whose sum is not, what floating point makes of them."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # inf - inf, or too large
        return sum(values)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keep back warnings about single lines: a model that has just begun to learn gives one for each."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _leave_if_signalled(job: TrainingJob) -> None:
    if job.world.any(job.stop.is_set):
        raise ValidationInterrupted


def corpus_bleu(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """sacreBLEU of detokenised lines, and the signature that says how it was computed."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(force=True)  # it would warn, four times a validation, of a text whose full stops stand alone
    score = metric.corpus_score(list(outputs), [list(references)])
    return {"bleu": round(score.score, 4), "signature": str(metric.get_signature())}
