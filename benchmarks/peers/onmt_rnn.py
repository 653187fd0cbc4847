"""Updates of OpenNMT-py's LSTM on request: one JSON object a line in, one out. The model is made once, at the start.

Runs under the interpreter of PHRASELOOM_PEER_ONMT: onmt_rnn.py BATCHES.npz '{"width": 256, "layers": 2, …}'. Encoder, decoder,
generator, loss and optimiser are OpenNMT's, put together as its model builder and trainer do; only its data pipeline is left
out: the batches are given, as arrays source_N (B, S), lengths_N (B,) with EOS, target_N (B, T+1) with BOS and EOS, padded.

    {"updates": [1, 2]}   → {"seconds": 0.5}

An update is zeroing of gradients, forward, loss, backward, clipping and a step of Adam. The first line out tells the versions
and the number of parameters.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import types
from typing import Any

import numpy as np

UNUSED = ("spacy", "fasttext", "ahocorasick", "fasttext_langdetect")


def build(options: dict[str, Any]) -> Any:
    """onmt.model_builder.build_base_model with a joint vocabulary, without its option parser."""
    from onmt.decoders import str2dec
    from onmt.encoders import str2enc
    from onmt.models.model import NMTModel
    from onmt.modules import Embeddings
    from torch import nn

    width, layers, size, rate = (options[key] for key in ("width", "layers", "vocabulary", "dropout"))

    def embeddings() -> Any:
        return Embeddings(word_vec_size=width, word_vocab_size=size, word_padding_idx=options["pad"], dropout=rate)

    source, target = embeddings(), embeddings()
    target.word_lut.weight = source.word_lut.weight
    cell = options["cell"].upper()
    encoder = str2enc["brnn"](cell, True, layers, width, rate, source)
    decoder = str2dec["ifrnn" if options["input_feeding"] else "rnn"](
        rnn_type=cell,
        bidirectional_encoder=True,
        num_layers=layers,
        hidden_size=width,
        attn_type=options["attention"],
        dropout=rate,
        embeddings=target,
    )
    model = NMTModel(encoder, decoder)
    model.generator = nn.Linear(width, size)
    model.generator.weight = target.word_lut.weight
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
        elif "bias" in name:
            nn.init.zeros_(parameter)
    return model.train()


def trainer(model: Any, options: dict[str, Any]) -> Any:
    """A function that does the update of a batch, as onmt.trainer.Trainer._gradient_accumulation."""
    import torch
    from onmt.utils.loss import LossCompute
    from onmt.utils.optimizers import Optimizer
    from torch import nn

    criterion = nn.CrossEntropyLoss(ignore_index=options["pad"], reduction="sum", label_smoothing=0.1)
    loss_of = LossCompute(criterion, model.generator)
    adam = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-8)
    optimizer = Optimizer(adam, 1e-4, max_grad_norm=1.0)

    def update(batch: dict[str, Any], tokens: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        output, attention = model(batch["src"], batch["tgt"], batch["srclen"])
        loss, _ = loss_of(batch, output, attention)
        optimizer.backward(loss / tokens)
        model.decoder.detach_state()
        optimizer.step()

    return update


def main() -> None:
    options = json.loads(sys.argv[2])
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    for name in UNUSED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    import torch

    torch.set_num_threads(options["threads"])
    torch.manual_seed(1)
    import onmt

    arrays = {key: torch.from_numpy(value) for key, value in np.load(sys.argv[1]).items()}

    def batch(number: int) -> dict[str, Any]:
        source, target = (arrays[f"{side}_{number}"][..., None] for side in ("source", "target"))
        return {"src": source, "srclen": arrays[f"lengths_{number}"], "tgt": target}

    model = build(options)
    update = trainer(model, options)
    parameters = sum(p.numel() for p in model.parameters())
    told = {"torch": torch.__version__, "onmt": onmt.__version__, "parameters": parameters}
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        batches = [batch(number) for number in json.loads(line)["updates"]]
        tokens = [int((b["tgt"] != options["pad"]).sum()) - len(b["tgt"]) for b in batches]
        begin = time.perf_counter()
        for one, count in zip(batches, tokens, strict=True):
            update(one, count)
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
