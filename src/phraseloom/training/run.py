"""Train a recipe in a run folder: create or resume it, train, average checkpoints.

run/config.yaml, run.json   see run_folder.py
run/metrics.jsonl           see logbook.py
run/checkpoints/            see checkpoint.py; links best, last
run/averaged/               the mean of the last checkpoints, if the recipe has training.average_last
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from phraseloom import __version__, files
from phraseloom.align.lexicon import read_lexicon
from phraseloom.data.batches import BatchPlan, mix
from phraseloom.data.corpus import Dataset
from phraseloom.data.mixture import mixture_of
from phraseloom.errors import CorruptError, FileProblem, InterruptedRun, ModelError, UsageError, plural
from phraseloom.losses.guided import Guide
from phraseloom.metrics.perplexity import count_words
from phraseloom.models.device import SLOW, bf16_cost
from phraseloom.models.recompute import checkpoint_layers
from phraseloom.models.store import lexicon_bytes, read_parameters, write_model
from phraseloom.models.tasks import build
from phraseloom.options.data import valid_tokens
from phraseloom.options.training import DecayConfig, TrainingConfig
from phraseloom.phrases.source import Segmenter
from phraseloom.recipe import AnyRecipe, LanguageModelRecipe
from phraseloom.text.tokenizer import Tokenizer
from phraseloom.training import checkpoint, guard
from phraseloom.training.checkpoint import average_checkpoints, is_average_of
from phraseloom.training.compiled import obstacle
from phraseloom.training.dataset import (
    as_prepared,
    batches_of,
    check_vocabularies,
    line_tags,
    open_dataset,
    reads_phrases,
)
from phraseloom.training.distributed import World, is_child, keep_pages, launch
from phraseloom.training.embeddings import Transfer, fix, put, read_transfers
from phraseloom.training.logbook import METRICS, Display, Hook, Logbook, Tracker
from phraseloom.training.loop import TrainingJob, check_folder, link, probe_largest, rotate, train
from phraseloom.training.node import NodeMemory
from phraseloom.training.optimization import freeze, rate_function
from phraseloom.training.prefetch import Prefetcher
from phraseloom.training.run_folder import (
    accept_changes,
    check_place,
    note_collapse,
    note_pieces,
    note_start,
    note_transfers,
    noted_dataset,
    noted_pieces,
    noted_rotation,
    prepare_folder,
    run_identity,
)
from phraseloom.training.signals import StopSignal
from phraseloom.training.start import measure_start
from phraseloom.training.start_from import StartingPoint, check_names, read_start
from phraseloom.training.state import Progress
from phraseloom.training.validate import Validator

__all__ = ["run_recipe", "settle_torch"]

AVERAGED = "averaged"
VERSIONS = f"phraseloom {__version__}, torch {torch.__version__}"
WEIGHTS_STREAM = 3


def run_recipe(
    recipe: AnyRecipe,
    run: Path,
    *,
    allow_changed: bool = False,
    go_back_to: str | None = None,
    command: Sequence[str] | None = None,
    draw: Callable[[Path, Callable[[str], None]], None] | None = None,
    last: bool = True,
) -> str:
    """Train a recipe in the folder `run`, or resume it; returns the reason why training ended.

    Every process of a run calls this. `go_back_to`: the checkpoint to resume from (see `checkpoint.go_back`; newer ones are set
    aside). `command` starts the other local processes (default: this command line). The first process calls `draw(run, say)`
    at the end, to plot the run. `last`: without it, the caller has more to do with the run, so a signal at the very end counts
    too. Raises InterruptedRun after a signal, DivergedError, and other errors of errors.py.
    """
    dataset = open_dataset(recipe)
    recipe, warnings = as_prepared(recipe, dataset)
    check_lexicon(recipe)
    with contextlib.ExitStack() as stack:
        lock, begun = None, Beginning(pieces=recipe.training.pieces)
        if not is_child():
            check_place(run, go_back_to)
            lock = stack.enter_context(files.FolderLock(run))
            begun = begin(recipe, run, dataset, allow_changed=allow_changed, go_back_to=go_back_to)
        begun.notices += warnings
        world = launch(recipe.training, command, pieces=begun.pieces)
        stack.callback(world.close)
        stack.enter_context(world.reporting())
        stop = stack.enter_context(StopSignal(at_once=world.kill_children, insists=not world.launched))
        world.check_same(
            {"the recipe": _comparable(recipe), "the dataset": dataset.fingerprint, "the version": VERSIONS}
        )
        begun.pieces = share_pieces(world, run, begun.pieces, begun.notices.append)
        settle_torch(world, tf32=recipe.training.tf32, compiled=recipe.training.compile)
        smaller = "a smaller model or batch needs less: model.width, training.max_micro_tokens, training.valid_tokens"
        stack.enter_context(guard.naming_memory("in training", smaller))
        with guard.naming_memory("while the model was built", "a smaller model needs less: model.width, layers"):
            job = make_job(recipe, dataset, run, world, stop, begun)
        stack.callback(job.close)
        job.lock = lock
        if lock is not None and begun.is_changed:
            accept_changes(recipe, run, dataset.fingerprint, update=job.state.update if begun.keeps_others else None)
        _say_first(job, recipe, dataset.tokenizer, begun)
        begun.forget_tensors()
        reason = train_or_skip(job)
        if lock is not None:
            lock.check()
        if world.first:
            finish(job, recipe)
            if draw is not None:
                draw(run, job.say)
        if stop.is_set and not last:
            raise InterruptedRun(f"stopped by {stop.name} after the training", hint="the same command does the rest")
        return reason


@dataclass
class Beginning:
    """What a run begins with. Only the first process knows all of it; a run that is resumed has no weights from elsewhere."""

    pieces: int | None
    """Micro-batches of an update; None: one for each process."""
    is_changed: bool = False
    """Whether the recipe or the dataset differs from that of the folder."""
    keeps_others: bool = False
    """Whether the recipe keeps other checkpoints than that of the folder."""
    notices: list[str] = field(default_factory=list)
    """For the log: what the recipe, or `go_back_to`, has changed since the run was started."""
    transfers: list[Transfer] = field(default_factory=list)
    """Of `training.embeddings`."""
    start: StartingPoint | None = None
    """The model of `training.start_from`."""

    def forget_tensors(self) -> None:
        """Free the memory of weights that the model has taken over."""
        self.transfers.clear()
        if self.start is not None:
            self.start.tensors.clear()


def begin(recipe: AnyRecipe, run: Path, dataset: Dataset, *, allow_changed: bool, go_back_to: str | None) -> Beginning:
    """Create the folder of a run, or check that it belongs to the recipe, and read the weights that it begins with."""
    begun = Beginning(pieces=recipe.training.pieces)
    check_names(recipe, dataset.tokenizer)
    if not checkpoint.list_checkpoints(run):
        begun.transfers = read_transfers(recipe, dataset.tokenizer)
        segmenter = dataset.segmenter if reads_phrases(recipe) else None
        begun.start = read_start(recipe, dataset.tokenizer, segmenter)
    changed = prepare_folder(recipe, run, dataset.fingerprint, allow_changed=allow_changed)
    begun.is_changed = bool(changed)
    begun.keeps_others = any(c.startswith(("training.keep_last:", "training.checkpoint_every:")) for c in changed)
    if begun.is_changed and noted_dataset(run) != dataset.fingerprint:
        check_vocabularies(run, dataset)
    begun.notices = [f"changed since this run was started: {change}" for change in changed]
    if any(change.startswith("decoding.") for change in changed):
        begun.notices.append("decoding is changed for the checkpoints to come; for existing ones, give it to translate")
    note_transfers(run, begun.transfers)
    if begun.start is not None:
        note_start(recipe, run, dataset.fingerprint, begun.start)
    if go_back_to is not None:
        checkpoint.go_back(run, go_back_to, begun.notices.append)
    begun.pieces = begun.pieces or noted_pieces(run)
    return begun


def _say_first(job: TrainingJob, recipe: AnyRecipe, tokenizer: Tokenizer, begun: Beginning) -> None:
    """What a run is made of: its processes, what is compiled, weights from elsewhere, what is frozen or changed; its start."""
    if job.world.notice:
        job.say(job.world.notice)
    if recipe.training.compile:
        say_what_is_compiled(job)
    if recipe.training.precision == "bf16" and job.world.device.type == "cpu" and (cost := bf16_cost()) > SLOW:
        job.say(
            f"warning: on this CPU a product in bf16 takes {cost:.0f} times as long as in fp32; set training.precision=fp32"
        )
    fixed = " (fixed)" if recipe.training.embeddings and recipe.training.embeddings.fixed else ""
    for transfer in begun.transfers:
        job.say(f"{transfer}{fixed}")
    for line in begun.start.table if begun.start is not None else ():
        job.say(line)
    if recipe.training.freeze:
        job.say(_frozen(job.model))
    if job.world.first and not job.state.update and recipe.training.start_from is None:
        report_start(job, str(recipe.model.init), tokenizer)
    if warning := warning_of_end(recipe.training, job.state, job.plan.updates_per_epoch):
        job.say(warning)
    for notice in begun.notices:
        job.say(notice)


def warning_of_end(config: TrainingConfig, state: Progress, updates_per_epoch: int) -> str | None:
    """A warning where a run ends inside the warm-up, or long before a schedule down to `max_updates` does; else None."""
    schedule, limit = config.schedule, config.max_updates
    ends = (limit, config.max_epochs and config.max_epochs * updates_per_epoch)
    end = min((update for update in ends if update), default=0)
    if state.update >= end:  # finished, or without such an end
        return None
    if state.applied + end - state.update <= schedule.warmup:
        return (
            f"warning: training ends at update {end}, inside the warm-up: training.schedule.warmup is {schedule.warmup}"
        )
    if isinstance(schedule, DecayConfig) and schedule.updates is None and limit and end < 0.9 * limit:
        return (
            f"warning: training ends at update {end} (training.max_epochs), long before the {schedule.kind} schedule does, "
            f"at update {limit} (training.max_updates); set training.schedule.updates={end}"
        )
    return None


def _comparable(recipe: AnyRecipe) -> str:
    """The part of a recipe that has to be the same in all processes: paths may differ between machines."""
    value = recipe.model_dump(mode="json")
    return repr({"task": recipe.task, "model": value["model"], "training": value["training"]})


def share_pieces(world: World, run: Path, pieces: int | None, say: Callable[[str], None]) -> int:
    """The number of micro-batches of an update, in all processes; one for each process if `pieces` is None, which is noted.

    Raises UsageError if some processes would have nothing to do.
    """
    if world.first and pieces is None:
        pieces = world.size
        note_pieces(run, pieces)
        say(f"training.micro_batches is per_process: {pieces} in this run, whatever the number of processes later")
    count = int(world.send_text(str(pieces)))
    if world.size > count:
        what = f"{world.size} processes share {count} micro-batches: {world.size - count} would have nothing to do"
        hint = f"start {count} processes, or set training.micro_batches to {world.size} (per_process: as many as processes)"
        raise UsageError(what, hint=hint)
    return count


def say_what_is_compiled(job: TrainingJob) -> None:
    """Log what `training.compile` does to this model."""
    reason = obstacle(job.model)
    if reason is None:
        job.say("training.compile: the first update waits for the compiler")
    else:
        job.say(f"warning: training.compile does nothing here: {reason} are not compiled")


def _frozen(model: torch.nn.Module) -> str:
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    fixed, total = sum(n for n, trained in sizes if not trained), sum(n for n, _ in sizes)
    return f"frozen: {fixed:,} of {total:,} parameters (training.freeze)"


def report_start(job: TrainingJob, init: str, tokenizer: Tokenizer) -> None:
    """Log how well the new model separates tokens, with a warning if its start, `model.init`, is collapsed."""
    sizes = (len(side.vocabulary) for side in (tokenizer.source, tokenizer.target))
    report = measure_start(job.model, **dict(zip(("source_size", "target_size"), sizes, strict=True)))
    job.say(f"{report} (model.init: {init})")
    if job.run is not None:
        note_collapse(job.run, report.collapsed)
    if report.collapsed:
        job.say(
            f"warning: this start is collapsed ({', '.join(report.collapsed)}): the model hardly separates tokens and may "
            "learn late or never; phraseloom inspect RECIPE model.init=… measures another start; see model.init in "
            "docs/training.md"
        )


def check_lexicon(recipe: AnyRecipe) -> None:
    """Read the file of `decoding.lexicon` before training starts. Raises FileProblem, DataError (file, line)."""
    path = None if isinstance(recipe, LanguageModelRecipe) else recipe.decoding.lexicon
    if path is None:
        return
    try:
        read_lexicon(files.require_file(path, "lexicon"))
    except FileProblem as problem:
        hint = problem.hint or "align lexicon writes one; or leave decoding.lexicon out"
        raise FileProblem(f"decoding.lexicon: {problem.what}", file=path, hint=hint) from problem


def settle_torch(world: World, *, tf32: bool = False, compiled: bool = False) -> None:
    """Make results on a CPU bit-identical between runs, and let the process keep its memory pages.

    `tf32`: of GPUs. `compiled`: settle the compiler as well, which takes two seconds to import.
    """
    if world.device.type == "cpu":
        keep_pages()
        if compiled:
            torch.use_deterministic_algorithms(True)
        else:
            torch.set_deterministic_debug_mode("error")
        cast(Any, torch.utils.deterministic).fill_uninitialized_memory = False
    else:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def make_job(
    recipe: AnyRecipe, dataset: Dataset, run: Path, world: World, stop: StopSignal, begun: Beginning | None = None
) -> TrainingJob:
    """Build the model and its training job, in the state of the newest complete checkpoint if there is one."""
    begun = begun or Beginning(pieces=recipe.training.pieces)
    config, tokenizer = recipe.training, dataset.tokenizer
    model = _new_model(recipe, dataset, world, begun)
    pair, valid = dataset.split("train"), dataset.split("valid")
    segmenter = dataset.segmenter if reads_phrases(recipe) else None
    phrases, links = segmenter is not None, config.guided_alignment is not None
    memory = NodeMemory(world)
    pair.map_files(phrases=phrases, links=links)
    valid.map_files(phrases=phrases)
    pair.share_lengths(memory.share, phrases=phrases, links=links)
    plan = BatchPlan(
        None if dataset.is_text else pair.source_lengths,
        pair.target_lengths,
        seed=config.seed,
        batch_tokens=config.batch_tokens,
        micro_batches=begun.pieces or world.size,
        max_micro_tokens=config.max_micro_tokens,
        pool_updates=config.pool_updates,
        mixture=mixture_of(dataset.index, seed=config.seed, folder=dataset.folder),
        share=memory.share,
    )

    def check_data() -> None:
        for split in (pair, valid):
            split.check_sizes()

    validator = _validator(recipe, dataset, segmenter, world)
    dataset.check_same()  # all that is read of it has been opened
    if world.first:
        validator.check(model)
    host_batches = batches_of(pair, torch.device("cpu"), phrases=phrases, links=links)
    job = TrainingJob(
        config=config,
        model=model,
        plan=plan,
        batch_of=batches_of(pair, world.device, phrases=phrases, links=links),
        prefetcher=None if world.device.type == "cpu" else Prefetcher(host_batches, world.device),
        validate=validator,
        write_model=_writer(recipe, model, tokenizer, segmenter),
        rate=rate_function(config.schedule, width=recipe.model.width, max_updates=config.max_updates),
        highest_perplexity=guard.highest_perplexity(
            len(tokenizer.target.vocabulary),
            segmental=recipe.model.decoder.kind == "segmental",
            continuous=recipe.model.output.kind != "softmax",
        ),
        world=world,
        stop=stop,
        check_data=check_data,
    )
    if (start := begun.start) is not None and start.optimizer is not None:
        job.optimizer.load(start.optimizer, start.applied)
        job.state.applied, job.state.rate_factor = start.applied, start.rate_factor
    resume(job, run, partial(_read_weights, model, is_changed=begun.is_changed), dataset.content("valid"))
    return job


def _read_weights(model: torch.nn.Module, checkpoint: Path, *, is_changed: bool) -> None:
    """Read the weights of a checkpoint. Raises ModelError if they do not fit, with a hint for a changed recipe."""
    try:
        read_parameters(model, checkpoint / "model.safetensors")
    except ModelError as error:
        if not is_changed:
            raise
        hint = "this key cannot change in a run; a new run can begin with its weights (training.start_from)"
        raise ModelError(error.what, file=error.file, hint=hint) from error


def _new_model(recipe: AnyRecipe, dataset: Dataset, world: World, begun: Beginning) -> torch.nn.Module:
    """The model at the beginning of a run, with its initial weights."""
    config = recipe.training
    torch.manual_seed(mix(config.seed, WEIGHTS_STREAM))
    model = build(recipe.model, dataset.tokenizer).to(world.device)
    guide(model, config)
    if config.checkpoint_activations:
        checkpoint_layers(model)
    put(model, begun.transfers)
    if begun.start is not None:
        begun.start.put(model)
    fix(model, config.embeddings)
    freeze(model, config.freeze)
    return model


def _writer(
    recipe: AnyRecipe, model: torch.nn.Module, tokenizer: Tokenizer, segmenter: Segmenter | None
) -> Callable[[Path], None]:
    """What writes the model into the folder of a checkpoint, with all that translation needs."""
    languages = (recipe.data.source_language, recipe.data.target_language)
    generation = recipe.decoding.model_dump(mode="json")
    path = generation.get("lexicon")
    lexicon = None if path is None else lexicon_bytes(path)

    def write(folder: Path) -> None:
        write_model(
            folder, model, recipe.model, tokenizer,
            languages=languages, generation=generation, segmenter=segmenter, lexicon=lexicon,
        )  # fmt: skip

    return write


def _validator(recipe: AnyRecipe, dataset: Dataset, segmenter: Segmenter | None, world: World) -> Validator:
    """What validates the model: perplexity, for translation with BLEU if the recipe asks for it."""
    valid, longest = dataset.split("valid"), valid_tokens(recipe.data.filter)
    batches = batches_of(valid, world.device, phrases=segmenter is not None, longest=longest)
    lengths = (valid.source_lengths.clip(max=longest), valid.target_lengths.clip(max=longest))
    if isinstance(recipe, LanguageModelRecipe):
        complete = valid.target_lengths.max(initial=0) <= longest  # the words of a cropped line are unknown
        return Validator(*lengths, batches, words=count_words(valid.text()[1]) if complete else None)
    text = valid.text() if recipe.training.bleu_every else None
    return Validator(
        *lengths,
        batches,
        text=text,
        trees=valid.trees() if text and segmenter is not None and segmenter.needs_trees else None,
        tokenizer=dataset.tokenizer,
        tags=line_tags(dataset, "valid") if text else None,
        segmenter=segmenter,
        decoding=recipe.decoding,
    )


def guide(model: torch.nn.Module, config: TrainingConfig) -> None:
    """Let the links of the data supervise the heads that `training.guided_alignment` names. Raises UsageError."""
    options = config.guided_alignment
    if options is None:
        return
    if not hasattr(model, "guide"):
        raise UsageError("training.guided_alignment is for models that write tokens, and this one writes segments")
    places = {"layers": [n - 1 for n in options.layers], "heads": [n - 1 for n in options.heads]}
    structures = cast(Any, model).decoder.cross_structures
    cast(Any, model).guide = Guide(structures, weight=options.weight, decay=options.decay, **places)


def resume(job: TrainingJob, run: Path, read_model: Callable[[Path], None], valid: str) -> None:
    """Give the job its folder, log and display, and load the newest complete checkpoint in all processes.

    `valid`: a hash of the validation text.
    """
    if job.world.first:
        job.run = run
        warnings: list[str] = []
        identity = run_identity(run)
        newest = checkpoint.newest_whole(run, warnings.append, identity)
        if newest is None and warnings:
            raise CorruptError(
                f"no whole checkpoint is left: {warnings[0]}", file=run, hint="choose another --run folder"
            )
        if newest is not None:
            path, job.state = newest
            checkpoint.settle(path)
            best = job.state.best_update
            if best is not None and best not in dict(checkpoint.list_checkpoints(run)):
                job.state.forget_best()
                warnings.append(
                    f"the best checkpoint so far, of update {best}, is gone; the next validation counts as the best"
                )
            read_model(path)
            _read_optimizer(job, path)
            job.saved = (job.state.update, job.state.validated)
            link(run, job.state)
        if job.state.validate_on(valid):
            warnings.append(
                "the validation text is another: the next validation counts as the best, and patience begins again"
            )
        job.state.run = identity
        job.log = Logbook(run, job.state.update, job.state.validated)
        if job.config.tensorboard:
            job.tracker = Tracker(run, job.say)
        if job.config.tracker is not None:
            job.hook = Hook(job.config.tracker, job.say)
        seconds = job.log.seconds()
        job.display = Display(
            job.config, start=job.state.update, updates_per_epoch=job.plan.updates_per_epoch, seconds=seconds
        )
        for warning in warnings:
            job.say(warning)
        if job.log.missing > 0:
            job.say(f"{METRICS} has no record of {job.log.missing} earlier updates: it was damaged")
    share_state(job)


def _read_optimizer(job: TrainingJob, path: Path) -> None:
    """Load the optimiser of a checkpoint. Raises ModelError if other parameters are trained now."""
    try:
        job.optimizer.load(checkpoint.load_optimizer(path), job.state.applied)
    except ModelError as error:
        what = f"other parameters are trained than in this checkpoint: {error.what}"
        hint = "training.freeze cannot change in a run; a new run can begin with its weights (training.start_from)"
        raise ModelError(what, file=path, hint=hint) from error


def share_state(job: TrainingJob) -> None:
    """Send the weights, the optimiser and the counters of the first process to all others."""
    if job.world.size == 1:
        return
    text = job.world.send_text(yaml.safe_dump(job.state.as_json()))
    job.state = Progress.from_json(yaml.safe_load(text), "the first process")
    fixed = [p.detach() for p in job.model.parameters() if not p.requires_grad]
    for tensor in (job.flat.data, *fixed, *job.optimizer.moments.values(), job.optimizer.count):
        job.world.send_(tensor)


def train_or_skip(job: TrainingJob) -> str:
    """Train, unless the run is finished already; then nothing changes."""
    config, state = job.config, job.state
    seconds = job.log.seconds() if job.log is not None else 0.0
    reason = state.reason_to_stop(config, job.plan.updates_per_epoch, seconds) if job.world.first else None
    reason = job.world.send_text(reason or "")
    if reason and state.validated == state.update:
        if job.run is not None and noted_rotation(job.run) != state.update:  # a changed recipe deletes nothing here
            rotate(job)  # as the process that ended the run would have done, had it not been killed
        if job.display is not None:
            job.display.say(f"this run is finished: {reason}")
        return reason
    per_epoch, parameters = job.plan.updates_per_epoch, sum(p.numel() for p in job.model.parameters())
    if job.run is not None:
        check_folder(job)
        checkpoint.check_space(job.run, parameters, checkpoints=3 if job.saved is None else 2)
    where = f"resuming after update {state.update}" if state.update else "new run"
    job.say(
        f"{where}: {parameters:,} parameters, {len(job.plan.target):,} examples, {per_epoch:,} updates an epoch of "
        f"{job.plan.micro_batches} micro-batches, {job.world.size} process(es) × {torch.get_num_threads()} thread(s) on "
        f"{job.world.device}, padding {100 * job.plan.padding():.1f} %"
    )
    advice = advice_for_gpus(job.world.device.type, job.plan.micro_batches, job.world.size, config.batch_tokens)
    if advice and not state.update:
        job.say(advice)
    for line in job.plan.mixture.description("example") if job.plan.mixture is not None else ():
        job.say(line)
    remark: Any = getattr(job.model, "remark", None)
    if remark is not None and (text := remark(job.plan.source, job.plan.target)):
        job.say(text)
    probe_largest(job)
    reason = train(job)
    job.say(f"finished: {reason}")
    return reason


FULL = 8192  # target tokens of a micro-batch from which on a GPU has enough to do


def advice_for_gpus(device: str, micro_batches: int, processes: int, batch_tokens: int) -> str | None:
    """What to say where GPUs run small micro-batches one after the other, and wait for Python most of the time; else None."""
    if device != "cuda" or micro_batches <= processes or batch_tokens // micro_batches >= FULL:
        return None
    return (
        f"each GPU runs {-(-micro_batches // processes)} micro-batches of {batch_tokens // micro_batches:,} target tokens one "
        f"after the other; with training.micro_batches={processes} it has one of {batch_tokens // processes:,}, and an update "
        "of a small model takes less time"
    )


def finish(job: TrainingJob, recipe: AnyRecipe) -> None:
    """Average the last checkpoints, unless the average is up to date."""
    run, count = job.run, recipe.training.average_last
    assert run is not None
    if not count:
        return
    every = recipe.training.checkpoint_every
    chosen = [path for update, path in checkpoint.list_checkpoints(run) if update and update % every == 0][-count:]
    if len(chosen) < count:
        if job.display is not None:
            has = f"the run has {plural(len(chosen), 'checkpoint')} at every {every} updates"
            job.display.say(f"no average: training.average_last is {count}, {has}")
    elif not is_average_of(run / AVERAGED, chosen):
        try:
            average_checkpoints(run / AVERAGED, chosen, overwrite=True)
        except ModelError as error:  # the recipe has changed between them; the run has more to do
            if job.display is not None:
                job.display.say(f"no average: {error}")
            return
        job.say(f"the mean of the last {count} checkpoints is in {run / AVERAGED}")
