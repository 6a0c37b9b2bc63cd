"""Asking a trained agent."""

from app.api.dependencies import CurrentCaller, CurrentService
from app.api.engine import CurrentModels
from app.api.routers import keyed_router
from app.operations import ask as asking
from app.schemas.ask import AskOut, AskRequest, InvokeOut, InvokeRequest

router = keyed_router("ask")


@router.post("/ask")
async def ask(service: CurrentService, models: CurrentModels, caller: CurrentCaller, request: AskRequest) -> AskOut:
    """Give a trained agent one task, and wait for the result. A task is a question, or a prospect to write to.

    The agent is the best checkpoint of a run, one of its other checkpoints, or any model by name.
    """
    return await asking.ask(service, models, request, caller)


@router.post("/invoke")
async def invoke(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, request: InvokeRequest
) -> InvokeOut:
    """Answer a question in the request format of ZenML deployments.

    The newest trained agent answers, or the base model if none has been trained yet. A real `inbox_address` means the
    imported inbox that has email of it; if there is none, `success` is false and `answer` says so.
    """
    return await asking.invoke(service, models, request.parameters, caller)
