"""Ask the trained agent."""

from fastapi import APIRouter

from app.api.dependencies import CurrentCaller, CurrentService
from app.operations import ask as asking
from app.schemas import runs as schemas

router = APIRouter(tags=["ask"])


@router.post("/ask")
async def ask(service: CurrentService, caller: CurrentCaller, request: schemas.AskRequest) -> schemas.AskOut:
    """A task for a run's best checkpoint, for one of its steps, or for a model by name: a question, or a prospect to
    write to."""
    return await asking.ask(service, request, caller)


@router.post("/invoke")
async def invoke(service: CurrentService, caller: CurrentCaller, request: schemas.InvokeRequest) -> schemas.InvokeOut:
    """The same for clients of ZenML deployments: the newest trained agent answers, or the base model before any."""
    answer = await asking.invoke(service, request.parameters, caller)
    return schemas.InvokeOut.model_validate(answer, from_attributes=True)
