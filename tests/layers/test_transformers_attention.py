"""`replace_attention` in MarianMT and BART models of transformers: equal at first, trained, stored, generating with a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from phraseloom.errors import UsageError
from phraseloom.layers.phrase_attention import PhraseAttention
from phraseloom.layers.replacement import replace_attention

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'phraseloom[peers]'"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
KINDS = {"marian": ("MarianConfig", "MarianMTModel"), "bart": ("BartConfig", "BartForConditionalGeneration")}
LINES = ["queryk heterogeneous 1-2", "convkv interleaved 1-2", "queryk homogeneous 2-2"]


def model(kind: str) -> Any:
    config, name = KINDS[kind]
    sizes = {
        f"{side}_{part}": n
        for side in ("encoder", "decoder")
        for part, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 40))
    }
    special = {
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 2,
        "bos_token_id": 1,
    }
    given = {"vocab_size": 50, "d_model": 32, "max_position_embeddings": 64, "dropout": 0.0, **sizes, **special}
    torch.manual_seed(2)
    result = getattr(transformers, name)(getattr(transformers, config)(**given)).eval()
    with torch.no_grad():
        for parameter in result.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.15)
    return result


SOURCE = torch.tensor([[5, 6, 7, 8, 9, 2], [9, 8, 2, 0, 0, 0]])
BATCH = {
    "input_ids": SOURCE,
    "attention_mask": (SOURCE != 0).long(),
    "decoder_input_ids": torch.tensor([[0, 4, 5, 6], [0, 7, 8, 9]]),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_at_first_and_as_equal_in_search(kind: str, line: str) -> None:
    old = model(kind)
    with torch.no_grad():
        expected = old(**BATCH).logits
        outputs = old.generate(SOURCE, attention_mask=BATCH["attention_mask"], num_beams=3, max_length=12)
        new = replace_attention(old, line)
        assert sum(isinstance(m, PhraseAttention) for m in new.modules()) == 6
        torch.testing.assert_close(new(**BATCH).logits, expected, rtol=1e-4, atol=1e-4)
        again = new.generate(SOURCE, attention_mask=BATCH["attention_mask"], num_beams=3, max_length=12)
    assert again.tolist() == outputs.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_any_mask_is_followed_or_refused(kind: str) -> None:
    """Two sentences in one row: each token sees those of its own sentence."""
    old = model(kind)
    apart = torch.zeros(1, 1, 6, 6)
    apart[..., :3, 3:] = apart[..., 3:, :3] = torch.finfo(torch.float32).min
    causal = apart.masked_fill(torch.ones(6, 6).triu(1).bool(), torch.finfo(torch.float32).min)
    with torch.no_grad():
        encoded, decoded = (
            old.get_encoder()(SOURCE[:1], attention_mask=apart)[0],
            old.get_decoder()(SOURCE[:1], attention_mask=causal)[0],
        )
        new = replace_attention(old, LINES[0])
        encoder, decoder = new.get_encoder(), new.get_decoder()
        torch.testing.assert_close(encoder(SOURCE[:1], attention_mask=apart)[0], encoded, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(decoder(SOURCE[:1], attention_mask=causal)[0], decoded, rtol=1e-4, atol=1e-4)
        with pytest.raises(UsageError, match="numbers other than 0 and -inf"):
            encoder(SOURCE[:1], attention_mask=torch.full((1, 1, 6, 6), -0.5))


@pytest.mark.parametrize("line", LINES)
def test_trains_is_stored_and_generates_with_a_cache(line: str, tmp_path: Path) -> None:
    from safetensors.torch import load_model, save_model

    new = replace_attention(model("marian"), line).train()
    labels = torch.tensor([[4, 5, 6, 2], [7, 8, 9, 2]])
    optimizer = torch.optim.Adam(new.parameters(), lr=0.003)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = new(input_ids=SOURCE, attention_mask=BATCH["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
    gates = [p for n, p in new.named_parameters() if n.endswith("gate")]
    assert all(bool(gate.abs().sum() > 0) for gate in gates), "n-grams take part"
    save_model(new.eval(), tmp_path / "model.safetensors")
    again = replace_attention(model("marian"), line).eval()
    load_model(again, tmp_path / "model.safetensors")
    given = {"attention_mask": BATCH["attention_mask"], "num_beams": 3, "max_length": 12}
    with torch.no_grad():
        cached, plain = (new.generate(SOURCE, use_cache=use, **given).tolist() for use in (True, False))
        assert cached == plain == again.generate(SOURCE, **given).tolist()
