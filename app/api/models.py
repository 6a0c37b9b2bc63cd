"""Models, their checkpoints, and the names that checkpoints are promoted to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal, Self

import httpx
from fastapi import Depends, Path, Query
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field, model_validator

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.engine import CurrentEngine, CurrentEvaluations, CurrentModels
from learnloop_service.app.api.evaluations import save_evaluation_reply
from learnloop_service.app.api.presentation import evaluation_accepted
from learnloop_service.app.api.promotions import NAME_PART, SINGLE_PAGE, ProjectPart, PromotionOut, promotion_out
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.backends import unusable_base_models
from learnloop_service.app.domain.names import PATH_PATTERN, REPO_PATTERN
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.model_registry.listing import listed
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.model_registry.pushes.destination import destination
from learnloop_service.app.model_registry.pushes.push import PushDestination
from learnloop_service.app.operations.end_release import after_overtaken
from learnloop_service.app.operations.promoted_prompt import promoted_prompt, untried
from learnloop_service.app.operations.start.challenge import Challenge, challenge
from learnloop_service.app.schemas.base import Name, RequestPart, ResponseModel
from learnloop_service.app.schemas.evaluations import EvaluationAccepted
from learnloop_service.app.schemas.prompts import PromptChoice
from learnloop_service.app.schemas.run_request import EnvironmentChoice, JudgeChoice
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.sequential import Rule

router = keyed_router("models")

Step = Annotated[int, Field(ge=0, lt=2**31)]
ModelPart = Annotated[str, Path(pattern=NAME_PART, description="Name of the model within its project")]
StepPart = Annotated[int, Path(ge=0, lt=2**31, description="Step of the checkpoint")]


class ModelBrief(ResponseModel):
    """A model that can be sampled."""

    model: str
    """`PROJECT/NAME`, or the name of a base model."""
    backend: str
    """Name of the backend that has it."""
    base_model: str | None
    """Model that it was first trained from; null for a base model."""
    step: int | None
    """Step of its newest checkpoint; null for a base model."""
    promoted_as: list[str]
    """Names that one of its checkpoints is promoted to."""
    unusable: str | None
    """Why a base model cannot be loaded, with the file at fault; null if it can, and for trained models."""


class ModelsOut(ResponseModel):
    """The complete list. It has a single page."""

    items: list[ModelBrief]
    """Base models, then trained models."""
    next_cursor: None = Field(default=None, description=SINGLE_PAGE)


class ModelCheckpoint(ResponseModel):
    """A checkpoint of a model. Run, iteration and success are null if no run made it."""

    step: int
    """Step of the checkpoint."""
    created_at: datetime | None
    """When it was made; null if that is not known."""
    metrics: dict[str, float]
    """Metrics of the training step, if the backend keeps them."""
    run_id: str | None
    """Id of the run that made it."""
    iteration: int | None
    """Iteration of that run; 0 is the model that it started from."""
    success: float | None
    """Share of the sampled rollouts on the validation scenarios that did their task, from 0 to 1."""
    is_best: bool
    """Whether it is the best checkpoint of that run."""
    promoted_as: list[str]
    """Names that this checkpoint is promoted to."""


class ModelWhole(ResponseModel):
    """A model with all its checkpoints, ordered by step."""

    model: str
    """Name of the model, as `PROJECT/NAME`."""
    backend: str
    """Name of the backend that has it."""
    checkpoints: list[ModelCheckpoint]
    """Its checkpoints, ordered by step."""


class PromoteRequest(PromptChoice):
    """Which checkpoint to promote, and to which name. With `if_better_than` a trial decides whether it is promoted."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"step": 12, "as": "live"},
                {"step": 12, "if_better_than": "live"},
                {"step": 0, "as": "live", "base_model": "learnloop/tiny"},
            ]
        }
    )

    step: Step
    """Step of the checkpoint."""
    name: Name | None = Field(default=None, alias="as")
    """The name to promote it to, in the project of the model. Default, with `if_better_than`: that name."""
    if_better_than: Name | None = None
    """A promoted name of the project. Both checkpoints attempt the same held-out scenarios, until the test says that
    this one is better, or not by `margin`."""
    end_release: bool = False
    """Ends a live release of the name as overtaken, immediately, also if a trial decides. Without it, 409."""
    base_model: str | None = Field(default=None, min_length=1, max_length=300)
    """With step 0: the base model that is promoted. The model in the path is made from it, unless it exists."""
    alpha: float = Field(default=Rule().alpha, gt=0, lt=0.5)
    """Bound of the probability that one which is no better is promoted, and that one which is better by `margin` is
    refused, however often the pairs are looked at."""
    margin: float = Field(default=Rule().margin, gt=0, le=1)
    """The difference in success that is worth finding; the trial ends when it is ruled out."""
    look_every: int = Field(default=Rule().look_every, ge=1, le=1_000)
    """Number of scenarios between two looks."""
    scenarios: int = Field(default=1_000, ge=1, le=1_000)
    """Maximum number of scenarios. If they decide nothing, nothing is promoted."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of the scenarios. Default: that of the run that trained the checkpoint."""
    environment: EnvironmentChoice | None = None
    """What they act in. Default: that of the run that trained the checkpoint."""
    judge: JudgeChoice | None = None
    """The judge. Default: that of the run that trained the checkpoint."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.name is None and self.if_better_than is None:
            raise ValueError("give as, or if_better_than")
        if self.base_model is not None and self.step != 0:
            raise ValueError("a base model is promoted as step 0")
        of_trials = self.model_fields_set & {
            "alpha",
            "margin",
            "look_every",
            "scenarios",
            "seed",
            "environment",
            "judge",
        }
        if self.if_better_than is None and of_trials:
            raise ValueError(f"{', '.join(sorted(of_trials))} can only be given with if_better_than")
        return self


class PushRequest(RequestPart):
    """Which checkpoint to push, and where to."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"step": 5, "to": "hf", "repo": "acme/mail-agent"}, {"to": "s3", "prefix": "live"}]
        }
    )

    step: Step | None = None
    """Step of the checkpoint. Default: the newest one."""
    to: Literal["hf", "s3"]
    """Where to: `hf` is a Hugging Face repository, `s3` an S3-compatible store."""
    repo: Annotated[str, Field(pattern=rf"^{REPO_PATTERN}$")] | None = None
    """With `hf`: the repository, as NAMESPACE/NAME. It is created as private if it does not exist."""
    prefix: Annotated[str, Field(pattern=rf"^{PATH_PATTERN}$", max_length=512)] | None = None
    """With `s3`: the prefix below that of the project. Default: NAME/STEP."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.to == "hf" and (self.repo is None or self.prefix is not None):
            raise ValueError("a push to hf needs repo and takes no prefix")
        if self.to == "s3" and self.repo is not None:
            raise ValueError("a push to s3 takes no repo")
        return self


class PushOut(ResponseModel):
    """What was pushed, and where it is."""

    model: str
    """Name of the model, as `PROJECT/NAME`."""
    step: int
    """Step of the checkpoint."""
    url: str
    """Where it is now."""
    revision: str | None
    """The commit in a Hugging Face repository; null for a store."""
    files: int
    """Number of files."""
    bytes: int
    """Size of all files together, in bytes."""


async def _checkpoints(
    models: CurrentModels, caller: CurrentCaller, engine: CurrentEngine, project: ProjectPart, name: ModelPart
) -> Checkpoints:
    model = ModelName(project, name)
    backend = (await models.model(caller, model)).backend
    return Checkpoints(models.database, engine, models.connect, model, backend)


OfModel = Annotated[Checkpoints, Depends(_checkpoints)]
"""Checkpoints of the model in the path. Callers of another project get an error as if it did not exist."""


@router.get("/models")
async def list_models(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, engine: CurrentEngine
) -> ModelsOut:
    """List the base models and the caller's trained models."""
    promoted: dict[str, list[str]] = {}
    for promotion in await Promotions(service.database).all(caller.project):
        promoted.setdefault(str(ModelName(promotion.project, promotion.model_name)), []).append(promotion.name)
    unusable = await asyncio.to_thread(unusable_base_models, service.settings)
    return ModelsOut(
        items=[
            ModelBrief(
                model=model["id"],
                backend=model["backend"],
                base_model=model.get("base_model"),
                step=model.get("step"),
                promoted_as=promoted.get(model["id"], []),
                unusable=unusable.get(model["id"]),
            )
            for model in await listed(service.database, models.base_models, engine, caller)
            if "promoted" not in model
        ]
    )


@router.get("/models/{project}/{name}")
async def get_model(checkpoints: OfModel) -> ModelWhole:
    """Get a model with its checkpoints."""
    model_checkpoints = [ModelCheckpoint.model_validate(row) for row in await checkpoints.listed()]
    return ModelWhole(model=str(checkpoints.model), backend=checkpoints.backend, checkpoints=model_checkpoints)


@router.post(
    "/models/{project}/{name}/promote",
    status_code=201,
    response_model=PromotionOut,
    responses={202: {"model": EvaluationAccepted}},
)
async def promote_model(
    checkpoints: OfModel,
    service: CurrentService,
    evaluations: CurrentEvaluations,
    caller: CurrentCaller,
    request: PromoteRequest,
) -> PromotionOut | JSONResponse:
    """Promote a checkpoint to a name, which requests can use as a model.

    The name then means the checkpoint and its prompt, if it has one. With `if_better_than` the response is 202 and an
    evaluation, which promotes both if they win. To roll back, promote the older checkpoint again. A name with a live
    release is refused with 409, unless `end_release` ends the release.
    """
    name = request.name or str(request.if_better_than)
    prompt = await promoted_prompt(checkpoints, service.settings.data_dir, name, request.step, request)
    if request.base_model is not None:
        await checkpoints.create(request.base_model, evaluations.models.base_models)
    if request.if_better_than is None:
        promoted, ended = await checkpoints.promote(name, request.step, prompt, caller, end_release=request.end_release)
        await after_overtaken(service, ended, caller.actor)
        is_chosen = "prompt" in request.model_fields_set
        return promotion_out(promoted, warnings=await untried(checkpoints, promoted) if is_chosen else ())
    terms = Challenge(
        request.step,
        prompt,
        name,
        request.if_better_than,
        Rule(request.alpha, request.margin, request.look_every),
        request.scenarios,
        request.seed,
        request.environment,
        request.judge,
        end_release=request.end_release,
    )
    started, ended = await challenge(evaluations, checkpoints, terms, caller, save_evaluation_reply)
    await after_overtaken(service, ended, caller.actor)
    return JSONResponse(evaluation_accepted(started).model_dump(mode="json"), status_code=202)


@router.get(
    "/models/{project}/{name}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {}}}},
)
async def export_checkpoint(
    checkpoints: OfModel,
    step: Annotated[
        int | None, Query(ge=0, lt=2**31, description="Step of the checkpoint. Default: the newest one")
    ] = None,
) -> StreamingResponse:
    """Download a checkpoint as a tar file.

    The file contains the weights or the LoRA adapter as safetensors in the Hugging Face or peft layout, the tokenizer,
    and a manifest with SHA-256 hashes. A corrupt checkpoint is refused.
    """
    path = await checkpoints.export_path(await checkpoints.exported_step(step))
    stack = AsyncExitStack()
    reply = await stack.enter_async_context(checkpoints.engine.stream(path))
    headers = {name: reply.headers[name] for name in ("content-length", "content-disposition")}
    return StreamingResponse(_closing(stack, reply), media_type="application/x-tar", headers=headers)


@router.post("/models/{project}/{name}/push")
async def push_checkpoint(
    checkpoints: OfModel, service: CurrentService, caller: CurrentCaller, request: PushRequest
) -> PushOut:
    """Push a checkpoint to a Hugging Face repository or an S3-compatible store. The operator's settings say to which.

    The response comes when the push has finished. Repeating it is safe. A corrupt checkpoint is refused.
    """
    settings, model = service.settings, checkpoints.model
    step = await checkpoints.exported_step(request.step)
    name = request.repo or request.prefix or f"{model.name}/{step}"
    target = destination(request.to).target(settings, model.project, name)
    pushed = await checkpoints.push(step, PushDestination(request.to, asdict(target)), caller, settings)
    return PushOut(model=str(model), step=step, **asdict(pushed))


@router.delete("/models/{project}/{name}/checkpoints/{step}")
async def delete_checkpoint(checkpoints: OfModel, step: StepPart) -> ModelWhole:
    """Delete a checkpoint permanently, and return the model with the others.

    The newest checkpoint, the best one of a run, promoted ones, and those of a live release cannot be deleted.
    """
    await checkpoints.delete([step])
    return await get_model(checkpoints)


async def _closing(stack: AsyncExitStack, reply: httpx.Response) -> AsyncIterator[bytes]:
    async with stack:
        async for piece in reply.aiter_raw():
            yield piece
