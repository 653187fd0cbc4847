"""MarianMT folders as transformers writes them: random weights, real sentencepiece models of the built-in world."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

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


def _end_somewhere(model: Any, folder: Path, pad: int) -> None:
    """A few updates on the world: random weights alone never end, or end at once."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(UPDATES):
        pairs = world()[16 * step : 16 * step + 16]
        batch = tokenizer([s for s, _ in pairs], text_target=[t for _, t in pairs], return_tensors="pt", padding=True)
        batch["labels"][batch["labels"] == pad] = -100
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()


def write_folder(
    folder: Path, size: str = "small", *, seed: int = 1, renormalize: bool = True, beams: int = 4, max_length: int = 40,
    languages: bool = False, safe: bool = True,
) -> Path:  # fmt: skip
    """A folder with the files of OPUS-MT and random weights that were trained for a moment."""
    from transformers import MarianConfig, MarianMTModel

    folder.mkdir(parents=True, exist_ok=True)
    models = spm(0, 150), spm(1, 170, "bpe")
    ordinary = [p for m in models for p in pieces_of(m) if p not in ("<unk>", "<s>", "</s>")]
    extra = [">>de<<", ">>fr<<"] if languages else []
    names = list(dict.fromkeys(["</s>", "<unk>", *ordinary, *extra]))[:-3]  # some pieces are not in the vocabulary
    names += [*(e for e in extra if e not in names), "<pad>"]
    pad, s = len(names) - 1, SIZES[size]
    config = MarianConfig(
        vocab_size=len(names), d_model=s["d_model"], encoder_layers=s["encoder_layers"], decoder_layers=s["decoder_layers"],
        encoder_attention_heads=s["heads"], decoder_attention_heads=s["heads"], encoder_ffn_dim=s["ffn"],
        decoder_ffn_dim=s["ffn"], activation_function=s["activation"], scale_embedding=size != "deep", pad_token_id=pad,
        eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0, max_position_embeddings=512,
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
        "separate_vocabs": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    _end_somewhere(model, folder, pad)
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
