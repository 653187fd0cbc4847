"""Validation: perplexity and BLEU on held-out text. All processes share the work; results do not depend on their number.

Perplexity is exp of the mean negative log-likelihood per target token with EOS, without label smoothing; for a language model
also per word of the raw text (metrics/perplexity.py). The loss is the training objective without dropout. Continuous output
also has the cosine loss, the mean of 1 - cos(ê, e) over the same tokens (P003). BLEU is sacreBLEU on detokenised
raw text, with its signature.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from phraseloom.data.batches import evaluation_batches
from phraseloom.metrics.perplexity import exp_mean
from phraseloom.options.languages import base_language
from phraseloom.training.logbook import finite
from phraseloom.training.loop import TrainingJob, ValidationInterrupted, autocast

if TYPE_CHECKING:
    from phraseloom.data.corpus import Split
    from phraseloom.decoding.translator import Translator
    from phraseloom.options.decoding import DecodingConfig
    from phraseloom.phrases.source import Segmenter
    from phraseloom.text.tokenizer import Tokenizer

__all__ = ["Validator", "bleu_of", "corpus_bleu"]

CHUNK = 256  # sentences translated between checks for signals
# Of languages without spaces between words, in which 13a would compare whole clauses.
TOKENIZERS = {"zh": "zh", "yue": "zh", "ja": "char", "km": "char", "lo": "char", "my": "char", "th": "char"}


class Validator:
    """Callable that validates a job's model, in evaluation mode, and returns plain numbers.

    `text`: both sides, for BLEU; `tags`: those of each line. `trees`, `segmenter`: see `Translator`.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        batch_of: Callable[[np.ndarray], Any],
        *,
        text: tuple[Sequence[str], Sequence[str]] | None = None,
        trees: Sequence[str] | None = None,
        tags: Sequence[tuple[str, ...]] | None = None,
        tokenizer: Tokenizer | None = None,
        segmenter: Segmenter | None = None,
        decoding: DecodingConfig | None = None,
        words: int | None = None,
    ) -> None:
        self.lengths = source_lengths, target_lengths
        self.batch_of, self.text, self.tokenizer, self.decoding = batch_of, text, tokenizer, decoding
        self.trees, self.tags, self.segmenter, self.words = trees, tags, segmenter, words

    def __call__(self, job: TrainingJob) -> dict[str, Any]:
        """`perplexity`, `loss`, `nll` (per token), `tokens`; `word_perplexity` if words are known; `cosine_loss` of continuous
        output; every `bleu_every` validations `bleu` and `signature`."""
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
        finite_so_far = math.isfinite(results["perplexity"])  # search refuses NaN
        if every and finite_so_far and self.text is not None and (job.state.validations + 1) % every == 0:
            results |= self._bleu(job, *self.text)
        return results

    def check(self, model: torch.nn.Module) -> None:
        """Check the decoding options before training, not at the first BLEU. Raises as `Translator.check`."""
        if self.text is not None:
            training = model.training
            self._translator(model).check()
            model.train(training)

    def _translator(self, model: torch.nn.Module, **options: Any) -> Translator:
        from phraseloom.decoding.translator import Translator

        assert self.decoding is not None
        return Translator(model, self.tokenizer, self.decoding.model_copy(update=options), segmenter=self.segmenter)

    def _sums(self, job: TrainingJob) -> tuple[float, float, int, float]:
        """Sums of objective and nll over the target tokens, the number of tokens, and the sum of cosine losses (NaN if the
        output has none). Pairs that the model cannot produce do not count."""
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
        # Samples would depend on the number of processes.
        search = {"beam": job.config.bleu_beam, "n_best": 1, "sample": False, "mbr": 0}
        translator = self._translator(job.model, **search, workers=1)
        own = list(sources[job.world.rank :: job.world.size])
        trees = None if self.trees is None else list(self.trees[job.world.rank :: job.world.size])
        tags = None if self.tags is None else self.tags[job.world.rank :: job.world.size]
        longest = -(-len(sources) // job.world.size)
        outputs: list[str] = []
        for begin in range(0, longest, CHUNK):
            _leave_if_signalled(job)
            with _quiet("phraseloom.decoding"):
                part = slice(begin, begin + CHUNK)
                part_trees = None if trees is None else trees[part]
                outputs += _outputs(translator, own[part], part_trees, None if tags is None else tags[part])
        target = self.tokenizer.target
        return corpus_bleu(
            job.world.gather_lines(outputs), [target.plain(line) for line in references], target.language
        )


def _outputs(
    translator: Translator, lines: list[str], trees: list[str] | None, tags: Sequence[tuple[str, ...]] | None
) -> list[str]:
    """The translation of each line, with its tags if it has some."""
    if tags is None:
        return [t.text for t in translator.translate(lines, trees=trees)]
    outputs = [""] * len(lines)
    for own in dict.fromkeys(tags):
        numbers = [n for n, line_tags in enumerate(tags) if line_tags == own]
        translations = translator.translate([lines[n] for n in numbers], tags=list(own))
        for number, translation in zip(numbers, translations, strict=True):
            outputs[number] = translation.text
    return outputs


def _sum(values: list[float]) -> float:
    """The exact sum, or the floating-point sum if a value or the sum is not finite."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):  # inf - inf, or too large
        return sum(values)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Suppress warnings about single lines: a model that has just started to learn causes one for every line."""
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


def corpus_bleu(outputs: Sequence[str], references: Sequence[str], language: str = "") -> dict[str, Any]:
    """sacreBLEU of detokenised lines, with its signature; `TOKENIZERS` has the languages that 13a does not split."""
    from sacrebleu.metrics import BLEU

    tokenize = TOKENIZERS.get(base_language(language), "13a")
    metric = BLEU(tokenize=tokenize, force=True)  # no warnings about tokenised text
    score = metric.corpus_score(list(outputs), [list(references)])
    return {"bleu": round(score.score, 4), "signature": str(metric.get_signature())}


def bleu_of(folder: Path, valid: Split, tokenizer: Tokenizer, *, beam: int, device: str) -> dict[str, Any]:
    """`corpus_bleu` of the stored model in `folder` on a validation text without tags and trees."""
    from phraseloom.decoding.translator import Translator

    sources, references = valid.text()
    translator = Translator.from_pretrained(folder, device=device, beam=beam, n_best=1, sample=False, mbr=0)
    with _quiet("phraseloom.decoding"):
        outputs = [translation.text for translation in translator.translate(sources)]
    target = tokenizer.target
    return corpus_bleu(outputs, [target.plain(line) for line in references], target.language)
