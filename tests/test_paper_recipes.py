"""The tables of recipes: every recipe of a paper stands in one, with its phrases, its attention and its parameters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from phraseloom.layers.table import TargetTable
from phraseloom.models.build import build_model
from phraseloom.options.attention import AttentionsConfig
from phraseloom.options.data import TreeSegmenterConfig
from phraseloom.options.model import (
    ContinuousConfig,
    InitConfig,
    RecurrentDecoderConfig,
    RecurrentEncoderConfig,
    SoftmaxConfig,
    TransformerEncoderConfig,
    WordOrPhraseConfig,
)
from phraseloom.options.segmental import ColumnsEncoderConfig, ReorderingConfig, SegmentalDecoderConfig
from phraseloom.options.text import SubwordNmtConfig, WordsConfig
from phraseloom.options.training import AdamConfig
from phraseloom.recipe import Recipe, load_recipe
from phraseloom.text.vocabulary import SPECIALS

ROOT = Path(__file__).resolve().parents[1] / "recipes"
PAGES = [ROOT / "README.md", *(ROOT / f"paper00{number}" / "README.md" for number in (0, 1, 2))]
ROW = re.compile(
    r"^\| `(?P<file>[\w/.-]+\.yaml)` \|.*?(?:\| `(?P<phrases>[^`]+)` )?\| `(?P<attention>[^`]+)` \| (?P<parameters>[\d,]+) \|",
    re.MULTILINE,
)
ROWS = [
    (page, found["file"], found["phrases"] or "none", found["attention"], int(found["parameters"].replace(",", "")))
    for page in PAGES
    for found in ROW.finditer(page.read_bytes().decode())
]
# | recipe | what | parameters | encoder | decoder | in the paper, in millions |: models whose encoder or decoder differs
PARTS_ROW = re.compile(
    r"^\| `(?P<file>[\w/.-]+\.yaml)` \|[^|]*\| (?P<parameters>[\d,]+) \| `(?P<encoder>[^`]+)` \| `(?P<decoder>[^`]+)` \|"
    r"(?: (?P<paper>[\d.]*) ?\|)?",
    re.MULTILINE,
)
PARTS_ROWS = [
    (page, found["file"], int(found["parameters"].replace(",", "")), found["encoder"], found["decoder"], found["paper"])
    for page in (ROOT / "README.md", ROOT / "paper004" / "README.md")
    for found in PARTS_ROW.finditer(page.read_bytes().decode())
]
# | recipe | row | parameters | words + phrases | output |: models with continuous output, and their baseline
OUTPUT_ROW = re.compile(
    r"^\| `(?P<file>[\w/.-]+\.yaml)` \|[^|]*\| (?P<parameters>[\d,]+) \| (?P<words>[\d,]+) \+ (?P<phrases>[\d,]+) \|"
    r" `(?P<output>\w+)` \|",
    re.MULTILINE,
)
PAPER_003 = ROOT / "paper003"
OUTPUT_ROWS = [
    (found["file"], found["output"], *(int(found[n].replace(",", "")) for n in ("parameters", "words", "phrases")))
    for found in OUTPUT_ROW.finditer((PAPER_003 / "README.md").read_bytes().decode())
]
# A vocabulary of BPE has the size that its text gives it; the tables of paper 001 count with this one.
BPE_PIECES = 43_000
PIECES_004 = {True: 31_400, False: 60_000}  # joint, or of each side


def load(path: Path, *changes: str) -> Recipe:
    recipe = load_recipe(path, list(changes))
    assert isinstance(recipe, Recipe)
    return recipe


def parameters_of(recipe: Recipe) -> int:
    subwords = recipe.data.subwords
    size = subwords.size if subwords.kind == "sentencepiece" else BPE_PIECES
    if recipe.name.startswith("paper004"):
        size = PIECES_004[subwords.joint]
    with torch.device("meta"):
        model = build_model(recipe.model, size, size)
    return sum(p.numel() for p in model.parameters())


def phrases_of(recipe: Recipe) -> str:
    """The source phrases of a recipe as the tables write them."""
    phrases, width = recipe.model.phrases, recipe.model.width
    if phrases is None:
        assert recipe.data.phrases is None
        return "none"
    words: list[str] = [phrases.glance, *([] if phrases.attention == "none" else [phrases.attention])]
    if phrases.transparent:
        words.append("ta+tokens" if phrases.transparent_tokens else "ta")
    segments = phrases.segments if phrases.segments.kind == "fixed" else recipe.data.phrases
    assert segments is not None
    words += ["tree"] * (segments.kind == "tree")
    if segments.kind != "table":
        words.append(f"{segments.max_tokens}/{segments.min_chunks}/{segments.floor}")
    words += ["batch"] * (getattr(segments, "basis", "") == "batch") + ["token"] * (phrases.residual == "token")
    inner, odd = divmod(
        recipe.model.ffn_width if phrases.combination_width is None else phrases.combination_width, width
    )
    assert not odd
    return " ".join([*words, *([] if inner == 4 else [f"f={inner}d".replace("1d", "d")])])


@pytest.mark.parametrize(("page", "file", "phrases", "attention", "parameters"), ROWS, ids=[row[1] for row in ROWS])
def test_row_tells_the_truth(page: Path, file: str, phrases: str, attention: str, parameters: int) -> None:
    recipe = load(page.parent / file)
    use = recipe.model.attention
    if attention == "relative in self-attention":
        assert (use.encoder_self.score.kind, use.cross.score.kind) == ("relative", "token")
    else:
        assert use == AttentionsConfig.model_validate(attention)
    assert phrases_of(recipe) == phrases
    assert parameters_of(recipe) == parameters


@pytest.mark.parametrize("folder", sorted(ROOT.glob("paper00*")), ids=lambda p: p.name)
def test_papers_are_trained_in_bf16_and_the_page_says_that_they_were_not(folder: Path) -> None:
    assert {load_recipe(path).training.precision for path in folder.glob("*.yaml")} == {"bf16"}
    page = (folder / "README.md").read_bytes().decode()
    assert "Products are in bf16 (`training.precision`), which is our choice: the paper trained in fp32." in page


def parts_of(recipe: Recipe) -> tuple[str, str]:
    """Encoder and decoder of a recipe as the tables write them."""
    model = recipe.model
    words = []
    for part in (model.encoder, model.decoder):
        if isinstance(part, RecurrentEncoderConfig):
            words.append(f"{part.cell} {part.bidirectional}+{part.layers - part.bidirectional}")
        elif isinstance(part, RecurrentDecoderConfig):
            words.append(f"{part.cell} {part.layers} {part.attention}")
        else:
            words.append(part.kind if part.kind == "none" else f"{part.kind} {part.layers}")
    encoder, decoder = words
    if model.encoder.kind == "none" and model.positions.source.kind == "none":
        encoder += ", no positions"
    cross = model.attention.cross.score.kind
    if cross == "token":
        return encoder, decoder
    line = f"{cross} heterogeneous 1-2"
    assert model.attention.cross == AttentionsConfig.model_validate(line).cross
    if model.decoder.kind == "transformer":
        assert model.attention.decoder_self == model.attention.cross
    return encoder, f"{decoder}, {line}"


@pytest.mark.parametrize(
    ("page", "file", "parameters", "encoder", "decoder", "paper"), PARTS_ROWS, ids=[row[1] for row in PARTS_ROWS]
)
def test_row_of_parts_tells_the_truth(
    page: Path, file: str, parameters: int, encoder: str, decoder: str, paper: str | None
) -> None:
    recipe = load(page.parent / file)
    assert parts_of(recipe) == (encoder, decoder)
    assert parameters_of(recipe) == parameters
    if paper:
        assert f"{(parameters + second_biases(recipe)) / 1e6:.1f}" == paper


def second_biases(recipe: Recipe) -> int:
    """The parameters that Sockeye's LSTMs have more: another bias for every gate."""
    both = [p for p in (recipe.model.encoder, recipe.model.decoder) if p.kind == "recurrent"]
    return sum(4 * recipe.model.width * part.layers for part in both)


@pytest.mark.parametrize("path", sorted((ROOT / "paper004").glob("*.yaml")), ids=lambda p: p.stem)
def test_settings_of_paper_004(path: Path) -> None:
    recipe = load(path)
    model, training, chinese = recipe.model, recipe.training, "zh-en" in path.stem
    assert recipe.name == f"paper004-{path.stem.replace('_', '-')}"
    assert (model.width, model.heads, model.ffn_width, model.norm) == (768, 8, 2048, "pre")
    assert model.tied == ("two_way" if chinese else "three_way")
    assert model.init == InitConfig(kind="xavier_uniform", embeddings="xavier_uniform", recurrent="orthogonal")
    assert (model.dropout, model.attention_dropout, model.ffn_dropout) == (0.1, 0.1, 0.1)
    output = {"kind": "softmax", "bias": True, "excluded": (), "label_smoothing": 0.1, "smoothing": "t2t"}
    assert model.output.model_dump() == output
    if isinstance(model.decoder, RecurrentDecoderConfig):
        assert (model.decoder.initial, model.decoder.input_feeding, model.decoder.hidden_dropout) == ("last", True, 0.2)
        assert model.positions.target.kind == "none"
    assert training.schedule.model_dump() == {
        "kind": "plateau",
        "rate": 1e-4,
        "warmup": 0,
        "factor": 0.7,
        "patience": 8,
        "by": "perplexity",
    }
    assert (training.batch_tokens, training.checkpoint_every) == (2048, 1000)
    assert (training.patience, training.max_updates, training.best_by) == (32, None, "perplexity")
    assert (training.optimizer.beta2, training.clip_norm, training.average_last) == (0.999, None, 0)
    assert recipe.decoding.beam == 8
    assert recipe.decoding.length_penalty.model_dump() == {"kind": "sockeye", "alpha": 1.0, "beta": 0.0}
    assert recipe.data.subwords == SubwordNmtConfig(merges=60_000 if chinese else 32_000, joint=not chinese)
    assert recipe.data.text.tokenize == ("jieba" if chinese else "moses")


@pytest.mark.parametrize(
    ("path", "origin"),
    [
        *(
            (ROOT / "paper004" / f"table3_fi-en_{kind}.yaml", "table1_fi-en_transformer")
            for kind in ("fixed", "not_fixed")
        ),
        *((ROOT / "multi30k" / "encoder_free" / f"noenc_{kind}.yaml", "base") for kind in ("fixed", "notfixed")),
    ],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_rows_with_embeddings_begin_with_those_of_their_base(path: Path, origin: str) -> None:
    recipe, base, noenc = (load(path.parent / f"{stem}.yaml") for stem in (path.stem, origin, origin_without(path)))
    embeddings = recipe.training.embeddings
    assert embeddings is not None
    assert embeddings.sides == dict.fromkeys(("source", "target"), f"runs/{base.name}")  # where `train` puts that run
    assert embeddings.fixed == ("not" not in path.stem)
    assert recipe.model == noenc.model
    assert recipe.data == base.data
    assert recipe.training.model_copy(update={"embeddings": None}) == base.training


def origin_without(path: Path) -> str:
    """The recipe of the same model with drawn embeddings."""
    return "noenc" if path.parent.name == "encoder_free" else "table1_fi-en_noenc"


FOLDERS = [
    "paper000",
    "paper001",
    "paper002",
    "paper004",
    "multi30k/phrasal",
    "multi30k/phrases",
    "multi30k/encoder_free",
    "news",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_recipe_stands_in_a_table(folder: str) -> None:
    told = {(page.parent / file).resolve() for page, file, *_ in [*ROWS, *PARTS_ROWS]}
    there = set((ROOT / folder).glob("*.yaml"))
    if folder == "paper000":  # the language models of its Table 3
        there = {path for path in there if not path.name.startswith("table3")}
    assert there
    assert there <= told


@pytest.mark.parametrize(
    "pair", ["multi30k/phrasal/{}.yaml wide queryk_heterogeneous_12", "demo/world_{}.yaml wide phrasal"]
)
def test_the_widened_base_is_as_large(pair: str) -> None:
    pattern, *names = pair.split()
    found = {file: parameters for _, file, _, _, parameters in ROWS}
    wide, phrasal = (found[pattern.format(name)] for name in names)
    assert abs(wide / phrasal - 1) < 0.01


@pytest.mark.parametrize("folder", ["multi30k/phrasal", "multi30k/phrases", "multi30k/encoder_free", "news"])
def test_twins_differ_in_the_model_alone(folder: str) -> None:
    base = load(ROOT / ("multi30k/phrasal" if folder == "multi30k/phrases" else folder) / "base.yaml")
    for path in (ROOT / folder).glob("*.yaml"):
        twin = load(path)
        assert twin.training.model_copy(update={"embeddings": None}) == base.training
        assert twin.decoding == base.decoding
        assert without_trees(twin) == without_trees(base)
        if twin.data.phrases is None:
            assert twin.data.folder == base.data.folder


def without_trees(recipe: Recipe) -> dict[str, Any]:
    """The data section, less what only phrases of trees need."""
    data = recipe.model_dump(mode="json")["data"]
    for split in ("train", "valid", "test"):
        data[split] = [{k: v for k, v in files.items() if not k.startswith("trees")} for files in data[split]]
    return {key: value for key, value in data.items() if key not in ("folder", "phrases")}


@pytest.mark.parametrize("path", sorted(ROOT.glob("paper00[02]/table[12]*.yaml")), ids=lambda p: p.stem)
def test_settings_of_the_papers(path: Path) -> None:
    recipe = load_recipe(path)
    schedule, training = recipe.training.schedule, recipe.training
    assert (schedule.kind, getattr(schedule, "factor", None), getattr(schedule, "warmup", None)) == (
        "inverse_sqrt",
        2.0,
        16000,
    )
    assert recipe.name == f"{path.parent.name}-{path.stem.replace('_', '-')}"
    assert training.checkpoint_every == (10_000 if path.parent.name == "paper002" else 5_000)
    assert training.batch_tokens == (32_768 if path.match("paper000/table1*") else 4096)
    assert (training.average_last, recipe.decoding.model_dump()["beam"]) == (5, 5)
    assert recipe.model.init == InitConfig(kind="xavier_uniform")
    model, big = recipe.model, path.stem.endswith("_big")
    assert (model.attention_dropout, model.ffn_dropout) == (
        0.1,
        0.1,
    )  # transformer_base and transformer_big of tensor2tensor
    assert model.dropout == (0.3 if big and "en-fr" not in path.stem else 0.1)


@pytest.mark.parametrize("path", sorted((ROOT / "paper001").glob("*.yaml")), ids=lambda p: p.stem)
def test_settings_of_paper_001(path: Path) -> None:
    recipe, big = load(path), "_big" in path.stem
    model, training = recipe.model, recipe.training
    assert recipe.name == f"paper001-{path.stem.replace('_', '-')}"
    assert training.schedule.model_dump() == {"kind": "inverse_sqrt", "factor": 1.0, "warmup": 8000}
    assert (training.batch_tokens, training.max_updates) == (25_000, 300_000 if big else 100_000)
    assert (training.checkpoint_every, training.average_last) == (1500, 20 if big else 5)
    rate = 0.3 if path.match("*en-de_big*") else 0.1
    assert (model.dropout, model.attention_dropout, model.ffn_dropout) == (rate, rate, rate)
    assert (model.norm, model.embedding_norm, model.tied) == ("post", True, "two_way")
    assert model.init == InitConfig(kind="fan_in_uniform", embeddings="small_uniform")
    assert model.output.model_dump() == {
        "kind": "softmax",
        "bias": True,
        "label_smoothing": 0.1,
        "smoothing": "kl",
        "excluded": (),
    }
    for positions in (model.positions.source, model.positions.target):
        assert positions.model_dump() == {"kind": "sinusoid", "layout": "interleaved"}
    assert (recipe.decoding.beam, recipe.decoding.length_penalty.kind) == (4, "none")
    assert recipe.data.subwords == SubwordNmtConfig(merges=32_000, joint=True)


def test_the_parsing_row_needs_its_trees() -> None:
    path = ROOT / "paper001" / "table2_en-de_max_attn_ta_parsing.yaml"
    recipe = load(path)
    assert recipe.data.phrases == TreeSegmenterConfig(max_tokens=8, min_chunks=6, floor=3)
    assert all(files.trees for split in (recipe.data.train, recipe.data.valid, recipe.data.test) for files in split)
    assert without_trees(recipe) == without_trees(load(path.parent / "table1_en-de_base.yaml"))


def test_what_the_page_of_paper_001_says_about_the_counts() -> None:
    def millions(row: str, *changes: str) -> float:
        return parameters_of(load(ROOT / "paper001" / f"{row}.yaml", *changes)) / 1e6

    with_max = millions("table2_en-de_max")
    assert millions("table2_en-de_max", "model.phrases.combination_width=1536") == pytest.approx(129.1, abs=0.05)
    assert millions("table2_en-de_max_attn") - with_max == pytest.approx(3.7, abs=0.05)
    text = (ROOT / "paper001" / "README.md").read_bytes().decode()
    assert f"{BPE_PIECES:,} pieces" in text
    assert all(number in text for number in ("f = 3d (129.1 M", "are 3.7 M"))


@pytest.mark.parametrize(("file", "output", "parameters", "words", "phrases"), OUTPUT_ROWS)
def test_outputs_of_paper_003(file: str, output: str, parameters: int, words: int, phrases: int) -> None:
    recipe = load(PAPER_003 / file)
    subwords = recipe.data.subwords
    assert isinstance(subwords, WordsConfig)
    assert (recipe.model.output.kind, subwords.size, subwords.phrases) == (output, words, phrases)
    size = len(SPECIALS) + words
    with torch.device("meta"):
        table = TargetTable(torch.empty(size + phrases, 300), size)
        model = build_model(recipe.model, size, size + phrases, table)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_page_of_paper_003_names_the_rule_of_the_released_program() -> None:
    """Recipes and pages join phrases as the paper's text has it; the option for its program is one of both commands."""
    page = (PAPER_003 / "README.md").read_bytes().decode()
    assert "`--rule aligned`, as the paper's text has it. Its released program" in page
    assert "`phrases segment --rule released`" in page and "(also of `phrases mwt`)" in page
    assert "## Joining: `phrases segment`" in (ROOT.parent / "docs" / "phrases.md").read_bytes().decode()


@pytest.mark.parametrize("path", sorted(PAPER_003.glob("table*.yaml")), ids=lambda p: p.stem)
def test_settings_of_paper_003(path: Path) -> None:
    """Those of the released program: both papers' models, and the softmax beside them."""
    recipe = load(path)
    model, training, data = recipe.model, recipe.training, recipe.data
    phrases, softmax = "pconmt" in path.stem, "attn" in path.stem
    assert recipe.name == f"paper003-{path.stem.replace('_', '-')}"
    assert (model.width, model.embedding_width, model.dropout) == (1024, 512, 0.0)
    assert isinstance(model.encoder, RecurrentEncoderConfig) and isinstance(model.decoder, RecurrentDecoderConfig)
    assert (model.encoder.cell, model.encoder.layers, model.encoder.bidirectional) == ("lstm", 2, 2)
    decoder = model.decoder
    assert (decoder.cell, decoder.layers, decoder.attention, decoder.initial) == ("lstm", 2, "general", "final")
    assert (decoder.input_feeding, decoder.hidden_dropout, decoder.dropout) == (True, 0.0, decoder.dropout)
    assert model.init == InitConfig(kind="uniform", range=0.1) and not model.scale_embeddings
    output = model.output
    if softmax:  # its program has no label smoothing
        assert isinstance(output, SoftmaxConfig) and (output.label_smoothing, output.bias) == (0.0, True)
    else:
        assert isinstance(output, ContinuousConfig)
        assert (output.loss, output.lambda_released, output.hidden_layer) == ("vmf_released", 0.2, False)
        assert model.tied == "two_way" and training.best_by == "loss"
    if phrases:
        assert isinstance(output, WordOrPhraseConfig) and output.score == "density"
    assert training.schedule.model_dump() == {"kind": "constant", "rate": 5e-4, "warmup": 0}
    assert training.optimizer == AdamConfig(beta2=0.999, epsilon=1e-8)
    assert (training.clip_norm, training.gradient_per, training.max_epochs) == (5.0, "sentence", 7)
    assert training.batch_tokens == (375 if phrases else 1500)
    assert (recipe.decoding.beam, recipe.decoding.unknown) == (1, "replace")
    assert (data.text.tokenize, data.text.truecase, data.filter.max_tokens) == ("moses", True, 100)
    assert isinstance(data.subwords, WordsConfig) and not (data.subwords.center or data.subwords.whiten)


@pytest.mark.parametrize("path", sorted(PAPER_003.glob("table1*.yaml")), ids=lambda p: p.stem)
def test_what_a_model_of_paper_003_reads_at_the_start(path: Path) -> None:
    """Every parameter from U(±0.1): source embeddings have std 0.058, and fixed rows after their linear map 0.082."""
    recipe = load(path, "model.width=64")
    torch.manual_seed(1)
    rows = torch.nn.functional.normalize(torch.randn(500, 300), dim=-1)
    model = build_model(recipe.model, 500, 500, None if "attn" in path.stem else TargetTable(rows, 400))
    tokens = torch.arange(4, 500)[None]
    assert model.source_embedding(tokens).std().item() == pytest.approx(0.1 / 3**0.5, rel=0.02)
    target = 0.1 / 3**0.5 * (1.0 if "attn" in path.stem else 2**0.5)
    assert model.target_embedding(tokens).std().item() == pytest.approx(target, rel=0.05)


# | recipe | as in | parameters | source types | target types |: segmental models
SEGMENTAL_ROW = re.compile(
    r"^\| `(?P<file>[\w/.-]+\.yaml)` \|[^|]*\| (?P<parameters>[\d,]+) \| (?P<source>[\d,]+) \| (?P<target>[\d,]+) \|$",
    re.MULTILINE,
)
SEGMENTAL_ROWS = [
    (page.parent / found["file"], *(int(found[n].replace(",", "")) for n in ("parameters", "source", "target")))
    for page in (ROOT / "README.md", PAPER_003 / "README.md")
    for found in SEGMENTAL_ROW.finditer(page.read_bytes().decode())
]


@pytest.mark.parametrize(
    ("path", "parameters", "source", "target"), SEGMENTAL_ROWS, ids=lambda v: getattr(v, "stem", v)
)
def test_segmental_recipes(path: Path, parameters: int, source: int, target: int) -> None:
    with torch.device("meta"):
        model = build_model(load(path).model, source, target)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("path", sorted(PAPER_003.glob("npmt_*.yaml")), ids=lambda p: p.stem)
def test_settings_of_npmt(path: Path) -> None:
    """Those that the page of its released program gives for German to English, and greedy search as in paper 003."""
    recipe = load(path)
    model, training, data, transformer = recipe.model, recipe.training, recipe.data, "transformer" in path.stem
    assert recipe.name == f"paper003-{path.stem.replace('_', '-')}"
    assert model.width == 512  # -dec_unit_size
    assert model.init == InitConfig(kind="fan_in_uniform", recurrent="fan_in_uniform")
    decoder = SegmentalDecoderConfig(
        kind="segmental", layers=2, cell="gru", max_segment=6, dropout=0.5, connect="connect" in path.stem
    )
    assert model.decoder == decoder  # -nlayer, -rnn_mode, -max_segment_len, -npmt_dropout; sums over all segmentations
    if transformer:  # ours
        assert model.reordering is None and isinstance(model.encoder, TransformerEncoderConfig)
        assert (model.encoder.layers, model.heads, model.ffn_width, model.dropout) == (3, 8, 1024, 0.3)
    else:  # -nembed, -kwidth, -nenclayer, -nhid, -dropout (of source embeddings)
        assert (model.embedding_width, model.dropout, model.tied) == (256, 0.5, "none")
        assert model.reordering == ReorderingConfig(window=7)
        assert isinstance(model.encoder, ColumnsEncoderConfig)
        assert (model.encoder.layers, model.encoder.cell, model.encoder.width) == (2, "gru", 256)
    output = {"kind": "softmax", "bias": True, "excluded": (), "label_smoothing": 0.0, "smoothing": "uniform"}
    assert model.output.model_dump() == output
    assert training.optimizer == AdamConfig(beta2=0.999, epsilon=1e-8)  # those of torch7
    assert (training.schedule.kind, training.schedule.model_dump()["rate"]) == ("plateau", 1e-3)
    assert training.schedule.model_dump()["factor"] == 1 / 1.25  # -lrshrink
    assert training.schedule.model_dump()["by"] == "bleu"  # by which it chooses its model
    assert (training.clip_norm, training.best_by, training.max_updates, training.max_epochs) == (10.0, "bleu", None, 40)
    assert recipe.decoding.beam == 1
    assert (data.text.tokenize, data.text.lowercase, data.filter.max_tokens) == ("moses", True, 75)
    assert isinstance(data.subwords, WordsConfig) and (data.subwords.min_frequency, data.subwords.phrases) == (3, 0)


def test_every_recipe_of_paper_003_is_in_its_table() -> None:
    told = {PAPER_003 / row[0] for row in OUTPUT_ROWS} | {row[0] for row in SEGMENTAL_ROWS}
    assert told == {*PAPER_003.glob("*.yaml"), *(ROOT / "segments").glob("*.yaml")}


def test_twins_of_segmental_models_have_their_budget() -> None:
    for name, twins in {"world": ["world_lstm"], "multi30k": ["multi30k_lstm", "multi30k_transformer"]}.items():
        own = load(ROOT / "segments" / f"{name}.yaml")
        for twin in (load(ROOT / "segments" / f"{other}.yaml") for other in twins):
            assert twin.data == own.data
            assert twin.training.model_copy(update={"clip_norm": own.training.clip_norm}) == own.training


LADDER = ROOT / "continuous" / "ladder"
# What each recipe changes of vmf.yaml, beside its name; `data.folder` where it has a dataset of its own.
RUNGS: dict[str, dict[str, Any]] = {
    "random": {"data.subwords.vectors": {"random": 128, "seed": 1}, "data.subwords.center": False},
    "random_tied_none": {
        "data.subwords.vectors": {"random": 128, "seed": 1}, "data.subwords.center": False, "model.tied": "none",
    },
    "whitened": {"data.subwords.center": False, "data.subwords.whiten": True},
    "whitened_128": {"data.subwords.center": False, "data.subwords.whiten": True, "data.subwords.dimensions": 128},
    "sample": {"data.subwords.vectors": "de.sample001.vec"},
    "tied_none": {"model.tied": "none"},
    "constant": {
        "model.dropout": 0.0, "model.decoder.hidden_dropout": 0.0,
        "training.schedule": {"kind": "constant", "rate": 0.0005, "warmup": 0},
    },
    "width_512": {"model.width": 512},
    **{f"loss_{loss}": {"model.output.loss": name} for loss, name in (
        ("cosine", "cosine"), ("reg1", "vmf_reg1"), ("reg1_reg2", "vmf_reg1_reg2"),
    )},
    "loss_max_margin": {"model.output.loss": "max_margin", "model.output.margin": 0.5},
}  # fmt: skip


def changes(new: Any, old: Any, path: str = "") -> dict[str, Any]:
    """The values of `new` that differ from those of `old`; a schedule of another kind is one value."""
    if not (isinstance(new, dict) and isinstance(old, dict)) or new.get("kind") != old.get("kind"):
        return {} if new == old else {path: new}
    return {
        key: value
        for name in new
        for key, value in changes(new[name], old.get(name), f"{path}.{name}".lstrip(".")).items()
    }


def test_a_rung_of_the_ladder_changes_one_thing() -> None:
    assert {path.stem for path in LADDER.glob("*.yaml")} - {"vmf"} == set(RUNGS)
    page = (LADDER / "README.md").read_bytes().decode()
    base = load(LADDER / "vmf.yaml").model_dump(mode="json")
    for stem, expected in RUNGS.items():
        found = changes(load(LADDER / f"{stem}.yaml").model_dump(mode="json"), base)
        assert found.pop("name") == f"continuous-ladder-{stem.replace('_', '-')}"
        own = found.pop("data.folder", None)
        assert (own is not None) == any(key.startswith("data.") for key in expected)
        assert found == expected
        assert f"`{stem}.yaml`" in page
