"""A Hugging Face hub on a real port, without Xet, for `create_repo`, `upload_folder` and `snapshot_download`."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from tests.fakes.answering import Answer, answering


@dataclass
class Repo:
    """`files` are those of the last commit on `main`."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    """Messages of the commits."""

    @property
    def head(self) -> str:
        return hashlib.sha1(f"{len(self.commits)}".encode()).hexdigest()


@dataclass
class HubServer:
    """`refusals` are pairs of status and message that answer the first requests, one each. Large files use LFS."""

    token: str = "hf_" + "t" * 34
    refusals: list[tuple[int, str]] = field(default_factory=list)
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Contents of LFS objects by SHA-256."""
    datasets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of data sets, by repository and path."""
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files of public models, by repository and path."""
    private_datasets: set[str] = field(default_factory=set)
    """Data sets that only exist for requests with the token."""
    gated: set[str] = field(default_factory=set)
    """Models that are only for those who accepted their conditions."""
    cut_off: set[str] = field(default_factory=set)
    """Names of files of which only half is sent."""
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.requests.append(f"{method} {path}")
        if path.startswith("/lfs/"):  # a signed URL needs no token
            digest = path.removeprefix("/lfs/")
            if hashlib.sha256(body).hexdigest() != digest:
                return _json(400, {"error": "other bytes were announced"})
            self.objects[digest] = body
            return 200, {}, b""
        if "/datasets/" in path:
            has_token = headers.get("authorization") == f"Bearer {self.token}"
            public = {id: files for id, files in self.datasets.items() if has_token or id not in self.private_datasets}
            return _download(path, "datasets/", public, "datasets")
        if any(path.startswith((f"/api/models/{id}/", f"/{id}/")) for id in self.gated):
            refused = {"x-error-code": "GatedRepo", "content-type": "application/json"}
            return 403 if "authorization" in headers else 401, refused, b'{"error": "Access to it is restricted"}'
        if method in ("GET", "HEAD") and "authorization" not in headers:
            status, more, content = _download(path, "", self.models, "models")
            is_cut = method == "GET" and path.rpartition("/")[2] in self.cut_off
            return status, more, content[: len(content) // 2] if is_cut else content
        if headers.get("authorization") != f"Bearer {self.token}":
            return _json(401, {"error": f"no such token: {headers.get('authorization')}"})
        if self.refusals:
            status, words = self.refusals.pop(0)
            return _json(status, {"error": words})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        return self._of_repo(method, path, body)

    def _create(self, request: Json) -> Answer:
        id = f"{request['organization']}/{request['name']}"
        status = 409 if id in self.repos else 200
        self.repos.setdefault(id, Repo(request.get("private") or request.get("visibility") == "private"))
        return _json(status, {"url": f"{self.url}/{id}"})

    def _of_repo(self, method: str, path: str, body: bytes) -> Answer:
        for id, repo in self.repos.items():
            match path.removeprefix(f"/api/models/{id}").removeprefix(f"/{id}"):
                case "/preupload/main":
                    return _json(200, {"files": [_mode(file, repo) for file in json.loads(body)["files"]]})
                case ".git/info/lfs/objects/batch":
                    return _json(200, {"objects": [self._upload(upload) for upload in json.loads(body)["objects"]]})
                case "/commit/main":
                    return self._commit(id, [json.loads(line) for line in body.splitlines()])
                case "/revision/main" | "" if method == "GET":
                    return _json(200, {"id": id, "sha": repo.head, "siblings": [], "tags": [], "private": repo.private})
        return _json(404, {"error": f"not scripted: {method} {path}"})

    def _upload(self, request: Json) -> Json:
        there = request["oid"] in self.objects
        return request | ({} if there else {"actions": {"upload": {"href": f"{self.url}/lfs/{request['oid']}"}}})

    def _commit(self, id: str, lines: list[Json]) -> Answer:
        repo, values = self.repos[id], _by_key(lines)
        new = {entry["path"]: base64.b64decode(entry["content"]) for entry in values["file"]}
        new |= {entry["path"]: self.objects[entry["oid"]] for entry in values["lfsFile"]}
        repo.files |= new
        repo.commits.append(values["header"][0]["summary"])
        return _json(200, {"commitUrl": f"{self.url}/{id}/commit/{repo.head}", "commitOid": repo.head})


def _download(path: str, prefix: str, repositories: Mapping[str, Mapping[str, bytes]], kind: str) -> Answer:
    """Answer a request for the files of repositories that can be read."""
    for id, files in repositories.items():
        sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        if path.startswith(f"/api/{kind}/{id}/revision/"):
            return _json(200, {"id": id, "sha": sha, "siblings": [{"rfilename": name} for name in files]})
        if path.startswith(f"/api/{kind}/{id}/tree/"):
            entries = [{"type": "file", "path": name, "size": len(files[name]), "oid": sha} for name in files]
            return _json(200, entries)
        name = path.removeprefix(f"/{prefix}{id}/resolve/{sha}/")
        if name in files:
            etag = hashlib.sha1(files[name]).hexdigest()
            return 200, {"etag": f'"{etag}"', "x-repo-commit": sha, "accept-ranges": "none"}, files[name]
    missing = {"x-error-code": "RepoNotFound", "content-type": "application/json"}
    return 404, missing, json.dumps({"error": "Repository not found"}).encode()


def _by_key(lines: list[Json]) -> dict[str, list[Json]]:
    kinds = ("header", "file", "lfsFile")
    return {kind: [line["value"] for line in lines if line["key"] == kind] for kind in kinds}


def _mode(file: Json, repo: Repo) -> Json:
    """Return whether a file goes through LFS, and its current id in the repository."""
    mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
    there = repo.files.get(file["path"])
    oid = None
    if there is not None:
        git = b"blob %d\0" % len(there) + there
        oid = hashlib.sha256(there).hexdigest() if mode == "lfs" else hashlib.sha1(git).hexdigest()
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}


def _json(status: int, body: Json) -> Answer:
    return status, {"content-type": "application/json"}, json.dumps(body).encode()


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """Run a hub while the context is open."""
    server = HubServer()
    with answering(server.answer) as server.url:
        yield server
