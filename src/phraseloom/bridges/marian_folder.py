"""What a MarianMT model consists of, whoever wrote its files, in the terms of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class MarianFolder:
    """A MarianMT model: `config` with the keys of config.json, the ids of pieces, sentencepiece models, and tensors to read."""

    config: dict[str, Any]
    file: Path  # of `config`
    vocabularies: list[tuple[Path, dict[str, Any]]]  # one for both sides, or of source and target
    sentencepiece: list[Path]  # of source and target
    languages: tuple[str, str]
    generation: dict[str, Any]  # with the keys of generation_config.json
    generation_file: Path
    read_tensors: Callable[[], tuple[dict[str, Tensor], Path]]
    settings: dict[str, Any] = field(default_factory=dict)  # ours, over those of `generation`
