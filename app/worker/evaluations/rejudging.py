"""The work of a rejudging: stored rollouts are judged again. The verdicts on a group in one repeat are saved in one
transaction, so a worker that takes over judges only what is missing."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random
from typing import Any

from learnloop_service.app.aio.event_loops import shielded
from learnloop_service.app.claims.lease import LeaseLost
from learnloop_service.app.domain.stored_evaluation import RejudgingEvaluation
from learnloop_service.app.evaluations.rejudge_report import stored_rejudge_report
from learnloop_service.app.evaluations.rejudgings import RejudgingStore, StoredGroup
from learnloop_service.app.runs.configuration import make_judge
from learnloop_service.app.runs.stored_rollouts import judged_rollout
from learnloop_service.app.worker.evaluations.state import OpenedEvaluation
from learnloop_service.app.worker.measures import count_judge_calls
from learnloop_service.app.worker.save_iteration import verdict_row
from learnloop_service.environment.base import Json
from learnloop_service.judges.base import Judge, Judgement, JudgeServices, VerdictCache
from learnloop_service.training.loop.task_errors import first_of_several
from learnloop_service.training.scoring import assign_rewards, judge_group
from learnloop_service.training.types import Rollout, RunConfig, ScoredRollout


@dataclass(frozen=True)
class Rejudging:
    """A rejudging in progress, on its own event loop."""

    request: RejudgingEvaluation
    opened: OpenedEvaluation
    store: RejudgingStore
    config: RunConfig
    """The run's config."""
    services: JudgeServices

    async def report(self) -> dict[str, Json]:
        """Judge everything that is not saved yet, and return the report."""
        rejudge, state, store = self.request.rejudge, self.opened.state, self.store
        groups = await state.query(lambda: store.groups(rejudge, self.config))
        saved_verdicts = await state.query(lambda: store.verdicts(state.job.id))
        judges = [
            make_judge(self.request.judge, replace(self.services, cache=_repeated(self.services.cache, repeat)))
            for repeat in range(rejudge.repeats)
        ]
        with first_of_several(LeaseLost):
            async with asyncio.TaskGroup() as tasks:
                for group in groups:
                    for repeat, judge in enumerate(judges):
                        if (group.rows[0].id, repeat) not in saved_verdicts:
                            tasks.create_task(self._judge(group, repeat, judge))
        report = await state.query(lambda: stored_rejudge_report(store, state.job.id, rejudge, groups))
        # The other fields compare models, and every report has them.
        method = {"name": "stored rollouts, judged again", "draws": 0, "level": 0.95}
        empty = {"compared": {}, "method": method, "models": []}
        return {"scenarios": len(groups), "samples": rejudge.repeats, **empty, "rejudge": report}

    async def _judge(self, group: StoredGroup, repeat: int, judge: Judge) -> None:
        state, opened = self.opened.state, self.opened
        async with opened.gate:
            rows = await state.query(lambda: self.store.whole(group.ids))
            rollouts = [judged_rollout(row) for row in rows]
            order = list(range(len(rollouts)))
            if repeat:  # another order of candidates, because a judge can prefer a place
                Random(f"{self.request.seed}/{rows[0].id}/{repeat}").shuffle(order)
            async with opened.budget.judging() as judged:
                judgement = await judge_group(judge, rollouts[0].scenario, [rollouts[index] for index in order])
                judged(judgement)
        scored = self._scored(rollouts, order, judgement)
        verdicts = [self._row(rollout, repeat) for rollout in scored]
        await shielded(state.query(lambda: self.store.keep(state.lease, verdicts, judgement.calls)))
        state.saved(len(verdicts))
        count_judge_calls(judgement.calls)

    def _scored(
        self, rollouts: Sequence[Rollout], order: Sequence[int], judgement: Judgement
    ) -> Sequence[ScoredRollout]:
        """Return the rollouts with their verdicts in the stored order, in which advantages round as in the run."""
        finished = [index for index in order if rollouts[index].failure is None]
        scores = dict(zip(finished, judgement.scores, strict=True))
        ordered = Judgement([scores[index] for index in sorted(scores)], judgement.calls)
        return assign_rewards(self.opened.environment, rollouts[0].scenario, rollouts, ordered).rollouts

    def _row(self, scored: ScoredRollout, repeat: int) -> dict[str, Any]:
        key = {"evaluation_id": self.opened.state.job.id, "trajectory_id": scored.rollout.id, "repeat": repeat}
        return key | verdict_row(scored) | {"advantage": scored.advantage}


@dataclass(frozen=True, slots=True)
class _RepeatedVerdicts:
    """A cache in which each repeat of a verdict has a key of its own."""

    inner: VerdictCache
    repeat: int

    async def get(self, key: str) -> dict[str, Json] | None:
        return await self.inner.get(self._key(key))

    async def put(self, key: str, value: dict[str, Json]) -> None:
        await self.inner.put(self._key(key), value)

    def _key(self, key: str) -> str:
        return sha256(f"{key}/{self.repeat}".encode()).hexdigest()


def _repeated(cache: VerdictCache, repeat: int) -> VerdictCache:
    """Return the cache for a repeat. The first one finds the verdicts of runs."""
    return _RepeatedVerdicts(cache, repeat) if repeat else cache
