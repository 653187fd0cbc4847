"""`phraseloom hub`: models to and from the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phraseloom.cli.group import small_group, subcommand
from phraseloom.cli.outputs import OverwriteModel
from phraseloom.errors import plural

if TYPE_CHECKING:
    from phraseloom.hub import HubScore

Repository = Annotated[str, typer.Argument(metavar="REPO", help="A repository of the Hub: owner/name.")]

app = small_group(help="Push models to the Hugging Face Hub, and pull them.")


@subcommand(app, "push", "Upload a model with a model card.")
def push_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model or run folder (its best checkpoint).")],
    repository: Repository,
    licence: Annotated[
        str | None,
        typer.Option("--license", metavar="NAME", help="License for the model card, such as mit or cc-by-4.0."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub in one commit; needs phraseloom[hub] and a token.

    The repository is created if it does not exist. The model card has the languages, the license and, for the checkpoint of a
    run, its validation scores with the signature of sacreBLEU. The token is that of `hf auth login` or HF_TOKEN.
    """
    from phraseloom.hub import push
    from phraseloom.models.store import find_model

    folder = find_model(model)
    print(push(folder, repository, licence=licence, private=private, scores=recorded_scores(folder)))


@subcommand(app, "pull", "Fetch a model into a new folder.")
def pull_command(
    repository: Repository,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write.")],
    revision: Annotated[str, typer.Option(metavar="NAME", help="A branch, tag or commit.")] = "main",
    overwrite: OverwriteModel = False,
) -> None:
    """Fetch a model of phraseloom, or a MarianMT folder to convert, from the Hugging Face Hub; needs phraseloom[hub].

    Only safetensors, JSON, text and sentencepiece files are fetched, never pickles. Everything is compared with its checksum;
    an interrupted download leaves nothing behind.
    """
    from phraseloom.hub import pull

    pulled = pull(repository, folder, revision=revision, overwrite=overwrite)
    if pulled.left:
        names = ", ".join(pulled.left[:5]) + (", …" if len(pulled.left) > 5 else "")
        typer.echo(f"left on the Hub: {names}", err=True)
    what = "a model" if pulled.is_model else "no model of phraseloom"
    print(f"{folder}: {what}, {plural(pulled.files, 'file')}, commit {pulled.commit}")


def recorded_scores(folder: Path) -> list[HubScore]:
    """What the run of a checkpoint recorded when it validated it; nothing for a folder that is no checkpoint of a run."""
    from phraseloom.hub import HubScore
    from phraseloom.training.checkpoint import FOLDER, list_checkpoints
    from phraseloom.training.logbook import METRICS, read_records

    real = folder.resolve()
    run = real.parent.parent
    update = {path.resolve(): update for update, path in list_checkpoints(run)}.get(real)
    if real.parent.name != FOLDER or update is None:
        return []
    result = {}
    for record in read_records(run / METRICS)[0]:
        validation = record.get("validation")
        if record["update"] == update and isinstance(validation, dict):
            if "bleu" in validation:
                result["BLEU"] = HubScore("BLEU", float(validation["bleu"]), str(validation.get("signature", "")))
            result["perplexity"] = HubScore("perplexity", float(validation["perplexity"]))
    return list(result.values())
