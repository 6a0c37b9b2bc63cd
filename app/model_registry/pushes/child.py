"""The child process of a push: downloads the checkpoint from the engine, verifies its files, and uploads it.

It is a separate process because the libraries' uploads can only be stopped by ending the process, and because they read
settings from the environment. The job is passed in LEARNLOOP_PUSH (see push.py), because it contains secrets; the
result is written to `result.json` in the given folder.
"""

import hashlib
import http.client
import json
import os
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

from learnloop_service.app.model_registry.pushes.destination import destination
from learnloop_service.environment.json_type import Json

_ENGINE_PATIENCE_S = 600.0
"""The engine checks the hashes of all files before it sends the first byte."""
_FOR_GOOD = (404, 409, 410)
_MAX_WORDS = 1_000


class NotFetched(Exception):
    """The checkpoint could not be fetched; the message says why. `status`: 409 is permanent, 503 may be temporary."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def main() -> None:
    folder, job = Path(sys.argv[1]), json.loads(os.environ.pop("LEARNLOOP_PUSH"))
    try:
        files = _fetched(job["url"], job["key"], folder)
        result = _uploaded(files, job)
    except NotFetched as error:
        result = {"status": error.status, "error": str(error)}
    except Exception as error:  # the libraries raise many kinds
        result = {"status": 502, "error": _message(error)}
    (folder / "result.json").write_text(json.dumps(result))


def _uploaded(files: Path, job: Json) -> Json:
    url, revision = destination(job["to"]).upload(files, job["target"], job["checkpoint"])
    sizes = [path.stat().st_size for path in files.iterdir()]
    return {"url": url, "revision": revision, "files": len(sizes), "bytes": sum(sizes)}


def _fetched(url: str, key: str, folder: Path) -> Path:
    """Return the folder with the checkpoint's files, verified against the manifest. Raises NotFetched."""
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_ENGINE_PATIENCE_S) as reply, tarfile.open(fileobj=reply, mode="r|") as tar:
            tar.extractall(folder / "tar", filter="data")
    except urllib.error.HTTPError as error:
        raise NotFetched(409 if error.code in _FOR_GOOD else 503, _error_text(error)) from error
    except (OSError, tarfile.TarError, http.client.HTTPException) as error:
        raise NotFetched(503, f"the checkpoint was not transferred completely: {error}") from error
    (files,) = (folder / "tar").iterdir()
    _verify(files)
    return files


def _verify(files: Path) -> None:
    digests = json.loads((files / "manifest.json").read_text())["files"]
    if {path.name for path in files.iterdir()} != {*digests, "manifest.json"}:
        raise NotFetched(409, "the files of the checkpoint do not match its manifest")
    for name, expected in digests.items():
        with (files / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                raise NotFetched(409, f"{name} differs from its manifest")


def _error_text(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"the engine answered {error.code}"


def _message(error: BaseException | None) -> str:
    """Return the error's message and those of its causes on one line."""
    messages = []
    while error is not None:
        plain = str(error).partition("Debug source:")[0]  # obstore's debug output follows it
        messages.append(" ".join(plain.split()) or type(error).__name__)
        error = error.__cause__
    return ": ".join(messages)[:_MAX_WORDS]


if __name__ == "__main__":
    main()
