"""Prepares requests with external agents for storage: scenarios become hashes, secrets are encrypted."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from learnloop_service.app.agent_sessions.consented import (
    SessionFilter,
    read_filter,
    scenarios_of_sessions,
    stored_scenarios,
)
from learnloop_service.app.datasets import documents
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.http.body_limit import MAX_VALUES_OF_BIG
from learnloop_service.app.http.json_values import has_more_values
from learnloop_service.app.runs.configuration import runner_of
from learnloop_service.app.security.address_guard import AddressGuard, AddressRefused, guarded_transport, parse
from learnloop_service.app.security.secret_box import secret_box
from learnloop_service.app.security.webhook_signing import is_secret
from learnloop_service.app.settings import Settings
from learnloop_service.app.worker.own_agents import opened, sealed
from learnloop_service.environment.bounded_http import AnswerLimits, AnswerTooLarge, BoundedTransport
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.own_agent.environment import NAME as OWN_AGENT
from learnloop_service.environment.own_agent.runner import Push

_CONFIG = ("body", "environment", "config")
_FETCH_TIMEOUT_S = 30.0
_REMEDY = (
    "The operator can allow a private one by LEARNLOOP_ALLOWED_PRIVATE_HOSTS. An agent that fetches its tasks, "
    '`"runner": {"pull": {}}`, needs no address.'
)


@dataclass(frozen=True)
class OwnAgentRequests:
    """Prepares requests with the environment `agent`; other environments are left unchanged."""

    database: Database
    settings: Settings

    async def prepared(self, environment: Choice, project: str) -> tuple[Choice, list[str]]:
        """Return the environment to store, and notes for its owner. Raises InvalidRequest."""
        if environment.name != OWN_AGENT:
            return environment, []
        config, notes = dict(environment.config), list[str]()
        scenarios = config.get("scenarios")
        if isinstance(scenarios, Mapping) and "url" in scenarios:
            config["scenarios"] = await self._fetched(scenarios["url"], project)
        if isinstance(scenarios, Mapping) and "sessions" in scenarios:
            config["scenarios"], notes = await self._from_sessions(scenarios["sessions"], project)
        try:
            runner = runner_of(environment)
        except ValueError as error:
            raise InvalidRequest((*_CONFIG, "runner"), str(error)) from error
        if isinstance(runner, Push):
            config["runner"] = {"push": await self._push(runner)}
        return Choice(name=environment.name, config=config), notes

    async def _push(self, runner: Push) -> dict[str, Json]:
        where = (*_CONFIG, "runner", "push")
        try:
            await self._guard.check(runner.url)
        except AddressRefused as error:
            raise InvalidRequest((*where, "url"), f"{error}. {_REMEDY}") from error
        if runner.secret is None:
            return {"url": runner.url}
        box = secret_box(self.settings.secret_key, self.settings.data_dir)
        if isinstance(runner.secret, str) and is_secret(runner.secret):
            return {"url": runner.url, "secret": sealed(box, runner)}
        try:
            opened(box, runner)  # an encrypted secret, taken over from the parent run of a fork
        except ValueError as error:
            reason = str(error) if isinstance(runner.secret, Mapping) else "whsec_ and 24 to 64 random bytes in base64"
            raise InvalidRequest((*where, "secret"), reason) from error
        return {"url": runner.url, "secret": dict(runner.secret)}

    async def _fetched(self, url: Json, project: str) -> Mapping[str, Json]:
        """Fetch the scenarios at the URL, store them, and return the reference to them."""
        where = (*_CONFIG, "scenarios", "url")
        if not isinstance(url, str):
            raise InvalidRequest(where, "url must be a text")
        try:
            rows = _rows(await self._read(url))
            new = documents.document(project, "scenarios", rows)
        except (AddressRefused, httpx.HTTPError, ValueError) as error:
            raise InvalidRequest(where, f"the scenarios cannot be fetched: {error or type(error).__name__}") from error
        async with self.database.begin() as tx:
            await documents.save(tx, [new])
        return new.reference

    async def _from_sessions(self, sessions: Json, project: str) -> tuple[Mapping[str, Json], list[str]]:
        """Make and store scenarios from production sessions. Returns the reference to them, and notes for the owner."""
        where = (*_CONFIG, "scenarios", "sessions")
        which = read_filter(SessionFilter, sessions, where)
        try:
            scenarios = await scenarios_of_sessions(self.database, project, which)
            return await stored_scenarios(self.database, project, scenarios), [*scenarios.notes]
        except ValueError as error:
            raise InvalidRequest(where, str(error)) from error

    async def _read(self, url: str) -> bytes:
        """Fetch the URL. Raises AddressRefused, httpx.HTTPError, ValueError."""
        parsed = parse(url)
        limits = AnswerLimits(self.settings.max_graph_bytes)
        transport = BoundedTransport(guarded_transport(self._guard), limits)
        try:
            async with (
                asyncio.timeout(_FETCH_TIMEOUT_S),
                httpx.AsyncClient(transport=transport, timeout=None, follow_redirects=False) as client,
                client.stream("GET", parsed, headers={"user-agent": "learnloop"}) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise ValueError(f"{url} answered {response.status_code}")
                content = await response.aread()
        except TimeoutError:
            raise ValueError(f"{url} took longer than {_FETCH_TIMEOUT_S:g} s") from None
        except AnswerTooLarge as refused:
            raise ValueError(f"{url}: {refused} (LEARNLOOP_MAX_GRAPH_BYTES)") from refused
        if has_more_values(content, MAX_VALUES_OF_BIG):
            raise ValueError(f"{url} has more than {MAX_VALUES_OF_BIG:,} JSON values")
        return content

    @property
    def _guard(self) -> AddressGuard:
        return AddressGuard(self.settings.allowed_private_hosts)


def _rows(content: bytes) -> list[Json]:
    """Parse a JSON list, an object with the list as `scenarios`, or JSON Lines. Raises ValueError."""
    text = content.decode("utf-8")
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = [json.loads(line) for line in text.split("\n") if line.strip()]
    rows = parsed.get("scenarios") if isinstance(parsed, dict) else parsed
    if not isinstance(rows, list):
        raise ValueError("it is no list of scenarios")
    return rows
