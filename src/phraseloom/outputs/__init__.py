"""Output layers: each owns its training loss and its decode-time scores."""

from __future__ import annotations

from phraseloom.outputs.continuous import ContinuousOutput, WordOrPhraseOutput
from phraseloom.outputs.softmax import LossSums, SoftmaxOutput

OUTPUTS = {"softmax": SoftmaxOutput, "continuous": ContinuousOutput, "word_or_phrase": WordOrPhraseOutput}

__all__ = ["OUTPUTS", "ContinuousOutput", "LossSums", "SoftmaxOutput", "WordOrPhraseOutput"]
