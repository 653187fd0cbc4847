"""MarianMT folders as models of ours: the same ids, logits and outputs as transformers; what does not fit is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bridges import marian

from phraseloom.bridges import from_marian
from phraseloom.bridges.from_marian import IGNORED, import_marian
from phraseloom.bridges.marian_format import Settings
from phraseloom.bridges.marian_npz import read_npz_folder
from phraseloom.decoding.translator import Translator
from phraseloom.errors import PhraseloomError
from phraseloom.models.store import load_model, read_config

pytest.importorskip("transformers", reason=marian.REASON)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The folder of transformers and our model of it, by size."""
    made: dict[str, tuple[Path, Path]] = {}

    def folder(size: str) -> tuple[Path, Path]:
        if size not in made:
            place = tmp_path_factory.mktemp(size)
            theirs = marian.write_folder(place / "theirs", size, renormalize=size != "deep", languages=size == "deep")
            import_marian(theirs, place / "ours")
            made[size] = theirs, place / "ours"
        return made[size]

    return folder


def loaded(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, MarianMTModel

    return MarianMTModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


AWKWARD = ["the  old man", " a", "①\u00a0x", "q ü 日本", ">>de<< the cow", ">>de", "a\u2581b", "x</s"]


def check_outputs(pair: tuple[Path, Path], size: str, count: int, **options: Any) -> None:
    theirs, ours = pair
    model, tokenizer = loaded(theirs)
    translator = Translator.from_pretrained(ours, **options)
    names = {number: piece for piece, number in tokenizer.encoder.items()}
    lines = [source for source, _ in marian.world()][:count]
    for line in lines[:20] + AWKWARD:
        expected = [names[number] for number in tokenizer(line).input_ids[:-1]]
        side = translator.tokenizer.source
        assert [side.vocabulary.piece(i) for i in side.encode(line)] == expected, line
        assert side.encode_batch([line]) == [side.encode(line)]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    for beams in (1, 4):
        with torch.inference_mode():
            rows = model.generate(**batch, num_beams=beams)
        expected = [
            [t for t in tokenizer.convert_ids_to_tokens(r) if t not in ("<pad>", "</s>")] for r in rows.tolist()
        ]
        result = translator.translate(lines, beam=beams)
        assert [t.tokens for t in result] == expected
        assert [t.text for t in result] == tokenizer.batch_decode(rows, skip_special_tokens=True)
        if size == "small":
            assert len({len(t.tokens) for t in result}) > 2, "this model writes outputs of several lengths"


def check_logits(theirs: Path, ours: Path) -> None:
    """Of every piece, for given prefixes, padded sources among them; 1e-5 in float32."""
    reference, tokenizer = loaded(theirs)
    model, own, _ = load_model(ours)
    pairs = marian.world()[:12]
    batch = tokenizer([s for s, _ in pairs], text_target=[t for _, t in pairs], return_tensors="pt", padding=True)
    with torch.inference_mode():
        expected = reference(**batch).logits
    ids = {piece: n for n, piece in enumerate(own.target.vocabulary)}
    numbers = getattr(tokenizer, "target_encoder", tokenizer.get_vocab())
    columns = {n: ids[p] for p, n in numbers.items() if p in ids and p not in ("<s>", "<pad>")}
    assert len(columns) == len(numbers) - 1
    from phraseloom.data.tensors import make_batch

    vocabulary = own.target.vocabulary
    sources = own.source.encode_batch([s for s, _ in pairs])
    names = [
        tokenizer.convert_ids_to_tokens([i for i in row if i != tokenizer.pad_token_id][:-1])
        for row in batch["labels"].tolist()
    ]
    made = make_batch(sources, [vocabulary.ids(row) for row in names])
    with torch.inference_mode():
        hidden, *_ = model.decode(made.target_in_BT, model.encode(made.source_BS, made.source_lengths_B))
        logits = model.output.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)
    for row, length in enumerate(made.target_lengths_B.tolist()):
        a = expected[row, :length][:, list(columns)]
        b = logits[row, :length][:, list(columns.values())]
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)


def test_outputs_are_those_of_transformers(folders: Any) -> None:
    check_outputs(folders("small"), "small", 40)


@pytest.mark.full
@pytest.mark.parametrize("size", marian.SIZES)
def test_outputs_of_500_sentences(folders: Any, size: str) -> None:
    check_outputs(folders(size), size, 500)


@pytest.mark.parametrize("size", ["small", "deep", pytest.param("wide", marks=pytest.mark.full)])
def test_logits(folders: Any, size: str) -> None:
    check_logits(*folders(size))


def test_two_vocabularies(tmp_path: Path) -> None:
    """`share_encoder_decoder_embeddings: false`: a vocabulary and a matrix for each side, the output tied to the target's."""
    theirs = marian.write_folder(tmp_path / "theirs", separate=True)
    import_marian(theirs, tmp_path / "ours")
    check_logits(theirs, tmp_path / "ours")
    check_outputs((theirs, tmp_path / "ours"), "separate", 30)
    vocabularies = load_model(tmp_path / "ours")[1]
    assert vocabularies.source.vocabulary != vocabularies.target.vocabulary
    (theirs / "target_vocab.json").unlink()
    with pytest.raises(PhraseloomError, match=r"target_vocab.json: vocabulary not found"):
        import_marian(theirs, tmp_path / "other")


def test_pickled_weights_are_the_same(tmp_path: Path) -> None:
    safe = marian.write_folder(tmp_path / "safe", safe=True)
    shutil.copytree(safe, tmp_path / "pickled")
    from safetensors.torch import load_file

    torch.save(load_file(safe / "model.safetensors"), tmp_path / "pickled/pytorch_model.bin")
    (tmp_path / "pickled/model.safetensors").unlink()
    for name in ("safe", "pickled"):
        import_marian(tmp_path / name, tmp_path / f"{name}.model")
    left, right = (tmp_path / f"{name}.model/model.safetensors" for name in ("safe", "pickled"))
    assert left.read_bytes() == right.read_bytes()


class Runs:
    """What a pickle can do when it is read."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/phraseloom-was-run"),))


def _edit(name: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        content = {k: v for k, v in {**json.loads(path.read_bytes()), **changes}.items() if v != "DROP"}
        path.write_text(json.dumps(content))

    return change


def _cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-100]) and None


def _tensor(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        tensors[name] = change(tensors[name])
        save_file(tensors, folder / "model.safetensors")

    return rewrite


def _half_a_pair(folder: Path) -> None:
    ids = json.loads((folder / "vocab.json").read_bytes())
    last = max((piece for piece in ids if piece[0] != "<"), key=lambda piece: ids[piece])
    ids["\ud800"] = ids.pop(last)
    (folder / "vocab.json").write_text(json.dumps(ids))


def _only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.pkl")


def _running_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Runs()}, folder / "pytorch_model.bin")


def _pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def _other_spm(folder: Path) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    lines = iter(["каждый охотник желает знать", "где сидит фазан"] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=40, minloglevel=4, hard_vocab_limit=False
    )
    (folder / "target.spm").write_bytes(model.getvalue())


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickles only": (
        _only_pickle,
        "no model.safetensors and no pytorch_model.bin there, only model.pkl, which is not read",
    ),
    "a pickle that runs code": (_running_pickle, "it is damaged, or holds more than tensors"),
    "a pointer": (_pointer, "a pointer of Git LFS"),
    "half a download": (_cut("model.safetensors"), "bytes of data, the header says"),
    "half a vocabulary": (_cut("vocab.json"), "vocab.json"),
    "no vocabulary": (lambda f: (f / "vocab.json").unlink(), "vocabulary not found"),
    "no sentencepiece": (lambda f: (f / "source.spm").unlink(), "sentencepiece model not found"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "configuration of a MarianMT model not found"),
    "sentencepiece of another model": (_other_spm, "it is of another model"),
    "no sentencepiece model": (lambda f: (f / "source.spm").write_bytes(b"hello"), "not a sentencepiece model"),
    "a piece too many": (_edit("config.json", vocab_size=999), "but config.json says vocab_size 999"),
    "ids with a hole": (_edit("vocab.json", **{"</s>": "DROP"}), "do not have the ids"),
    "another width": (_edit("config.json", d_model=64), "has shape"),
    "a layer too many": (_edit("config.json", encoder_layers=2), "is missing"),
    "a layer too few": (_edit("config.json", decoder_layers=1), "has no place in such a model"),
    "another kind": (_edit("config.json", model_type="bart"), "model_type is 'bart'"),
    "heads": (_edit("config.json", encoder_attention_heads=3), "attention_heads of encoder and decoder differ (3, 2)"),
    "an activation": (_edit("config.json", activation_function="tanh"), "activation_function 'tanh' is none of"),
    "two vocabularies": (
        _edit("config.json", share_encoder_decoder_embeddings=False),
        "share_encoder_decoder_embeddings",
    ),
    "a start beyond": (_edit("config.json", decoder_start_token_id=10_000), "decoder_start_token_id is 10000"),
    "a text for a number": (
        _edit("config.json", d_model="32"),
        "config.json: d_model is '32', not a whole number of at least 1; correct it",
    ),
    "no width": (_edit("config.json", d_model=None), "config.json: d_model is missing; it must be a whole number"),
    "no start": (_edit("config.json", decoder_start_token_id=None), "config.json: decoder_start_token_id is missing"),
    "a text for a rate": (
        _edit("config.json", dropout="a"),
        "config.json: dropout is 'a', not a finite number; correct it, or remove the key to use the default, 0.1",
    ),
    "a number for a list": (
        _edit("generation_config.json", bad_words_ids=5),
        "generation_config.json: bad_words_ids is 5, not a list",
    ),
    "a text for a length": (
        _edit("generation_config.json", min_length="3"),
        "generation_config.json: min_length is '3', not a whole number of at least 0",
    ),
    "a number that is none": (
        _tensor("model.encoder.layers.0.fc1.weight", lambda t: t.fill_(float("nan"))),
        "tensor model.encoder.layers.0.fc1.weight holds NaN, infinity or numbers beyond those of float32",
    ),
    "a number beyond float32": (
        _tensor("model.shared.weight", lambda t: t.double().fill_(1e300)),
        "tensor model.shared.weight holds NaN, infinity or numbers beyond",
    ),
    "whole numbers": (
        _tensor("model.decoder.layers.0.fc2.bias", lambda t: t.int()),
        "tensor model.decoder.layers.0.fc2.bias is of the type torch.int32, not of floats",
    ),
    "half a surrogate pair": (_half_a_pair, "vocab.json: piece '\\ud800' (id"),
    "a fraction as an id": (_edit("vocab.json", **{"</s>": 0.0}), "do not have the ids"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_does_not_fit_is_refused(folders: Any, name: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[name]
    shutil.copytree(folders("small")[0], tmp_path / "theirs")
    damage(tmp_path / "theirs")
    with pytest.raises(PhraseloomError) as caught:
        import_marian(tmp_path / "theirs", tmp_path / "ours")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["theirs"], "nothing is written"
    assert not Path("/tmp/phraseloom-was-run").exists()


def test_null_is_the_default_of_transformers(folders: Any, tmp_path: Path) -> None:
    shutil.copytree(folders("small")[0], tmp_path / "theirs")
    keys = (
        "dropout", "attention_dropout", "activation_dropout", "max_position_embeddings", "tie_word_embeddings",
        "decoder_vocab_size", "share_encoder_decoder_embeddings",
    )  # fmt: skip
    _edit("config.json", **dict.fromkeys(keys))(tmp_path / "theirs")
    searched = ("max_length", "num_beams", "length_penalty", "bad_words_ids", "min_length", "renormalize_logits")
    _edit("generation_config.json", **dict.fromkeys(searched))(tmp_path / "theirs")
    import_marian(tmp_path / "theirs", tmp_path / "ours")
    _, config = read_config(tmp_path / "ours")
    assert (config.dropout, config.attention_dropout, config.ffn_dropout) == (0.1, 0.0, 0.0)
    found = load_model(tmp_path / "ours")[2]
    assert (found["max_input_tokens"], found["beam"], found["max_length"]["constant"]) == (1023, 1, 18)


WRONG = (None, 5, "3", "abc", [], [5], {}, {"a": 1}, True, -1, 0.5, float("nan"), 10**400)


def settings_of(folder: Path) -> None:
    """Read all but the tensors."""
    theirs = from_marian._read_folder(folder) if (folder / "config.json").is_file() else read_npz_folder(folder)
    vocabularies = [from_marian._vocabulary(theirs, side)[0] for side in range(len(theirs.vocabularies))]
    from_marian._tokenizer(theirs, vocabularies)
    from_marian._generation(theirs, unknown=1)
    from_marian.model_config(theirs.config, excluded=[])


def keys_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The names of the files with settings, and the keys that are read in them."""
    result: set[tuple[str, str]] = set()
    get = Settings.get

    def recorded(self: Settings, key: str, usual: Any = None) -> Any:
        result.add((self.file.name, key))
        return get(self, key, usual)

    with monkeypatch.context() as patch:
        patch.setattr(Settings, "get", recorded)
        settings_of(folder)
    return result


def check_wrong_values(folder: Path, name: str, key: str, write: Callable[[Any], Any]) -> None:
    """Every value of another type is read, or refused in one line that names the file."""
    for value in WRONG:
        write(value)
        try:
            settings_of(folder)
        except PhraseloomError as error:
            assert "\n" not in str(error) and name in str(error), (key, value)
        except Exception as error:
            raise AssertionError(f"{name}: {key}: {value!r:.20}") from error


def test_no_value_of_a_setting_is_an_internal_error(
    folders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(folders("small")[0], folder)
    keys = keys_read(folder, monkeypatch)
    assert len(keys) > 50 and {name for name, _ in keys} == {
        "config.json", "generation_config.json", "tokenizer_config.json",
    }  # fmt: skip
    for name, key in sorted(keys):
        before = (folder / name).read_bytes()

        def write(value: Any, name: str = name, key: str = key) -> None:
            _edit(name, **{key: value})(folder)

        check_wrong_values(folder, name, key, write)
        (folder / name).write_bytes(before)


def notes_on(folders: Any, tmp_path: Path, **settings: Any) -> tuple[str, ...]:
    """What the import of a model with these settings of generation says."""
    shutil.copytree(folders("small")[0], tmp_path / "theirs")
    _edit("generation_config.json", **settings)(tmp_path / "theirs")
    return import_marian(tmp_path / "theirs", tmp_path / "ours").notes


def test_settings_without_a_counterpart_are_named(folders: Any, tmp_path: Path) -> None:
    notes = notes_on(
        folders,
        tmp_path,
        repetition_penalty=1.2,
        early_stopping=True,
        bad_words_ids=[[5]],
        sequence_bias=[[[5], -3.0]],
        exponential_decay_length_penalty=[5, 1.1],
        force_words_ids=[[6]],
        guidance_scale=1,
        stop_strings=[],
        eos_token_id=[0, 7],
    )
    assert notes == (
        "repetition_penalty: 1.2",
        "sequence_bias: [[[5], -3.0]]",
        "exponential_decay_length_penalty: [5, 1.1]",
        "force_words_ids: [[6]]",
        "bad_words_ids: [[5]]",
        "outputs with the padding token, which is never produced here",
        "eos_token_id: [0, 7]",
        "early_stopping: True",
    )


def test_settings_out_of_range_are_replaced_by_the_nearest_and_named(folders: Any, tmp_path: Path) -> None:
    settings = {"length_penalty": -1.0, "num_beams": 2000, "max_length": 10**7, "forced_eos_token_id": None}
    assert notes_on(folders, tmp_path, **settings) == (
        "no forced_eos_token_id: an output of max_length would not have to end there",
        "length_penalty: -1.0 (0.0 in its place)",
        "num_beams: 2000 (1000 in its place)",
        "max_length: 10000000 (100002 in its place)",
    )


def test_a_ban_of_unknown_words_is_kept(folders: Any, tmp_path: Path) -> None:
    theirs = folders("small")[0]
    pad = json.loads((theirs / "config.json").read_bytes())["pad_token_id"]
    unknown = json.loads((theirs / "vocab.json").read_bytes())["<unk>"]
    assert notes_on(folders, tmp_path, bad_words_ids=[[pad], [unknown]], renormalize_logits=False) == ()
    assert load_model(tmp_path / "ours")[2]["unknown"] == "forbid"


def test_all_settings_of_generate_are_known() -> None:
    """Each is read, named if it is left out, or changes no output of a search."""
    from transformers import GenerationConfig, __version__

    if __version__ < "5":
        pytest.skip("earlier versions have other settings")

    read = {
        "bad_words_ids", "decoder_start_token_id", "early_stopping", "eos_token_id", "forced_eos_token_id",
        "length_penalty", "max_length", "max_new_tokens", "min_length", "min_new_tokens", "no_repeat_ngram_size",
        "num_beams", "pad_token_id", "renormalize_logits",
    }  # fmt: skip
    of_samples = {
        "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    }  # fmt: skip
    without_effect = {
        "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
        "assistant_lookbehind", "bos_token_id", "cache_config", "cache_implementation", "compile_config",
        "continuous_batching_config", "disable_compile", "is_assistant", "low_memory", "max_cache_len",
        "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "output_attentions",
        "output_hidden_states", "output_logits", "output_scores", "prefill_chunk_size", "prompt_lookup_num_tokens",
        "remove_invalid_values", "return_dict_in_generate", "speculation_type", "target_lookbehind",
        "transformers_version", "use_cache", "use_mtp",
    }  # fmt: skip
    known = read | of_samples | without_effect | set(IGNORED)
    assert not set(GenerationConfig().to_dict()) - known


def test_the_least_length_and_ngrams_are_those_of_transformers(tmp_path: Path) -> None:
    marian.write_folder(tmp_path / "theirs", renormalize=False)
    _edit("generation_config.json", min_new_tokens=9, min_length=30, no_repeat_ngram_size=2)(tmp_path / "theirs")
    imported = import_marian(tmp_path / "theirs", tmp_path / "ours")
    assert imported.notes == ()
    check_outputs((tmp_path / "theirs", tmp_path / "ours"), "edited", 30)
    translations = Translator.from_pretrained(tmp_path / "ours").translate([s for s, _ in marian.world()[:30]])
    assert min(len(t.tokens) for t in translations) == 9
    _edit("generation_config.json", renormalize_logits=True)(tmp_path / "theirs")
    notes = import_marian(tmp_path / "theirs", tmp_path / "again").notes
    assert notes == ("renormalize_logits of what min_length and no_repeat_ngram_size leave",)


def test_an_imported_model_is_a_model_like_ours(folders: Any, tmp_path: Path) -> None:
    """Alone and in a batch, with alignments and scores; words are counted as the pieces have them."""
    translator = Translator.from_pretrained(folders("small")[1])
    lines = [*(source for source, _ in marian.world()[:12]), "the  old\u00a0man"]
    together = translator.translate(lines, alignments=True, batch_sentences=16)
    alone = [translator.translate([line], alignments=True)[0] for line in lines]
    assert [t.text for t in alone] == [t.text for t in together]
    for line, translation in zip(lines, together, strict=True):
        words = translator.tokenizer.source.words(line)
        assert " ".join(words) == " ".join(line.split())
        assert translation.words == translation.text.split()
        assert all(s < len(words) and t < len(translation.words) for s, t in translation.alignment or [])
    best = together[0]
    scored = translator.score(lines[:1], [best.text])[0]
    if scored.tokens == best.tokens:
        assert scored.log_prob == pytest.approx(best.log_prob, abs=1e-4)


def test_what_generation_config_leaves_out_is_that_of_transformers(tmp_path: Path) -> None:
    """Not that of config.json, which transformers reads only if there is no generation_config.json; the length is 20 then."""
    marian.write_folder(tmp_path / "theirs", renormalize=False)
    _edit("config.json", num_beams=6, max_length=40)(tmp_path / "theirs")
    settings = tmp_path / "theirs" / "generation_config.json"
    settings.write_text(
        json.dumps({"decoder_start_token_id": json.loads(settings.read_text())["decoder_start_token_id"]})
    )
    import_marian(tmp_path / "theirs", tmp_path / "ours")
    found = load_model(tmp_path / "ours")[2]
    assert (found["beam"], found["max_length"]["constant"]) == (1, 18)  # theirs counts the start and the end
    settings.unlink()
    import_marian(tmp_path / "theirs", tmp_path / "other")
    assert load_model(tmp_path / "other")[2]["beam"] == 6
