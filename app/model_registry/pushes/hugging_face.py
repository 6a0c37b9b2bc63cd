"""Uploads a folder to a repository on the Hugging Face Hub."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential

from learnloop_service.app.errors import Forbidden
from learnloop_service.app.model_registry.pushes.destination import DestinationKind, require_library, require_settings
from learnloop_service.app.settings import Settings
from learnloop_service.environment.json_type import Json

_ATTEMPTS = 3
"""Attempts of the whole push, which is idempotent. The library also retries some requests itself."""


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A repository NAMESPACE/NAME on the Hugging Face Hub or on a server with the same protocol."""

    endpoint: str
    token: str = field(repr=False)
    repo: str


def hub_target(settings: Settings, project: str, repo: str) -> HubTarget:
    """Return a repository that the project can push to. Raises Forbidden, or Conflict (missing setting or library)."""
    require_settings({"HF_TOKEN": settings.hf_token, "LEARNLOOP_HF_REPOS": settings.hf_repos})
    require_library("huggingface_hub")
    allowed = [pattern for owner, pattern in settings.hf_repos if owner in ("*", project)]
    if not any(_matches(repo, pattern) for pattern in allowed):
        raise Forbidden(f"Project {project} can only push to: {', '.join(allowed) or 'no repository'}.")
    assert settings.hf_token is not None
    return HubTarget(str(settings.hf_endpoint).rstrip("/"), settings.hf_token.get_secret_value(), repo)


def _matches(repo: str, pattern: str) -> bool:
    """Compare the parts separately, so that * does not match a slash."""
    parts, pattern_parts = repo.split("/"), pattern.split("/")
    return len(parts) == len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts))


def _passing(error: BaseException) -> bool:
    from httpx2 import TransportError
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, TransportError) or (
        isinstance(error, HfHubHTTPError) and (error.response.status_code == 429 or error.response.status_code >= 500)
    )


@retry(retry=retry_if_exception(_passing), stop=stop_after_attempt(_ATTEMPTS), wait=wait_exponential(0.5), reraise=True)
def upload(files: Path, target: HubTarget, message: str) -> tuple[str, str]:
    """Upload all files in one commit to `main`, and return the repository's address and the commit. A new repository is
    private.

    Raises the library's errors; its HTTP errors contain the hub's message.
    """
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=target.endpoint, token=target.token)
    hub.create_repo(target.repo, private=True, exist_ok=True)
    commit = hub.upload_folder(repo_id=target.repo, folder_path=files, commit_message=message)
    return f"{target.endpoint}/{target.repo}", str(commit.oid)


def _upload(files: Path, target: Mapping[str, Json], message: str) -> tuple[str, str | None]:
    return upload(files, HubTarget(**target), message)


HUB = DestinationKind(hub_target, _upload)
