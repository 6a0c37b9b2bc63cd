"""Downloads data sets and models from the Hugging Face hub, or a server with the same protocol, to folders on disk."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environment.installation import install_command


@dataclass(frozen=True, slots=True)
class RepositoryKind:
    """A kind of repository on the hub, and which of its files are needed."""

    repo_type: str
    name: str
    """Its name in messages."""
    files: tuple[str, ...]


DATA_SET = RepositoryKind(
    "dataset",
    "data set",
    ("*.parquet", "*.arrow", "*.jsonl", "*.jsonl.gz", "*.ndjson", "*dataset_dict.json", "*state.json"),
)
MODEL = RepositoryKind("model", "model", ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"))


class HubError(Exception):
    """The hub does not have the repository or cannot be reached; the message says what would help."""


def download(repo: str, endpoint: str, token: str | None, cache: Path, kind: RepositoryKind = DATA_SET) -> Path:
    """Return a folder with the repository's newest revision; each file is downloaded once. Raises HubError."""
    try:
        from httpx2 import HTTPError
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise HubError(
            f"{kind.name}s of the hub need the extra `data`: {install_command('data')}. A local copy of {repo} does not"
        ) from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    options: dict[str, Any] = {"repo_type": kind.repo_type, "endpoint": endpoint, "token": token or False}
    try:
        return Path(snapshot_download(repo, cache_dir=cache, allow_patterns=list(kind.files), **options))
    except RepositoryNotFoundError as error:
        raise HubError(f"{endpoint} has no {kind.name} {repo}, or only for those with a token (HF_TOKEN)") from error
    except LocalEntryNotFoundError as error:
        raise HubError(
            f"{repo} cannot be fetched from {endpoint}: {_line(error.__cause__ or error)}. A local copy does as well: "
            "give its path"
        ) from error
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        raise HubError(f"{repo} cannot be fetched from {endpoint}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
