"""Downloads data sets and models from the Hugging Face hub, or a server with the same protocol, to folders on disk."""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnloop_service.environment.installation import install_command

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class RepositoryKind:
    """A kind of repository on the hub, and which of its files are needed."""

    repo_type: str
    name: str
    """Its name in messages."""
    files: tuple[str, ...]


MODEL = RepositoryKind("model", "model", ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"))


class HubError(Exception):
    """The hub does not have the repository or cannot be reached; the message says what would help."""


def is_hub_id(source: str) -> bool:
    """Return whether the source is on the hub, NAMESPACE/NAME, and not an existing path."""
    return bool(HUB_ID.fullmatch(source)) and not Path(source).exists()


def download_whole(repo: str, endpoint: str, token: str | None, folder: Path) -> Path:
    """Download a model's weights and tokenizer into an empty folder, if the disk has room for them and for the copy
    that is made of them next. No code and no pickles are downloaded. Raises HubError."""
    free = shutil.disk_usage(folder).free
    if (needed := 2 * download_size(repo, endpoint, token, folder)) > free:
        raise HubError(
            f"{repo} needs {needed / 1e9:,.1f} GB of disk while it is added, and {free / 1e9:,.1f} GB are free in "
            f"{folder.parent}"
        )
    return download(repo, endpoint, token, folder, MODEL)


def download_size(repo: str, endpoint: str, token: str | None, cache: Path) -> int:
    """Return the total size in bytes of the files that `download` would fetch for a model. Raises HubError."""
    files = _snapshot(repo, endpoint, token, cache, MODEL, dry_run=True)
    if not any(file.filename.endswith(".safetensors") for file in files):
        raise HubError(
            f"{repo} has no weights as safetensors files; other formats are not downloaded, because they can run code"
        )
    return sum(file.file_size or 0 for file in files)


def download(repo: str, endpoint: str, token: str | None, cache: Path, kind: RepositoryKind) -> Path:
    """Return a folder with the repository's newest revision; each file is downloaded once. Raises HubError."""
    return Path(_snapshot(repo, endpoint, token, cache, kind))


def _snapshot(
    repo: str, endpoint: str, token: str | None, cache: Path, kind: RepositoryKind, *, dry_run: bool = False
) -> Any:
    """Return the folder with the files, or, without fetching them, a list of what would be fetched. Raises HubError."""
    try:
        from httpx2 import HTTPError
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise HubError(
            f"{kind.name}s of the hub need the extra `data`: {install_command('data')}. A local copy of {repo} does not"
        ) from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    options: dict[str, Any] = {"repo_type": kind.repo_type, "endpoint": endpoint, "token": token or False}
    try:
        return snapshot_download(repo, cache_dir=cache, allow_patterns=list(kind.files), dry_run=dry_run, **options)
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        raise HubError(_reason(error, repo, endpoint, kind)) from error


def _reason(error: BaseException, repo: str, endpoint: str, kind: RepositoryKind) -> str:
    """Return why the hub does not give the repository, and what would help."""
    from huggingface_hub.errors import DryRunError, GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    is_absent = isinstance(error, DryRunError | LocalEntryNotFoundError)  # neither at the hub nor in the cache
    cause = (error.__cause__ or error) if is_absent else error
    if isinstance(cause, GatedRepoError):
        return (
            f"{repo} is only for those who accepted its conditions: accept them at {endpoint}/{repo}, and set HF_TOKEN "
            "to a token of that account"
        )
    if isinstance(cause, RepositoryNotFoundError):
        return f"{endpoint} has no {kind.name} {repo}, or only for those with a token (HF_TOKEN)"
    reason = f"{repo} cannot be fetched from {endpoint}: {_line(cause)}"
    return f"{reason}. A local copy does as well: give its path" if is_absent else reason


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
