"""Models on the Hugging Face Hub: `push`, `pull`, and addresses such as `hf://owner/name@revision` (docs/bridges.md).

Nothing is fetched unless a command or an address asks for it. Only safetensors, JSON, text and sentencepiece files are
fetched, and they are compared with their checksums before a folder takes its name, so that half a download leaves nothing.
The protocol is that of the package huggingface_hub (extra `hub`), with its environment variables: HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE. Models that are named by an address are stored in PHRASELOOM_CACHE, or else ~/.cache/phraseloom, by commit.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phraseloom.errors import CorruptError, FileProblem, PhraseloomError, UsageError, plural
from phraseloom.files import (
    EXPORT,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    FolderLock,
    atomic_write_json,
    is_inner,
    json_bytes,
    read_json,
    sha256_file,
    verify_manifest,
    write_manifest,
)
from phraseloom.reading import MIB, inside
from phraseloom.replace import FolderKind, check_folder, new_folder, remove_own, system_errors

SCHEME = "hf://"
ENDINGS = (
    ".safetensors", ".json", ".txt", ".md", ".tsv", ".vocab", ".codes", ".model", ".spm", ".truecase", ".yml", ".yaml",
)  # fmt: skip
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".npz", ".ot", ".joblib")
CARD, CONFIG, WEIGHTS = "README.md", "config.json", "model.safetensors"
PARTS = ("tokenizer/", "segmenter/")  # folders of a model
FILES = (CONFIG, WEIGHTS, "generation_config.json", "lexicon.tsv")
MODEL = FolderKind("model", needs=(CONFIG, WEIGHTS), without=("state.json",))
COPY = FolderKind("copy of a Hub repository", listing=EXPORT)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)


@dataclass(frozen=True)
class HubAddress:
    """A repository of the Hub and a branch, tag or commit in it."""

    repository: str
    revision: str = "main"


@dataclass(frozen=True)
class HubScore:
    """A score for the model card; a score of sacreBLEU comes with its signature."""

    metric: str
    value: float
    signature: str = ""
    text: str = "validation text of the run"


@dataclass(frozen=True)
class PulledModel:
    """What `pull` wrote: the commit, whether it is a model of phraseloom, and the files that were left on the Hub."""

    commit: str
    is_model: bool
    files: int
    left: tuple[str, ...]


def parse_address(path: str | Path) -> HubAddress | None:
    """The address that `path` is, None for the path of a folder. Raises UsageError for a malformed address.

    A Path makes `hf:/` of `hf://`; that is an address unless there is such a folder.
    """
    text = os.fspath(path)
    if not text.startswith(SCHEME) and (not text.startswith("hf:/") or Path(path).exists()):
        return None
    repository, _, revision = text.removeprefix("hf:").lstrip("/").partition("@")
    if revision == "" and "@" in text:
        raise UsageError("no revision after the @", file=text, hint="hf://owner/name@revision")
    return HubAddress(check_repository(repository), revision or "main")


def check_repository(name: str) -> str:
    """`name` if it is that of a repository. Raises UsageError."""
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name:
        raise UsageError(f"{name!r} does not name a repository of the Hub", hint="owner/name")
    return name


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Errors of huggingface_hub as ours, in one line. Its warnings and, away from a terminal, its bars are silenced."""
    try:
        from huggingface_hub import errors
        from huggingface_hub.utils import (
            are_progress_bars_disabled,
            disable_progress_bars,
            enable_progress_bars,
            logging,
        )
    except ImportError as error:
        raise UsageError("the package huggingface_hub is missing", hint="pip install 'phraseloom[hub]'") from error
    level, bars = logging.get_verbosity(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        disable_progress_bars()
    where = f"{SCHEME}{repository}"
    try:
        yield
    except PhraseloomError:
        raise
    except errors.OfflineModeIsEnabled as error:
        raise FileProblem("HF_HUB_OFFLINE is set, so nothing is fetched", file=where) from error
    except errors.RevisionNotFoundError as error:
        raise FileProblem("the repository has no such revision", file=where) from error
    except errors.GatedRepoError as error:
        raise FileProblem("no permission: its owner has to grant you access", file=where) from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the name; for a private one, log in with `hf auth login` or set HF_TOKEN"
        raise FileProblem("no such repository, or a private one", file=where, hint=hint) from error
    except errors.HfHubHTTPError as error:
        raise _refused(error.response.status_code, where) from error
    except (errors.HTTPError, OSError, ValueError, RuntimeError) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):  # of a file, on the way there or back
            raise _refused(error.__cause__.response.status_code, where) from error
        if type(error) is OSError and error.errno is not None:  # of the disk; whoever writes says so
            raise
        said = " ".join(str(error).split())[:200]
        hint = "is this machine online?"
        raise FileProblem(f"the Hub was not reached, or its answer was cut ({said})", file=where, hint=hint) from error
    finally:
        logging.set_verbosity(level)
        if bars:
            enable_progress_bars()


def _refused(status: int, where: str) -> FileProblem:
    if status in (401, 403):
        hint = "log in with `hf auth login`, or set HF_TOKEN to a token with the right to do this"
        return FileProblem(f"no permission (the Hub answered {status})", file=where, hint=hint)
    return FileProblem(f"the Hub answered {status}", file=where, hint="run the command again later")


def _client() -> Any:
    from huggingface_hub import HfApi

    from phraseloom import __version__

    return HfApi(
        endpoint=os.environ.get("HF_ENDPOINT") or None,
        library_name="phraseloom",
        library_version=__version__,
    )


def pull(repository: str, output: str | Path, *, revision: str = "main", overwrite: bool = False) -> PulledModel:
    """Write the files of a repository as the folder `output`, whole or not at all.

    A model of phraseloom is compared with its manifest. Of any other repository, such as a MarianMT model, the plain files
    beside the pickles are copied. Raises UsageError for the name of the repository, or without the package huggingface_hub;
    FileProblem where the Hub says no or is not reached, CorruptError for a download that is not whole.
    """
    check_repository(repository)
    if Path(output).is_dir() and not overwrite:
        check_folder(output, MODEL)
    return _write_copy(_Remote(HubAddress(repository, revision)), output, overwrite=overwrite)


class _Remote:
    """A repository at one commit, and its files by name."""

    def __init__(self, address: HubAddress) -> None:
        self.repository = address.repository
        with hub_errors(self.repository):
            self._client = _client()
            info = self._client.model_info(self.repository, revision=address.revision, files_metadata=True)
        self.commit, self.files = str(info.sha), {file.rfilename: file for file in info.siblings or ()}

    def fetch(self, name: str, folder: Path) -> None:
        """Fetch a file; CorruptError if it is not the one that the Hub lists."""
        with hub_errors(self.repository):
            self._client.hf_hub_download(self.repository, name, revision=self.commit, local_dir=folder)
        path, listed = inside(folder, name), self.files[name]
        size = path.stat().st_size
        if listed.size is not None and size != listed.size:
            raise CorruptError(f"{size:,} bytes of {listed.size:,}: the download is not whole", file=name)
        if listed.lfs is not None:
            is_same = sha256_file(path) == listed.lfs.sha256
        else:
            is_same = listed.blob_id is None or _git_blob(path) == listed.blob_id
        if not is_same:
            raise CorruptError("the download is damaged: its checksum is not the one of the Hub", file=name)


def _git_blob(path: Path) -> str:
    """The name of a file's content in git, which the Hub lists for files that are not in Git LFS."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as handle:
        while part := handle.read(MIB):
            digest.update(part)
    return digest.hexdigest()


def _write_copy(remote: _Remote, output: str | Path, *, overwrite: bool = False) -> PulledModel:
    is_model = MANIFEST in remote.files and any(name.startswith(PARTS) for name in remote.files)
    if not is_model:
        _refuse_pickles(remote)
    with new_folder(output, MODEL if is_model else COPY, overwrite=overwrite) as new:
        if is_model:
            remote.fetch(MANIFEST, new)
            names = _names_of_model(new, remote)
        else:
            names = sorted(name for name in remote.files if "/" not in name and name.endswith(ENDINGS))
        for name in names:
            remote.fetch(name, new)
        remove_own(new / ".cache")  # of huggingface_hub
        if is_model:
            _verify_copy(new)
        else:
            write_manifest(new, names, listing=EXPORT)
    left = sorted(remote.files.keys() - {*names, MANIFEST, ".gitattributes"})
    return PulledModel(remote.commit, is_model, len(names), tuple(left))


def _refuse_pickles(remote: _Remote) -> None:
    pickled = sorted(name for name in remote.files if name.endswith(PICKLES))
    if pickled and not any(name.endswith(".safetensors") for name in remote.files):
        what = f"its weights are no safetensors but {pickled[0]}, which may run code and is not fetched"
        raise FileProblem(what, file=f"{SCHEME}{remote.repository}", hint="look for a revision with model.safetensors")


def _names_of_model(new: Path, remote: _Remote) -> list[str]:
    """The files of a model by its manifest. CorruptError if a model has no such file or the repository lacks it."""
    content = read_json(new / MANIFEST, "manifest", limit=MANIFEST_MAX_BYTES)
    listed = content.get("files") if isinstance(content, dict) else None
    where = f"{SCHEME}{remote.repository}"
    if not isinstance(listed, dict):
        raise CorruptError("manifest.json is not that of a model", file=where)
    for name in listed:
        if not is_inner(name) or name.startswith(".") or not name.endswith(ENDINGS):
            raise CorruptError(f"{name[:80]!r} is not a file of a model, and is not fetched", file=where)
        if name not in remote.files:
            raise CorruptError(f"the manifest names {name}, which the repository lacks", file=where)
    return sorted(listed)


def _verify_copy(new: Path) -> None:
    """Compare a model with its manifest, once the card, which may have been edited on the Hub, is listed as it is."""
    content = read_json(new / MANIFEST, "manifest", limit=MANIFEST_MAX_BYTES)
    if CARD in content["files"]:
        content["files"][CARD] = _entry((new / CARD).read_bytes())
        atomic_write_json(new / MANIFEST, content)
    verify_manifest(new)


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def cache_folder() -> Path:
    """Where models that are named by an address are stored."""
    given = os.environ.get("PHRASELOOM_CACHE")
    if given:
        return Path(given) / "hub"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phraseloom" / "hub"


def fetched(address: HubAddress) -> Path:
    """The folder of a model of phraseloom on the Hub, fetched unless its commit is stored. Raises as `pull`.

    If another process is fetching from the same repository, wait for it.
    """
    return _fetched(address, os.environ.get("HF_ENDPOINT"), cache_folder())


@functools.cache
def _fetched(address: HubAddress, _endpoint: str | None, cache: Path) -> Path:
    """`_endpoint` only tells the results for two servers apart."""
    place = cache / address.repository.replace("/", "--")
    if _COMMIT.fullmatch(address.revision) and (place / address.revision / MANIFEST).is_file():
        return place / address.revision
    remote = _Remote(address)
    folder = place / remote.commit
    if (folder / MANIFEST).is_file():
        return folder
    if MANIFEST not in remote.files:
        hint = f"for a MarianMT model: phraseloom hub pull {address.repository} FOLDER, then convert from-marian"
        raise FileProblem(
            "this is no model of phraseloom (no manifest.json)", file=f"{SCHEME}{address.repository}", hint=hint
        )
    with system_errors(folder), FolderLock(place, wait=True):
        if not (folder / MANIFEST).is_file():  # another process may have fetched it meanwhile
            _write_copy(remote, folder)
    return folder


def push(
    folder: Path, repository: str, *, licence: str | None = None, private: bool = False, scores: Iterable[HubScore] = ()
) -> str:
    """Upload the model in `folder` in one commit, with a model card; the address of the commit.

    The repository is created if it does not exist, `private` or not. Of a checkpoint, only the files of the model go.
    Every file is verified first. What others wrote into the card in the repository is kept (`hub_card`). Raises as `pull`.
    """
    check_repository(repository)
    listed = verify_manifest(folder)
    names = [name for name in listed if name in FILES or name.startswith(PARTS)]
    if not {CONFIG, WEIGHTS} <= set(names):
        raise FileProblem("not a model folder", file=folder)
    if strange := [name for name in names if not name.endswith(ENDINGS)]:
        raise FileProblem(f"{strange[0]} is not a kind of file that is pushed", file=folder)
    with hub_errors(repository):
        client = _client()
        client.create_repo(repository, private=private or None, exist_ok=True)
    before = _card_of(_Remote(HubAddress(repository)))
    card = hub_card(folder, repository.partition("/")[2], licence=licence, scores=scores, before=before).encode()
    entries = {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_file(folder / name)} for name in names}
    manifest = json_bytes({"format": 1, "files": dict(sorted((entries | {CARD: _entry(card)}).items()))})
    with hub_errors(repository):
        from huggingface_hub import CommitOperationAdd

        operations = [CommitOperationAdd(name, str(folder / name)) for name in names]
        operations += [CommitOperationAdd(CARD, card), CommitOperationAdd(MANIFEST, manifest)]
        what = f"A model of phraseloom: {plural(len(operations), 'file')}"
        return str(client.create_commit(repository, operations, commit_message=what).commit_url)


def _card_of(remote: _Remote) -> str:
    """The card in a repository; "" without one."""
    if CARD not in remote.files:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        remote.fetch(CARD, Path(folder))
        return (Path(folder) / CARD).read_bytes().decode(errors="replace").replace("\r\n", "\n")


def hub_card(
    folder: Path, name: str, *, licence: str | None = None, scores: Iterable[HubScore] = (), before: str = ""
) -> str:
    """The model card of a folder with the metadata that the Hub reads: languages, license, scores with their signatures.

    `before`: the card in the repository. Its metadata stay where this model says nothing else, except for scores, its tags
    stay beside the new ones, and so do its sections (`## …`) of other titles.
    """
    import yaml

    config = read_json(folder / CONFIG, "model configuration", limit=MIB)
    task = config.get("task", "translation")
    languages = config.get("languages")
    spoken = list(dict.fromkeys(languages.values())) if isinstance(languages, dict) else []
    known, kept = _split_card(before)
    metadata, body = _split_card((folder / CARD).read_bytes().decode() if (folder / CARD).is_file() else f"# {name}\n")
    tags = [tag for part in (known, metadata) for tag in _listed(part.get("tags"))]
    metadata = {key: value for key, value in known.items() if key != "model-index"} | metadata
    metadata |= {"language": [code for code in spoken if code]} if any(spoken) else {}
    metadata |= {"license": licence} if licence else {}
    kind = "translation" if task == "translation" else "text-generation"
    metadata |= {"library_name": "phraseloom", "pipeline_tag": kind}
    metadata["tags"] = list(dict.fromkeys([*tags, "phraseloom"]))
    scores = list(scores)
    if scores:
        metrics = [
            {"type": s.metric.lower(), "name": s.metric, "value": s.value}
            | ({"args": {"signature": s.signature}} if s.signature else {})
            for s in scores
        ]
        where = {"name": scores[0].text, "type": "text"}
        result = {"task": {"type": kind}, "dataset": where, "metrics": metrics}
        metadata["model-index"] = [{"name": name, "results": [result]}]
        rows = [f"| {s.metric} | {s.value:g} | {f'`{s.signature}`' if s.signature else ''} |" for s in scores]
        body = body.partition("\n## Scores\n")[0].rstrip("\n") + "\n"
        body += (
            f"\n## Scores\n\nOn the {scores[0].text}.\n\n| metric | score | signature |\n|---|---|---|\n"
            + "\n".join(rows)
        )
        body += "\n"
    body += _other_sections(kept, body)
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{body}"


def _listed(value: Any) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list) else [value] if value else [])]


def _other_sections(text: str, body: str) -> str:
    """The sections of `text` whose titles `body` lacks, but for scores, which are those of an earlier model."""
    titles = {_title(section) for section in _SECTION.split(body)[1:]} | {"## Scores"}
    others = [section.strip("\n") for section in _SECTION.split(text)[1:] if _title(section) not in titles]
    return "".join(f"\n{section}\n" for section in others)


def _title(section: str) -> str:
    return section.partition("\n")[0].strip()


def _split_card(text: str) -> tuple[dict[str, Any], str]:
    """The metadata and the text of a model card."""
    import yaml

    if not text.startswith("---\n") or "\n---\n" not in text[3:]:
        return {}, text
    head, _, body = text[4:].partition("\n---\n")
    try:
        metadata = yaml.safe_load(head)
    except yaml.YAMLError:
        metadata = None
    return (metadata if isinstance(metadata, dict) else {}), body.lstrip("\n")
