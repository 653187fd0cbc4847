"""Train with OpenNMT-py on exported ids, printing the real tokens of each update.

Runs under the interpreter of PHRASELOOM_PEER_ONMT; imports nothing of phraseloom. OpenNMT's own trainer runs unchanged;
the call that does one update is wrapped to count. Modules that it imports but these settings never use are given as
empty ones where they are not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import arguments

UNUSED = ("spacy", "fasttext", "ahocorasick", "fasttext_langdetect")


def config(data: Path, out: Path, vocabulary: int, batch: int) -> dict[str, Any]:
    size = 8 * (-(-(vocabulary + 8) // 8))
    return {
        "save_data": str(out / "onmt"),
        "src_vocab": str(data / "vocabulary.txt"),
        "tgt_vocab": str(data / "vocabulary.txt"),
        "share_vocab": True,
        "src_vocab_size": size,
        "tgt_vocab_size": size,
        "data": {
            "train": {"path_src": str(data / "train.source"), "path_tgt": str(data / "train.target"), "transforms": []}
        },
        "save_model": str(out / "model"),
        "overwrite": True,
        "train_steps": 10_000_000,
        "valid_steps": 10_000_000,
        "save_checkpoint_steps": 10_000_000,
        "report_every": 1000,
        "num_workers": 0,
        "bucket_size": 30_000,
        "bucket_size_init": 30_000,
        "batch_type": "tokens",
        "batch_size": batch,
        "normalization": "tokens",
        "accum_count": [1],
        "seed": 1,
        "optim": "adam",
        "adam_beta2": 0.98,
        "learning_rate": 0.16,
        "decay_method": "noam",
        "warmup_steps": 100,
        "max_grad_norm": 1.0,
        "label_smoothing": 0.1,
        "param_init": 0,
        "param_init_glorot": True,
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "position_encoding": True,
        "enc_layers": 3,
        "dec_layers": 3,
        "heads": 4,
        "hidden_size": 256,
        "word_vec_size": 256,
        "transformer_ff": 1024,
        "dropout": [0.1],
        "dropout_steps": [0],
        "attention_dropout": [0.1],
        "share_decoder_embeddings": True,
        "share_embeddings": True,
        "model_dtype": "fp32",
    }


def count_updates() -> None:
    """Print real tokens after each update: pieces of both sides and one end symbol a sentence and side.

    OpenNMT puts no end symbol on the source; it is counted all the same, so that a sentence pair is worth the same
    number of tokens whoever trains on it. `tgtlen` has the beginning and the end symbol.
    """
    from onmt.trainer import Trainer

    original, done = Trainer._gradient_accumulation, [0]

    def wrapped(self: Any, batches: list[dict[str, Any]], *rest: Any) -> Any:
        result = original(self, batches, *rest)
        pairs = sum(len(batch["srclen"]) for batch in batches)
        source = int(sum(batch["srclen"].sum() for batch in batches)) + pairs
        target = int(sum(batch["tgtlen"].sum() for batch in batches)) - pairs
        done[0] += 1
        print(f"update {done[0]} tokens {source} {target}", flush=True)
        return result

    Trainer._gradient_accumulation = wrapped


def main() -> None:
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    options = arguments.read(2150, "padded tokens of the longer side")
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "onmt.yaml"
    file.write_text(json.dumps(config(options.data, options.out, options.vocabulary, options.batch)))
    count_updates()
    from onmt.bin import train

    sys.argv = ["train", "-config", str(file)]
    train.main()


if __name__ == "__main__":
    main()
