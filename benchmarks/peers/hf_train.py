"""Train a MarianMT model of HuggingFace transformers on exported ids, printing the real tokens of each update.

Runs under the interpreter of PHRASELOOM_PEER_HF; imports nothing of phraseloom. The library is the peer, the loop is
ours: batches of equal work cut from the corpus sorted by length, so that there is hardly any padding.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

PAD, BOS, EOS = 0, 2, 3


def read(path: Path) -> list[list[int]]:
    return [[*map(int, line.split(" ")), EOS] if line else [EOS] for line in path.read_text().split("\n")[:-1]]


def padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def batches(source: list[list[int]], target: list[list[int]], tokens: int) -> list[list[int]]:
    """Indices, sorted by length with ties at random, in batches of about `tokens` real tokens, the batches shuffled."""
    order = sorted(range(len(source)), key=lambda i: (len(target[i]), len(source[i]), random.random()))
    result: list[list[int]] = [[]]
    size = 0
    for i in order:
        length = len(source[i]) + len(target[i])
        if result[-1] and size + length / 2 > tokens:
            result.append([])
            size = 0
        result[-1].append(i)
        size += length
    random.shuffle(result)
    return result


def build(vocabulary: int, attention: str) -> MarianMTModel:
    return MarianMTModel(
        cast(Any, MarianConfig)(
            vocab_size=vocabulary,
            d_model=256,
            encoder_layers=3,
            decoder_layers=3,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=1024,
            decoder_ffn_dim=1024,
            dropout=0.1,
            attention_dropout=0.1,
            activation_dropout=0.0,
            activation_function="relu",
            max_position_embeddings=512,
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            attn_implementation=attention,
        )
    )


def step(model: MarianMTModel, optimizer: torch.optim.Optimizer, source: Tensor, target: Tensor) -> None:
    decoder_input = torch.cat([torch.full((len(target), 1), BOS), target[:, :-1]], 1)
    decoder_mask = torch.cat([torch.ones(len(target), 1, dtype=torch.long), (target[:, :-1] != PAD).long()], 1)
    logits = model(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        decoder_input_ids=decoder_input,
        decoder_attention_mask=decoder_mask,
        use_cache=False,
    ).logits
    loss = torch.nn.functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), target.view(-1), ignore_index=PAD, label_smoothing=0.1
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=3700)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    random.seed(1)
    source, target = read(options.data / "train.source"), read(options.data / "train.target")
    model = build(options.vocabulary, options.attention).train()
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    update = 0
    while True:
        for batch in batches(source, target, options.tokens):
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min((update + 1) / 100, (100 / (update + 1)) ** 0.5)
            step(model, optimizer, padded([source[i] for i in batch]), padded([target[i] for i in batch]))
            update += 1
            tokens = sum(len(source[i]) for i in batch), sum(len(target[i]) for i in batch)
            print(f"update {update} tokens {tokens[0]} {tokens[1]}", flush=True)


if __name__ == "__main__":
    main()
