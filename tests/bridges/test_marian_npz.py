"""Folders of Marian itself as models of ours: the logits and outputs of the same model in transformers, damage by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.bridges import marian
from tests.bridges.test_from_marian import Runs, check_logits, check_outputs, check_wrong_values, keys_read

from phraseloom.bridges.from_marian import import_marian
from phraseloom.bridges.marian_npz import read_vocabulary
from phraseloom.cli.main import run
from phraseloom.decoding.translator import Translator
from phraseloom.errors import CorruptError, PhraseloomError
from phraseloom.models.store import load_model

pytest.importorskip("transformers", reason=marian.REASON)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

AS_THEIRS = {"max_length": {"factor": 0.0, "constant": 38}}  # the start and the end are counted there


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of transformers, and the same model as Marian writes it."""
    place = tmp_path_factory.mktemp("npz")
    theirs = marian.without_pad(marian.write_folder(place / "theirs"))
    return theirs, marian.write_npz(theirs, place / "marian")


def test_logits_and_outputs(folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs, npz = folders
    assert run(["convert", "from-marian", str(npz), str(tmp_path / "ours")]) == 0
    assert capsys.readouterr().err == ""
    check_logits(theirs, tmp_path / "ours")
    check_outputs((theirs, tmp_path / "ours"), "small", 40)


def test_settings_of_the_decoder_without_a_counterpart_are_named(folders: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(folders[1], tmp_path / "marian")
    decoder = tmp_path / "marian/decoder.yml"
    settings = decoder.read_text()
    decoder.write_text(settings + "word-penalty: 0\noutput-sampling: []\n")
    assert import_marian(tmp_path / "marian", tmp_path / "ours").notes == ()
    decoder.write_text(settings + "word-penalty: 0.5\noutput-sampling: [full]\n")
    notes = import_marian(tmp_path / "marian", tmp_path / "again").notes
    assert notes == ("word-penalty: 0.5", "output-sampling: ['full']")


def test_the_length_of_outputs_is_that_of_marian(folders: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(folders[1], tmp_path / "marian")
    decoder = tmp_path / "marian/decoder.yml"
    usual = decoder.read_text()
    for options, expected in (("", (3.0, 3)), ("max-length-factor: 1.5\n", (1.5, 1))):
        decoder.write_text(usual + options)
        assert import_marian(tmp_path / "marian", tmp_path / "ours", overwrite=True).notes == ()
        length = json.loads((tmp_path / "ours/generation_config.json").read_bytes())["max_length"]
        assert (length["factor"], length["constant"]) == expected
    decoder.write_text(usual + "shortlist: [lex.bin, 50, 50]\nmax-length: 10\nmax-length-crop: true\n")
    notes = import_marian(tmp_path / "marian", tmp_path / "again").notes
    assert notes == ("shortlist: ['lex.bin', 50, 50]", "max-length: 10", "max-length-crop: True")


def test_gelu_of_marian_is_another_function(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """x σ(1.702 x), which is no option here: it becomes swish between scaled matrices."""
    npz = marian.write_npz(folders[0], tmp_path / "marian", **{"transformer-ffn-activation": "gelu"})
    import_marian(npz, tmp_path / "ours")
    model, _, _ = load_model(tmp_path / "ours")
    arrays = dict(np.load(npz / "model.npz"))
    x = torch.randn(5, arrays["encoder_l1_ffn_W1"].shape[0])
    w1, b1, w2, b2 = (torch.from_numpy(arrays[f"encoder_l1_ffn_{name}"]) for name in ("W1", "b1", "W2", "b2"))
    inner = x @ w1 + b1
    expected = (inner * torch.sigmoid(1.702 * inner)) @ w2 + b2
    torch.testing.assert_close(model.encoder.layers[0].feed_forward(x), expected.view(5, -1))


def test_a_piece_that_is_spelled_like_the_padding_token(folders: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(folders[1], tmp_path / "marian")
    vocabulary = tmp_path / "marian/opus.vocab.yml"
    lines = vocabulary.read_text().splitlines(keepends=True)
    vocabulary.write_text("".join(lines[:-1]) + "<pad>: " + lines[-1].rpartition(": ")[2])
    import_marian(tmp_path / "marian", tmp_path / "ours")
    pieces = load_model(tmp_path / "ours")[1].target.vocabulary
    assert [piece for piece in pieces if piece.startswith("<pad>")] == ["<pad>", f"<pad>#{len(pieces) - 3}"]


@pytest.mark.full
def test_500_sentences(tmp_path: Path) -> None:
    theirs = marian.without_pad(marian.write_folder(tmp_path / "theirs", "wide"))
    import_marian(marian.write_npz(theirs, tmp_path / "marian"), tmp_path / "ours")
    check_logits(theirs, tmp_path / "ours")
    check_outputs((theirs, tmp_path / "ours"), "wide", 500)


def test_two_vocabularies(tmp_path: Path) -> None:
    theirs = marian.without_pad(marian.write_folder(tmp_path / "theirs", separate=True))
    import_marian(marian.write_npz(theirs, tmp_path / "marian"), tmp_path / "ours")
    check_logits(theirs, tmp_path / "ours")
    check_outputs((theirs, tmp_path / "ours"), "separate", 30, **AS_THEIRS)


def test_ctranslate2_reads_the_same_model(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Its converter of Marian and ours agree: a reader of the format that nobody here wrote."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    from ctranslate2.converters import MarianConverter

    _, npz = folders
    vocabulary = str(npz / "opus.vocab.yml")
    MarianConverter(str(npz / "model.npz"), [vocabulary, vocabulary]).convert(str(tmp_path / "ct2"))
    import_marian(npz, tmp_path / "ours")
    lines = [source for source, _ in marian.world()][:30]
    translator = Translator.from_pretrained(tmp_path / "ours", max_length={"factor": 0.0, "constant": 38})
    pieces = [translator.tokenizer.source.pieces(line) for line in lines]
    result = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1).translate_batch(
        pieces, beam_size=1, max_decoding_length=38, min_decoding_length=0
    )
    assert [r.hypotheses[0] for r in result] == [t.tokens for t in translator.translate(lines, beam=1)]


def test_one_sentencepiece_model_that_numbers_its_pieces(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """`vocab.spm` in place of vocab.yml and two models: the ids are its own."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for pair in marian.world() for text in pair]), model_writer=model, vocab_size=200,
        bos_id=-1, eos_id=0, unk_id=1, minloglevel=4,
    )  # fmt: skip
    theirs, npz = tmp_path / "theirs", tmp_path / "marian"
    marian.write_folder(theirs, models=(model.getvalue(), model.getvalue()))
    marian.write_npz(marian.without_pad(theirs), npz)
    for name in ("opus.vocab.yml", "source.spm", "target.spm"):
        (npz / name).unlink()
    (npz / "vocab.spm").write_bytes(model.getvalue())
    (npz / "decoder.yml").write_text("vocabs: [vocab.spm, vocab.spm]\nbeam-size: 4\nnormalize: 1\nallow-unk: true\n")
    import_marian(npz, tmp_path / "ours")
    check_logits(theirs, tmp_path / "ours")
    check_outputs((theirs, tmp_path / "ours"), "joint", 20, **AS_THEIRS)
    (npz / "decoder.yml").unlink()
    import_marian(npz, tmp_path / "again")
    config = json.loads((tmp_path / "again/generation_config.json").read_bytes())
    assert config["unknown"] == "forbid" and config["beam"] == 12, "as marian-decoder does without options"


def _options(**changes: Any) -> Callable[[Path, Path], None]:
    def change(theirs: Path, npz: Path) -> None:
        shutil.rmtree(npz)
        marian.write_npz(theirs, npz, **changes)

    return change


def _arrays(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    def rewrite(_: Path, npz: Path) -> None:
        arrays = dict(np.load(npz / "model.npz"))
        change(arrays)
        np.savez(npz / "model.npz", **arrays)

    return rewrite


def _file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path, Path], Any]:
    return lambda _, npz: (npz / name).write_bytes(change((npz / name).read_bytes()))


def _with_objects(arrays: dict[str, Any]) -> None:
    arrays["Wemb"] = np.array([Runs()], dtype=object)


DAMAGE: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "half a file": (_file("model.npz", lambda data: data[: len(data) // 2]), "model.npz: not a readable .npz file"),
    "objects": (_arrays(_with_objects), "model.npz: array Wemb is damaged, or holds objects"),
    "an array less": (_arrays(lambda a: a.pop("encoder_l1_self_Wq")), "array encoder_l1_self_Wq is missing"),
    "an array more": (_arrays(lambda a: a.update(Wpos=a["Wemb"])), "array Wpos has no place in such a model"),
    "another size": (
        _arrays(lambda a: a.update(encoder_l1_ffn_W1=a["encoder_l1_ffn_W1"][:, 1:])),
        "tensor model.encoder.layers.0.fc1.weight has shape (47, 32), the configuration says (48, 32)",
    ),
    "no options": (_arrays(lambda a: a.pop("special:model.yml")), "no special:model.yml in it: not a model of Marian"),
    "options that are no YAML": (
        _arrays(lambda a: a.update({"special:model.yml": np.frombuffer(b"a: [\0", np.int8)})),
        "not readable options of Marian (YAML)",
    ),
    "a recurrent model": (_options(type="s2s"), "type is 's2s', and only 'transformer' is supported"),
    "pre-norm": (_options(**{"transformer-preprocess": "n"}), "transformer-preprocess is 'n', and only '' is supported"),
    "right to left": (_options(**{"right-left": True}), "right-left is True, and only False is supported"),
    "an output of its own": (
        _options(**{"tied-embeddings-all": False, "tied-embeddings": False}),
        "the output has a matrix of its own (tied-embeddings: false)",
    ),
    "no width": (_options(**{"dim-emb": None}), "model.npz: dim-emb is missing; it must be a whole number of at least 1"),
    "a text for a penalty": (
        _options(decoder="normalize: abc\n"),
        "decoder.yml: normalize is 'abc', not a finite number; correct it, or remove the key to use the default, 0.0",
    ),
    "a quantised model": (
        _arrays(lambda a: a.update(Wemb=a["Wemb"].astype(np.int8))),
        "array Wemb is of the type |i1 and shape",
    ),
    "text in place of an array": (_arrays(lambda a: a.update(Wemb=np.array("x"))), "not a matrix or vector of floats"),
    "an ensemble": (lambda _, npz: shutil.copy(npz / "model.npz", npz / "b.npz"), "several .npz files (b.npz, model.npz)"),
    "no vocabulary": (lambda _, npz: (npz / "opus.vocab.yml").unlink(), "opus.vocab.yml: vocabulary not found"),
    "no sentencepiece": (lambda _, npz: (npz / "target.spm").unlink(), "target.spm: sentencepiece model not found"),
    "a vocabulary cut short": (
        _file("opus.vocab.yml", lambda data: b"".join(line + b"\n" for line in data.split(b"\n")[:-9])),
        "tensor model.shared.weight has shape",
    ),
    "a line of something else": (_file("opus.vocab.yml", lambda data: b"hello\n" + data), "opus.vocab.yml:1: not a line"),
    "a piece twice": (_file("opus.vocab.yml", lambda data: data + b"</s>: 7\n"), "or a piece twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_what_does_not_fit_is_refused(folders: tuple[Path, Path], name: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[name]
    shutil.copytree(folders[1], tmp_path / "marian")
    damage(folders[0], tmp_path / "marian")
    with pytest.raises(PhraseloomError) as caught:
        import_marian(tmp_path / "marian", tmp_path / "ours")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["marian"], "nothing is written"
    assert not Path("/tmp/phraseloom-was-run").exists()


def test_no_value_of_an_option_is_an_internal_error(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "marian"
    shutil.copytree(folders[1], folder)
    arrays, decoder = dict(np.load(folder / "model.npz")), yaml.safe_load((folder / "decoder.yml").read_bytes())
    options = yaml.safe_load(arrays["special:model.yml"].tobytes().rstrip(b"\0"))
    few = {"Wemb": arrays["Wemb"]}  # the others are not read here

    def write(name: str, **changes: Any) -> None:
        if name == "decoder.yml":
            (folder / name).write_text(yaml.safe_dump({**decoder, **changes}))
        else:
            text = yaml.safe_dump({**options, **changes}).encode() + b"\0"
            np.savez(folder / name, **few, **{"special:model.yml": np.frombuffer(text, np.int8)})

    keys = {(name, key) for name, key in keys_read(folder, monkeypatch) if "_" not in key}
    assert {("model.npz", "dim-emb"), ("decoder.yml", "normalize"), ("decoder.yml", "vocabs")} < keys
    for name, key in sorted(keys):
        check_wrong_values(folder, name, key, lambda value, name=name, key=key: write(name, **{key: value}))
        write(name)


def test_pieces_are_read_as_yaml_means_them(tmp_path: Path) -> None:
    path = tmp_path / "vocab.yml"
    path.write_bytes(
        """</s>: 0
"<unk>": 1
\u2581the: 2
": ": 3
"\\"": 4
"\\\\": 5
'it''s': 6
"\\x85": 7
null: 8
"\\U0001F600": 9
:: 10
\u2028: 11
""".encode()
    )
    pieces = ["</s>", "<unk>", "\u2581the", ": ", '"', "\\", "it's", "\x85", "null", "\U0001f600", ":", "\u2028"]
    assert read_vocabulary(path) == {piece: number for number, piece in enumerate(pieces)}
    path.write_bytes(b"a: 0\nb: x\n")
    with pytest.raises(CorruptError, match=r"vocab.yml:2: not a line"):
        read_vocabulary(path)
