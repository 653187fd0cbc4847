"""Train with JoeyNMT on exported ids, printing the real tokens of each update.

Runs under the interpreter of PHRASELOOM_PEER_JOEY; imports nothing of phraseloom. JoeyNMT's own trainer runs unchanged;
the method that does one step is wrapped to count. It never validates, so the training text stands for the development text.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import arguments

SPECIALS = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
NUMBERS = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}


def stack(width: int) -> dict[str, Any]:
    return {
        "type": "transformer",
        "num_layers": 3,
        "num_heads": 4,
        "embeddings": {"embedding_dim": width, "scale": True, "dropout": 0.1},
        "hidden_size": width,
        "ff_size": 4 * width,
        "dropout": 0.1,
        "layer_norm": "pre",
    }


def config(data: Path, out: Path, batch: int) -> dict[str, Any]:
    side = {
        "max_length": 512,
        "level": "word",
        "lowercase": False,
        "normalize": False,
        "voc_file": str(data / "vocabulary.txt"),
        "tokenizer_type": "none",
        "tokenizer_cfg": {"pretokenizer": "none"},
    }
    return {
        "name": "bench",
        "joeynmt_version": "2.3.0",
        "model_dir": str(out),
        "use_cuda": False,
        "fp16": False,
        "random_seed": 1,
        "data": {
            "train": str(data / "train"),
            "dev": str(data / "train"),
            "dataset_type": "plain",
            "src": {"lang": "source", **side},
            "trg": {"lang": "target", **side},
            "special_symbols": {**SPECIALS, **NUMBERS},
        },
        "testing": {"n_best": 1, "beam_size": 1, "batch_size": 64, "batch_type": "sentence", "eval_metrics": ["bleu"]},
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 0.001,
            "learning_rate_min": 1e-9,
            "learning_rate_warmup": 100,
            "scheduling": "warmupinversesquareroot",
            "clip_grad_norm": 1.0,
            "weight_decay": 0.0,
            "loss": "crossentropy",
            "label_smoothing": 0.1,
            "batch_size": batch,
            "batch_type": "token",
            "batch_multiplier": 1,
            "normalization": "tokens",
            "epochs": 1_000_000,
            "updates": 10_000_000,
            "validation_freq": 10_000_000,
            "logging_freq": 1000,
            "early_stopping_metric": "bleu",
            "shuffle": True,
            "overwrite": True,
            "print_valid_sents": [0],
            "keep_best_ckpts": 1,
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack(256),
            "decoder": stack(256),
        },
    }


def count_updates() -> None:
    """Print real tokens after each step: tokens that are not padding, end symbols included."""
    from joeynmt.training import TrainManager

    original, done = TrainManager._train_step, [0]

    def wrapped(self: Any, batch: Any) -> Any:
        result = original(self, batch)
        done[0] += 1
        print(f"update {done[0]} tokens {int((batch.src != NUMBERS['pad_id']).sum())} {batch.ntokens}", flush=True)
        return result

    TrainManager._train_step = wrapped


def main() -> None:
    options = arguments.read(4096, "padded tokens of the longer side")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.mkdir(parents=True)
    count_updates()
    from joeynmt.training import train

    train(rank=0, world_size=1, cfg=config(options.data, options.out, options.batch), skip_test=True)


if __name__ == "__main__":
    main()
