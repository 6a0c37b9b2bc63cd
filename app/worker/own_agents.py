"""Connects runs and evaluations to the agents that make their rollouts elsewhere, as their requests say."""

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from app.agent_sessions.tasks import AgentTasks
from app.claims.lease import Lease
from app.db.database import Database
from app.db.tables import EvaluationJob, Run
from app.domain.stored_evaluation import Contestant, StoredEvaluation
from app.domain.stored_request import Choice
from app.runs.configuration import runner_of
from app.security.address_guard import AddressGuard
from app.security.secret_box import SecretBox, SecretUnreadable, secret_box
from app.settings import Settings
from app.worker.agent_dispatch import PullDispatch, PushDispatch, Receiver
from app.worker.rollout_sessions import LeasedSessions
from environment.own_agent.runner import Pull, Push
from training.backends import embedded
from training.rollout.agents.remote import Dispatch, RemoteRollouts, SessionRollouts
from training.rollout.agents.sessions import RolloutSessions


@dataclass(frozen=True)
class OwnAgents:
    """Connects to agents that run elsewhere."""

    database: Database
    settings: Settings

    def of_run(
        self,
        environment: Choice,
        run: Run,
        lease: Lease[Run],
        main_loop: asyncio.AbstractEventLoop,
        now: Callable[[], datetime],
    ) -> RemoteRollouts | None:
        """Return the rollouts of an agent that runs elsewhere, or None if it runs here. Raises ValueError."""
        runner = runner_of(environment)
        if not isinstance(runner, Push | Pull):
            return None
        mine = LeasedSessions(self.database, lease, main_loop, project=run.model_project, backend=run.backend)
        dispatch = self._dispatch(runner, mine, main_loop, run.model_project, run.id, now)
        return SessionRollouts(mine, dispatch, limited=run.stored_request.budget is not None)

    def of_evaluation(
        self,
        environment: Choice,
        job: EvaluationJob,
        contestant: Contestant,
        lease: Lease[EvaluationJob],
        main_loop: asyncio.AbstractEventLoop,
        now: Callable[[], datetime],
    ) -> RemoteRollouts | None:
        """Do the same for one of the models that an evaluation compares. Raises ValueError."""
        runner = runner_of(environment)
        if not isinstance(runner, Push | Pull):
            return None
        if contestant.kind == "prompted" or contestant.backend not in (None, embedded.NAME):
            raise ValueError(
                f"an agent that lives elsewhere can only be given models of the backend {embedded.NAME}, not "
                f"{contestant.model}"
            )
        mine = LeasedSessions(self.database, lease, main_loop, project=job.project, backend=embedded.NAME)
        dispatch = self._dispatch(runner, mine, main_loop, job.project, job.id, now)
        return SessionRollouts(mine, dispatch, limited=StoredEvaluation.parse(job.request).budget is not None)

    def _dispatch(
        self,
        runner: Push | Pull,
        mine: RolloutSessions,
        main_loop: asyncio.AbstractEventLoop,
        project: str,
        waiting_id: str,
        now: Callable[[], datetime],
    ) -> Dispatch:
        if isinstance(runner, Pull):
            return PullDispatch(mine, AgentTasks(self.database), main_loop, project, waiting_id)
        guard = AddressGuard(self.settings.allowed_private_hosts)
        receiver = Receiver(runner.url, self._secrets(runner))
        return PushDispatch(mine, guard, receiver, self.settings.agents_url, waiting_id, now)

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
