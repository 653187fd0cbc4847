"""Models as folders of CTranslate2: its greedy search gives our outputs; what it cannot compute is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bridges import marian
from tests.cli.conftest import Command, command  # noqa: F401
from tests.golden.make import MODEL
from tests.helpers import LINES, tagged_tokenizer, tiny_tokenizer

from phraseloom.bridges.exported import what_cannot_go
from phraseloom.bridges.from_marian import import_marian
from phraseloom.bridges.to_ctranslate2 import export_ctranslate2, token_names
from phraseloom.config import validate
from phraseloom.decoding.translator import Translator
from phraseloom.errors import ModelError, UsageError
from phraseloom.models.store import save_model
from phraseloom.models.tasks import build
from phraseloom.options.model import ModelConfig
from phraseloom.options.text import TextConfig
from phraseloom.text.tokenizer import Tokenizer

ctranslate2 = pytest.importorskip(
    "ctranslate2", reason="ctranslate2 is not installed: pip install 'phraseloom[ctranslate2]'"
)


def random_model(folder: Path, **options: Any) -> Path:
    """A small model with random weights, sharp enough that its choices are clear."""
    tokenizer = tiny_tokenizer(folder.parent / f"{folder.name}.tokenizer")
    given = {"preset": "tiny", "dropout": 0.0, **options}
    config = validate(ModelConfig, given)
    torch.manual_seed(5)
    model = build(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1 if parameter.dim() == 1 else 0.05)
    save_model(folder, model, config, tokenizer)
    return folder


def check_greedy(model: Path, folder: Path, lines: list[str], longest: int = 30) -> None:
    """Our pieces in, our pieces out, for every line."""
    ours = Translator.from_pretrained(
        model, beam=1, max_length={"factor": 0.0, "constant": longest}, min_length={"constant": 0}
    )
    theirs = ctranslate2.Translator(str(folder), intra_threads=1)
    side = ours.tokenizer.source
    names = token_names(side.vocabulary)
    given = [[names[i] for i in side.encode(line)] for line in lines]
    # their bound counts the end of the output
    result = theirs.translate_batch(given, beam_size=1, max_decoding_length=longest, max_batch_size=32)
    expected = ours.translate(lines)
    assert [r.hypotheses[0] for r in result] == [t.tokens for t in expected]
    assert len({len(t.tokens) for t in expected}) > 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ct2") / "golden"
    export_ctranslate2(MODEL / "model", folder)
    return folder


def world(count: int) -> list[str]:
    return [source for source, _ in marian.world(max(500, count))[:count]]


def test_a_trained_model_translates_the_world_as_here(exported: Path) -> None:
    check_greedy(MODEL / "model", exported, world(60))


@pytest.mark.full
def test_a_thousand_sentences(exported: Path) -> None:
    check_greedy(MODEL / "model", exported, world(1000))


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "post", "attention_bias": True, "activation": "swish", "norm_epsilon": 1e-5},
        {"tied": "none", "output": {"bias": True}, "positions": {"kind": "sinusoid", "layout": "interleaved"}},
        {"tied": "two_way", "activation": "gelu", "encoder": {"layers": 1}, "scale_embeddings": False},
    ],
    ids=["post", "untied", "two_way"],
)
def test_options_of_a_plain_transformer(options: dict[str, Any], tmp_path: Path) -> None:
    """Every option changes the numbers: scores of given outputs are ours."""
    model = random_model(tmp_path / "model", **options)
    export_ctranslate2(model, tmp_path / "ct2")
    translator = Translator.from_pretrained(model, unknown="keep")
    names = [translator.tokenizer.source.vocabulary.piece(i) for i in range(60)]
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)
    pieces = [[names[i] for i in translator.tokenizer.source.encode(line)] for line in LINES]
    scored = theirs.score_batch(pieces, pieces[::-1])
    from phraseloom.data.tensors import make_batch

    ids = [translator.tokenizer.source.encode(line) for line in LINES]
    batch = make_batch(ids, ids[::-1])
    with torch.inference_mode():
        memory = translator.model.encode(batch.source_BS, batch.source_lengths_B)
        hidden, *_ = translator.model.decode(batch.target_in_BT, memory)
        logits = translator.model.output.logits(hidden.flatten(0, 1))
    allowed = torch.arange(logits.shape[1]) != 0
    allowed[[1, 2]] = False  # pad, unknown, start: never produced
    log_probs = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1).view(*batch.target_out_BT.shape, -1)
    expected = log_probs.gather(2, batch.target_out_BT[:, :, None])[:, :, 0]
    for row, length, result in zip(expected, batch.target_lengths_B.tolist(), scored, strict=True):
        assert result.log_probs == pytest.approx(row[:length].tolist(), abs=2e-4)


def test_tags_are_never_written(tmp_path: Path) -> None:
    """Not even by a model to which they are likely."""
    tokenizer = tagged_tokenizer("<2de>")
    config = validate(ModelConfig, {"preset": "tiny", "dropout": 0.0, "output": {"bias": True}})
    torch.manual_seed(5)
    model = build(config, tokenizer)
    with torch.no_grad():
        model.output.bias[tokenizer.target.tag_ids["<2de>"]] = 50.0
    save_model(tmp_path / "model", model, config, tokenizer)
    export_ctranslate2(tmp_path / "model", tmp_path / "ct2")
    ours = Translator.from_pretrained(
        tmp_path / "model", beam=1, max_length={"constant": 9}, min_length={"constant": 0}
    )
    theirs = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)
    found = theirs.translate_batch([["a"]], beam_size=1, max_decoding_length=9)
    assert found[0].hypotheses[0] == ours.translate(["a"])[0].tokens and "<2de>" not in found[0].hypotheses[0]


def test_an_imported_model(tmp_path: Path) -> None:
    marian.need_transformers()
    import_marian(marian.write_folder(tmp_path / "theirs"), tmp_path / "model")
    export_ctranslate2(tmp_path / "model", tmp_path / "ct2")
    check_greedy(tmp_path / "model", tmp_path / "ct2", world(30))


def test_beam_search_by_their_rule_and_int8(exported: Path, tmp_path: Path) -> None:
    """Other rules, so most outputs, not all, are ours; int8 is smaller."""
    export_ctranslate2(MODEL / "model", tmp_path / "int8", quantization="int8")
    sizes = [(folder / "model.bin").stat().st_size for folder in (exported, tmp_path / "int8")]
    assert sizes[1] < sizes[0]
    ours = Translator.from_pretrained(MODEL / "model")
    pieces = [ours.tokenizer.source.pieces(line) for line in world(20)]
    expected = [t.tokens for t in ours.translate(world(20), beam=4)]
    for folder in (exported, tmp_path / "int8"):
        # float32: its int8 products saturate on CPUs without VNNI, whatever the weights are
        theirs = ctranslate2.Translator(str(folder), intra_threads=1, compute_type="float32")
        result = theirs.translate_batch(pieces, beam_size=4)
        same = sum(r.hypotheses[0] == t for r, t in zip(result, expected, strict=True))
        assert same >= 10, (folder.name, same)


def test_sentencepiece_files_cut_as_we_do(exported: Path) -> None:
    import sentencepiece

    ours = Translator.from_pretrained(MODEL / "model").tokenizer
    for name in ("source", "target"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(exported / f"{name}.spm"))
        assert processor.encode(world(1)[0], out_type=str) == getattr(ours, name).pieces(world(1)[0])


def test_text_that_is_lower_cased_has_no_sentencepiece_files(tmp_path: Path, command: Command) -> None:  # noqa: F811
    """They would cut `The` into other tokens than the model was trained on."""
    plain = tiny_tokenizer(tmp_path / "tokenizer").source.subwords
    tokenizer = Tokenizer(TextConfig(lowercase=True), "en", "de", plain, plain)
    config = validate(ModelConfig, {"preset": "tiny"})
    save_model(tmp_path / "model", build(config, tokenizer), config, tokenizer)
    outcome = command("convert", "to-ctranslate2", "model", "theirs")
    assert outcome.code == 0 and "no .spm files" in outcome.err
    assert (tmp_path / "theirs").is_dir() and not list((tmp_path / "theirs").glob("*.spm"))


REFUSED = {
    "feed_forward: interleaved": {"attention": "token interleaved 1", "feed_forward": "interleaved"},
    "attention.cross is queryk heterogeneous": {"attention": {"cross": "queryk heterogeneous 1-2"}},
    "attention.encoder_self is relative homogeneous": {"attention": {"encoder_self": "relative"}},
    "encoder: {kind: none}": {"encoder": {"kind": "none"}},
    "decoder: {kind: recurrent}": {"decoder": {"kind": "recurrent", "layers": 1}},
    "the model reads source phrases (phrases)": {"phrases": {}},
    "embedding_norm: true": {"embedding_norm": True},
    "positions.source: {kind: none}": {"positions": {"kind": "none"}},
    "output: {kind: continuous}": {"output": {"kind": "continuous"}},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_go_is_named(what: str) -> None:
    problem = what_cannot_go(validate(ModelConfig, {"preset": "tiny", **REFUSED[what]}))
    assert problem is not None and problem[0].startswith(what) and problem[1]


def test_a_phrasal_model_is_refused_with_nothing_written(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model", attention="queryk heterogeneous 1-2")
    with pytest.raises(
        ModelError, match=r"attention.encoder_self is queryk heterogeneous, which CTranslate2 cannot compute; train a"
    ):
        export_ctranslate2(model, tmp_path / "ct2")
    assert not (tmp_path / "ct2").exists()
    with pytest.raises(UsageError, match="no quantization 'int3'"):
        export_ctranslate2(model, tmp_path / "ct2", quantization="int3")


def test_an_export_replaces_an_export_only(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/model.bin").write_bytes(b"")
    from phraseloom.errors import FileProblem

    with pytest.raises(FileProblem, match="not a CTranslate2 model of phraseloom"):
        export_ctranslate2(MODEL / "model", tmp_path / "mine", overwrite=True)
    export_ctranslate2(MODEL / "model", exported, overwrite=True)
