"""Train with Sockeye 3 on exported ids, printing the real tokens of each update.

Runs under the interpreter of PHRASELOOM_PEER_SOCKEYE; imports nothing of phraseloom. Sockeye's own trainer runs unchanged;
the method that does one step is wrapped to count. It never validates, so the training text stands for the development text.
"""

from __future__ import annotations

import shutil
import sys
from typing import Any

import arguments

SETTINGS = """
--use-cpu --shared-vocab --weight-tying-type src_trg_softmax --num-layers 3:3 --transformer-model-size 256
--transformer-attention-heads 4 --transformer-feed-forward-num-hidden 1024 --transformer-preprocess n
--transformer-postprocess dr --batch-type max-word --optimizer adam --optimizer-betas 0.9:0.98
--gradient-clipping-type norm --gradient-clipping-threshold 1.0 --label-smoothing 0.1 --max-seq-len 100
--learning-rate-scheduler-type inv-sqrt-decay --initial-learning-rate 0.01 --learning-rate-warmup 100
--max-updates 10000000 --checkpoint-interval 10000000 --decode-and-evaluate 0 --seed 1
"""


def count_updates() -> None:
    """Print real tokens after each step: tokens that are not padding, end symbols included."""
    import sockeye.constants as C
    from sockeye.training import EarlyStoppingTrainer

    original, done = EarlyStoppingTrainer._step, [0]

    def wrapped(self: Any, batch: Any) -> Any:
        result = original(self, batch)
        done[0] += 1
        source, target = (
            int((x != C.PAD_ID).sum()) for x in (batch.source[:, :, 0], batch.labels[C.TARGET_LABEL_NAME])
        )
        print(f"update {done[0]} tokens {source} {target}", flush=True)
        return result

    EarlyStoppingTrainer._step = wrapped


def main() -> None:
    options = arguments.read(2150, "padded tokens of the target side")
    shutil.rmtree(options.out, ignore_errors=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    count_updates()
    from sockeye.train import main as train

    batch = max(options.batch, 8 * 101)  # it rounds to eight sentences, and has to hold so many of the longest ones
    text = {"-s": "train.source", "-t": "train.target", "-vs": "train.source", "-vt": "train.target"}
    files = [x for option, name in text.items() for x in (option, str(options.data / name))]
    sys.argv = ["sockeye-train", *files, "-o", str(options.out), "--batch-size", str(batch), *SETTINGS.split()]
    train()


if __name__ == "__main__":
    main()
