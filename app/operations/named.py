"""Builds what a request names: the environment with its data, the judge, the agent. Faults name the field at fault."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from learnloop_service.app.datasets.documents import UnknownDocument, resolve_references
from learnloop_service.app.datasets.references import UnknownDataset, pin
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import Conflict, InvalidRequest, Location
from learnloop_service.app.operations.own_agent_requests import OwnAgentRequests
from learnloop_service.app.runs.configuration import make_agent, make_environment, make_judge, make_own_agent
from learnloop_service.app.settings import Settings
from learnloop_service.environment.access import Access
from learnloop_service.environment.base import Environment
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.environment.registry import UnknownEnvironment
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.judges.registry import UnknownJudge
from learnloop_service.training.rollout.agents.registry import UnknownAgent

ENVIRONMENT: Location = ("body", "environment")
_UNKNOWN = (UnknownEnvironment, UnknownJudge, UnknownAgent, PluginFault)


@contextmanager
def faults_at(where: Location, short: Mapping[str, Location] | None = None) -> Iterator[None]:
    """Raise a fault of the choice at `where` as InvalidRequest for its name, its config, or the data in its config.

    `short` has the locations of what the request gives elsewhere: of `config`, or of data by its kind.
    """
    short, config = short or {}, (*where, "config")
    try:
        yield
    except _UNKNOWN as fault:
        raise InvalidRequest((*where, "name"), str(fault)) from fault
    except (UnknownDataset, UnknownDocument) as fault:
        raise InvalidRequest(short.get(fault.kind, (*config, fault.kind)), str(fault)) from fault
    except ValueError as fault:
        raise InvalidRequest(short.get("config", config), str(fault)) from fault


@contextmanager
def rebuilding(what: str) -> Iterator[None]:
    """Raise a fault of a stored choice, which the request does not name, as Conflict: `what` cannot be rebuilt."""
    try:
        yield
    except (*_UNKNOWN, ValueError) as fault:
        raise Conflict(f"{what}: {fault}") from fault


async def pinned(database: Database, settings: Settings, choice: Choice, project: str) -> tuple[Choice, list[str]]:
    """Return the environment with the versions of the data that it names, and notes on them. Raises InvalidRequest."""
    choice, notes = await OwnAgentRequests(database, settings).prepared(choice, project)
    with faults_at(ENVIRONMENT):
        return await pin(database, settings.data_dir, choice, project), notes


async def built_environment(
    database: Database, data_dir: Path, choice: Choice, project: str | None, access: Access | None = None
) -> Environment:
    """Build the environment with the documents that it refers to. Raises UnknownDocument, and like make_environment."""
    whole = await resolve_references(database, data_dir, choice, project)
    return await asyncio.to_thread(make_environment, whole, data_dir, access)


def built_judge(choice: Choice, services: JudgeServices, where: Location) -> Judge:
    """Build the judge that the request names at `where`. Raises InvalidRequest."""
    with faults_at(where):
        return make_judge(choice, services)


def check_agents(agent: Choice | None, environment: Choice, modules: Sequence[str]) -> None:
    """Build the environment's agent and the request's, if any. Raises InvalidRequest. Call it in a thread."""
    try:
        make_own_agent(environment, modules)
    except ValueError as fault:
        raise InvalidRequest((*ENVIRONMENT, "config", "runner"), str(fault)) from fault
    with faults_at(("body", "agent")):
        make_agent(agent)
