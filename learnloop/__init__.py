"""A client of a Learnloop service.

    from learnloop import Learnloop

    with Learnloop("http://127.0.0.1:8000") as client:
        run = client.learn_loop(environment={"name": "email_search"}, iterations=14)
        for event in run.events():
            ...
        print(run.wait()["best_checkpoint"])

`AsyncLearnloop` is the same with `async` and `await`. The only dependency is httpx.
"""

from learnloop.client import AsyncLearnloop, AsyncRun, AsyncSession, Learnloop, Run, Session
from learnloop.errors import (
    APIError,
    Conflict,
    Forbidden,
    InvalidRequest,
    LearnloopError,
    NotAuthenticated,
    NotFound,
    ServiceError,
    TooManyRequests,
    Unreachable,
    WaitTimeout,
)

__all__ = [
    "APIError",
    "AsyncLearnloop",
    "AsyncRun",
    "AsyncSession",
    "Conflict",
    "Forbidden",
    "InvalidRequest",
    "Learnloop",
    "LearnloopError",
    "NotAuthenticated",
    "NotFound",
    "Run",
    "ServiceError",
    "Session",
    "TooManyRequests",
    "Unreachable",
    "WaitTimeout",
]
