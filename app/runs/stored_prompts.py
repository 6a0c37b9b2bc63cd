"""Prompts: versioned texts that an agent brings to its model, by name or hash."""

import asyncio
import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from learnloop_service.app.datasets import references, rows
from learnloop_service.app.datasets.documents import NewDocument, UnknownDocument, save_version, stored_text
from learnloop_service.app.datasets.references import UnknownDataset
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import InvalidRequest, Location
from learnloop_service.environment.base import Environment, OpenedEpisode, Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import TOOL, InvalidPrompt, Prompt, opening, read_prompt

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NOTHING_REPLACED = (
    "part {!r} replaces no text of the agent. Find its texts (learnloop prompts find NAME EVALUATION), and name what "
    "was found as the parent of new prompts (learnloop prompts upload NAME FILE --parent NAME@1)"
)


def prompt_document(project: str, prompt: Prompt) -> NewDocument:
    """Return the prompt as it is stored, and its number of parts."""
    text = canonical(prompt.as_json())
    reference = {"sha256": sha256(text.encode()).hexdigest(), "count": len(prompt.parts)}
    return NewDocument(project, "prompt", text, reference)


async def pinned_prompt(
    database: Database, data_dir: Path, reference: str | None, project: str | None, where: Location
) -> PromptReference | None:
    """Return the version that `NAME` or `NAME@VERSION` means now, or the prompt with that hash. Raises InvalidRequest
    at `where`."""
    if reference is None:
        return None
    try:
        if _SHA256.fullmatch(reference):
            await stored_text(database, project, "prompt", reference)
            version = await rows.find_content(database, project, "prompt", reference, "")
        else:
            version = await references.prompt(database, data_dir, reference, project)
    except (UnknownDataset, UnknownDocument) as error:
        raise InvalidRequest(where, f"{error}. Store one: learnloop prompts upload NAME FILE") from error
    if version is None:
        return PromptReference(sha256=reference)
    return PromptReference(sha256=version.sha256, name=version.name, version=version.version)


async def save_prompt(
    database: Database, project: str, prompt: Prompt, name: str, origin: Mapping[str, Json]
) -> PromptReference:
    """Store a prompt as the newest version of a name."""
    row = await save_version(database, prompt_document(project, prompt), "prompt", name, origin)
    return PromptReference(sha256=row.sha256, name=row.name, version=row.version)


async def read_stored(
    database: Database, project: str | None, reference: PromptReference | Mapping[str, Json] | None
) -> Prompt | None:
    """Return the prompt that is referred to. Raises UnknownDocument."""
    if reference is None:
        return None
    text = await stored_text(database, project, "prompt", PromptReference.model_validate(reference).sha256)
    return read_prompt(await asyncio.to_thread(json.loads, text))


def check_fits(
    environment: Environment, scenario: Scenario, prompt: Prompt, where: Location, *, replaces: bool = False
) -> None:
    """Raise InvalidRequest at `where` for a part or a placeholder that the environment does not have; with `replaces`,
    also for a part that replaces no text. Call it in a thread."""
    try:
        require_fit(environment, scenario, prompt, replaces=replaces)
    except InvalidPrompt as error:
        raise InvalidRequest(where, str(error)) from error


def require_fit(environment: Environment, scenario: Scenario, prompt: Prompt, *, replaces: bool = False) -> None:
    """Raise InvalidPrompt for a part or a placeholder that the environment does not have; with `replaces`, also for a
    part that replaces no text. Call it in a thread."""
    if replaces and (unknown := [part for part in prompt.parts if part not in prompt.replaces]):
        raise InvalidPrompt(None, _NOTHING_REPLACED.format(unknown[0]))
    episode = environment.episode(scenario)
    if isinstance(episode, OpenedEpisode) and not episode.tools:  # they are known once a rollout has opened it
        parts = {name: text for name, text in prompt.parts.items() if not name.startswith(TOOL)}
        prompt = Prompt(parts, prompt.replaces)
    opening(episode, prompt)
