"""Starts releases for benchmarks without a trial, as the service does after one."""

import random
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from app.db.tables import Promotion, Release
from app.domain.release_rules import ReleaseRules
from app.domain.release_state import ReleaseState
from app.releases import moves


@dataclass(frozen=True, slots=True)
class Started:
    """A name `PROJECT/NAME` with a live release of a model's checkpoint against another one."""

    project: str
    name: str
    model: str
    stable_step: int
    candidate_step: int
    rules: ReleaseRules
    p95_s: float | None = None
    """Stable's 95th percentile of seconds before the release, for the guardrail `slow`."""
    tokens: float | None = None
    """Stable's mean number of sampled tokens before the release, for the guardrail `cost`."""
    seed: int = 0
    """Decides the salt."""

    async def start(self, tx: AsyncSession) -> str:
        """Promote the stable checkpoint and let users meet the candidate. Returns the release's id."""
        stable = Promotion(
            project=self.project,
            name=self.name,
            backend="embedded",
            model_name=self.model,
            step=self.stable_step,
            actor="local",
        )
        tx.add(stable)
        await tx.flush()
        row = Release(
            id=str(ULID()),
            project=self.project,
            name=self.name,
            state=ReleaseState.TRIAL,
            salt=random.Random(f"{self.seed} {self.name}").randbytes(16),
            unit="user",
            promotion_id=stable.id,
            backend="embedded",
            model_name=self.model,
            step=self.candidate_step,
            share=self.rules.ramp[0],
            rules=self.rules.model_dump(mode="json"),
            baseline={"p95_s": self.p95_s, "tokens": self.tokens, "users": 0, "days": 14},
            actor="local",
        )
        tx.add(row)
        await tx.flush()
        await moves.start_traffic(tx, row, "local", None)
        return row.id
