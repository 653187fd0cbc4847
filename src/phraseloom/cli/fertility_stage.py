"""The last stage of `phraseloom train` for a recipe with `training.fertility`: the module that gates words and phrases.

run/fertility/            the model with the module
run/fertility_bleu.json   validation BLEU with and without the gate, if the recipe has `training.bleu_every`
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phraseloom.cli.streams import note
from phraseloom.errors import UsageError
from phraseloom.files import FolderLock, atomic_write_json, read_json, sha256_file

if TYPE_CHECKING:
    from phraseloom.recipe import AnyRecipe, Recipe

BLEU = "fertility_bleu.json"
FIGURES = {"bleu", "bleu_without", "signature"}


def check_labels(recipe: AnyRecipe) -> bool:
    """Whether the recipe has this stage, and a dataset (`run_recipe` reports its lack).

    Raises FileProblem if a file of labels is missing, UsageError if they do not belong to the dataset.
    """
    from phraseloom.recipe import Recipe
    from phraseloom.reproduce.phrase_data import find_labels

    if not isinstance(recipe, Recipe) or recipe.training.fertility is None or not Path(recipe.data.folder).is_dir():
        return False
    find_labels(recipe.data)
    return True


def add_fertility(recipe: Recipe, run: Path) -> None:
    """Train the fertility module of the finished run, unless the run has it already.

    A signal ends the stage at once by InterruptedRun, and nothing of it is kept. Raises UsageError if the dataset was
    replaced since the training began, and as `check_labels`.
    """
    from phraseloom.training.launcher import launched_process
    from phraseloom.training.signals import LeaveAtOnce

    hint = "the same command trains the fertility module"
    with FolderLock(run), LeaveAtOnce(hint, insists=launched_process() is None):
        _train_and_score(recipe, run)


def _train_and_score(recipe: Recipe, run: Path) -> None:
    from phraseloom.reproduce.phrase_data import find_labels
    from phraseloom.training.fertility import Files, is_from, train_fertility
    from phraseloom.training.fertility_fit import FertilityFitOptions

    assert recipe.training.fertility is not None
    _check_dataset(recipe, run)
    labels = find_labels(recipe.data)
    stage = recipe.training.fertility.model_dump()
    sizes = {"widths": tuple(stage["widths"]), "weights": stage["weights"] and tuple(stage["weights"])}
    options = FertilityFitOptions(**{**stage, **sizes}, seed=recipe.training.seed)
    files = Files(*labels["train"], *labels.get("valid", ()))
    output = run / "fertility"
    device = "cpu" if recipe.training.device == "auto" else recipe.training.device
    if is_from(output, run, files, options):
        note("fertility", f"{output} is finished already")
    else:
        train_fertility(run, files, output, options, device=device, overwrite=True, report=partial(note, "fertility"))
    if recipe.training.bleu_every:
        found = _bleu_of_gate(recipe, run, output, device)
        bleu = f"validation BLEU {found['bleu']:.2f} with the gate, {found['bleu_without']:.2f} without it"
        note("fertility", f"{bleu} ({found['signature']})")
    note("fertility", f"the model with the fertility module: phraseloom translate {output}")


def _check_dataset(recipe: Recipe, run: Path) -> None:
    from phraseloom.data.shards import INDEX
    from phraseloom.training.run_folder import noted_dataset

    index = Path(recipe.data.folder) / INDEX
    if not index.is_file() or sha256_file(index) != noted_dataset(run):
        raise UsageError(
            "the dataset was replaced during the training, so its labels are those of another text",
            file=recipe.data.folder,
            hint=f"prepare the earlier text again and repeat this command, or use phraseloom fertility train {run}",
        )


def _bleu_of_gate(recipe: Recipe, run: Path, gated: Path, device: str) -> dict[str, Any]:
    """Validation BLEU of the model with its gate, as the recipe decodes, and of the one without: `BLEU` has it, or gets it."""
    from phraseloom.data.corpus import Dataset
    from phraseloom.training.validate import bleu_of

    beam = recipe.training.bleu_beam
    made_from = {"weights_sha256": sha256_file(gated / "model.safetensors"), "beam": beam}
    known = read_json(run / BLEU, "validation BLEU of the gate") if (run / BLEU).is_file() else None
    if isinstance(known, dict) and made_from.items() <= known.items() and known.keys() >= FIGURES:
        return known
    dataset = Dataset.open(recipe.data.folder)
    valid = dataset.split("valid")
    bare, scored = (bleu_of(folder, valid, dataset.tokenizer, beam=beam, device=device) for folder in (run, gated))
    found = {**made_from, "bleu": scored["bleu"], "bleu_without": bare["bleu"], "signature": scored["signature"]}
    atomic_write_json(run / BLEU, found)
    return found
