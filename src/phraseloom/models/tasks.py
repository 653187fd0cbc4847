"""The tasks of models, and how to build the model of a configuration for a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from phraseloom.layers.table import TargetTable
from phraseloom.models.build import AnyModelConfig, build_language_model, build_model
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import ModelConfig
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.words import Words


def target_table(tokenizer: Tokenizer) -> TargetTable | None:
    """The vectors of the target vocabulary; None if the tokenizer has none."""
    words = tokenizer.target.subwords
    if not isinstance(words, Words) or words.vectors is None:
        return None
    return TargetTable(torch.from_numpy(words.vectors), words.first_phrase)


@dataclass(frozen=True)
class Task:
    """A task: its title, its configuration class, how to build a model, and the command that uses one.

    `sides`: the texts of the task, and the side of the tokenizer that encodes each.
    """

    title: str
    config: type[AnyModelConfig]
    build: Callable[[Any, Tokenizer], nn.Module]
    sides: dict[str, Literal["source", "target"]]
    use: str


TASKS = {
    "translation": Task(
        "Translation model",
        ModelConfig,
        lambda config, t: build_model(config, len(t.source.vocabulary), len(t.target.vocabulary), target_table(t)),
        {"source": "source", "target": "target"},
        "phraseloom translate THIS_FOLDER < source.txt > translation.txt",
    ),
    "language_model": Task(
        "Language model",
        LanguageModelConfig,
        lambda config, t: build_language_model(config, len(t.target.vocabulary)),
        {"text": "target"},
        "phraseloom generate THIS_FOLDER < prompts.txt",
    ),
}


def task_of(config: AnyModelConfig) -> str:
    """The task of a configuration."""
    return next(name for name, task in TASKS.items() if type(config) is task.config)


def build(config: AnyModelConfig, tokenizer: Tokenizer) -> nn.Module:
    """A freshly initialised model of any task for the vocabularies of a tokenizer; the caller seeds torch."""
    return TASKS[task_of(config)].build(config, tokenizer)
