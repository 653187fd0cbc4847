"""A MarianMT model with phrasal attention in `transformers.Trainer`: it trains 50 steps, is stored, loads and generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.layers.test_transformers_attention import BATCH, SOURCE, model

from phraseloom.layers.replacement import replace_attention

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'phraseloom[peers]'"
)
pytest.importorskip("accelerate", reason="Trainer needs accelerate: pip install 'phraseloom[peers]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate
LINE = "queryk heterogeneous 1-2"
LABELS = torch.tensor([[4, 5, 6, 2], [7, 8, 9, 2]])


class Pairs(torch.utils.data.Dataset[dict[str, Any]]):
    """The same two sentence pairs again and again."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = index % 2
        return {"input_ids": SOURCE[row], "attention_mask": BATCH["attention_mask"][row], "labels": LABELS[row]}


def test_trains_50_steps_is_stored_and_generates(tmp_path: Path) -> None:
    new = replace_attention(model("marian"), LINE)
    gates = {name: p for name, p in new.named_parameters() if name.endswith("gate")}
    assert gates and not any(bool(gate.abs().sum()) for gate in gates.values())
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=50, per_device_train_batch_size=2, learning_rate=0.003,
        save_steps=50, logging_steps=10, report_to=[], disable_tqdm=True, use_cpu=True, seed=1,
    )  # fmt: skip
    trainer = transformers.Trainer(model=new, args=arguments, train_dataset=Pairs())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert trainer.state.global_step == 50 and losses[-1] < 0.5 * losses[0]
    assert all(bool(gate.abs().sum() > 0) for gate in gates.values()), "n-grams take part"

    saved = tmp_path / "run/checkpoint-50/model.safetensors"
    again = replace_attention(model("marian"), LINE)
    from safetensors.torch import load_model

    missing, unexpected = load_model(again, saved, strict=False)  # Trainer stores no sinusoids
    assert unexpected == [] and all(name.endswith("embed_positions.weight") for name in missing)
    given = {"attention_mask": BATCH["attention_mask"], "num_beams": 3, "max_length": 12}
    new, again = new.eval(), again.eval()
    with torch.no_grad():
        cached, plain = (again.generate(SOURCE, use_cache=use, **given).tolist() for use in (True, False))
        assert cached == plain == new.generate(SOURCE, **given).tolist()
        assert cached != model("marian").generate(SOURCE, **given).tolist(), "it has learned something"
    resumed = transformers.Trainer(
        model=replace_attention(model("marian"), LINE), args=arguments, train_dataset=Pairs()
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-50"))
    for name, parameter in resumed.model.named_parameters():
        assert torch.equal(parameter, dict(new.named_parameters())[name]), name
