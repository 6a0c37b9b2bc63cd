"""Rejection sampling: the best rollouts of training scenarios, of a run or an evaluation, become demonstrations.

A demonstration is a conversation as recorded, with the offered tools. Only what the model sampled in it is learned: a
reply that the model was shown, as an example or from another conversation of the rollout, gets weight 0.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.datasets.demonstrations import BadDemonstrations, read_demonstrations
from learnloop_service.app.datasets.documents import document, reference, save_version, users_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DatasetVersion, EvaluationJob, RejudgedRollout, Run, Trajectory
from learnloop_service.app.domain.evaluation_state import TERMINAL, EvaluationStatus
from learnloop_service.app.domain.stored_evaluation import parse_evaluation
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import Conflict, InvalidRequest
from learnloop_service.app.operations.import_conversations import IDS
from learnloop_service.app.schemas.datasets import BestOfEvaluation, BestRollouts, RolloutChoice
from learnloop_service.environment.json_type import Json
from learnloop_service.training.rollout.chat import identity

_AT_ONCE = 50
"""Number of rollouts to read from the database at a time."""


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """A run or an evaluation that has ended, whose rollouts can become demonstrations."""

    name: str
    project: str
    environment: Choice
    reply_tokens: int
    """The token limit at which its replies were cut off."""
    rollouts: Sequence[ColumnElement[bool]]
    """Conditions that the rollouts to choose from meet."""
    origin: Mapping[str, Json]
    rejudging: str | None = None
    """A rejudging of the run whose rewards count instead of the run's own."""

    @classmethod
    def of_run(cls, run: Run, selection: BestRollouts) -> Self:
        """Return a run as a source. Raises Conflict if it has not ended."""
        _require_ended(f"Run {run.id}", run.status)
        request, of_run = run.stored_request, (Trajectory.run_id == run.id, Trajectory.kind == "train")
        return cls(
            f"run {run.id}",
            run.model_project,
            request.environment,
            request.config.max_completion_tokens,
            of_run,
            {"source": "run", "run_id": run.id, **_thresholds(selection)},
            selection.rejudging,
        )

    @classmethod
    def of_evaluation(cls, job: EvaluationJob, selection: BestOfEvaluation) -> Self:
        """Return an evaluation, or one of its models, as a source. Raises Conflict if it has not ended, and
        InvalidRequest for a model that it does not have."""
        _require_ended(f"Evaluation {job.id}", job.status)
        request, conditions = parse_evaluation(job.request), [Trajectory.evaluation_id == job.id]
        if selection.model is not None:
            labels = [model.label for model in request.models]
            if selection.model not in labels:
                what = f"There is no model {selection.model!r}; there are: {', '.join(labels)}."
                raise InvalidRequest(("body", "model"), what)
            conditions.append(Trajectory.slot.startswith(f"{labels.index(selection.model)}/"))
        return cls(
            f"evaluation {job.id}",
            job.project,
            request.environment,
            request.max_completion_tokens,
            [*conditions, Trajectory.kind == "evaluation"],
            {"source": "evaluation", "evaluation_id": job.id, **_thresholds(selection)},
        )


def _require_ended(name: str, status: str) -> None:
    if status not in TERMINAL:
        raise Conflict(f"{name} is {status}: its rollouts can become demonstrations once it has ended.")


def _thresholds(selection: RolloutChoice) -> dict[str, Json]:
    return selection.model_dump(exclude={"name"}, exclude_none=True)


class ChosenRollouts:
    """The best rollouts read so far: the first of each scenario, up to a limit."""

    def __init__(self, per_scenario: int, reply_tokens: int, max_bytes: int, users: Mapping[str, str]) -> None:
        """`reply_tokens` is the token limit at which replies were cut off, and `users` has the hash of the
        user by scenario id, for scenarios that were made from what users asked."""
        self.demonstrations: list[dict[str, Json]] = []
        self.users: dict[str, str] = {}
        """Hash of the user by id of a demonstration."""
        self.rollouts: Counter[str] = Counter()
        """Number of chosen rollouts by scenario."""
        self.unfit = 0
        self._per_scenario, self._reply_tokens, self._room = per_scenario, reply_tokens, max_bytes
        self._user_of = users

    def take(self, rows: Sequence[Row[Any]]) -> None:
        """Choose rollouts until each scenario has enough. Raises Conflict if they exceed the size limit."""
        for row in rows:
            if self.rollouts[row.scenario_id] == self._per_scenario:
                continue
            lines = b"\n".join(
                json.dumps(conversation, ensure_ascii=False).encode() for conversation in conversations_of(row)
            )
            try:
                if any(len(turn["texts"]) >= self._reply_tokens for turn in row.tokens):
                    raise BadDemonstrations("a reply was cut off")
                self._add(row, read_demonstrations(lines))
            except BadDemonstrations:
                self.unfit += 1
                continue
            self.rollouts[row.scenario_id] += 1
            self._room -= len(lines)
            if self._room < 0:
                raise Conflict(
                    "Together these rollouts are larger than LEARNLOOP_MAX_GRAPH_BYTES: "
                    "raise min_reward or lower per_scenario."
                )

    def _add(self, row: Row[Any], demonstrations: list[dict[str, Json]]) -> None:
        """Add a rollout's demonstrations, with ids if any scenario is a user's, so that a deletion finds them."""
        if self._user_of:
            demonstrations = [
                demonstration | {"id": f"{IDS['demonstrations']}{row.id}.{n}"}
                for n, demonstration in enumerate(demonstrations, 1)
            ]
        if (user := self._user_of.get(row.scenario_id)) is not None:
            self.users |= {demonstration["id"]: user for demonstration in demonstrations}
        self.demonstrations += demonstrations


async def best_rollouts(
    database: Database, source: RolloutSource, selection: RolloutChoice, max_bytes: int
) -> tuple[ChosenRollouts, int]:
    """Return the best rollouts, and the number of rollouts that they were chosen from.

    Raises Conflict if there are none, or too many.
    """
    reward = Trajectory.reward if source.rejudging is None else RejudgedRollout.reward
    async with database() as tx:
        users = await users_of(tx, source.project, reference(source.environment, "scenarios"))
        chosen = ChosenRollouts(selection.per_scenario, source.reply_tokens, max_bytes, users)
        if source.rejudging is not None:
            await _require_of(tx, str(source.origin["run_id"]), source.rejudging)
        finished = _finished(source, reward)
        of_all = finished.subquery()
        figures = select(func.count(), func.max(of_all.c.reward))
        there, highest = (await tx.execute(figures)).one()
        best = (
            finished.add_columns(
                Trajectory.id,
                Trajectory.scenario_id,
                Trajectory.messages,
                Trajectory.tokens,
                Trajectory.tools,
                Trajectory.additional_histories,
            )
            .where(reward >= selection.min_reward)
            # An evaluation saves its rollouts in the order in which they end; their slots do not depend on that.
            .order_by(Trajectory.scenario_id, reward.desc(), Trajectory.slot, Trajectory.seq)
        )
        result = await tx.stream(best, execution_options={"yield_per": _AT_ONCE})
        async for part in result.partitions():
            chosen.take(part)
    if not there:
        raise Conflict(f"There are no finished rollouts of training scenarios in {source.name}.")
    if not chosen.demonstrations:
        unfit = f" that can be trained on ({chosen.unfit} cannot)" if chosen.unfit else ""
        raise Conflict(
            f"Of {there} training rollouts of {source.name} none{unfit} has a reward of at least "
            f"{selection.min_reward:g}; the highest is {highest:.4g}."
        )
    return chosen, there


async def save_best(
    database: Database, project: str, name: str, source: RolloutSource, best: ChosenRollouts
) -> DatasetVersion:
    """Store the chosen rollouts of a source under a name, for a project or all of them (`*`)."""
    new = await asyncio.to_thread(document, project, "demonstrations", best.demonstrations)
    return await save_version(database, new, "demonstrations", name, source.origin, best.users)


def _finished(source: RolloutSource, reward: InstrumentedAttribute[float | None]) -> Select[Any]:
    """Select the rewards of the rewarded rollouts of training scenarios, and never of held-out ones.

    With a rejudging they are those of its first repeat.
    """
    query = (
        select(reward.label("reward"))
        .select_from(Trajectory)
        .where(
            *source.rollouts,
            Trajectory.split == "train",
            Trajectory.error.is_(None),
            reward.is_not(None),
        )
    )
    if source.rejudging is None:
        return query
    return query.join(RejudgedRollout, RejudgedRollout.trajectory_id == Trajectory.id).where(
        RejudgedRollout.evaluation_id == source.rejudging, RejudgedRollout.repeat == 0
    )


async def _require_of(tx: AsyncSession, run_id: str, rejudging: str) -> None:
    """Raise Conflict unless it is a completed rejudging of the run."""
    job = await tx.get(EvaluationJob, rejudging)
    if job is None or job.run_id != run_id:
        raise Conflict(f"Run {run_id} has no rejudging {rejudging!r}.")
    if job.status != EvaluationStatus.COMPLETED:
        raise Conflict(f"Rejudging {rejudging} is {job.status}: its rewards can be used once it has completed.")


def conversations_of(row: Any) -> list[dict[str, Json]]:
    """Return the conversations of a recorded rollout, each as a demonstration."""
    sampled = {turn["message"] for turn in row.tokens}
    first = [
        message if index in sampled or not sampled else _as_context(message)
        for index, message in enumerate(row.messages)
    ]
    demonstrations, identities = [_demonstration(first, row.tools)], set(map(identity, row.messages))
    for history in row.additional_histories:
        messages = [
            _as_context(message) if identity(message) in identities else message for message in history["messages"]
        ]
        identities |= set(map(identity, messages))
        if any(message["role"] == "assistant" and message.get("weight") != 0 for message in messages):
            demonstrations.append(_demonstration(messages, history["tools"]))
    return demonstrations


def _as_context(message: dict[str, Json]) -> dict[str, Json]:
    """Give a reply weight 0, so that it only serves as context; return other messages unchanged."""
    return {**message, "weight": 0} if message["role"] == "assistant" else message


def _demonstration(messages: Sequence[Json], tools: Sequence[Json]) -> dict[str, Json]:
    return {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
