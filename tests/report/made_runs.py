"""Run folders made by hand: recipe, facts and logs as training writes them, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = """\
format: 1
name: {name}
task: translation
data:
  folder: no/such/dataset
  train:
  - source: train.de.gz
    target: train.en.gz
    source_sha256: {data}
    target_sha256: {data}
model:
  width: {width}
  output:
    kind: {output}
training:
  seed: {seed}
  bleu_every: 0
"""


def make_run(
    folder: Path,
    *,
    seed: int = 1,
    width: int = 16,
    output: str = "softmax",
    perplexities: dict[int, float] | None = None,
    losses: dict[int, float] | None = None,
    data: str = "ab" * 32,
    timed: bool = True,
) -> Path:
    """A run folder with such curves; an update takes half a second and has 100 target tokens."""
    folder.mkdir(parents=True)
    perplexities = {10: 9.0, 20: 5.0} if perplexities is None else perplexities
    losses = {u: 8 / u for u in range(1, 21)} if losses is None else losses
    config = CONFIG.format(name=folder.name, seed=seed, width=width, output=output, data=data)
    facts = {"format": 1, "phraseloom": "0.1.0", "torch": "2.1", "python": "3.11", "machine": "x", "dataset": data}
    records: list[dict[str, Any]] = [
        {"update": u, "nll": v, "loss": v, "lr": 0.001, "grad_norm": 1.0} for u, v in losses.items()
    ]
    records += [{"update": u, "validation": {"perplexity": v}} for u, v in perplexities.items()]
    timing = [{"update": u, "seconds": u / 2, "source_tokens": 90 * u, "target_tokens": 100 * u} for u in perplexities]
    (folder / "config.yaml").write_bytes(config.encode())
    (folder / "run.json").write_bytes(json.dumps(facts).encode())
    (folder / "metrics.jsonl").write_bytes("".join(json.dumps(r) + "\n" for r in records).encode())
    if timed:
        (folder / "timing.jsonl").write_bytes("".join(json.dumps(r) + "\n" for r in timing).encode())
    return folder
