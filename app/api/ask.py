"""Ask the trained agent."""

from fastapi import APIRouter

from app import asking, schemas
from app.api.dependencies import CurrentService

router = APIRouter(tags=["ask"])


@router.post("/ask")
async def ask(service: CurrentService, request: schemas.AskRequest) -> schemas.AskOut:
    """A question to a run's best checkpoint, to one of its steps, or to a model by name."""
    return await asking.ask(service, request)


@router.post("/invoke")
async def invoke(service: CurrentService, request: schemas.InvokeRequest) -> schemas.InvokeOut:
    """The same for clients of ZenML deployments: the newest trained agent answers, or the base model before any."""
    answer = await asking.invoke(service, request.parameters)
    return schemas.InvokeOut.model_validate(answer, from_attributes=True)
