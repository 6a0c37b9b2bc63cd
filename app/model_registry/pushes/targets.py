"""Where checkpoints can be pushed according to the operator's settings. A request can only name a place within them."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Any

from learnloop_service.app.errors import Conflict, Forbidden
from learnloop_service.app.model_registry.pushes.hugging_face import HubTarget
from learnloop_service.app.model_registry.pushes.s3 import S3Target
from learnloop_service.app.settings import Settings
from learnloop_service.environment.installation import needs_extra

Target = HubTarget | S3Target


def hub_target(settings: Settings, project: str, repo: str) -> HubTarget:
    """Return a repository that the project can push to. Raises Forbidden, or Conflict (missing setting or library)."""
    _require_settings({"HF_TOKEN": settings.hf_token, "LEARNLOOP_HF_REPOS": settings.hf_repos})
    _require_library("huggingface_hub")
    allowed = [pattern for owner, pattern in settings.hf_repos if owner in ("*", project)]
    if not any(_matches(repo, pattern) for pattern in allowed):
        raise Forbidden(f"Project {project} can only push to: {', '.join(allowed) or 'no repository'}.")
    assert settings.hf_token is not None
    return HubTarget(str(settings.hf_endpoint).rstrip("/"), settings.hf_token.get_secret_value(), repo)


def s3_target(settings: Settings, project: str, prefix: str) -> S3Target:
    """Return a place in the bucket under the operator's prefix and the project's name. Raises Conflict."""
    _require_settings(
        {
            "LEARNLOOP_S3_BUCKET": settings.s3_bucket,
            "LEARNLOOP_S3_KEY_ID": settings.s3_key_id,
            "LEARNLOOP_S3_SECRET": settings.s3_secret,
        }
    )
    _require_library("obstore")
    assert settings.s3_bucket is not None
    assert settings.s3_key_id is not None
    assert settings.s3_secret is not None
    return S3Target(
        endpoint=None if settings.s3_endpoint is None else str(settings.s3_endpoint).rstrip("/"),
        bucket=settings.s3_bucket,
        region=settings.s3_region,
        key_id=settings.s3_key_id.get_secret_value(),
        secret=settings.s3_secret.get_secret_value(),
        prefix="/".join(part for part in (settings.s3_prefix, project, prefix) if part),
    )


def _matches(repo: str, pattern: str) -> bool:
    """Compare the parts separately, so that * does not match a slash."""
    parts, wanted = repo.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _require_settings(needed: Mapping[str, Any]) -> None:
    if missing := [name for name, value in needed.items() if not value]:
        raise Conflict(f"This service is not configured for this push. Missing settings: {', '.join(missing)}.")


def _require_library(module: str) -> None:
    if find_spec(module) is None:
        raise Conflict(f"This push needs {needs_extra('export')}.")
