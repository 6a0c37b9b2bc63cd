"""What a live release keeps from others: its promoted name, and the checkpoints of both of its arms."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.promotion_lock import lock_promotions
from learnloop_service.app.db.tables import Release
from learnloop_service.app.domain.release_state import LIVE, Arm
from learnloop_service.app.errors import Conflict
from learnloop_service.app.releases import moves
from learnloop_service.app.releases.store import ReleaseStore
from learnloop_service.training.protocol.model_name import ModelName


class LiveRelease(Conflict):
    """The name has a live release, which the request would interfere with."""

    title = "Release in progress"

    def __init__(self, name: str, release_id: str | None, remedy: str) -> None:
        which = f"Release {release_id}" if release_id is not None else "Another release"
        super().__init__(f"{which} of {name} is live. {remedy}")
        self.release_id = release_id

    def members(self) -> dict[str, Any]:
        return {"release_id": self.release_id}


@dataclass(frozen=True, slots=True)
class NeededCheckpoint:
    """A checkpoint that a live release needs, and in which arm."""

    release: Release
    arm: Arm
    step: int

    @property
    def why(self) -> str:
        """Return what the checkpoint is, as the end of a sentence."""
        row = self.release
        role = "candidate" if self.arm is Arm.CANDIDATE else "stable checkpoint"
        return f"is the {role} of release {row.id} of {row.project}/{row.name}"


async def needed_checkpoints(database: Database, model: ModelName) -> Sequence[NeededCheckpoint]:
    """Return the checkpoints of the model that live releases need."""
    return [
        NeededCheckpoint(row, arm, promoted.step)
        for row, stable in await ReleaseStore(database).live(model.project)
        for arm, promoted in ((Arm.STABLE, stable), (Arm.CANDIDATE, row))
        if promoted.model_name == model.name
    ]


async def require_unneeded(database: Database, model: ModelName) -> None:
    """Raise LiveRelease if a live release needs a checkpoint of the model."""
    for checkpoint in await needed_checkpoints(database, model):
        name = str(ModelName(checkpoint.release.project, checkpoint.release.name))
        raise LiveRelease(name, checkpoint.release.id, f"It needs {model}. Wait for its end, or roll it back first.")


async def give_way(tx: AsyncSession, project: str, name: str, actor: str, *, end_release: bool) -> Release | None:
    """Lock a name that `actor` is about to promote or withdraw, and end its live release as overtaken, if it has one.

    Returns the release that was ended. Raises LiveRelease if there is one and `end_release` is false.
    """
    # The release is locked before the name, as a release that promotes its candidate does, so neither can deadlock.
    live = select(Release).where(Release.project == project, Release.name == name, Release.state.in_(sorted(LIVE)))
    row = (await tx.execute(live.with_for_update(key_share=True))).scalar_one_or_none()
    if row is not None and not end_release:
        remedy = "Roll it back first, or end it with `end_release: true` (in the terminal: --end-release)."
        raise LiveRelease(str(ModelName(project, name)), row.id, remedy)
    await lock_promotions(tx, project, name)
    if row is not None:
        await moves.overtake(tx, row, row.evidence, actor)
    return row
