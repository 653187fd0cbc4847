"""Which segmental models can be asked for, what follows from asking, and that they are kept in a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import tiny_tokenizer

from phraseloom.config import validate
from phraseloom.data.tensors import make_batch
from phraseloom.errors import ConfigError, ModelError
from phraseloom.models.build import build_model
from phraseloom.models.store import load_model, save_model
from phraseloom.models.tasks import build
from phraseloom.npmt.model import ColumnsEncoder, SegmentalModel
from phraseloom.options.model import ModelConfig

COLUMNS: dict[str, Any] = {"kind": "columns"}
SEGMENTS: dict[str, Any] = {"kind": "segmental"}
PAPER: dict[str, Any] = {
    "width": 512, "embedding_width": 256, "dropout": 0.5,
    "encoder": {"kind": "columns", "layers": 2, "cell": "gru", "width": 256, "dropout": 0.5},
    "decoder": {"kind": "segmental", "layers": 2, "cell": "gru", "max_segment": 6, "dropout": 0.5},
    "reordering": {"window": 7, "layers": 1}, "output": {"bias": True},
}  # fmt: skip


def config(**keys: Any) -> ModelConfig:
    return validate(ModelConfig, {"encoder": COLUMNS, "decoder": SEGMENTS, **keys}, file="recipe.yaml")


def test_what_follows_from_segments() -> None:
    made = config()
    assert (made.tied, made.output.label_smoothing) == ("none", 0.0)  # type: ignore[union-attr]
    assert made.positions.source.kind == made.positions.target.kind == "none"
    assert made.reordering is None
    made = config(encoder={"kind": "transformer", "layers": 2}, preset="tiny")
    assert (made.positions.source.kind, made.positions.target.kind) == ("sinusoid", "none")
    assert (made.decoder.layers, made.width) == (2, 64)
    assert config(tied="two_way").tied == "two_way"


def test_other_models_are_as_before() -> None:
    made = ModelConfig()
    assert (made.tied, made.output.label_smoothing, made.reordering) == ("three_way", 0.1, None)  # type: ignore[union-attr]
    assert ModelConfig.model_validate(made.model_dump(mode="json")) == made


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"output": {"label_smoothing": 0.1}}, "output.label_smoothing must be 0"),
        ({"output": {"kind": "continuous"}, "tied": "none"}, "needs a softmax"),
        ({"tied": "three_way"}, "only the target of a segmental model has START and END"),
        ({"phrases": {}}, "decoder here is segmental|no layers in common"),
        ({"encoder": {"kind": "transformer"}, "phrases": {}}, "the decoder here is segmental"),
        ({"decoder": {"kind": "transformer"}, "phrases": {}}, "no layers in common"),
        ({"attention": {"cross": "queryk heterogeneous 1-2"}}, "attention.cross has no meaning with this segmental decoder"),
        ({"positions": {"target": {"kind": "sinusoid"}}}, "positions.target"),
        ({"width": 9, "heads": 3}, "each column has half of it"),
        ({"reordering": {"window": 4}}, "has no middle"),
        ({"decoder": {"kind": "segmental", "max_segment": 0}}, "max_segment"),
        ({"decoder": {"kind": "segmental", "attention": "mlp"}}, "attention"),
        ({"embedding_width": 8, "tied": "two_way"}, "tied: two_way shares"),
        ({"embedding_width": 8, "encoder": {"kind": "transformer"}}, "embedding_width"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**keys)


def test_size_of_the_published_model() -> None:
    """Spec §5.1 symbol by symbol, for vocabularies of 1,000 and 2,000."""
    model = build_model(ModelConfig.model_validate(PAPER), 1000, 2000)

    def gru(reads: int, width: int) -> int:
        return 3 * width * (reads + width + 1) + width

    expected = 1000 * 256 + 2002 * 256  # embeddings
    expected += 7 * 7 * 256 + 7  # reordering
    expected += 2 * 2 * gru(256, 256) + 2 * 256 * 512  # two columns, joined
    expected += gru(256, 512) + gru(512, 512) + 256 * 512  # segment network, with the map of its residual
    expected += 2002 * 512 + 2002  # output
    assert sum(p.numel() for p in model.parameters()) == expected
    assert isinstance(model, SegmentalModel)
    assert (model.start_token, model.end_token, model.max_segment, model.connects) == (2000, 2001, 6, False)
    assert model.target_embedding.dropout == 0.0 and model.source_embedding.dropout == 0.5


def test_shared_target_matrix() -> None:
    model = build_model(config(width=8, heads=2, tied="two_way"), 10, 11)
    assert model.output.weight is model.target_embedding.weight
    assert model.output.weight.shape == (13, 8)
    b = make_batch([[5, 6]], [[7, 8, 9]])
    model.double().eval()
    before = model.loss(b).objective
    (gradient,) = torch.autograd.grad(before, model.output.weight)
    step = 1e-7 * torch.randn(13, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.output.weight += step
        after = model.loss(b).objective
    assert (after - before).item() == pytest.approx((gradient * step).sum().item(), rel=1e-4)


@pytest.mark.parametrize("reordering", [None, {"window": 3, "layers": 2}])
def test_columns_and_reordering_with_another_decoder(reordering: Any) -> None:
    """Columns serve every decoder, and reordering every encoder, EOS counted as one more token."""
    keys: dict[str, Any] = {"width": 8, "heads": 2, "ffn_width": 8, "tied": "none", "reordering": reordering}
    for encoder, decoder in (("columns", "transformer"), ("columns", "recurrent"), ("transformer", "recurrent")):
        layers = {"encoder": {"kind": encoder, "layers": 2}, "decoder": {"kind": decoder, "layers": 1}}
        model: Any = build_model(ModelConfig.model_validate({**keys, **layers}), 10, 11).double().eval()
        sources, targets = [[5, 6, 7], [8], []], [[5, 6], [], [7, 8, 9]]
        together = model.score(make_batch(sources, targets))
        for n in range(3):
            alone = model.score(make_batch(sources[n : n + 1], targets[n : n + 1]))
            torch.testing.assert_close(alone[0], together[n, : alone.shape[1]], rtol=0, atol=1e-12)
        model.loss(make_batch(sources, targets)).objective.backward()
        assert all(p.grad is not None for p in model.parameters())
        inner = model.encoder.encoder if reordering else model.encoder
        assert isinstance(inner, ColumnsEncoder) == (encoder == "columns")
        assert len(model.encoder.layers) == 2


def test_a_folder_gives_back_the_model(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    options = ModelConfig.model_validate(
        {**PAPER, "width": 8, "embedding_width": 6, "heads": 2, "decoder": {**PAPER["decoder"], "connect": True}}
    )
    model = build(options, tokenizer).eval()
    save_model(tmp_path / "model", model, options, tokenizer)
    found, _, _ = load_model(tmp_path / "model")
    assert isinstance(found, SegmentalModel) and found.connects
    b = make_batch([[5, 6, 7]], [[7, 8, 9]])
    assert torch.equal(found.score(b), model.score(b))  # type: ignore[operator]
    card = (tmp_path / "model" / "README.md").read_bytes().decode()
    assert "2 columns encoder layers and 2 segmental decoder layers" in card


def test_there_is_no_attention_to_be_looked_at() -> None:
    model = build_model(config(width=8, heads=2), 10, 11)
    with pytest.raises(ModelError, match="no attention"):
        model.attention_maps(None, None, None)


def test_a_segmental_model_is_imported_without_dynamo() -> None:
    """torch._dynamo takes seconds to import; only torch.compile and the first training step need it."""
    program = "import sys, phraseloom.npmt.model; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
