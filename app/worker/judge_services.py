"""Services for judges: the listed models, a cache of verdicts, and feedback."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from sqlalchemy import TextClause, text
from sqlalchemy.dialects.postgresql import insert

from learnloop_service.app.aio.event_loops import run_on_loop
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import JudgeVerdict, Run
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.feedback.evidence import StoredFeedback
from learnloop_service.app.listed_models import ListedModels
from learnloop_service.app.settings import Settings
from learnloop_service.environment.base import Environment
from learnloop_service.environment.first_line import first_line
from learnloop_service.judges.base import JudgeServices, NoFeedback, NoRateLimit, RateLimit

log = structlog.get_logger(__name__)


def judge_services(
    settings: Settings,
    database: Database,
    main_loop: asyncio.AbstractEventLoop,
    run: Run | None,
    environment: Environment,
) -> JudgeServices:
    """Return the services for a run's judge. Without a run there is no feedback.

    The judge works on another event loop; the database is queried on `main_loop`.
    """
    return JudgeServices(
        rubric=environment.rubric,
        models=ListedModels(settings, _rate(settings, database, main_loop)),
        cache=StoredVerdicts(database, main_loop),
        feedback=NoFeedback() if run is None else StoredFeedback(database, main_loop, run),
    )


class StoredVerdicts:
    """Caches verdicts in the database. Without the database nothing is cached, and judging continues."""

    def __init__(self, database: Database, main_loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._main_loop = main_loop

    async def get(self, key: str) -> dict[str, Any] | None:
        try:
            return await run_on_loop(self._main_loop, self._get(key))
        except DATABASE_DOWN as error:
            log.warning("no cached verdict: the database does not answer", error=first_line(error))
            return None

    async def put(self, key: str, value: dict[str, Any]) -> None:
        try:
            await run_on_loop(self._main_loop, self._put(key, value))
        except DATABASE_DOWN as error:
            log.warning("verdict not cached: the database does not answer", error=first_line(error))

    async def _get(self, key: str) -> dict[str, Any] | None:
        async with self._database() as tx:
            row = await tx.get(JudgeVerdict, key)
        return None if row is None else row.value

    async def _put(self, key: str, value: dict[str, Any]) -> None:
        async with self._database.begin() as tx:
            await tx.execute(insert(JudgeVerdict).values(key=key, value=value).on_conflict_do_nothing())


def _rate(settings: Settings, database: Database, main_loop: asyncio.AbstractEventLoop) -> RateLimit:
    requests, tokens = settings.judge_requests_per_minute, settings.judge_tokens_per_minute
    if requests is None and tokens is None:
        return NoRateLimit()
    return StoredRate(database, main_loop, requests_per_minute=requests, tokens_per_minute=tokens)


class StoredRate:
    """Spaces the requests to each judge model evenly across all workers.

    The generic cell rate algorithm (ITU-T I.371, virtual scheduling, without a burst) on the database's clock, for
    requests and for tokens: each request moves the earliest time of the next one. Without the database nothing is
    limited, and judging continues.
    """

    def __init__(
        self,
        database: Database,
        main_loop: asyncio.AbstractEventLoop,
        *,
        requests_per_minute: float | None,
        tokens_per_minute: float | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """None means no limit. `sleep` waits until it is a request's turn."""
        self._database = database
        self._main_loop = main_loop
        self._request_s = 60 / requests_per_minute if requests_per_minute else 0.0
        self._token_s = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._sleep = sleep

    async def turn(self, model: str, tokens: int) -> None:
        figures = {"model": model, "request_s": self._request_s, "tokens_s": tokens * self._token_s}
        wait_s = await self._execute(_RESERVE, figures)
        if wait_s is not None and wait_s > 0:
            await self._sleep(wait_s)

    async def used(self, model: str, more_tokens: int) -> None:
        if self._token_s and more_tokens:
            await self._execute(_CORRECT, {"model": model, "tokens_s": more_tokens * self._token_s})

    async def _execute(self, statement: TextClause, figures: dict[str, Any]) -> float | None:
        async def execute() -> float | None:
            async with self._database.begin() as tx:
                seconds = (await tx.execute(statement, figures)).scalar_one_or_none()
                return None if seconds is None else float(seconds)

        try:
            return await run_on_loop(self._main_loop, execute())
        except DATABASE_DOWN as error:
            log.warning("judge model not limited: the database does not answer", error=first_line(error))
            return None


_RESERVE = text(
    "INSERT INTO judge_rate AS rate (model, requests_at, tokens_at) VALUES (:model, "
    "clock_timestamp() + make_interval(secs => :request_s), clock_timestamp() + make_interval(secs => :tokens_s)) "
    "ON CONFLICT (model) DO UPDATE SET "
    "requests_at = greatest(rate.requests_at, clock_timestamp()) + make_interval(secs => :request_s), "
    "tokens_at = greatest(rate.tokens_at, clock_timestamp()) + make_interval(secs => :tokens_s) "
    "RETURNING extract(epoch FROM greatest(requests_at - make_interval(secs => :request_s), "
    "tokens_at - make_interval(secs => :tokens_s)) - clock_timestamp())"
)
_CORRECT = text(
    "UPDATE judge_rate SET tokens_at = tokens_at + make_interval(secs => :tokens_s) WHERE model = :model RETURNING NULL"
)
