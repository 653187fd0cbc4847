"""Fine-tuning: a run that starts from the weights of a model (`training.start_from`).

Parameters are matched by name, a shared matrix by each of its names:

    taken      copied from the origin, with the same size
    grafted    attention to tokens becomes phrasal attention with the same outputs (layers/replacement.py), with a gate
               initialised to zero if tokens and n-grams share one softmax (layers/attention/gate.py)
    zero       the last matrices of combination networks that the origin lacks: in a pre-norm model they then add nothing
    new        the initial random values
    left out   the new model has no such parameter

A different size is an error. Vocabularies must be those of the origin: prepare the data with `data.tokenizer`. New pieces may
follow the old ones (`data.new_pieces`); their rows of embeddings and output start as the mean over the fewest old pieces that
spell them. The first process of a run reads the origin once, when the run starts; later its weights come from checkpoints.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phraseloom.errors import ModelError, PhraseloomError, UsageError, plural
from phraseloom.files import read_json, sha256_file
from phraseloom.layers.attention import MultiHeadAttention
from phraseloom.layers.attention.token import TokenScore
from phraseloom.layers.initialisation import ShapesOnly
from phraseloom.layers.phrase_representation import AttentiveCombination
from phraseloom.layers.replacement import begins_equal, copy_output, copy_projections
from phraseloom.models.store import (
    WEIGHTS,
    find_model,
    find_task,
    load_language_model,
    load_model,
    load_segmenter_of,
    read_config,
)
from phraseloom.models.tasks import TASKS, build, task_of
from phraseloom.options.training import DecayConfig, PlateauConfig, TrainingConfig, differing_options
from phraseloom.phrases.source import Segmenter
from phraseloom.recipe import AnyRecipe
from phraseloom.text.extension import spelling
from phraseloom.text.subword_nmt import SEPARATOR
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.text.vocabulary import UNK
from phraseloom.text.words import other_vectors
from phraseloom.training.checkpoint import OPTIMIZER, STATE, load_optimizer
from phraseloom.training.optimization import freeze, members, rate_factors
from phraseloom.training.start import random_batch
from phraseloom.training.state import Progress

__all__ = ["StartingPoint", "check_names", "read_start"]

KEY = "training.start_from"


class StartingPoint(NamedTuple):
    """The initial weights of a run: `tensors` by parameter name, and the optimiser's tensors if it continues.

    `applied`: the steps of this optimiser so far; `rate_factor`: how far a plateau schedule had lowered the rate. `table`:
    lines for the log. `facts`: data for `run.json`.
    """

    tensors: dict[str, Tensor]
    optimizer: dict[str, Tensor] | None
    applied: int
    rate_factor: float
    table: list[str]
    facts: dict[str, Any]

    def put(self, model: nn.Module) -> None:
        """Write the tensors into a new model."""
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                parameters[name].copy_(tensor)


class NewPieces(NamedTuple):
    """The pieces that a vocabulary has and that of the origin, of size `known`, lacks: of each the old pieces in it."""

    known: int
    spelled: list[list[int]]


def check_names(recipe: AnyRecipe, tokenizer: Tokenizer) -> None:
    """Raise UsageError if `training.freeze` or `training.rates` name no module of the recipe's model, or `rates` one that is
    frozen; allocates no memory."""
    config = recipe.training
    if config.freeze or config.rates:
        with ShapesOnly():
            model = build(recipe.model, tokenizer)
        frozen = freeze(model, config.freeze)
        rate_factors(model, config.rates)
        for pattern in config.rates:
            if set(members(model, pattern, "training.rates")) <= set(frozen):
                hint = "leave it out of one of them"
                raise UsageError(f"training.rates: {pattern} is frozen by training.freeze", hint=hint)


def read_start(recipe: AnyRecipe, tokenizer: Tokenizer, segmenter: Segmenter | None = None) -> StartingPoint | None:
    """Read the model of `training.start_from` for a recipe and the tokenizer of its data; None without this option.

    `segmenter`: that of the dataset, if the model reads source phrases from it. Raises UsageError if the recipe asks for
    something impossible; FileProblem, CorruptError and ModelError if the origin cannot be read, or has another task, vocabulary
    or size.
    """
    config = recipe.training.start_from
    if config is None:
        return None
    try:
        folder = find_model(config.path)
        task = task_of(recipe.model)
        if (theirs := find_task(folder)) != task:
            what = f"this is a {TASKS[theirs].title.lower()}, and the recipe trains a {TASKS[task].title.lower()}"
            raise ModelError(what, file=folder, hint=f"name a {TASKS[task].title.lower()}, or change the recipe's task")
        load = load_model if task == "translation" else load_language_model
        origin, their_tokenizer, _ = load(folder)
        their_segmenter = load_segmenter_of(folder)
    except PhraseloomError as problem:
        if isinstance(problem, UsageError):
            raise
        raise type(problem)(
            f"{KEY}: {problem.what}", file=problem.file, line=problem.line, hint=problem.hint
        ) from problem
    spelled = _check_vocabularies(tokenizer, their_tokenizer, folder, TASKS[task].sides)
    with torch.random.fork_rng(devices=[]):
        model = build(recipe.model, tokenizer).eval()
    differing = differing_options(read_config(folder)[1].model_dump(mode="json"), recipe.model.model_dump(mode="json"))
    match = _match(origin, model, folder, differing, spelled)
    checkpoint = folder.resolve().name
    shown = config.path if checkpoint == Path(config.path).name else f"{config.path} ({checkpoint})"
    sha256 = sha256_file(folder / WEIGHTS)
    optimizer, applied, rate_factor = None, 0, 1.0
    if config.optimizer == "continue":
        optimizer, progress = _read_optimizer(folder, model, recipe.training.freeze)
        applied = progress.applied
        _check_schedule(recipe.training, applied, folder)
        rate_factor = progress.rate_factor if isinstance(recipe.training.schedule, PlateauConfig) else 1.0
    taken_over = f"taken over after {plural(applied, 'step')}" if optimizer is not None else "fresh"
    table = [f"start_from {shown}: SHA-256 of the weights {sha256[:16]}, optimiser {taken_over}", *match.table(model)]
    shown_already = "model.attention." if match.blocks else "\0"  # grafted blocks have a row of their own
    table += [f"  differs   {text}" for text in differing if not text.startswith(shown_already)]
    table += _other_phrases(segmenter, their_segmenter)
    for text in _other_text(tokenizer, their_tokenizer, TASKS[task].sides):
        table.append(f"  warning: {text}")
    more = {name: len(new.spelled) for name, new in spelled.items() if new.spelled}
    table += [f"  extended  {name}: {plural(number, 'new piece')}" for name, number in more.items()]
    table.append(_compared(origin, model, their_tokenizer))
    facts = {"path": config.path, "checkpoint": checkpoint, "sha256": sha256, "optimizer": config.optimizer}
    parameters = dict(model.named_parameters())
    tensors = {name: parameters[name].detach() for name in (*match.taken, *match.grafted, *match.zero)}
    return StartingPoint(tensors, optimizer, applied, rate_factor, table, facts)


def _check_schedule(config: TrainingConfig, applied: int, folder: Path) -> None:
    """Raise UsageError if a schedule ends before the run does: the optimiser has taken `applied` of its steps already.

    An end that the recipe names may come before that of the run, as in any run, but not before its first step.
    """
    schedule = config.schedule
    if not isinstance(schedule, DecayConfig):
        return
    if schedule.updates is None:
        assert config.max_updates is not None  # TrainingConfig requires it
        if applied:
            raise UsageError(
                f"{KEY}.optimizer: continue begins at step {applied:,}, but schedule {schedule.kind} ends at step "
                f"{config.max_updates:,}, as if the {config.max_updates:,} updates of this run were its first",
                file=folder,
                hint=f"set training.schedule.updates to {applied + config.max_updates}, or {KEY}.optimizer to fresh",
            )
    elif applied >= schedule.updates and not schedule.floor:
        since = f"where schedule {schedule.kind} has the rate 0 since step {schedule.updates:,}"
        raise UsageError(
            f"{KEY}.optimizer: continue begins at step {applied:,}, {since}",
            file=folder,
            hint=f"set training.schedule.updates above {applied:,}, or {KEY}.optimizer to fresh",
        )


def _check_vocabularies(
    own: Tokenizer, theirs: Tokenizer, folder: Path, sides: Mapping[str, str]
) -> dict[str, NewPieces]:
    """The new pieces of each side; none if the vocabularies are equal.

    Raises ModelError if a vocabulary does not begin with that of the origin.
    """
    spelled: dict[str, NewPieces] = {}
    for name, side in sides.items():
        ours, there = (getattr(t, side).vocabulary for t in (own, theirs))
        if list(ours)[: len(there)] != list(there):
            size = f"{len(there):,} pieces, the dataset's has {len(ours):,}"
            same = " in another order or of other text" if len(ours) == len(there) else ""
            what = "the data" if not own.target.joined else "text that is joined with its table of phrases"
            raise ModelError(
                f"{KEY}: its {name} vocabulary is another: {size}{same}",
                file=folder,
                hint=f"prepare {what} with data.tokenizer: {folder}; or take the embeddings alone (training.embeddings)",
            )
        separator = SEPARATOR if getattr(own, side).kind == "subword_nmt" else ""
        pieces = [spelling(piece, there, separator=separator) for piece in list(ours)[len(there) :]]
        spelled[side] = NewPieces(len(there), [there.ids(parts) for parts in pieces])
    return spelled


def _extended(name: str, old: Tensor, spelled: Mapping[str, NewPieces]) -> Tensor:
    """A matrix of embeddings or output, or its bias, with rows for new pieces; other parameters unchanged.

    They come after the pieces of the origin; rows behind these, such as the marks of segments, stay the last.
    """
    side = {"source_embedding": "source", "target_embedding": "target", "output": "target", "embedding": "target"}
    new = spelled.get(side.get(name.split(".")[0], ""))
    if new is None or not new.spelled or not name.endswith(("embedding.weight", "output.weight", "output.bias")):
        return old
    means = [old.detach()[torch.tensor(parts or [UNK])].mean(0) for parts in new.spelled]
    return torch.cat([old.detach()[: new.known], torch.stack(means), old.detach()[new.known :]])


def _other_text(own: Tokenizer, theirs: Tokenizer, sides: Mapping[str, str]) -> list[str]:
    """Differences of the tokenizers that change the pieces of a line although the vocabularies are equal."""
    result = []
    if own.text != theirs.text:
        result.append("data.text is not that of the origin: the same line becomes other pieces")
    for name, side in sides.items():
        ours, there = getattr(own, side), getattr(theirs, side)
        if len(ours.vocabulary) == len(there.vocabulary) and ours.subwords.content != there.subwords.content:
            result.append(
                f"the {name} vectors are not those of the origin: its output points to other words"
                if other_vectors(ours.subwords, there.subwords)
                else f"the {name} subwords cut words in another way than those of the origin"
            )
    return result


def _other_phrases(own: Segmenter | None, theirs: Segmenter | None) -> list[str]:
    """The row on source phrases that are not cut as in the data of the origin; a model without them differs in its options."""
    if own is None or theirs is None or own.sha256 == theirs.sha256:
        return []
    change = f"{theirs} → {own}" if str(own) != str(theirs) else f"another {own}"
    return [f"  differs   source phrases: {change}"]


class _Match:
    """The parameters of a new model by their origin; `blocks`: the grafted attention blocks."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.grafted: list[str] = []
        self.zero: list[str] = []
        self.new: list[str] = []
        self.left: list[str] = []
        self.blocks: list[str] = []

    def table(self, model: nn.Module) -> list[str]:
        """Rows for the log; names that differ only in numbers share one entry."""
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        rows = [f"  taken     {plural(len(self.taken), 'parameter')}, {sum(sizes[n] for n in self.taken):,} numbers"]
        if self.blocks:
            rows.append(f"  grafted   {plural(len(self.blocks), 'attention block')}: {_short(self.blocks)}")
        for title, names in (("zero", self.zero), ("new", self.new), ("left out", self.left)):
            if names:
                rows.append(f"  {title:<9} {plural(len(names), 'parameter')}: {_short(names)}")
        return rows


def _short(names: Iterable[str]) -> str:
    """Names with `*` for layer numbers, each with its count."""
    counts = Counter(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in names)
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


def _match(
    origin: nn.Module,
    model: nn.Module,
    folder: Path,
    differing: list[str],
    spelled: Mapping[str, NewPieces] | None = None,
) -> _Match:
    """Copy the weights of `origin` into `model`, and list where each came from. Raises ModelError, UsageError."""
    match, whole = _Match(), dict(origin.named_parameters(remove_duplicate=False))
    old = {name: _extended(name, parameter, spelled or {}) for name, parameter in whole.items()}
    _graft(origin, model, match)
    done, used, misfits = {*match.grafted, *match.zero}, set[int](), []
    aliases: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    for name, parameter in model.named_parameters():
        there = [(alias, old[alias]) for alias in aliases[id(parameter)] if alias in old]
        used |= {id(whole[alias]) for alias, _ in there}
        if name in done:
            continue
        if not there:
            match.new.append(name)
        elif there[0][1].shape != parameter.shape:
            misfits.append(f"{name} is {_size(there[0][1])} there and {_size(parameter)} here")
        elif any(p.shape != parameter.shape or not torch.equal(p, there[0][1]) for _, p in there[1:]):
            shared = " and ".join(alias for alias, _ in there)
            hint = f"set model.tied to that of the origin ({_tied(folder)})"
            raise ModelError(f"{KEY}: {shared} are one matrix here and differ in the origin", file=folder, hint=hint)
        else:
            with torch.no_grad():
                parameter.copy_(there[0][1])
            match.taken.append(name)
    if misfits:
        others = f" ({len(misfits) - 1:,} more differ)" if len(misfits) > 1 else ""
        options = f"these options differ: {'; '.join(differing[:6])}" if differing else "compare the model sections"
        raise ModelError(f"{KEY}: other sizes: {misfits[0]}{others}", file=folder, hint=options)
    if not match.taken:
        raise ModelError(
            f"{KEY}: no parameter of the recipe's model is there", file=folder, hint="is it of another kind?"
        )
    match.left = [name for name, p in origin.named_parameters() if id(p) not in used]
    return match


def _tied(folder: Path) -> str:
    return str(read_config(folder)[1].tied)


def _size(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape))


def _graft(origin: nn.Module, model: nn.Module, match: _Match) -> None:
    """Initialise the modules that the origin lacks so that outputs do not change: phrasal attention, and combination networks
    of a pre-norm model."""
    modules = dict(origin.named_modules())
    for path, block in model.named_modules():
        old = modules.get(path)
        if isinstance(block, MultiHeadAttention) and isinstance(old, MultiHeadAttention) and _can_graft(old, block):
            if not begins_equal(block):
                is_cross = "cross" in path or path.startswith("decoder.attention.")  # the latter of a recurrent decoder
                use = "cross" if is_cross else "encoder_self" if path.startswith("encoder") else "decoder_self"
                raise UsageError(
                    f"{KEY}: {path} attends to tokens in the origin, and n-grams in one softmax with tokens change its outputs",
                    hint=f"put them behind a gate that is shut at first: end the line of model.attention.{use} with order 1 "
                    "among its orders and the word gated, such as queryk heterogeneous 1-2 gated",
                )
            biases = [] if old.bias is None or block.bias is None else [(block.bias, old.bias.detach())]
            copy_projections(block, old.score.weight.detach(), *biases)
            copy_output(block.arrangement, old.arrangement.weight.detach())
            if old.bias is not None:
                block.arrangement.bias.detach().copy_(old.arrangement.bias.detach())
            match.blocks.append(path)
            match.grafted += [f"{path}.{name}" for name, _ in block.named_parameters()]
        if isinstance(block, AttentiveCombination) and block.residual.pre:
            added = block.last_matrices() if old is None else []
            if isinstance(old, AttentiveCombination) and old.down is None and block.down is not None:
                added = [block.down.weight]
            for name, parameter in block.named_parameters():
                if any(parameter is matrix for matrix in added):
                    parameter.detach().zero_()
                    match.zero.append(f"{path}.{name}")


def _can_graft(old: MultiHeadAttention, new: MultiHeadAttention) -> bool:
    """Whether `old` is plain token attention with the heads and width of `new`, and `new` is another attention."""
    plain = type(old.score) is TokenScore and old.structure.is_token
    same = type(new.score) is TokenScore and new.structure == old.structure
    fits = old.structure.heads == new.structure.heads and old.score.layout.width == new.score.layout.width
    return plain and fits and not same and (old.bias is None or new.bias is not None)


def _read_optimizer(folder: Path, model: nn.Module, frozen: Iterable[str]) -> tuple[dict[str, Tensor], Progress]:
    """The moments of a checkpoint for the trained parameters, and its counters. Raises UsageError."""
    hint = f"set {KEY}.optimizer to fresh"
    if not (folder / OPTIMIZER).is_file() or not (folder / STATE).is_file():
        what = f"{KEY}.optimizer: continue needs a checkpoint of a run; this model folder has no optimiser"
        raise UsageError(what, file=folder, hint=f"{hint}, or name the run folder or one of its checkpoints")
    tensors = load_optimizer(folder)
    state = Progress.from_json(read_json(folder / STATE, "training state"), folder / STATE)
    freeze(model, frozen)
    result = {}
    for name, parameter in model.named_parameters():
        for kind in ("exp_avg", "exp_avg_sq") if parameter.requires_grad else ():
            tensor = tensors.get(f"{kind}.{name}")
            if tensor is None or tensor.shape != parameter.shape:
                why = "new or grafted, or not trained or a shared matrix there"
                what = f"{KEY}.optimizer: continue has no moments for {name}, which is {why}"
                raise UsageError(what, file=folder, hint=hint)
            result[f"{kind}.{name}"] = tensor
    return result, state


def _compared(origin: Any, model: Any, tokenizer: Tokenizer) -> str:
    """The largest difference between the outputs of the model and its origin, on random tokens."""
    sizes = {"source_size": len(tokenizer.source.vocabulary), "target_size": len(tokenizer.target.vocabulary)}
    batch = random_batch(**sizes)
    with torch.no_grad():
        before, after = origin.eval().score(batch), model.eval().score(batch)
    difference = (before - after).abs().max().item()
    return f"  outputs   log p of random tokens differ from those of the origin by at most {difference:.1e}"
