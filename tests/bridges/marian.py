"""MarianMT folders as transformers writes them: random weights, real sentencepiece models of the built-in world."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from phraseloom.world.sampling import distinct_pairs

REASON = "transformers is not installed: pip install 'phraseloom[peers]'"
UPDATES = 20
SIZES: dict[str, dict[str, Any]] = {
    "small": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "heads": 2, "ffn": 48, "activation": "swish"},
    "deep": {"d_model": 64, "encoder_layers": 3, "decoder_layers": 1, "heads": 4, "ffn": 96, "activation": "relu"},
    "wide": {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "heads": 8, "ffn": 200, "activation": "gelu"},
}


@cache
def world(count: int = 500) -> tuple[tuple[str, str], ...]:
    """Sentence pairs of the built-in world."""
    return tuple((" ".join(p.source), " ".join(p.target)) for p in distinct_pairs(7, "test", count))


@cache
def spm(side: int, size: int, model: str = "unigram") -> bytes:
    """A sentencepiece model with the usual normalisation, learned on one side of the world."""
    import sentencepiece

    result = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([pair[side] for pair in world()]), model_writer=result, vocab_size=size, model_type=model,
        minloglevel=4, num_threads=1,
    )  # fmt: skip
    return result.getvalue()


def pieces_of(model: bytes) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(n) for n in range(processor.get_piece_size())]


def _end_somewhere(model: Any, folder: Path, pad: int, updates: int) -> None:
    """A few updates on the world: random weights alone never end, or end at once."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(updates):
        begin = 16 * step % 496
        pairs = world()[begin : begin + 16]
        batch = tokenizer([s for s, _ in pairs], text_target=[t for _, t in pairs], return_tensors="pt", padding=True)
        batch["labels"][batch["labels"] == pad] = -100
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()


def write_folder(
    folder: Path, size: str = "small", *, seed: int = 1, renormalize: bool = True, beams: int = 4, max_length: int = 40,
    languages: bool = False, safe: bool = True, separate: bool = False,
    models: tuple[bytes, bytes] | None = None, updates: int = UPDATES,
) -> Path:  # fmt: skip
    """A folder with the files of OPUS-MT and random weights that were trained for a moment."""
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir(parents=True, exist_ok=True)
    joint = models is not None
    models = models or (spm(0, 150), spm(1, 150 if separate else 170, "bpe"))
    ordinary = [p for m in models for p in pieces_of(m) if p not in ("<unk>", "<s>", "</s>")]
    extra = [">>de<<", ">>fr<<"] if languages else []
    names = list(dict.fromkeys(["</s>", "<unk>", *ordinary, *extra]))
    names = names if joint else names[:-3]  # some pieces are not in the vocabulary
    names += [*(e for e in extra if e not in names), "<pad>"]
    targets = names
    if separate:  # of one size, as MarianConfig has one number of the padding token
        sides = [[p for p in pieces_of(m) if p not in ("<unk>", "<s>", "</s>")] for m in models]
        names, targets = (["</s>", "<unk>", *pieces, "<pad>"] for pieces in sides)
    pad, s = len(names) - 1, SIZES[size]
    config = MarianConfig(
        vocab_size=len(names), d_model=s["d_model"], encoder_layers=s["encoder_layers"], decoder_layers=s["decoder_layers"],
        encoder_attention_heads=s["heads"], decoder_attention_heads=s["heads"], encoder_ffn_dim=s["ffn"],
        decoder_ffn_dim=s["ffn"], activation_function=s["activation"], scale_embedding=size != "deep", pad_token_id=pad,
        eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0, max_position_embeddings=512,
        share_encoder_decoder_embeddings=not separate, decoder_vocab_size=len(targets),
    )  # fmt: skip
    torch.manual_seed(seed)
    model = MarianMTModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                torch.randn_like(parameter), alpha=0.1 if parameter.dim() == 1 else 0.3 * parameter.shape[-1] ** -0.5
            )
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    (folder / "source.spm").write_bytes(models[0])
    (folder / "target.spm").write_bytes(models[1])
    (folder / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    described = {
        "source_lang": "en",
        "target_lang": "de",
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
    }
    if separate:
        (folder / "target_vocab.json").write_text(json.dumps({name: n for n, name in enumerate(targets)}))
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    _end_somewhere(model, folder, pad, updates)
    generation = model.generation_config
    generation.num_beams, generation.max_length, generation.bad_words_ids = beams, max_length, [[pad]]
    generation.forced_eos_token_id, generation.renormalize_logits = 0, renormalize or None
    model.save_pretrained(folder)
    if not safe:
        state = {n: t.clone() for n, t in model.state_dict().items()}
        torch.save(state, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


def need_transformers() -> None:
    """Skip where transformers is not installed."""
    pytest.importorskip("transformers", reason=REASON)


LETTERS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}


def write_npz(theirs: Path, folder: Path, *, decoder: str = "allow-unk: true\n", **changes: Any) -> Path:
    """The model in a folder of transformers as Marian would have written it; its padding row, the last one, has to be zero.

    Written from the names that transformers' own converter read (convert_marian_to_pytorch.py up to transformers 4), not from
    those of phraseloom. `changes`: options of training.
    """
    import numpy as np
    from safetensors.torch import load_file

    folder.mkdir(parents=True)
    config, tensors = json.loads((theirs / "config.json").read_bytes()), load_file(theirs / "model.safetensors")
    arrays: dict[str, Any] = {}
    for name, tensor in tensors.items():
        value = tensor.numpy()
        parts = name.split(".")
        if parts[-1] == "weight" and parts[-2] in ("shared", "embed_tokens", "lm_head"):
            key = {"model.shared": "Wemb", "lm_head": None}.get(".".join(parts[:-1]), f"{parts[1]}_Wemb")
            if key is not None and not (key == "decoder_Wemb" and config["share_encoder_decoder_embeddings"]):
                assert not value[-1].any()
                arrays[key] = value[:-1]
            continue
        if name == "final_logits_bias":
            arrays["decoder_ff_logit_out_b"] = value[:, :-1]
            continue
        layer, part, kind = f"{parts[1]}_l{int(parts[3]) + 1}", parts[4], parts[-1]
        if part in ("fc1", "fc2"):
            key = f"{layer}_ffn_{'W' if kind == 'weight' else 'b'}{part[2]}"
        elif part.endswith("layer_norm"):
            block = {"self_attn": "self_Wo", "encoder_attn": "context_Wo", "final": "ffn_ffn"}[
                part.removesuffix("_layer_norm")
            ]
            key = f"{layer}_{block}_ln_{'scale' if kind == 'weight' else 'bias'}"
        else:
            block = {"self_attn": "self", "encoder_attn": "context"}[part]
            key = f"{layer}_{block}_{'W' if kind == 'weight' else 'b'}{LETTERS[parts[5]]}"
        arrays[key] = np.ascontiguousarray(value.T) if value.ndim == 2 else value[None]
    shared = config["share_encoder_decoder_embeddings"]
    options = {
        "type": "transformer", "dim-emb": config["d_model"], "enc-depth": config["encoder_layers"],
        "dec-depth": config["decoder_layers"], "transformer-heads": config["encoder_attention_heads"],
        "transformer-dim-ffn": config["encoder_ffn_dim"], "transformer-ffn-activation": config["activation_function"],
        "transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
        "transformer-ffn-depth": 2, "transformer-decoder-autoreg": "self-attention", "transformer-no-projection": False,
        "transformer-train-position-embeddings": False, "tied-embeddings-all": shared, "tied-embeddings": True,
        "tied-embeddings-src": shared, "transformer-guided-alignment-layer": "last", "right-left": False, "ulr": False,
        "transformer-tied-layers": [], "transformer-dropout": 0.1, "dim-vocabs": [config["vocab_size"] - 1] * 2, **changes,
    }  # fmt: skip
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(options).encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **arrays)
    files = (
        {"vocab.json": "opus.vocab.yml"}
        if shared
        else {"vocab.json": "opus.src.vocab.yml", "target_vocab.json": "opus.trg.vocab.yml"}
    )
    for source, target in files.items():
        ids = json.loads((theirs / source).read_bytes())
        lines = [f"{_quoted(piece)}: {number}\n" for piece, number in ids.items() if piece != "<pad>"]
        (folder / target).write_bytes("".join(lines).encode())
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes((theirs / name).read_bytes())
    both = list(files.values())
    listed = f"models: [model.npz]\nvocabs: [{both[0]}, {both[-1]}]\nbeam-size: 4\nnormalize: 1\n"
    (folder / "decoder.yml").write_text(listed + decoder)
    return folder


def _quoted(piece: str) -> str:
    """As yaml-cpp writes keys: plain, or in double quotes."""
    return piece if piece.replace("\u2581", "").isalpha() else json.dumps(piece, ensure_ascii=False)


def without_pad(theirs: Path) -> Path:
    """Zero the embedding of the padding token, as it is in models of Marian."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(theirs / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            tensor[-1] = 0.0
    save_file(tensors, theirs / "model.safetensors", metadata={"format": "pt"})
    return theirs
