"""Deletes the data of a user."""

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.operations.delete_user import UserDataDeletion
from learnloop_service.app.schemas.user_data import UserDeleted, UserDeletion

router = keyed_router("users")


@router.post("/users/delete")
async def delete_user(service: CurrentService, caller: CurrentCaller, request: UserDeletion) -> UserDeleted:
    """Delete what a user asked, the feedback on it, and the tasks made from it.

    The checkpoints that were trained on these tasks are listed by the first request only. Repeating it is harmless.
    """
    project = caller.project_of(request.project)
    user_hash = service.users.hash_of(request.user)
    return await UserDataDeletion(service.database, service.settings.data_dir, user_hash, project).run()
