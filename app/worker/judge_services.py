"""What the service lends to judges: the configured model, a cache of verdicts, and the feedback there is."""

import asyncio
from typing import Any

import structlog
from sqlalchemy.dialects.postgresql import insert

from app.aio.event_loops import run_on_loop
from app.db.session import Sessions
from app.db.tables import Run, Verdict
from app.errors import DATABASE_DOWN
from app.feedback.evidence import StoredFeedback
from app.settings import Settings
from environment.base import Environment
from judges.base import JudgeModel, JudgeServices

log = structlog.get_logger(__name__)


def judge_model(settings: Settings) -> JudgeModel:
    """The configured judge model."""
    key = settings.judge_api_key or settings.openai_api_key
    return JudgeModel(
        name=settings.judge_model,
        base_url=str(settings.judge_base_url) if settings.judge_base_url else None,
        api_key=key.get_secret_value() if key else None,
        concurrency=settings.judge_concurrency,
    )


def judge_services(
    settings: Settings, sessions: Sessions, home: asyncio.AbstractEventLoop, run: Run, environment: Environment
) -> JudgeServices:
    """For the judge of one run, which works on a loop of its own; the database is asked at `home`."""
    return JudgeServices(
        rubric=environment.rubric,
        model=judge_model(settings),
        cache=StoredVerdicts(sessions, home),
        feedback=StoredFeedback(sessions, home, run),
    )


class StoredVerdicts:
    """The table of verdicts. Without the database nothing is cached, and judging continues."""

    def __init__(self, sessions: Sessions, home: asyncio.AbstractEventLoop) -> None:
        self._sessions = sessions
        self._home = home

    async def get(self, key: str) -> dict[str, Any] | None:
        try:
            return await run_on_loop(self._home, self._get(key))
        except DATABASE_DOWN as error:
            log.warning("no cached verdict: the database does not answer", error=str(error).splitlines()[0])
            return None

    async def put(self, key: str, value: dict[str, Any]) -> None:
        try:
            await run_on_loop(self._home, self._put(key, value))
        except DATABASE_DOWN as error:
            log.warning("verdict not cached: the database does not answer", error=str(error).splitlines()[0])

    async def _get(self, key: str) -> dict[str, Any] | None:
        async with self._sessions() as session:
            row = await session.get(Verdict, key)
        return None if row is None else row.value

    async def _put(self, key: str, value: dict[str, Any]) -> None:
        async with self._sessions.begin() as session:
            await session.execute(insert(Verdict).values(key=key, value=value).on_conflict_do_nothing())
