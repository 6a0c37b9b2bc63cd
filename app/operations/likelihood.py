"""Scores the tokens of a recorded rollout by checkpoints of its run: how likely each of them would sample them."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from learnloop_service.app.backends import Connect, connected
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Run, Trajectory
from learnloop_service.app.errors import Conflict, InvalidRequest
from learnloop_service.app.runs.configuration import model_spec
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.runs.recorded_rollouts import RecordedRollout, recorded_rollout
from learnloop_service.app.schemas.likelihood import Likelihood, LikelihoodRequest, ScoredTurn
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.backends.base import ScoringPolicy
from learnloop_service.training.rollout.chat import sampled_ids
from learnloop_service.training.rollout.fork import Message

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice


async def likelihood(database: Database, connect: Connect, row: Trajectory, request: LikelihoodRequest) -> Likelihood:
    """Return the turns of a rollout with the log-probabilities that the two checkpoints give to their tokens.

    Raises InvalidRequest for a checkpoint or turn that does not exist; Conflict if a checkpoint was deleted, the
    rollout's tokens are not known, or its backend cannot score; or Unavailable.
    """
    if row.run_id is None:
        raise Conflict(f"Rollout {row.id} belongs to no run, so there are no checkpoints of its run to compare.")
    run = await _run(database, row.run_id, request.checkpoints)
    recorded = await recorded_rollout(database, row)
    with_known_ids = [index for index, item in enumerate(recorded.conversation) if _is_known(item)]
    sampled = await RunQueries(database).tokens(row.id)
    turns = _chosen([turn for turn in sampled if turn["message"] in with_known_ids], row, request.turn)
    replies = [turn["message"] for turn in turns]
    scores = await _scores(connect, run, request.checkpoints, recorded, replies)
    places = _replies(row)
    scored = [
        ScoredTurn(
            turn=places.index(turn["message"]) + 1,
            message=turn["message"],
            texts=turn["texts"],
            logprobs=[list(islice(of_checkpoint, len(turn["texts"]))) for of_checkpoint in scores],
        )
        for turn in turns
    ]
    return Likelihood(trajectory_id=row.id, checkpoints=request.checkpoints, turns=scored)


async def _run(database: Database, run_id: str, steps: Sequence[int]) -> Run:
    """Return the run. Raises InvalidRequest or Conflict unless it keeps these checkpoints."""
    async with database() as tx:
        for index, step in enumerate(steps):
            checkpoint = await tx.get(Checkpoint, (run_id, step))
            if checkpoint is None:
                raise InvalidRequest(("body", "checkpoints", index), f"Run {run_id} has no checkpoint {step}.")
            if checkpoint.deleted_at is not None:
                raise Conflict(f"Checkpoint {step} of run {run_id} was deleted.")
        return await tx.get_one(Run, run_id)


def _is_known(item: "Message | Choice") -> bool:
    """Return whether the token ids of a message are known."""
    return not isinstance(item, dict) and bool(sampled_ids(item))


def _replies(row: Trajectory) -> list[int]:
    """Return the indices of the agent's turns in the messages."""
    return [index for index, message in enumerate(row.messages) if message["role"] == "assistant"]


def _chosen(turns: Sequence[Json], row: Trajectory, number: int | None) -> Sequence[Json]:
    """Return the requested turns among those with known tokens. Raises Conflict or InvalidRequest."""
    places = _replies(row)
    if number is not None and number > len(places):
        what = f"There is no turn {number}: rollout {row.id} has {counted(len(places), 'turn')}."
        raise InvalidRequest(("body", "turn"), what)
    chosen = [turn for turn in turns if number is None or turn["message"] == places[number - 1]]
    if not chosen:
        raise Conflict(
            f"The token ids of rollout {row.id} are not known: its backend did not report them, or they were deleted "
            "because of their age."
        )
    return chosen


async def _scores(
    connect: Connect, run: Run, steps: Sequence[int], recorded: RecordedRollout, replies: Sequence[int]
) -> list[Iterator[float]]:
    """Return the log-probabilities of all tokens of the replies by checkpoint. Raises Conflict or Unavailable."""
    dumped = [item if isinstance(item, dict) else item.model_dump(mode="json") for item in recorded.conversation]
    try:
        async with connected(connect, run.backend) as backend:
            there = await backend.checkpoints(run.model_project, run.model_name)
            for step in steps:
                if step not in there:  # also keeps `register` from making the model anew
                    raise Conflict(f"The backend has no files of checkpoint {step} of run {run.id} any more.")
            policy = await backend.register(model_spec(run))
            if not isinstance(policy, ScoringPolicy):
                raise Conflict(f"The backend {run.backend} of run {run.id} cannot score tokens.")
            return [iter(await policy.reply_logprobs(step, dumped, recorded.tools, replies)) for step in steps]
    except ValueError as error:
        raise Conflict(f"The backend {run.backend} cannot score this rollout: {error}") from error
