"""Output layers: each has its training loss and its scores in search."""

from __future__ import annotations

from phraseloom.outputs.continuous import ContinuousOutput, WordOrPhraseOutput
from phraseloom.outputs.softmax import DecoderOutput, LossSums, SoftmaxOutput

OUTPUTS = {"softmax": SoftmaxOutput, "continuous": ContinuousOutput, "word_or_phrase": WordOrPhraseOutput}

__all__ = ["OUTPUTS", "ContinuousOutput", "DecoderOutput", "LossSums", "SoftmaxOutput", "WordOrPhraseOutput"]
