"""Options that several commands share, and two ways to declare those of a command elsewhere than in its signature.

`options_of` makes options of the fields of a configuration class, which a recipe or a model can set too; `grouped` takes them
from dataclasses, so that options which belong together travel as one object.

`named` reads the models of a command line, `NAME=FOLDER` or `FOLDER`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from phraseloom.cli.streams import note, warn
from phraseloom.errors import UsageError, plural

if TYPE_CHECKING:
    from phraseloom.config import Config
    from phraseloom.decoding.translator import Translator
    from phraseloom.options.decoding import DecodingConfig


def number_or_word(text: str) -> int | str:
    """An option such as `--workers 4` or `--workers auto`; its configuration class checks the value."""
    return int(text) if text.isascii() and text.isdigit() else text


def length(text: str) -> dict[str, Any]:
    """`FACTOR,CONSTANT` or `CONSTANT` as a bound on the length of the output."""
    factor, comma, constant = text.rpartition(",")
    try:
        return {"factor": float(factor) if comma else 0.0, "constant": int(constant)}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither FACTOR,CONSTANT (such as 2.0,20) nor a whole number") from None


# How the command line writes fields that are not `--field VALUE`: `names`, and arguments of `typer.Option`.
FORMS: dict[str, dict[str, Any]] = {
    "alignment_head": {
        "parser": number_or_word,
        "metavar": "N",
        "show_default": "the model's setting; mean with --alignment-layer",
    },
    "batch_sentences": {"names": ["--batch"]},
    "lexicon": {"metavar": "FILE"},
    "max_length": {"parser": length, "metavar": "FACTOR,CONSTANT"},
    "min_length": {"parser": length, "metavar": "FACTOR,CONSTANT"},
    "tags": {"names": ["--tag"], "metavar": "TAG"},
    "workers": {"parser": number_or_word, "metavar": "N"},
}


def options_of(
    config: type[Config],
    *,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    forms: Mapping[str, Mapping[str, Any]] = {},
    of_model: bool = True,
    into: str = "options",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of `config`, or for some; its parameter `into` gets their values by field.

    An option has the help, the bounds and the choices of its field. `forms` goes before `FORMS`. `of_model`: the defaults are
    stored with the model, and `into` gets only what the command line gives; otherwise they are those of the fields.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = [name for name in only or config.model_fields if name not in without]
        made = [
            _parameter(owner, field, {**FORMS.get(field, {}), **forms.get(field, {})}, of_model)
            for name in names
            for field, owner in _with_variants(config, name)
        ]
        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(command, eval_str=True).parameters.values():
            parameters += made if own.name == into else [own.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

        @functools.wraps(command)
        def with_options(**arguments: Any) -> None:
            values = {option.name: arguments.pop(option.name) for option in made}
            command(**arguments, **{into: {name: value for name, value in values.items() if value is not None}})

        return _with_signature(with_options, parameters)

    return decorate


def _with_signature(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of its parameters that are dataclasses; it gets them as objects.

        @dataclass(frozen=True)
        class GoldForm:
            base: Annotated[int, typer.Option(min=0, max=1, help="Index of the first word.")] = 0

        @grouped
        def command(gold: Path, form: GoldForm) -> None: …          # --base becomes form.base

    A field may be a dataclass of options too.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups = {name: p.annotation for name, p in own.items() if _is_group(p.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        parameters += _options(groups[name]) if name in groups else [parameter.replace(kind=parameter.KEYWORD_ONLY)]

    @functools.wraps(command)
    def with_groups(**arguments: Any) -> None:
        objects = {name: _collect(group, arguments) for name, group in groups.items()}
        command(**arguments, **objects)

    return _with_signature(with_groups, parameters)


def _is_group(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation)


def _options(group: type[Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a command for the fields of a dataclass."""
    hints = typing.get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        if _is_group(hints[field.name]):
            yield from _options(hints[field.name])
        else:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name])


def _collect(group: type[Any], arguments: dict[str, Any]) -> Any:
    """An object of the class `group`; its values are taken out of `arguments`."""
    hints = typing.get_type_hints(group, include_extras=True)
    values = {
        name: _collect(hint, arguments) if _is_group(hint) else arguments.pop(name)
        for name, hint in ((field.name, hints[field.name]) for field in dataclasses.fields(group))
    }
    return group(**values)


def _with_variants(config: type[Config], field: str) -> list[tuple[str, type[Config]]]:
    """A field, and those of its variants if it has any: after `length_penalty`, which takes a kind, come `alpha` and `beta`."""
    from phraseloom.config import members

    variants = [
        kind for kind in members(config.model_fields[field].annotation) if "kind" in getattr(kind, "model_fields", ())
    ]
    return [
        (field, config),
        *{name: (name, kind) for kind in variants for name in kind.model_fields if name != "kind"}.values(),
    ]


def _parameter(config: type[Config], field: str, form: dict[str, Any], of_model: bool) -> inspect.Parameter:
    from phraseloom.config import bounds

    info, (least, greatest) = config.model_fields[field], bounds(config, field)
    settings = {"min": least, "max": greatest, "help": info.description} | (
        {"show_default": "the model's setting"} if of_model else {}
    )
    option = typer.Option(*form.pop("names", ()), **(settings | form))
    kind = Any if "parser" in form else _type(info.annotation)
    annotation = Annotated[kind | None if of_model else kind, option]  # type: ignore[valid-type]
    default = None if of_model else info.default
    return inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _type(annotation: Any) -> Any:
    """The type of an option: the annotation of a field without None, `auto` and the marks of pydantic."""
    from phraseloom.config import kinds, members

    known = [kind for kind in members(annotation) if kind not in (type(None), Literal["auto"])]
    if len(known) > 1:  # variants of a configuration class, chosen by their kind
        return Literal[tuple(kinds(known))]
    if typing.get_origin(known[0]) is list:
        return list[next(members(typing.get_args(known[0])[0]))]  # type: ignore[misc]
    return known[0]


def with_penalty(config: DecodingConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` with `length_penalty` (a kind), `alpha` and `beta` merged into the length penalty of a model."""
    from phraseloom.config import merge

    options = dict(options)
    names = {"length_penalty": "kind", "alpha": "alpha", "beta": "beta"}
    changes = {key: options.pop(name) for name, key in names.items() if name in options}
    now = {"length_penalty": config.length_penalty.model_dump()}
    return options | (merge(now, {"length_penalty": changes}) if changes else {})


def _usable(device: str) -> str:
    """Raise UsageError if the device is not available; the default needs no torch."""
    if device != "cpu":
        from phraseloom.models.device import usable

        usable(device)
    return device


Device = Annotated[str, typer.Option("--device", callback=_usable, help="Device: cpu, cuda, cuda:1.")]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder, run folder (its best checkpoint) or checkpoint.")
]
Models = Annotated[
    list[Path],
    typer.Argument(metavar="MODEL", help="Model folders, run folders (best checkpoint) or checkpoints."),
]
SourceText = Annotated[Path, typer.Option("-s", "--source", metavar="FILE", help="Source text, one sentence per line.")]
TargetText = Annotated[Path, typer.Option("-t", "--target", metavar="FILE", help="Its translation, line by line.")]
ForcedTarget = Annotated[
    Path, typer.Option("-t", "--target", metavar="FILE", help="Its translation, for forced decoding.")
]
Trees = Annotated[
    Path | None,
    typer.Option("--trees", metavar="FILE", help="Parse trees of the source, for models that take phrases from trees."),
]
OutputFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file. Default: standard output.")
]
TextOrStdin = Annotated[
    str, typer.Argument(metavar="TEXT", help="Text file (plain, .gz, .xz). The default, -, is standard input.")
]
Vectors = Annotated[Path, typer.Argument(metavar="VECTORS", help="File of vectors: .vec, plain, .gz or .xz.")]
JsonFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write one JSON object.")]
Resamples = Annotated[
    int, typer.Option("--bootstrap", metavar="N", min=1, help="Number of bootstrap resamples of the sentences.")
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe.")]
ResampleSeed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the resamples.")]
TableForm = Annotated[Literal["table", "markdown", "json"], typer.Option(help="json: all results as one object.")]
ReportForm = Annotated[str, typer.Option(metavar="text|json", help="Format of the report.")]
TextForm = Annotated[Literal["text", "json"], typer.Option(help="json: all results as one object.")]

Rule = Literal["released", "aligned"]


def rising_numbers(text: str, option: str, hint: str) -> list[int]:
    """`10,20,40` as numbers. Raises UsageError unless they are whole numbers from 1 that rise."""
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 10]
    if len(numbers) != len(parts) or numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise UsageError(f"{option} {text}: not a rising list of whole numbers from 1", hint=hint)
    return numbers


def check_form(output: str) -> None:
    """Raise UsageError unless a `ReportForm` is text or json."""
    if output not in ("text", "json"):
        raise UsageError(f"no output form {output!r}", hint="--output text or --output json")


def check_ensemble(options: Mapping[str, Any], ensemble: Sequence[Path] | None) -> None:
    """Raise UsageError for `--ensemble-mean` without `--ensemble`."""
    if "ensemble_mean" in options and not ensemble:
        raise UsageError("--ensemble-mean is for an ensemble of models", hint="add --ensemble MODEL")


MorePhrases = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Extra phrases for the output of a model with continuous output: one per line, or a .vec file.",
    ),
]
GateScore = Literal["mixture", "density", "released"]
GateScoreOption = Annotated[
    GateScore | None,
    typer.Option(
        "--gate-score",
        help="How the gate weighs words and phrases (docs/continuous_output.md). Default: the model's output.score.",
    ),
]


def change_output(verb: str, translator: Translator, phrases: Path | None, score: GateScore | None) -> None:
    """Add the phrases of `--add-phrases` to the output of a model, and set its `--gate-score`."""
    if phrases is not None:
        added = translator.add_phrases(phrases)
        note(verb, f"{plural(added.new, 'phrase')} added, {added.known:,} known before")
    if score is not None:
        translator.set_gate(score=score)


def warn_without_tag(verb: str, translators: Mapping[Any, Translator]) -> None:
    """Warn of each model with tags that reads its text without one; `translators`: by the name of their model."""
    for name, translator in translators.items():
        if translator.tokenizer.tags and not translator.config.tags:
            whose = f"of {name}" if len(translators) > 1 else "of this model"
            warn(verb, f"no --tag is given; the tags {whose} are {', '.join(translator.tokenizer.tags)}")


def no_sampling(options: Mapping[str, Any], what: str, hint: str) -> None:
    """Raise UsageError for an option of sampling: nothing is sampled here."""
    for name in ("temperature", "top_k", "top_p", "seed"):
        if name in options:
            raise UsageError(f"--{name.replace('_', '-')} is for drawing {what}", hint=hint)


def once(names: Sequence[Any]) -> None:
    """Raise UsageError for a name, file or model that is given twice."""
    repeated = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if repeated is not None:
        raise UsageError(f"{repeated} is given twice")


BySentence = Annotated[
    bool,
    typer.Option(
        "--by-sentence",
        help="Add to the JSON the numerator and denominator of each number per sentence, for resampling.",
    ),
]


def require_json(by_sentence: bool, is_json: bool, option: str) -> None:
    """Raise UsageError if `--by-sentence` is given without JSON output."""
    if by_sentence and not is_json:
        raise UsageError(f"--by-sentence needs {option}: that is where it writes")


def named(models: Sequence[str]) -> dict[str, Path]:
    """Folders by name, from `NAME=FOLDER` or `FOLDER`. The latter is named by its last parts, as few as are unique.

    The name of a checkpoint includes its run. Raises UsageError for a repeated name, or a repeated folder without names.
    """
    pairs = [_split(text) for text in models]
    folders = [folder for _, folder in pairs]
    parts = [folder.resolve().parts for folder in folders]
    nameless = [own for (name, _), own in zip(pairs, parts, strict=True) if not name]
    if len(set(nameless)) < len(nameless):
        again = next(own for i, own in enumerate(nameless) if own in nameless[:i])
        raise UsageError(f"{folders[parts.index(again)]} is given twice", hint="name them: NAME=FOLDER")
    sizes = [_num_parts(own) for own in parts]
    names = [name or "/".join(own[-size:]) for (name, _), own, size in zip(pairs, parts, sizes, strict=True)]
    more = 1
    while len(set(names)) < len(names) and not all(name for name, _ in pairs):
        more += 1
        names = [name or "/".join(own[-more:]) for (name, _), own in zip(pairs, parts, strict=True)]
    if len(set(names)) < len(names):
        both = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"two models have the name {both}")
    return dict(zip(names, folders, strict=True))


def _split(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not equals or "/" in name:
        return "", Path(text)
    if not name or not folder:
        raise UsageError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder)


def _num_parts(parts: Sequence[str]) -> int:
    """The number of last parts of a path that name a model."""
    if parts[-1] in ("best", "last") and len(parts) > 1:
        return 2
    return 3 if len(parts) > 2 and parts[-2] == "checkpoints" else 1
