"""Starts a what-if: an evaluation whose rollouts continue a recorded one from a turn on."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.tables import Checkpoint, EvaluationJob, Iteration, Run, Trajectory
from learnloop_service.app.domain.stored_evaluation import Slot, WhatIf, WhatIfEvaluation, parse_evaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Conflict, EnvironmentChanged, InvalidRequest
from learnloop_service.app.operations.named import built_environment, rebuilding
from learnloop_service.app.operations.start.evaluation import Basis, EvaluationStarter, SaveReply, StartedEvaluation
from learnloop_service.app.runs.configuration import make_player
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.runs.recorded_rollouts import RecordedRollout, purpose_of, recorded_rollout
from learnloop_service.app.runs.resume_point import INHERITED, begin_with, state_after
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.app.schemas.evaluations import MAX_ROLLOUTS, EvaluationRequest, ModelToEvaluate
from learnloop_service.app.schemas.what_ifs import MessageEdit, WhatIfRequest
from learnloop_service.environment.base import EpisodeFailed, ToolError
from learnloop_service.environment.registry import traits
from learnloop_service.training.loop.rollout_tasks import seed_of
from learnloop_service.training.rollout.agents.remote import RemoteRollouts
from learnloop_service.training.rollout.fork import Edit, Fork, ReplayDiffers
from learnloop_service.training.rollout.rollout import RolloutLimits, replay

_REPLAY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a recorded rollout comes from."""

    basis: Basis
    project: str
    temperature: float
    """Sampling temperature of the rollout, or of its run's training if it was greedy."""
    own_seed: int | None
    state: tuple[str, int] | None
    """Run and iteration after which its environment had the state that it saw."""
    model: ModelToEvaluate | None
    """The checkpoint that made it; None if it was deleted."""
    edits: tuple[Edit, ...] = ()
    """The edits with which it was made, if it is a continuation."""


@dataclass(frozen=True, slots=True)
class WhatIfStarter:
    """Starts what-ifs."""

    evaluations: EvaluationStarter

    async def start(
        self, id: str, row: Trajectory, request: WhatIfRequest, caller: Caller, save_reply: SaveReply
    ) -> StartedEvaluation:
        """Replay the rollout up to the turn, and queue its continuations.

        Raises EnvironmentChanged, InvalidRequest, NotFound, Conflict or Unavailable.
        """
        recorded = await recorded_rollout(self.evaluations.resources.database, row)
        source = await self._source(row, recorded)
        models = request.models or ([source.model] if source.model else [])
        if not models:
            raise Conflict(f"Checkpoint {row.step}, which made rollout {row.id}, was deleted. Name other `models`.")
        # The recorded conversation begins with the prompt of the rollout, whatever model continues it.
        models = [model.model_copy(update={"prompt": row.prompt_sha256}) for model in models]
        turns = _turns_of(request, row)
        edit = _edit_of(request.edit, row)
        try:
            fork = Fork.of(recorded.conversation, turns[-1], edit, source.edits)
        except ValueError as error:
            where = "edit" if edit and "message" in str(error) else "turn" if request.turn is not None else "search"
            raise InvalidRequest(("body", where), f"{error}.") from error
        await self._replay(row, recorded, source, fork, request.max_turns)
        if request.seed == "own" and source.own_seed is None:
            raise InvalidRequest(("body", "seed"), "The rollout's own seed is not known, because it was not archived.")
        temperature = source.temperature if request.temperature is None else request.temperature
        if request.seed == "own" and row.mode == "greedy":
            temperature = 0.0
        evaluation = EvaluationRequest(
            models=models,
            judge=request.judge,
            samples=1,
            scenarios=1,
            temperature=temperature,
            seed=request.seed if isinstance(request.seed, int) else None,
            max_turns=request.max_turns,
            budget=request.budget,
        )
        return await self.evaluations.queue(
            id,
            evaluation,
            caller,
            save_reply,
            source.basis,
            source.project,
            WhatIfEvaluation,
            what_if=_what_if(row, request, source, turns, fork),
            scenarios=len(turns),
            samples=request.count,
            split=row.split,
        )

    async def _source(self, row: Trajectory, recorded: RecordedRollout) -> _Source:
        if row.additional_histories:
            raise Conflict(f"Rollout {row.id} has several conversations, and cannot be continued from a turn.")
        async with self.evaluations.resources.database() as tx:
            if row.run_id is not None:
                run = await tx.get_one(Run, row.run_id)
                iteration = await tx.get(Iteration, (run.id, row.iteration)) if row.iteration is not None else None
                checkpoint = await tx.get(Checkpoint, (run.id, row.step)) if row.step is not None else None
                return _of_run(run, row, recorded, iteration, checkpoint)
            if row.evaluation_id is not None:
                job = await tx.get_one(EvaluationJob, row.evaluation_id)
                return _of_evaluation(job, row)
        raise Conflict(f"Rollout {row.id} answered a question to a model, whose environment was not kept.")

    async def _replay(
        self, row: Trajectory, recorded: RecordedRollout, source: _Source, fork: Fork, max_turns: int | None
    ) -> None:
        """Check that the environment still does what it did. Raises EnvironmentChanged, Conflict."""
        resources, choice = self.evaluations.resources, source.basis.environment
        settings = resources.settings
        if (refusal := refuses(choice.name, _tools_before(fork), settings.replay)) is not None:
            raise Conflict(refusal)
        with rebuilding(f"The environment of rollout {row.id} cannot be rebuilt"):
            player = await asyncio.to_thread(make_player, source.basis.agent, choice, settings.agent_modules)
            if isinstance(player, RemoteRollouts):
                raise Conflict(f"The agent of rollout {row.id} runs elsewhere, and cannot be continued from a turn.")
            if player is not None and fork.edits:
                raise Conflict(f"The agent of rollout {row.id} owns its loop, so what it is shown cannot be edited.")
            access = EnvironmentAccess(settings)
            environment = await built_environment(resources.database, settings.data_dir, choice, source.project, access)
            reference = None if row.prompt_sha256 is None else PromptReference(sha256=row.prompt_sha256)
            prompt = await read_stored(resources.database, source.project, reference)
        with closing(environment):
            begin_with(environment, await state_after(resources.database, source.state))
            limits = RolloutLimits(max_turns or source.basis.max_turns, timeout_s=_REPLAY_TIMEOUT_S)
            try:
                await replay(environment, recorded.scenario, fork, limits, player, prompt)
            except ReplayDiffers as differs:
                raise EnvironmentChanged(differs) from differs
            except (TimeoutError, EpisodeFailed, ToolError) as error:
                raise Conflict(f"Rollout {row.id} cannot be replayed: {error or 'it takes too long'}") from error


def refuses(environment: str, tools: Sequence[str], allowed: Sequence[str]) -> str | None:
    """Return why the calls of an environment's tools are not made again, or None if they can be."""
    if traits(environment).repeats or environment in allowed:
        return None
    unknown = [tool for tool in tools if f"{environment}/{tool}" not in allowed]
    if not unknown and tools:
        return None
    setting = ",".join(f"{environment}/{tool}" for tool in unknown) or environment
    called = f"calls of {', '.join(unknown)} again" if unknown else "an episode again"
    return (
        f"Replaying this rollout makes {called}, and {environment} may have effects that repeat. If it does not, the "
        f"operator can allow it by LEARNLOOP_REPLAY={setting}."
    )


def _tools_before(fork: Fork) -> list[str]:
    called = (call for message in fork.messages for call in message.get("tool_calls") or ())
    return sorted({call["function"]["name"] for call in called})


def _turns_of(request: WhatIfRequest, row: Trajectory) -> Sequence[int]:
    """Return the turns to continue from. Raises Conflict, InvalidRequest."""
    turns = [request.turn] if request.turn is not None else list(range(1, row.turns + 1))
    if not turns:
        raise Conflict(f"Rollout {row.id} has no turn to continue from: the model never answered.")
    if request.search == "all" and (count := len(turns) * request.count) > MAX_ROLLOUTS:
        message = f"{count} rollouts are more than {MAX_ROLLOUTS}: turns x samples."
        raise InvalidRequest(("body", "samples"), message)
    if request.search is not None and row.success is None:
        raise Conflict(f"Whether rollout {row.id} succeeded is not known, so no turn can have decided it.")
    return turns


def _what_if(row: Trajectory, request: WhatIfRequest, source: _Source, turns: Sequence[int], fork: Fork) -> WhatIf:
    return WhatIf(
        trajectory_id=row.id,
        turns=tuple(turns),
        search=request.search,
        edit=fork.edits[-1] if request.edit else None,
        earlier=source.edits,
        own_seed=source.own_seed if request.seed == "own" else None,
        state=source.state,
        counts=not (request.models or request.edit or request.max_turns or request.judge)
        and request.temperature in (None, source.temperature)
        and request.seed != "own",
        exact=fork.exact,
    )


def _edit_of(edit: MessageEdit | None, row: Trajectory) -> Edit | None:
    if edit is None:
        return None
    if edit.append is not None:
        return Edit(edit.append)
    index = edit.message
    if edit.tool_result is not None:
        results = {message.get("tool_call_id"): number for number, message in enumerate(row.messages)}
        index = results.get(edit.tool_result)
        if index is None:
            raise InvalidRequest(("body", "edit", "tool_result"), f"No tool call has the id {edit.tool_result!r}.")
    return Edit(edit.content or "", index)


def _of_run(
    run: Run, row: Trajectory, recorded: RecordedRollout, iteration: Iteration | None, checkpoint: Checkpoint | None
) -> _Source:
    config = run.stored_request.config
    model = None
    if checkpoint is None or checkpoint.deleted_at is None:
        model = ModelToEvaluate(model=row.model if row.step is None else f"{row.model}@{row.step}")
    seed, parts = config.seed, tuple[object, ...]()
    match row.kind:
        case "train":
            state = (row.iteration or 0) - 1 - ((iteration.staleness if iteration else None) or 0)
            group_size, parts = config.rollouts_per_group, (purpose_of(row), row.iteration)
        case "evaluation":
            state = row.iteration or INHERITED  # the baseline is evaluated before anything is learned
            group_size, parts = (config.evaluation.samples if row.mode == "sampled" else 1), (row.split,)
            seed = config.held_out_seed
        case "showcase":
            state, group_size = row.iteration or 0, 1
        case _:  # a question is answered in the state that belongs to the checkpoint
            state, group_size = checkpoint.iteration if checkpoint else INHERITED, 1
    own_seed = None
    if recorded.number is not None and parts:
        scenario, sample = divmod(recorded.number, group_size)
        own_seed = seed_of(seed, *parts, scenario, sample)
    return _Source(Basis.of_run(run), run.model_project, config.temperature, own_seed, (run.id, state), model)


def _of_evaluation(job: EvaluationJob, row: Trajectory) -> _Source:
    evaluation, slot = parse_evaluation(job.request), Slot.parse(row.slot or "")
    sampled_by = evaluation.models[slot.model]
    named = {"prompted" if sampled_by.kind == "prompted" else "model": sampled_by.model}
    basis, model = Basis.of_evaluation(evaluation), ModelToEvaluate(**named)
    state, edits = None, tuple[Edit, ...]()
    if isinstance(evaluation, WhatIfEvaluation):
        what_if = evaluation.what_if
        state, edits = what_if.state, what_if.earlier + ((what_if.edit,) if what_if.edit else ())
    return _Source(basis, job.project, evaluation.temperature or 1.0, None, state, model, edits)
