"""Models: their checkpoints, and the names these are promoted to."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import httpx
from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.api.dependencies import CurrentCaller, CurrentService, Limit
from app.api.engine import CurrentEngine
from app.db.tables import Promotion
from app.domain.names import PATH_PATTERN, REPO_PATTERN
from app.errors import NotFound
from app.model_registry.checkpoints import Checkpoints
from app.model_registry.listing import listed
from app.model_registry.names import UnknownModelName
from app.model_registry.promotions import Promotions
from app.model_registry.pushes.targets import Target, hub_target, s3_target
from app.schemas.runs import Name

router = APIRouter(tags=["models"])

Step = Annotated[int, Field(ge=0, lt=2**31)]
ProjectPart = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
ModelPart = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,128}$")]


class ModelBrief(BaseModel):
    """A model that can be sampled. `step` is its newest checkpoint's; None: a base model."""

    model: str
    backend: str
    base_model: str | None
    step: int | None
    promoted_as: list[str]


class ModelsOut(BaseModel):
    """All of them; there are never so many that they need pages."""

    items: list[ModelBrief]
    next_cursor: None = None


class ModelCheckpoint(BaseModel):
    """A step of a model. What a run found out about it is None where no run made it."""

    step: int
    created_at: datetime | None
    metrics: dict[str, float]
    """Of its training, where the backend keeps them."""
    run_id: str | None
    iteration: int | None
    success: float | None
    is_best: bool
    """Of that run."""
    promoted_as: list[str]


class ModelWhole(BaseModel):
    """A model with all its checkpoints, in the order of their steps."""

    model: str
    backend: str
    checkpoints: list[ModelCheckpoint]


class PromoteRequest(BaseModel):
    """Which checkpoint, and the name that means it from now on, in the model's project."""

    model_config = ConfigDict(extra="forbid")

    step: Step
    name: Name = Field(alias="as")


class PushRequest(BaseModel):
    """Which checkpoint (by default the newest), and where to: a repository of a hub, or a place in a store."""

    model_config = ConfigDict(extra="forbid")

    step: Step | None = None
    to: Literal["hf", "s3"]
    repo: Annotated[str, Field(pattern=rf"^{REPO_PATTERN}$")] | None = None
    """NAMESPACE/NAME, with hf only; one that is made is private."""
    prefix: Annotated[str, Field(pattern=rf"^{PATH_PATTERN}$", max_length=512)] | None = None
    """Below the project's own, with s3 only; None: NAME/STEP."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.to == "hf" and (self.repo is None or self.prefix is not None):
            raise ValueError("a push to hf names a repo, and no prefix")
        if self.to == "s3" and self.repo is not None:
            raise ValueError("a push to s3 names no repo")
        return self


class PushOut(BaseModel):
    """What lies where now."""

    model: str
    step: int
    url: str
    revision: str | None
    """The commit, on a hub."""
    files: int
    bytes: int


class PromotionOut(BaseModel):
    """A checkpoint under a name that its users know."""

    name: str
    """What requests call it: PROJECT/NAME."""
    model: str
    step: int
    backend: str
    actor: str
    created_at: datetime


class PromotionsOut(BaseModel):
    items: list[PromotionOut]
    next_cursor: None = None


async def _checkpoints(
    service: CurrentService, caller: CurrentCaller, engine: CurrentEngine, project: ProjectPart, name: ModelPart
) -> Checkpoints:
    if not caller.sees(project):
        raise UnknownModelName(f"{project}/{name}")
    return Checkpoints(service, engine, project, name)


OfModel = Annotated[Checkpoints, Depends(_checkpoints)]
"""Of the model in the path; to a caller of another project it does not exist."""


@router.get("/models")
async def list_models(service: CurrentService, caller: CurrentCaller, engine: CurrentEngine) -> ModelsOut:
    """Base models, and the caller's own ones."""
    promoted: dict[str, list[str]] = {}
    for each in await Promotions(service.sessions).all(caller.project):
        promoted.setdefault(f"{each.project}/{each.model_name}", []).append(each.name)
    return ModelsOut(
        items=[
            ModelBrief(
                model=each["id"],
                backend=each["backend"],
                base_model=each.get("base_model"),
                step=each.get("step"),
                promoted_as=promoted.get(each["id"], []),
            )
            for each in await listed(service, engine, caller)
            if "promoted" not in each
        ]
    )


@router.get("/models/{project}/{name}")
async def get_model(checkpoints: OfModel) -> ModelWhole:
    """Its checkpoints, with what is known of each."""
    found = [ModelCheckpoint.model_validate(each) for each in await checkpoints.listed()]
    return ModelWhole(model=checkpoints.model, backend=await checkpoints.backend(), checkpoints=found)


@router.post("/models/{project}/{name}/promote", status_code=201)
async def promote_model(checkpoints: OfModel, caller: CurrentCaller, request: PromoteRequest) -> PromotionOut:
    """Let a name mean this checkpoint from now on. To roll back, promote an older one again."""
    return _promotion(await checkpoints.promote(request.name, request.step, caller))


@router.get("/promotions")
async def list_promotions(service: CurrentService, caller: CurrentCaller) -> PromotionsOut:
    """What each name means now."""
    return PromotionsOut(items=[_promotion(each) for each in await Promotions(service.sessions).all(caller.project)])


@router.get("/promotions/{project}/{name}")
async def get_promotion(
    service: CurrentService, caller: CurrentCaller, project: ProjectPart, name: ModelPart, limit: Limit = 50
) -> PromotionsOut:
    """All that a name meant, the newest first: the first one is what it means now."""
    found = await Promotions(service.sessions).history(project, name, limit=limit) if caller.sees(project) else []
    if not found:
        raise NotFound(f"nothing is promoted as '{project}/{name}'")
    return PromotionsOut(items=[_promotion(each) for each in found])


@router.get(
    "/models/{project}/{name}/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-tar": {}}}},
)
async def export_checkpoint(
    checkpoints: OfModel, step: Annotated[int | None, Query(ge=0, lt=2**31)] = None
) -> StreamingResponse:
    """A checkpoint (by default the newest) as a tar: weights or adapter in safetensors, in the layout of Hugging Face
    or peft, with tokenizer and a manifest of SHA-256 hashes. One that is torn is refused, not sent."""
    path = await checkpoints.export_path(step)
    stack = AsyncExitStack()
    reply = await stack.enter_async_context(checkpoints.engine.stream(path))
    headers = {name: reply.headers[name] for name in ("content-length", "content-disposition")}
    return StreamingResponse(_closing(stack, reply), media_type="application/x-tar", headers=headers)


@router.post("/models/{project}/{name}/push")
async def push_checkpoint(
    checkpoints: OfModel, service: CurrentService, caller: CurrentCaller, request: PushRequest
) -> PushOut:
    """Push a checkpoint to a Hugging Face repository or an S3-compatible store, as far as the operator's settings
    allow. Answered when it is there; doing it again does no harm. One that is torn is refused, not sent."""
    step = await checkpoints.exported_step(request.step)
    if request.repo is not None:
        target: Target = hub_target(service.settings, checkpoints.project, request.repo)
    else:
        target = s3_target(service.settings, checkpoints.project, request.prefix or f"{checkpoints.name}/{step}")
    return PushOut(model=checkpoints.model, step=step, **asdict(await checkpoints.push(step, target, caller)))


@router.delete("/models/{project}/{name}/checkpoints/{step}")
async def delete_checkpoint(checkpoints: OfModel, step: Annotated[int, Path(ge=0, lt=2**31)]) -> ModelWhole:
    """Delete one for good; what is left is answered. Not the newest, nor a run's best, nor one that is promoted."""
    await checkpoints.delete([step])
    return await get_model(checkpoints)


async def _closing(stack: AsyncExitStack, reply: httpx.Response) -> AsyncIterator[bytes]:
    async with stack:
        async for piece in reply.aiter_raw():
            yield piece


def _promotion(row: Promotion) -> PromotionOut:
    same: dict[str, Any] = {name: getattr(row, name) for name in ("step", "backend", "actor", "created_at")}
    return PromotionOut(name=f"{row.project}/{row.name}", model=f"{row.project}/{row.model_name}", **same)
