"""A recipe: everything that prepares, trains and uses one model, as one strict YAML file.

A recipe may extend one other recipe (`base:`), and `key.sub=value` overrides change it. Recipes are data: a recipe names
files, sizes and kinds; the one name of code is `training.tracker`. Reading one imports no torch and no such code.

`base:` is a path relative to the recipe. It must lie in the same folder or in the enclosing folder named `recipes`, so that
a recipe from somebody else cannot read other files; `base=FILE` on the command line may name any file.

`task` says what is trained, a translation model (the default) or a language model, and so which keys `data`, `model` and
`decoding` have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter, model_validator

from phraseloom.config import (
    Config,
    JsonSchema,
    Place,
    Places,
    Whole,
    merge,
    one_of,
    read_yaml,
    set_override,
    validate,
    value_at,
)
from phraseloom.options.attention import USES
from phraseloom.options.data import DataConfig, TextDataConfig, check_jieba
from phraseloom.options.decoding import AUTO, DecodingConfig, GenerationConfig
from phraseloom.options.language_model import LanguageModelConfig
from phraseloom.options.model import KINDS, ModelConfig, WordOrPhraseConfig, mapping_of
from phraseloom.options.training import TrainingConfig

FORMAT = 1


def _names_a_folder(name: str) -> str:
    """`name`, if it can name a folder inside `runs`."""
    if not name.strip() or name.startswith(".") or not name.isprintable() or set(name) & set("/\\"):
        raise ValueError(
            "is also the name of the run folder: not empty, without / or \\ or control characters, no dot in front "
            "(train --run FOLDER writes to any folder)"
        )
    if len(name.encode("utf-8", "replace")) > 200:
        raise ValueError("is also the name of the run folder: at most 200 bytes")
    return name


RunName = Annotated[str, AfterValidator(_names_a_folder)]


class Recipe(Config):
    """A translation experiment: data, model, training, decoding. `name` is also the name of the run folder."""

    format: Annotated[Literal[1], Whole] = 1
    name: RunName
    task: Literal["translation"] = "translation"
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _jieba_has_chinese_text(self) -> Recipe:
        check_jieba(self.data)
        return self

    @model_validator(mode="after")
    def _phrases_come_from_somewhere(self) -> Recipe:
        phrases = self.model.phrases
        if phrases is not None and phrases.segments.kind == "dataset" and self.data.phrases is None:
            raise ValueError(
                "model.phrases.segments: {kind: dataset} reads the phrases of the dataset; data.phrases must say how they are "
                "made: {kind: tree} or {kind: table, file: FILE}"
            )
        return self

    @model_validator(mode="after")
    def _links_come_from_somewhere(self) -> Recipe:
        if self.training.guided_alignment is not None and not any(files.links for files in self.data.train):
            raise ValueError(
                "training.guided_alignment needs word links: data.train.0.links: FILE, one line of i-j per pair "
                "(phraseloom align train and align apply make some)"
            )
        return self

    @model_validator(mode="after")
    def _a_lexicon_comes_from_somewhere(self) -> Recipe:
        if self.decoding.lexicon == AUTO and self.data.target_phrases is None:
            raise ValueError(
                "decoding.lexicon: auto takes the lexicon that prepare makes with data.target_phrases; for other data, name a "
                "file of phraseloom align lexicon"
            )
        return self

    @model_validator(mode="after")
    def _an_output_has_a_length(self) -> Recipe:
        if {"min_length", "max_length"} <= self.decoding.model_fields_set:
            self.decoding.check_lengths()
        return self

    @model_validator(mode="after")
    def _vectors_come_from_somewhere(self) -> Recipe:
        kind, subwords, embeddings = self.model.output.kind, self.data.subwords, self.training.embeddings
        if kind == "softmax":
            if self.training.best_by == "cosine_loss":
                raise ValueError("training.best_by: cosine_loss is of a continuous output; a softmax has none")
            if self.training.fertility is not None:
                raise ValueError(
                    "training.fertility is for model.output: {kind: word_or_phrase}; a softmax has no gate"
                )
            return self
        if self.data.tokenizer is None and (subwords.kind != "words" or subwords.vectors is None):
            raise ValueError(
                f"model.output: {{kind: {kind}}} compares with fixed vectors of whole words; data.subwords must name them: "
                "{kind: words, vectors: FILE.vec}"
            )
        if self.data.tokenizer is None and kind == "word_or_phrase" and not getattr(subwords, "phrases", None):
            raise ValueError(
                "model.output: {kind: word_or_phrase} needs phrases in the vocabulary: data.subwords.phrases"
            )
        if isinstance(self.model.output, WordOrPhraseConfig) and self.model.output.fertility is not None:
            classes = self.model.output.fertility.classes
            raise ValueError(
                "model.output.fertility is part of a trained model; to train it, write training: {fertility: {classes: "
                f"{classes}}}}}, or use phraseloom fertility train"
            )
        if self.training.fertility is not None and (kind != "word_or_phrase" or self.data.target_phrases is None):
            raise ValueError(
                "training.fertility needs model.output: {kind: word_or_phrase} and the labels of data.target_phrases; for "
                "other data, use phraseloom fertility train"
            )
        if self.training.fertility is not None:
            self._check_fertility()
        if embeddings is not None and "target" in embeddings.sides and self.model.tied == "two_way":
            raise ValueError(
                "training.embeddings.target has no matrix to write to: the decoder reads the fixed vectors of the output; "
                "model.tied: none would give it one"
            )
        return self

    def _check_fertility(self) -> None:
        """Raise ValueError for what would stop the fertility module after the training."""
        if getattr(self.model.decoder, "attention", None) == "fixed":
            raise ValueError(
                "training.fertility: the decoder's attention weighs the gate, and decoder.attention: fixed has none"
            )
        phrases = self.model.phrases
        reads_dataset = phrases is not None and phrases.segments.kind == "dataset"
        if reads_dataset and self.data.phrases is not None and self.data.phrases.kind == "tree":
            raise ValueError("training.fertility cannot read the parse trees from which this model takes its phrases")


class LanguageModelRecipe(Config):
    """A language model experiment: text of one language, a decoder without encoder. `name` as in `Recipe`."""

    format: Annotated[Literal[1], Whole] = 1
    name: RunName
    task: Literal["language_model"]
    data: TextDataConfig
    model: LanguageModelConfig = LanguageModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: GenerationConfig = GenerationConfig()

    @model_validator(mode="after")
    def _jieba_has_chinese_text(self) -> LanguageModelRecipe:
        check_jieba(self.data)
        return self

    @model_validator(mode="after")
    def _nothing_is_translated(self) -> LanguageModelRecipe:
        if self.training.bleu_every or self.training.best_by == "bleu":
            raise ValueError("training.bleu_every and best_by: bleu are for translations: a language model has no BLEU")
        if self.training.best_by == "cosine_loss":
            raise ValueError("training.best_by: cosine_loss is of a continuous output; a language model has none")
        if self.training.guided_alignment is not None:
            raise ValueError("training.guided_alignment is for translations: a language model has no source")
        if self.training.fertility is not None:
            raise ValueError("training.fertility is for translations: a language model has no source")
        return self


AnyRecipe = Recipe | LanguageModelRecipe
TASKS: dict[str, type[Recipe] | type[LanguageModelRecipe]] = {
    "translation": Recipe,
    "language_model": LanguageModelRecipe,
}


def recipes_folder() -> Path:
    """`recipes` in the current folder, else in the checkout or the wheel that this program runs from."""
    here, package = Path("recipes"), Path(__file__).resolve().parent
    places = (here, package.parents[1] / "recipes", package / "recipes")
    return next((place for place in places if (place / "tables").is_dir()), here)


def find_recipe(path: str | Path) -> Path:
    """`path`; if there is no such file and it begins with `recipes/`, the recipe of the installed package."""
    path = Path(path)
    packaged = recipes_folder().joinpath(*path.parts[1:])
    return packaged if path.parts[:1] == ("recipes",) and not path.exists() and packaged.is_file() else path


def load_recipe(path: str | Path, overrides: list[str] | None = None) -> AnyRecipe:
    """Read, merge and check a recipe. Raises ConfigError with the key, its place and the nearest valid name."""
    path = find_recipe(path)
    value, places = _read(path)
    overrides = list(overrides or [])
    has_base = "base" in value
    base = value.pop("base", None)
    base_overrides = [text for text in overrides if text.partition("=")[0].strip() == "base"]
    if base_overrides:
        overrides = [text for text in overrides if text not in base_overrides]
        below = Path(base_overrides[-1].partition("=")[2].strip())
        places[("base",)] = Place(override=base_overrides[-1])
        value, places = _over_base(below, str(below), value, places)
    elif has_base:
        value, places = _over_base(base_of(path, base, places), str(base), value, places)
    for override in sorted(overrides, key=lambda text: not text.partition("=")[0].strip().endswith(".kind")):
        changed = set_override(value, override, partial(mapping_of, value), KINDS)
        places = {k: p for k, p in places.items() if k[: len(changed)] != changed}
        for above in (changed[:n] for n in range(1, len(changed))):
            if above not in places or places[above].text is not None:  # now a mapping
                places[above] = Place(override=override)
        places[changed] = Place(override=override, text=override.partition("=")[2])
    return check_recipe(value, file=path, places=_still_there(places, value))


def check_recipe(value: dict[str, Any], *, file: str | Path | None = None, places: Places | None = None) -> AnyRecipe:
    """The recipe in plain data, of the class of its task. Raises ConfigError."""
    task = value.get("task", "translation")
    if not isinstance(task, str) or task not in TASKS:
        place = (places or {}).get(("task",), Place(file))
        raise place.problem(f"task {task!r} is not known", hint=one_of(task, TASKS))
    return validate(TASKS[task], value, file=file, places=places)


def schema() -> JsonSchema:
    """The JSON schema of a recipe; `task` selects the variant. With a `base`, every key may be missing."""
    whole: JsonSchema = TypeAdapter(AnyRecipe).json_schema()["$defs"]
    _select_by_kind(whole)
    parts = {PART + name: _part(definition) for name, definition in whole.items()}
    base = {"type": "string", "description": "The recipe that this one extends: a path relative to this file."}
    for kind in TASKS.values():
        parts[PART + kind.__name__]["properties"]["base"] = base
    return {
        "type": "object",
        "properties": {"base": base},
        "if": {"required": ["base"]},
        "then": {"anyOf": [{"$ref": f"#/$defs/{PART}{kind.__name__}"} for kind in TASKS.values()]},
        "else": {
            "if": {"properties": {"task": {"const": "language_model"}}, "required": ["task"]},
            "then": {"$ref": f"#/$defs/{LanguageModelRecipe.__name__}"},
            "else": {"$ref": f"#/$defs/{Recipe.__name__}"},
        },
        "$defs": whole | parts,
    }


PART = "PartOf"
"""Begins the names of definitions for recipes with a base."""


def _select_by_kind(definitions: JsonSchema) -> None:
    """Let `kind` select the variant of each union: it is required, except for the `usual_kind`, which validators add."""
    for union in [node for node in _nodes(definitions) if "oneOf" in node]:
        union["anyOf"] = union.pop("oneOf")
        usual = union.pop("usual_kind", None)
        for kind, reference in union.pop("discriminator", {}).get("mapping", {}).items():
            if kind != usual:
                variant = definitions[reference.rpartition("/")[2]]
                variant["required"] = sorted({"kind", *variant.get("required", [])})


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """All mappings in nested plain data."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nodes(inner)


def _part(node: Any) -> Any:
    """The schema `node` for values that are merged over others: no key is required, except in lists, which are replaced."""
    if isinstance(node, list):
        return [_part(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    result = {key: inner if key == "items" else _part(inner) for key, inner in node.items() if key != "required"}
    if "$ref" in node:
        result["$ref"] = node["$ref"].replace("#/$defs/", f"#/$defs/{PART}")
    return result


def _still_there(places: Places, value: dict[str, Any]) -> Places:
    """The places of the keys that `value` still has: merging may have replaced a mapping above them."""
    missing = object()
    return {path: place for path, place in places.items() if value_at(value, path, missing) is not missing}


def _read(path: Path) -> tuple[dict[str, Any], Places]:
    value, places = read_yaml(path)
    version = value.get("format", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise places[("format",)].problem(
            f"recipe format {version!r} is not known (this phraseloom reads {FORMAT})",
            hint="upgrade phraseloom, or write the recipe for this version",
        )
    return value, places


def base_of(path: Path, base: Any, places: Places | None = None) -> Path:
    """The file that `base:` of the recipe `path` names. Raises ConfigError if it lies outside the allowed folders."""
    place = (places or {}).get(("base",), Place(path))
    if not isinstance(base, str) or not base.strip() or not base.isprintable():
        raise place.problem("base: should be the path of a recipe", hint="such as base: base.yaml")
    folder = Path(os.path.realpath(path.parent))
    roots = [folder, *(parent for parent in (folder, *folder.parents) if parent.name == "recipes")]
    target = path.parent / base
    if target.suffix not in (".yaml", ".yml"):  # an error would show what another file holds
        raise place.problem(f"base: {base!r} is no recipe: its name does not end in .yaml or .yml")
    if not any(Path(os.path.realpath(target)).is_relative_to(root) for root in roots):
        raise place.problem(
            f"base {base} lies outside of the folder of this recipe, and of the folder named recipes around it",
            hint=f"copy the base beside the recipe, or give base={base} on the command line (from where you are)",
        )
    return target


def _over_base(below: Path, base: str, value: dict[str, Any], places: Places) -> tuple[dict[str, Any], Places]:
    """`value` merged over the recipe in the file `below`; errors call it `base`."""
    place = places[("base",)]
    if not below.exists():
        raise place.problem(f"the recipe names base {base}, which does not exist", hint=f"looked for {below}")
    lower, places_below = _read(below)
    if "base" in lower:
        raise place.problem(f"base {base} has a base of its own; one level is allowed")
    merged = over_base(lower, value)
    return merged, _still_there(places_below | places, merged)


def over_base(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The plain data of a recipe merged over those of its base.

    Where the base has one word (`attention: queryk heterogeneous 1-2`) and the recipe keys below it, the word is what it means
    as a mapping.
    """
    below, recipe = deepcopy(below), merge(below, above, KINDS)
    for path in (("model", "init"), ("model", "attention"), *(("model", "attention", use) for use in USES)):
        word = value_at(below, path, None)
        if not isinstance(value_at(above, path, None), dict) or word is None or isinstance(word, dict):
            continue
        if (mapping := mapping_of(recipe, path, word)) is not None:
            value_at(below, path[:-1], None)[path[-1]] = mapping
    return merge(below, above, KINDS)
