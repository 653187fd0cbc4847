"""The model card: what a model is, in a few lines, and the command that uses it."""

from __future__ import annotations

from torch import nn

from phraseloom import __version__
from phraseloom.errors import plural
from phraseloom.models.build import AnyModelConfig
from phraseloom.models.config import DecoderConfig, EncoderConfig, ModelConfig
from phraseloom.models.tasks import TASKS, task_of
from phraseloom.text.tokenizer import Tokenizer


def _layers(part: EncoderConfig | DecoderConfig, name: str) -> str:
    if part.kind == "none":
        return f"no {name}"
    kind = "" if part.kind == "transformer" else f"{part.kind} "
    return f"{part.layers} {kind}{name} layer{'s' if part.layers > 1 else ''}"


def model_card(config: AnyModelConfig, languages: tuple[str, str], model: nn.Module, tokenizer: Tokenizer) -> str:
    """The text of README.md in a model folder. `languages`: source and target."""
    parameters, task = sum(p.numel() for p in model.parameters()), TASKS[task_of(config)]
    if isinstance(config, ModelConfig):
        of = " → ".join(languages)
        layers = f"{_layers(config.encoder, 'encoder')} and {_layers(config.decoder, 'decoder')}"
        words = f"vocabularies of {len(tokenizer.source.vocabulary)} and {len(tokenizer.target.vocabulary)} subwords"
    else:
        of, layers = languages[1], plural(config.decoder.layers, "layer")
        words = f"a vocabulary of {len(tokenizer.target.vocabulary)} subwords"
    return (
        f"# {task.title} {of}\n\n"
        f"A phraseloom {__version__} model: {layers}, width {config.width}, {plural(config.heads, 'head')}, "
        f"feed-forward {config.ffn_width}, {parameters:,} parameters; {words}.\n\n"
        f"    {task.use}\n"
    )
