"""What is said of a recipe that does not fit: the key, the line or the override that it comes from, and the way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, model_validator

from phraseloom.config import Config, parse_yaml, set_override, validate
from phraseloom.errors import ConfigError, FileProblem
from phraseloom.recipe import load_recipe
from phraseloom.training.run_folder import dump_yaml

RECIPE = """\
name: toy
data:
  folder: dataset
  source_language: en
  target_language: de
  train: [{source: train.en, target: train.de}]
  subwords: {kind: sentencepiece, size: 50}
model:
  width: 8
  heads: 2
  attention: token
training: {batch_tokens: 200, max_updates: 4}
"""


LANGUAGE_MODEL = """\
name: toy
data: {folder: dataset, language: en, train: [{text: train.en}]}
model: {width: 8, heads: 2}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_bytes(RECIPE.encode())
    return path


@pytest.fixture
def said(recipe: Path) -> Callable[..., str]:
    """What is said of the recipe with these overrides, or with one text in place of another; without the folder."""

    def say(*overrides: str, old: str = "", new: str = "") -> str:
        recipe.write_bytes(RECIPE.replace(old, new).encode())
        with pytest.raises(ConfigError) as found:
            load_recipe(recipe, list(overrides))
        return str(found.value).replace(f"{recipe.parent}/", "")

    return say


def test_an_item_of_a_list_is_set_by_its_number(recipe: Path) -> None:
    (files,) = load_recipe(recipe, ["data.train.0.source=foo"]).data.train
    assert (files.source, files.target) == ("foo", "train.de")  # type: ignore[union-attr]
    (files,) = load_recipe(recipe, ["data.train.0={source: a, target: b}"]).data.train
    assert (files.source, files.target) == ("a", "b")  # type: ignore[union-attr]
    value: dict[str, Any] = {"a": [[1, 2], {"b": 3}]}
    assert set_override(value, "a.0.1=5") == ("a", 0, 1)
    assert set_override(value, "a.1.b=6") == ("a", 1, "b")
    assert value == {"a": [[1, 5], {"b": 6}]}


def test_a_key_below_a_line_of_one_word_keeps_the_line(recipe: Path) -> None:
    """`model.attention.backend=explicit` would make attention that is not phrasal of `attention: queryk …`."""
    line = "model.attention=queryk heterogeneous 1-2"
    attention = load_recipe(recipe, [line, "model.attention.backend=explicit"]).model.attention
    assert attention.backend == "explicit" and attention.uses() == load_recipe(recipe, [line]).model.attention.uses()
    gated = load_recipe(recipe, [line, "model.attention.decoder_self.gated=true"]).model.attention
    assert gated.decoder_self.gated and gated.decoder_self.score.kind == gated.cross.score.kind == "queryk"
    recurrent = ["model.encoder={kind: recurrent}", line, "model.attention.backend=fused"]
    assert load_recipe(recipe, recurrent).model.attention.decoder_self.score.kind == "queryk"
    init = load_recipe(recipe, ["model.init=xavier_uniform", "model.init.embeddings=small_uniform"]).model.init
    assert (init.kind, init.embeddings) == ("xavier_uniform", "small_uniform")
    assert load_recipe(recipe, ["model.phrases=null", "model.phrases.glance=mean"]).model.phrases.glance == "mean"  # type: ignore[union-attr]


def test_a_recipe_keeps_what_one_word_of_its_base_says(recipe: Path) -> None:
    lines = "model:\n  init: xavier_uniform\n  attention: queryk heterogeneous 1-2\n"
    recipe.with_name("below.yaml").write_text(RECIPE.partition("model:")[0] + lines)

    def over(text: str) -> Any:
        recipe.write_text(f"name: above\nbase: below.yaml\nmodel: {text}\n")
        return load_recipe(recipe).model

    base = load_recipe(recipe.with_name("below.yaml")).model
    model = over("{init: {branch_scale: 0}, attention: {backend: fused}}")
    assert (model.init.kind, model.init.branch_scale) == ("xavier_uniform", 0)
    assert model.attention.uses() == base.attention.uses() and model.attention.backend == "fused"
    model = over("{attention: {cross: token, decoder_self: {gated: true}}}")
    kinds = {use: attention.score.kind for use, attention in model.attention.uses().items()}
    assert kinds == {"encoder_self": "queryk", "decoder_self": "queryk", "cross": "token"}
    assert model.attention.decoder_self.gated
    assert over("{init: {kind: uniform, range: 0.1}}").init.range == 0.1
    assert over("{attention: token, init: fan_in_uniform}").attention.cross.score.kind == "token"


def test_a_kind_that_is_there_already_keeps_the_other_keys(recipe: Path) -> None:
    """A mapping without `kind` has the usual one; to name it changes nothing."""
    sizes = "encoder: {layers: 3}\n  output: {label_smoothing: 0}\n  init: {branch_scale: 0}\n  attention"
    recipe.write_text(RECIPE.replace("attention", sizes))
    kinds = ["model.encoder.kind=transformer", "model.output.kind=softmax", "model.init.kind=fan_in_uniform"]
    model = load_recipe(recipe, kinds).model
    assert model == load_recipe(recipe).model
    assert (model.encoder.layers, model.output.label_smoothing, model.init.branch_scale) == (3, 0, 0)  # type: ignore[union-attr]
    assert load_recipe(recipe, ["model.encoder.kind=recurrent"]).model.encoder.layers != 3  # type: ignore[union-attr]
    above = recipe.with_name("above.yaml")
    above.write_text("name: above\nbase: below.yaml\nmodel: {decoder: {kind: transformer}}\n")
    recipe.with_name("below.yaml").write_text(RECIPE.replace("heads: 2", "heads: 2\n  decoder: {layers: 3}"))
    assert load_recipe(above).model.decoder.layers == 3


@pytest.mark.parametrize("name", ["1e-3", "2E5", "1.5e3", "017", "9:59", "yes", "1_000"])
def test_a_name_that_reads_like_a_number_is_written_in_quotes(name: str, recipe: Path) -> None:
    """A run reads its own configuration again."""
    loaded = load_recipe(recipe, [f'name="{name}"'])
    written = recipe.with_name("config.yaml")
    written.write_text(dump_yaml(loaded.model_dump(mode="json")))
    assert load_recipe(written) == loaded


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("data.train.7.0={source: x, target: y}", "data.train has 1 item, no 7"),
        ("data.train.7={source: x, target: y}", "data.train has 1 item, no 7"),
        ("data.train.1.source=x", "data.train has 1 item, no 1"),
        ("data.train.x.source=y", "data.train has 1 item, and 'x' is not the number of one; such as data.train.0.x"),
        ("data.train.-1.source=y", "data.train has 1 item, and '-1' is not the number of one"),
        ("data.train.0.0={source: x, target: y}", "unknown key data.train.0.0"),
        ("data.train[0].source=foo", "[0] is not how an item of a list is named here; write data.train.0.source=foo"),
        ("data.train=[", "not valid YAML"),
        ("data.train", "not of the form key.sub=value"),
        ("data.subwords.siz=400", "unknown key data.subwords.siz; did you mean size?"),
        ("data.subwords=400", "data.subwords: should be a mapping (given: 400); such as {kind: sentencepiece}"),
        ("data.subwords={kind: sentencepiec}", "'sentencepiec' is not known; did you mean sentencepiece?"),
        ("data.train=[]", "data.train: should have at least 1 item"),
        ("data.train={source: a, target: b}", "data.train: should be a list; put it in [ ]"),
        ("data.train=[{source: a}]", "key data.train.0.target is missing"),
        ("name.x=1", "name is 'toy' here, which has no keys; to replace it by a mapping, write name={…}"),
        ("training.schedule.kind=cosin", "training.schedule.kind: 'cosin' is not known; did you mean cosine?"),
        ("training.schedule.kind=x", "one of inverse_sqrt, inverse_sqrt_peak, constant, plateau, cosine, linear"),
        ("training.schedule={peak: 1}", "key training.schedule.kind is missing; one of inverse_sqrt, "),
        ("training.best_by=bleuu", "should be perplexity, loss, cosine_loss or bleu (given: 'bleuu'); did you mean bleu?"),
        ("training.processes=many", "training.processes: should be a whole number or auto (given: 'many')"),
        ("training.batch_tokens=x", "training.batch_tokens: should be a whole number (given: 'x')"),
        ("training.bleu_every=true", "training.bleu_every: should be a whole number (given: true)"),
        ("model.dropout=false", "model.dropout: should be a number (given: false)"),
        ("training.processes=true", "training.processes: should be a whole number or auto (given: true)"),
        ("data.source_language=no", "should be text (given: no); put it in quotes that the shell leaves: "
                                    "data.source_language='\"no\"'"),
        ("model.attention=nonsense", "model.attention: 'nonsense' is no score; an attention in one line is SCORE "
                                     "[ARRANGEMENT ORDERS] [shared-keys | keys-per-order] [gated]: a score is one of token, "),
        ("model.attention.cross=quer", "model.attention.cross: 'quer' is no score; did you mean queryk?"),
        ("model.attention=queryk heterogenous 1-2", "'heterogenous' is no arrangement; did you mean heterogeneous?"),
        ("model.positions={kind: sinus}", "model.positions.kind: 'sinus' is not known; did you mean sinusoid?"),
        ("device=cuda", "unknown key device; did you mean training.device?"),
        ("model.encoder.residua=true", "unknown key model.encoder.residua"),
        ("model.encoder.residual=true", "unknown key model.encoder.residual; kind: recurrent has it"),
        ("model.encoder={kind: transformer, residual: true}", "model.encoder.residual; kind: recurrent has it"),
        ("model.encoder.memory_norm=true", "unknown key model.encoder.memory_norm; kind: recurrent or none has it"),
        ("model.encoder.variational_dropout={states: 0.1}", "model.encoder.variational_dropout; kind: recurrent has it"),
        ("model.init={kind: uniform, range: 1e30}", "model.init.range: should be less than or equal to 1 (given: 1e+30)"),
        ("warmup=3", "unknown key warmup; did you mean training.schedule.warmup?"),
        ("task=translatio", "task 'translatio' is not known; did you mean translation?"),
    ],
)  # fmt: skip
def test_an_override_that_does_not_fit_is_named(override: str, what: str, said: Callable[..., str]) -> None:
    message = said(override)
    assert message.startswith(f"override {override!r}: "), message
    assert what in message, message
    for jargon in ("Input", "valid dictionary", "validation", "literal", "constrained"):
        assert jargon not in message


def test_a_former_key_is_named_as_it_is_written(said: Callable[..., str]) -> None:
    """`init_range` is short for `init: {kind: uniform, range: ...}`."""
    what = "model.init_range: should be less than or equal to 1 (given: 3)"
    assert said("model.init_range=3") == f"override 'model.init_range=3': {what}"
    assert said(old="width: 8", new="width: 8\n  init_range: 3") == f"r.yaml:10: {what}"
    message = said("model.init_range=x")
    assert message == "override 'model.init_range=x': model.init_range: should be a number (given: 'x')"
    message = said("task=language_model", "model.init_range=3", old=RECIPE, new=LANGUAGE_MODEL)
    assert message == f"override 'model.init_range=3': {what}"


def test_segments_without_a_kind_are_fixed(recipe: Path, said: Callable[..., str]) -> None:
    def segments(*overrides: str) -> Any:
        model = load_recipe(recipe, list(overrides)).model
        return model.phrases.segments  # type: ignore[union-attr]

    for keys in ("{}", "{segments: {}}", "{segments: {min_chunks: 6}}", "{segments: {kind: fixed, min_chunks: 6}}"):
        recipe.write_bytes(RECIPE.replace("width: 8", f"width: 8\n  phrases: {keys}").encode())
        for override in ("segments.max_tokens=4", "segments={max_tokens: 4}"):
            fixed = segments(f"model.phrases.{override}")
            assert (fixed.kind, fixed.max_tokens, fixed.min_chunks) == ("fixed", 4, 6), (keys, override)
    for override, what in (
        ("max_token=4", "unknown key model.phrases.segments.max_token; did you mean max_tokens?"),
        ("max_tokens=x", "model.phrases.segments.max_tokens: should be a whole number (given: 'x')"),
        ("kind=fixd", "model.phrases.segments.kind: 'fixd' is not known; did you mean fixed?"),
    ):
        override = f"model.phrases.segments.{override}"
        assert said(override) == f"override {override!r}: {what}"
    message = said(
        "model.phrases.segments.max_tokens=4", old="width: 8", new="width: 8\n  phrases: {segments: {kind: dataset}}"
    )
    assert message.endswith("unknown key model.phrases.segments.max_tokens; kind: fixed has it")
    message = said(old="width: 8", new="width: 8\n  phrases:\n    segments:\n      max_token: 4")
    assert message == "r.yaml:12: unknown key model.phrases.segments.max_token; did you mean max_tokens?"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("source_language: en", "source_language: no", 'r.yaml:4: data.source_language: should be text (given: no); '
                                                       'put it in quotes: "no"'),
        ("name: toy", "name: 2024-01-01", 'r.yaml:1: name: should be text (given: 2024-01-01); put it in quotes: "2024-01-01"'),
        ("name: toy", "name: 1_0", 'r.yaml:1: name: should be text (given: 1_0); put it in quotes: "1_0"'),
        ("name: toy", "name:", "r.yaml:1: name: should be text (given: nothing)"),
        ("source_language: en", "source_language: English text", "r.yaml:4: data.source_language: "),
        ("width: 8", "width: yes", "r.yaml:9: model.width: should be a whole number (given: yes)"),
        ("heads: 2", "head: 2", "r.yaml:10: unknown key model.head; did you mean heads?"),
        ("train: [{source: train.en, target", "train: [{source: train.en, targe", "r.yaml:6: unknown key data.train.0.targe; "
                                                                                   "did you mean target? (and 1 more)"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_fit_is_named(old: str, new: str, what: str, said: Callable[..., str]) -> None:
    what, more = what.removesuffix(" (and 1 more)"), "(and 1 more)" in what
    message = said(old=old, new=new)
    assert message.replace(" (and 1 more)", "").startswith(what), message
    assert ("(and 1 more)" in message) == more


@pytest.mark.parametrize(
    "path", ["/tmp/a #b/c", "/tmp/a: b", "./x: y", "../no #1", "~/1e3", "/tmp/[a", "runs #2/data", "/"]
)
def test_a_path_in_an_override_is_taken_as_it_is(path: str) -> None:
    value: dict[str, Any] = {"data": {"folder": "x"}}
    set_override(value, f"data.folder={path}")
    assert value == {"data": {"folder": path}}


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("~", None),
        (".5", 0.5),
        ("[1, 2] # two", [1, 2]),
        ("{kind: x} # y", {"kind": "x"}),
        ("'a # b'", "a # b"),
        ("# no", None),
        ("5 # five", 5),
        ("true # x", True),
        ("a #b", "a #b"),
        ("a#b", "a#b"),
    ],
)
def test_other_values_of_overrides_are_yaml(text: str, parsed: object) -> None:
    value: dict[str, Any] = {"a": 1}
    set_override(value, f"a={text}")
    assert value == {"a": parsed}


def test_what_does_not_fit_together_names_the_overrides_below_it(said: Callable[..., str]) -> None:
    assert said("model.heads=3") == "r.yaml:8: model: width 8 is not a multiple of heads 3 (with model.heads=3)"
    assert said("decoding.n_best=9").startswith(
        "override 'decoding.n_best=9': decoding: n_best 9 is larger than beam 5"
    )


def test_a_line_of_the_base_is_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_bytes(RECIPE.replace("  heads: 2", "  head: 2").encode())
    (tmp_path / "r.yaml").write_bytes(b"base: base.yaml\nmodel: {dropout: 0.2}\ndata: {train: [{source: a}]}\n")
    with pytest.raises(
        ConfigError, match=r"base\.yaml:10: unknown key model\.head \(and 1 more\); did you mean heads\?"
    ):
        load_recipe(tmp_path / "r.yaml")
    (tmp_path / "base.yaml").write_bytes(RECIPE.encode())
    with pytest.raises(ConfigError, match=r"r\.yaml:3: key data\.train\.0\.target is missing"):
        load_recipe(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    "name", ["../../x", "..", ".x", "a/b", "a\\b", "", "  ", "a\nb", "a\x1bb", "a\x00", "n" * 5000]
)
def test_the_name_of_a_recipe_is_that_of_a_folder(name: str, recipe: Path) -> None:
    escaped = name.encode("unicode_escape").decode()
    with pytest.raises(ConfigError, match="is also the name of the run folder"):
        load_recipe(recipe, [f'name="{escaped}"'])


@pytest.mark.parametrize("name", ["toy", "de-en_1.5", "naïve 模型", "a..b"])
def test_names_that_are_folders_stay(name: str, recipe: Path) -> None:
    assert load_recipe(recipe, [f"name={name}"]).name == name


class Inner(Config):
    size: int = 1
    flag: bool = False
    either: int | bool = 1
    share: float = 0.5


class Outer(Config):
    many: list[Inner] = Field([])
    by_name: dict[str, Inner] = Field({})
    numbers: list[int] = Field([])


def test_truth_values_are_no_numbers_at_any_depth() -> None:
    validate(Outer, {"many": [{"flag": True, "either": True}], "numbers": [1]})
    for value, key in (
        ({"many": [{}, {"size": True}]}, r"many\.1\.size: should be a whole number \(given: true\)"),
        ({"by_name": {"a": {"share": False}}}, r"by_name\.a\.share: should be a number \(given: false\)"),
        ({"numbers": [1, True]}, r"numbers\.1: should be a whole number"),
    ):
        with pytest.raises(ConfigError, match=key):
            validate(Outer, value)
    with pytest.raises(ConfigError, match=r"unknown key by_name\.a\.siz; did you mean size\?"):
        validate(Outer, {"by_name": {"a": {"siz": 1}}})


def test_bounds_of_length_of_a_recipe_leave_room_for_an_output(said: Callable[..., str], recipe: Path) -> None:
    low, high = "decoding.min_length={factor: 5, constant: 5}", "decoding.max_length={factor: 1, constant: 1}"
    assert "min_length 5,5 is above max_length 1,1 for every source" in said(low, high)
    assert load_recipe(recipe, [low]).decoding.min_length.constant == 5  # type: ignore[union-attr]


BIG = "9" * 5000


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("model.encoder.kind=[]", "model.encoder"),
        ("model.encoder.kind={}", "model.encoder"),
        (f"model.width={BIG}", "a number of 5,000 digits"),
        (f"model.dropout={BIG}", "a number of 5,000 digits"),
        ("model.dropout=9:59:59.0", "model.dropout: should be a number (given: '9:59:59.0')"),
        ("training.max_updates=9:59", "training.max_updates: should be a whole number (given: '9:59')"),
        ("model.dropout=0.9999999", "model.dropout: should be less than or equal to 0.9999 (given: 0.9999999)"),
        ("format=true", "format: should be a whole number (given: true)"),
        ("format=1.0", "format: should be a whole number (given: 1.0)"),
        ('model.width="32"', "model.width: should be a whole number"),
        ("model.width=017", "model.width: should be a whole number (given: '017')"),
        ("model.width=0x20", "model.width: should be a whole number (given: '0x20')"),
        ("model.width=8.0", "model.width: should be a whole number (given: 8.0)"),
        ("training.tensorboard=1", "training.tensorboard: should be true or false (given: 1)"),
        ('training.tensorboard="true"', "training.tensorboard: should be true or false"),
        ("model={[a, b]: c}", "a key of the recipe is a list or a mapping; a key is one word"),
        ("model=? {a: b} : c", "a key of the recipe is a list or a mapping"),
        (f"model.{'w' * 5000}=1", "unknown key model.www"),
        (f"name=[{'x' * 5000}]", "name: should be text"),
        (f"data.folder=[{BIG}]", "digits"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(override: str, what: str, said: Callable[..., str]) -> None:
    message = said(override)
    assert what in message and len(message) < 700 and "Node(" not in message, message


def test_numbers_are_those_of_json() -> None:
    text = "[1e-4, 1E3, .5, 1., 1_000, -0, +7, 1.5e+2, -.inf, 010, 1:30, 0b1, 1e, -, ., 1.2.3]"
    assert parse_yaml(text)[0] == [
        1e-4, 1000.0, 0.5, 1.0, 1000, 0, 7, 150.0, float("-inf"), "010", "1:30", "0b1", "1e", "-", ".", "1.2.3"
    ]  # fmt: skip


@pytest.mark.parametrize("base", ["[a]", "{a: b}", "3", "", "true", '"  "', '"a\\0b.yaml"'])
def test_a_base_is_a_path(base: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(f"name: toy\nbase: {base}\n".encode())
    with pytest.raises(ConfigError, match=r"r\.yaml:2: base: should be the path of a recipe"):
        load_recipe(tmp_path / "r.yaml")


def test_a_base_that_is_no_recipe_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"password: hunter2\n")
    (tmp_path / "r.yaml").write_bytes(b"base: secret\n")
    with pytest.raises(ConfigError, match="no recipe") as caught:
        load_recipe(tmp_path / "r.yaml")
    assert "hunter2" not in str(caught.value) and "password" not in str(caught.value)


def test_a_link_to_itself_is_not_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "l1.yaml").symlink_to("l1.yaml")
    with pytest.raises(FileProblem, match="itself") as caught:
        load_recipe(tmp_path / "l1.yaml")
    assert "did you mean" not in str(caught.value)


class Shorthand(Config):
    """One line in place of a mapping, as in a mechanism of your own, with a key that no field has."""

    width: int = 1

    @model_validator(mode="before")
    @classmethod
    def _from_line(cls, value: Any) -> Any:
        return {"size": value} if isinstance(value, str) else value


class Around(Config):
    inner: Shorthand = Shorthand()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Shorthand, "wide", "'wide' is short for a mapping with the unknown key size"),
        (Around, {"inner": "wide"}, "inner: 'wide' is short for a mapping with the unknown key size"),
        (Around, {"inner": {"size": 1}}, "unknown key inner.size; valid here: width"),
        (Around, "wide", "should be a mapping (given: 'wide'); its keys: inner"),
        (Around, None, "should be a mapping (given: nothing); its keys: inner"),
    ],
)
def test_text_in_place_of_a_mapping_is_refused_in_one_line(kind: type[Config], value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate(kind, value)
    assert str(error.value) == message
