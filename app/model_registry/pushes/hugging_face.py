"""Uploads a folder to a repository on the Hugging Face Hub."""

from dataclasses import dataclass, field
from pathlib import Path

from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential

_ATTEMPTS = 3
"""Attempts of the whole push, which is idempotent. The library also retries some requests itself."""


@dataclass(frozen=True, slots=True)
class HubTarget:
    """A repository NAMESPACE/NAME on the Hugging Face Hub or on a server with the same protocol."""

    endpoint: str
    token: str = field(repr=False)
    repo: str


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
