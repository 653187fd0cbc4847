"""The arguments of a peer's trainer that reads exported ids; imports nothing of phraseloom."""

from __future__ import annotations

import argparse
from pathlib import Path


def read(batch: int, tokens: str) -> argparse.Namespace:
    """Read the command line and set the threads of torch. `batch`: the default of --batch, which counts `tokens`."""
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, help="train.source, train.target, vocabulary.txt")
    parser.add_argument("out", type=Path, help="folder of the peer's run")
    parser.add_argument("--vocabulary", type=int, help="number of ids, for peers that need it")
    parser.add_argument("--batch", type=int, default=batch, help=tokens)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options
