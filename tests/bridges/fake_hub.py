"""As much of the Hugging Face Hub on the loopback as `huggingface_hub` needs: repositories of files, commits, uploads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "of-a-writer"


def _blob(data: bytes) -> str:
    """The name of a content in git."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _metadata(card: bytes) -> dict[str, Any] | None:
    """What stands between the lines `---` of a model card."""
    parts = card.split(b"---\n")
    return yaml.safe_load(parts[1]) if len(parts) > 2 and not parts[0] else None


class FakeHub:
    """Repositories by name and commit; what was asked; what goes wrong."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, dict[str, bytes]]] = {}  # repository: commit: path: content
        self.branches: dict[tuple[str, str], str] = {}
        self.objects: dict[str, bytes] = {}  # of Git LFS, by SHA-256
        self.large: set[str] = set()
        self.asked: list[str] = []
        self.private: set[str] = set()
        self.cut: dict[str, int] = {}  # path: bytes after which every transfer of it ends
        self.change: dict[str, bytes] = {}  # path: what is sent in its place
        self.hold: dict[str, threading.Event] = {}  # path: it is not sent before this
        self.broken: int | None = None  # a status for every question
        self.url = ""

    def put(self, repository: str, content: dict[str, bytes], branch: str = "main") -> str:
        """A commit with these files; its hash."""
        listed = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in content.items())
        commit = hashlib.sha1(repr((repository, listed)).encode()).hexdigest()
        self.commits.setdefault(repository, {})[commit] = dict(content)
        self.branches[repository, branch] = commit
        self.large |= {name for name in content if name.endswith((".safetensors", ".bin"))}
        return commit

    def files(self, repository: str, revision: str = "main") -> dict[str, bytes]:
        """The files at a branch or commit."""
        return self.commits[repository][self.branches.get((repository, revision), revision)]


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, status: int, value: Any = None, headers: dict[str, str] | None = None) -> None:
            body = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def missing(self, code: str, status: int = 404) -> None:
            self.answer(status, {"error": code}, {"X-Error-Code": code, "X-Error-Message": code})

        @property
        def may_write(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while (size := int(self.rfile.readline().split(b";")[0], 16)) > 0:
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def begins(self) -> str | None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            if hub.broken is not None:
                self.answer(hub.broken, {"error": "broken"})
                return None
            return path

        def do_GET(self) -> None:
            path = self.begins()
            if path is None:
                return
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                self.model_info(found[1], found[2] or "main")
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self.file(found[1], found[2], found[3])
            else:
                self.missing("NotFound")

        do_HEAD = do_GET

        def commit_of(self, repository: str, revision: str) -> str | None:
            if repository not in hub.commits or (repository in hub.private and not self.may_write):
                self.missing("RepoNotFound", 401 if not self.may_write else 404)
                return None
            commit = hub.branches.get((repository, revision), revision)
            if commit not in hub.commits[repository]:
                self.missing("RevisionNotFound")
                return None
            return commit

        def model_info(self, repository: str, revision: str) -> None:
            commit = self.commit_of(repository, revision)
            if commit is None:
                return
            siblings = []
            for name, data in hub.commits[repository][commit].items():
                entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": _blob(data)}
                if name in hub.large:
                    sha256 = hashlib.sha256(data).hexdigest()
                    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n"
                    entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": len(pointer)}
                    entry["blobId"] = _blob(pointer.encode())
                siblings.append(entry)
            answer = {
                "id": repository,
                "modelId": repository,
                "sha": commit,
                "siblings": siblings,
                "tags": ["computed"],
            }
            if card := _metadata(hub.commits[repository][commit].get("README.md", b"")):
                answer["cardData"] = card
            self.answer(200, answer)

        def file(self, repository: str, revision: str, name: str) -> None:
            commit = self.commit_of(repository, revision)
            if commit is None:
                return
            if name not in hub.commits[repository][commit]:
                self.missing("EntryNotFound")
                return
            if name in hub.hold and self.command != "HEAD":
                hub.hold[name].wait(60)
            data = hub.change.get(name, hub.commits[repository][commit][name])
            begin = 0
            if found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
                begin = int(found[1])
            self.send_response(206 if begin else 200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data) - begin))
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[begin : hub.cut.get(name)])
                self.close_connection = name in hub.cut

        def do_POST(self) -> None:
            body, path = self.body(), self.begins()
            if path is None:
                return
            if path == "/api/validate-yaml":
                self.answer(200, {"errors": [], "warnings": []})
            elif not self.may_write:
                self.missing("Forbidden", 403 if "Authorization" in self.headers else 401)
            elif path == "/api/repos/create":
                self.create(json.loads(body))
            elif found := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
                names = [file["path"] for file in json.loads(body)["files"]]
                modes = ["lfs" if name.endswith(".safetensors") else "regular" for name in names]
                self.answer(200, {"files": [
                    {"path": n, "uploadMode": m, "shouldIgnore": False, "oid": None} for n, m in zip(names, modes, strict=True)
                ]})  # fmt: skip
            elif path.endswith(".git/info/lfs/objects/batch"):
                wanted = json.loads(body)["objects"]
                self.answer(200, {"transfer": "basic", "objects": [
                    {**o, "actions": {"upload": {"href": f"{hub.url}/upload/{o['oid']}"}}} for o in wanted
                ]})  # fmt: skip
            elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
                self.commit(found[1], [json.loads(line) for line in body.split(b"\n") if line])
            else:
                self.missing("NotFound")

        def create(self, wanted: dict[str, Any]) -> None:
            repository = f"{wanted['organization']}/{wanted['name']}"
            if repository in hub.commits:
                self.answer(409, {"error": "already exists", "url": f"{hub.url}/{repository}"})
                return
            hub.put(repository, {".gitattributes": b"*.safetensors filter=lfs\n"})
            if wanted.get("visibility") == "private" or wanted.get("private"):
                hub.private.add(repository)
            self.answer(200, {"url": f"{hub.url}/{repository}"})

        def commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
            content = dict(hub.files(repository))
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    content[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    content[value["path"]] = hub.objects[value["oid"]]
            made = hub.put(repository, content)
            url = f"{hub.url}/{repository}/commit/{made}"
            self.answer(200, {"success": True, "commitOid": made, "commitUrl": url, "hookOutput": ""})

        def do_PUT(self) -> None:
            body, path = self.body(), self.begins()
            if path is None:
                return
            oid = path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == oid
            hub.objects[oid] = body
            self.answer(200, {})

    return Handler


@contextmanager
def running() -> Iterator[FakeHub]:
    """A Hub with an address of its own until the block ends."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
