"""A service with a release, whose users and arms are known to the test."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from ulid import ULID

from learnloop_service.app.db.tables import Promotion, Release
from learnloop_service.app.domain.release_state import Arm, ReleaseState
from learnloop_service.app.releases.assignment import assignment
from learnloop_service.app.security.user_hash import UserHasher
from learnloop_service.environment.email_search.synthetic import address_of
from tests.fakes.engine_process import EngineProcess
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import CALLER, ModelStage, model_stage

QUESTION = {"question": "When is the kickoff?", "inbox_address": address_of("test", 0, 3)}
SALT = bytes(range(16))
STEPS = {Arm.STABLE: 1, Arm.CANDIDATE: 0}
SECRET = "a secret of at least 32 characters"
HASHER = UserHasher(SECRET.encode())
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture
async def stage(model_engine: EngineProcess, data_dir: Path, database_url: str) -> AsyncIterator[ModelStage]:
    """A service with a known secret, so that a test knows the hash of each user."""
    async with model_stage(model_engine, data_dir, database_url, secret_key=SECRET) as made:
        yield made


@pytest.fixture(autouse=True)
async def promoted(stage: ModelStage) -> None:
    stage.service.client.headers.update(bearer(await stage.key()))
    promoted = await stage.service.client.post(f"/models/{CALLER}/promote", json={"step": 1, "as": "live"})
    assert promoted.status_code == 201, promoted.text


async def release_of(stage: ModelStage, *, share: float = 0.5, **changed: Any) -> str:
    async with stage.service.database.begin() as tx:
        newest = (await tx.execute(select(func.max(Promotion.id)))).scalar_one()
        row: dict[str, Any] = {
            "id": str(ULID()),
            "project": "mail",
            "name": "live",
            "state": ReleaseState.RUNNING,
            "salt": SALT,
            "unit": "user",
            "promotion_id": newest,
            "backend": "embedded",
            "model_name": "caller",
            "step": STEPS[Arm.CANDIDATE],
            "stage": [0.05, 0.2, 0.5].index(share),
            "share": share,
            "rules": {"ramp": [0.05, 0.2, 0.5]},
            "baseline": {"p95_s": 1000.0, "tokens": 100.0, "users_14d": 0},
            "actor": "local",
        }
        tx.add(Release(**row | changed))
    return str((row | changed)["id"])


def user_of(arm: Arm, *, share: float = 0.5, is_enrolled: bool = True, number: int = 0) -> str:
    """A user who meets that arm at that share; the first one, or one of a later number."""
    users = [f"user {number}" for number in range(1_000)]
    met = {user: assignment(SALT, HASHER.hash_of(user), share) for user in users}
    return [user for user in users if (met[user].arm, met[user].is_enrolled) == (arm, is_enrolled)][number]


async def rows(stage: ModelStage, table: Any) -> Sequence[Any]:
    async with stage.service.database() as tx:
        return (await tx.execute(select(table))).scalars().all()
