"""Promoted checkpoints and their prompts: the name that users know stays the same while what is behind it changes."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Select, and_, exists, func, literal, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased, load_only

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.promotion_lock import lock_promotions
from learnloop_service.app.db.tables import Promotion, Release, ReleaseUnit, Run
from learnloop_service.app.domain.release_state import SPLITTING
from learnloop_service.app.releases.live import give_way
from learnloop_service.app.releases.split import Split
from learnloop_service.training.protocol.model_name import ModelName

SaveMore = Callable[[AsyncSession], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Promotions:
    """The promoted names. Rows are never deleted: the newest row of a name applies, and the others are its history."""

    database: Database

    async def promote(
        self, promotion: Promotion, *, end_release: bool = False, save: SaveMore | None = None
    ) -> tuple[Promotion, Release | None]:
        """Point the name at the checkpoint and its prompt. Promoting an older checkpoint again rolls back. `save` saves
        more in the same transaction.

        Returns the promotion and the live release that it ended, if any. Raises LiveRelease if there is one and
        `end_release` is false.
        """
        async with self.database.begin() as tx:
            ended = await give_way(tx, promotion.project, promotion.name, promotion.actor, end_release=end_release)
            promotion.explore = Promotion.explore_of(promotion.project, promotion.name)
            tx.add(promotion)
            if save is not None:
                await save(tx)
            await tx.flush()
            await tx.refresh(promotion)
        return promotion, ended

    async def explore(self, project: str, name: str, share: float, actor: str) -> Promotion | None:
        """Let that share of the name's consented sessions explore, and return the promotion; None without one."""
        async with self.database.begin() as tx:
            await lock_promotions(tx, project, name)
            newest = (await tx.execute(_of(project, name).limit(1).with_for_update())).scalar_one_or_none()
            if newest is None or newest.withdrawn_at is not None:
                return None
            now: datetime = (await tx.execute(select(func.now()))).scalar_one()
            salt = secrets.token_hex()
            newest.explore = {"share": share, "salt": salt, "actor": actor, "since": now.isoformat()}
        return newest

    async def withdraw(
        self, project: str, name: str, actor: str, *, end_release: bool = False
    ) -> tuple[Promotion, Release | None] | None:
        """Withdraw the name and return the promotion that it had, or None if it had none.

        Also returns the live release that this ended, if any. Raises LiveRelease if there is one and `end_release` is
        false.
        """
        async with self.database.begin() as tx:
            ended = await give_way(tx, project, name, actor, end_release=end_release)
            newest = (await tx.execute(_of(project, name).limit(1).with_for_update())).scalar_one_or_none()
            if newest is None or newest.withdrawn_at is not None:
                return None
            newest.withdrawn_at, newest.withdrawn_by = func.now(), actor
            await tx.flush()
            await tx.refresh(newest)
            return newest, ended

    async def current(self, project: str, name: str) -> Promotion | None:
        """Return the current promotion of the name, if any."""
        async with self.database() as tx:
            newest = (await tx.execute(_of(project, name).limit(1))).scalar_one_or_none()
        return None if newest is None or newest.withdrawn_at is not None else newest

    async def current_split(
        self, name: ModelName, user_hash: str | None
    ) -> tuple[Promotion, Split | None, Promotion] | None:
        """Return the current promotion of the name, if any, how a release divides the user's requests, and what its
        stable arm is: the promotion itself, or the one before it for a user who confirms that."""
        newest, unit = aliased(Promotion, _of(name.project, name.name).limit(1).subquery()), ReleaseUnit
        splits = and_(Release.promotion_id == newest.id, Release.state.in_(sorted(SPLITTING)))
        windows = Release.rules["window_hours"].as_float() * literal(timedelta(hours=2))
        is_its = and_(unit.release_id == Release.id, unit.unit == user_hash, unit.look.is_(None))
        confirms = exists().where(is_its, unit.exposed_at > func.clock_timestamp() - windows).correlate(Release)
        query = (
            select(newest, Release, Promotion)
            .select_from(newest)
            .outerjoin(Release, or_(splits, and_(Release.confirming_id == newest.id, confirms)))
            .outerjoin(Promotion, Release.promotion_id == Promotion.id)
            .where(newest.withdrawn_at.is_(None))
        )
        async with self.database() as tx:
            row = (await tx.execute(query.options(load_only(*_OF_SPLIT)))).one_or_none()
        if row is None:
            return None
        promotion, release, stable = row
        return (promotion, None, promotion) if release is None else (promotion, Split.of(release), stable)

    async def history(self, project: str, name: str, *, limit: int) -> Sequence[Promotion]:
        """Return all promotions of the name, newest first, or none if the name is withdrawn."""
        async with self.database() as tx:
            promotions = (await tx.execute(_of(project, name).limit(limit))).scalars().all()
        return [] if promotions and promotions[0].withdrawn_at is not None else promotions

    async def all(self, project: str | None, *, model: str | None = None) -> Sequence[Promotion]:
        """Return the current promotions of a project (None: of all projects), optionally only those of `model`."""
        newest = _newest_of_each_name()
        query = select(newest).where(newest.withdrawn_at.is_(None)).order_by(newest.project, newest.name)
        if project is not None:
            query = query.where(newest.project == project)
        if model is not None:
            query = query.where(newest.model_name == model)
        async with self.database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def latest_in(self, environment: str, project: str | None) -> tuple[Promotion, Run] | None:
        """Return the current promotion that was made last, of those whose model learned in the environment, and the
        newest run that trained it there. `project` None stands for all projects."""
        newest = _newest_of_each_name()
        trained_it = (Run.model_project == newest.project) & (Run.model_name == newest.model_name)
        query = (
            select(newest, Run)
            .join(Run, trained_it)
            .where(newest.withdrawn_at.is_(None), Run.environment == environment)
            .order_by(newest.id.desc(), Run.id.desc())
            .limit(1)
        )
        if project is not None:
            query = query.where(newest.project == project)
        async with self.database() as tx:
            row = (await tx.execute(query)).one_or_none()
        return None if row is None else (row[0], row[1])


_NAME = (Promotion.project, Promotion.name)
_OF_SPLIT = (
    *(Release.id, Release.project, Release.salt, Release.unit, Release.stage, Release.share, Release.model_name),
    *(Release.step, Release.prompt_sha256, Release.prompt_name, Release.prompt_version),
    *(Release.rules, Release.baseline),
)
"""The columns of a release that a request needs."""


def _newest_of_each_name() -> type[Promotion]:
    """Return an alias of the promotions with the newest one of each name, in force or withdrawn."""
    newest = select(Promotion).ext(distinct_on(*_NAME)).order_by(*_NAME, Promotion.id.desc())
    return aliased(Promotion, newest.subquery())


def _of(project: str, name: str) -> Select[Promotion]:
    return select(Promotion).where(Promotion.project == project, Promotion.name == name).order_by(Promotion.id.desc())
