"""Connects runs and evaluations to the agents that make their rollouts elsewhere, as their requests say."""

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from learnloop_service.app.agent_sessions.tasks import AgentTasks
from learnloop_service.app.db.database import Database
from learnloop_service.app.domain.stored_evaluation import Contestant, StoredEvaluation
from learnloop_service.app.domain.stored_request import Choice, StoredRequest
from learnloop_service.app.runs.configuration import is_replaced, make_player, runner_of
from learnloop_service.app.security.address_guard import AddressGuard
from learnloop_service.app.security.secret_box import SecretBox, SecretUnreadable, secret_box
from learnloop_service.app.settings import Settings
from learnloop_service.app.worker.agent_dispatch import PullDispatch, PushDispatch, TaskReceiver
from learnloop_service.app.worker.rollout_sessions import LeasedSessions
from learnloop_service.environment.own_agent.runner import Pull, Push
from learnloop_service.training.backends.registry import engine_backend, is_on_engine
from learnloop_service.training.rollout.agents.remote import Dispatch, SessionRollouts
from learnloop_service.training.rollout.rollout import Player


@dataclass(frozen=True)
class OwnAgents:
    """Connects to agents that run elsewhere."""

    database: Database
    settings: Settings

    async def player(
        self,
        environment: Choice,
        request: StoredRequest | StoredEvaluation,
        sessions: LeasedSessions,
        now: Callable[[], datetime],
        contestant: Contestant | None = None,
    ) -> Player | None:
        """Return what makes the rollouts of a run, or of one of an evaluation's models, in place of the built-in loop,
        if anything does. Raises ValueError."""
        runner = runner_of(environment)
        if not isinstance(runner, Push | Pull):
            return await asyncio.to_thread(make_player, request.agent, environment, self.settings.agent_modules)
        if contestant and (
            contestant.kind == "prompted" or not (contestant.backend is None or is_on_engine(contestant.backend))
        ):
            raise ValueError(
                f"an agent that lives elsewhere can only be given models of the backend {engine_backend()}, not "
                f"{contestant.model}"
            )
        dispatch = self._dispatch(runner, sessions, now)
        limited, replaced = request.budget is not None, is_replaced(environment)
        return SessionRollouts(sessions, dispatch, limited=limited, replaced=replaced)

    def _dispatch(self, runner: Push | Pull, sessions: LeasedSessions, now: Callable[[], datetime]) -> Dispatch:
        if isinstance(runner, Pull):
            tasks = AgentTasks(self.database)
            return PullDispatch(sessions, tasks, sessions.main_loop, sessions.project, sessions.lease.id)
        guard = AddressGuard(self.settings.allowed_private_hosts)
        receiver = TaskReceiver(runner.url, self._secrets(runner))
        return PushDispatch(sessions, guard, receiver, self.settings.agents_url, sessions.lease.id, now)

    def _secrets(self, runner: Push) -> list[str]:
        if runner.secret is None:
            return []
        box = secret_box(self.settings.secret_key, self.settings.data_dir)
        return [opened(box, runner)]


def sealed(box: SecretBox, runner: Push) -> dict[str, str]:
    """Return a runner's secret as a stored request has it. It can only be used for the same URL."""
    return {"sealed": base64.b64encode(box.seal(runner.secret, _owner(runner))).decode()}


def opened(box: SecretBox, runner: Push) -> str:
    """Return the secret of a stored runner. Raises ValueError if it cannot be read."""
    try:
        return box.open(base64.b64decode(runner.secret["sealed"], validate=True), _owner(runner))
    except (SecretUnreadable, binascii.Error, KeyError, TypeError) as error:
        raise ValueError(
            "the secret of the runner cannot be read: it was stored for another URL, or by a service with another "
            "LEARNLOOP_SECRET_KEY"
        ) from error


def _owner(runner: Push) -> str:
    return f"runner {runner.url}"
