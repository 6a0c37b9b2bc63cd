"""The data of a user: consent to training on it, and its deletion."""

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.operations.delete_user import UserDataDeletion
from learnloop_service.app.schemas.user_data import ConsentOut, UserConsent, UserDeleted, UserDeletion
from learnloop_service.app.service import HandlerResources

router = keyed_router("users")


@router.post("/users/delete")
async def delete_user(service: CurrentService, caller: CurrentCaller, request: UserDeletion) -> UserDeleted:
    """Delete what a user asked, the feedback on it, and the tasks made from it.

    The checkpoints that were trained on these tasks are listed by the first request only. Repeating it is harmless.
    """
    return await _data(service, caller, request).run()


@router.post("/users/consent")
async def change_user_consent(service: CurrentService, caller: CurrentCaller, request: UserConsent) -> ConsentOut:
    """Withdraw or give a user's consent to training on what is stored.

    Runs that learn from answers leave withdrawn ones out from their next step on. Tasks that were made before stay
    until the user is deleted. Later sessions and questions consent by their own `train`.
    """
    return await _data(service, caller, request).consent(train=request.train)


def _data(service: HandlerResources, caller: Caller, request: UserDeletion) -> UserDataDeletion:
    project, user_hash = caller.project_of(request.project), service.users.hash_of(request.user)
    return UserDataDeletion(service.database, service.settings.data_dir, user_hash, project)
