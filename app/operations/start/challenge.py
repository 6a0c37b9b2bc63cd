"""Challenges: a checkpoint is promoted with its prompt if a trial on held-out scenarios shows that both are better than
the champion."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.tables import Promotion, Release
from learnloop_service.app.domain.stored_evaluation import Trial, TrialEvaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Conflict
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.operations.start.evaluation import EvaluationStarter, SaveReply, StartedEvaluation
from learnloop_service.app.releases.live import give_way
from learnloop_service.app.schemas.evaluations import EvaluationRequest, ModelToEvaluate
from learnloop_service.app.schemas.run_request import EnvironmentChoice, JudgeChoice
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.sequential import Rule


@dataclass(frozen=True, slots=True)
class Challenge:
    """The challenger, the promoted name that it must beat, the name that it is to get, and the rule that decides."""

    step: int
    prompt: PromptReference | None
    name: str
    champion: str
    rule: Rule
    scenarios: int
    """Maximum number of scenarios."""
    seed: int | None
    environment: EnvironmentChoice | None
    judge: JudgeChoice | None
    release_id: str | None = None
    """The release that the trial is part of; None if a challenger that wins is promoted."""
    end_release: bool = False
    """Whether a live release of the name ends when the trial begins; otherwise it prevents the trial."""


async def challenge(
    starter: EvaluationStarter, checkpoints: Checkpoints, terms: Challenge, caller: Caller, save_reply: SaveReply
) -> tuple[StartedEvaluation, Release | None]:
    """Queue the trial, and return it and the live release that it ended, if any.

    Raises NotFound, Conflict if there is no champion to beat, LiveRelease, InvalidRequest or Unavailable.
    """
    project, model = checkpoints.model.project, checkpoints.model
    await checkpoints.require_promotable(terms.name, terms.step)
    promotions = Promotions(checkpoints.database)
    champion = await promotions.current(project, terms.champion)
    if champion is None:
        raise Conflict(f"Nothing is promoted to {project}/{terms.champion} yet; promote to it without if_better_than.")
    if champion.has(model.name, terms.step, terms.prompt):
        raise Conflict(f"{project}/{terms.champion} is {model}@{terms.step} already.")
    incumbent = await promotions.current(project, terms.name)
    run = (await starter.models.model(caller, model)).run
    trial = Trial(
        project=project,
        name=terms.name,
        champion=champion.id,
        incumbent=incumbent.id if incumbent else None,
        model_name=model.name,
        step=terms.step,
        prompt=terms.prompt,
        backend=checkpoints.backend,
        actor=caller.actor,
        alpha=terms.rule.alpha,
        margin=terms.rule.margin,
        look_every=terms.rule.look_every,
        release_id=terms.release_id,
    )
    ended: Release | None = None

    async def save(tx: AsyncSession, started: StartedEvaluation) -> None:
        nonlocal ended
        if terms.release_id is None:
            ended = await give_way(tx, project, terms.name, caller.actor, end_release=terms.end_release)
        await save_reply(tx, started)

    request = _request(terms, champion, model, run.id if run else None)
    return await starter.start(str(ULID()), request, caller, save, TrialEvaluation, trial=trial), ended


def _request(terms: Challenge, champion: Promotion, model: ModelName, run_id: str | None) -> EvaluationRequest:
    """Return the request for the trial's evaluation, with the challenger's run if one trained it."""
    arms = (
        ("champion", ModelName(model.project, champion.model_name, champion.step), champion.prompt),
        ("challenger", model.at(terms.step), terms.prompt),
    )
    return EvaluationRequest(
        run_id=run_id,
        models=[
            ModelToEvaluate(model=str(checkpoint), prompt=None if prompt is None else prompt.sha256, label=label)
            for label, checkpoint, prompt in arms
        ],
        scenarios=terms.scenarios,
        seed=terms.seed,
        environment=terms.environment,
        judge=terms.judge,
    )
