"""Promoted checkpoints: a name of a project that users know stays, and what is behind it changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import aliased

from app.db.database import Database
from app.db.tables import Promotion


@dataclass(frozen=True, slots=True)
class Promotions:
    """What is promoted. Rows are never deleted: the newest one of a name counts, the others are its history."""

    database: Database

    async def promote(self, promotion: Promotion) -> Promotion:
        """Let the name mean that checkpoint from now on; to roll back is to promote an older one again."""
        async with self.database.begin() as tx:
            tx.add(promotion)
            await tx.flush()
            await tx.refresh(promotion)
        return promotion

    async def withdraw(self, project: str, name: str, actor: str) -> Promotion | None:
        """Let the name mean nothing from now on; returns what it meant, None if that is nothing already."""
        async with self.database.begin() as tx:
            newest = (await tx.execute(_of(project, name).limit(1).with_for_update())).scalar_one_or_none()
            if newest is None or newest.withdrawn_at is not None:
                return None
            newest.withdrawn_at, newest.withdrawn_by = func.now(), actor
            await tx.flush()
            await tx.refresh(newest)
            return newest

    async def current(self, project: str, name: str) -> Promotion | None:
        """What the name means now."""
        async with self.database() as tx:
            newest = (await tx.execute(_of(project, name).limit(1))).scalar_one_or_none()
        return None if newest is None or newest.withdrawn_at is not None else newest

    async def history(self, project: str, name: str, *, limit: int) -> Sequence[Promotion]:
        """All that the name meant, the newest first; nothing while it means nothing."""
        async with self.database() as tx:
            found = (await tx.execute(_of(project, name).limit(limit))).scalars().all()
        return [] if found and found[0].withdrawn_at is not None else found

    async def all(self, project: str | None, *, model: str | None = None) -> Sequence[Promotion]:
        """What all names of a project (None: of every project) mean now; with `model`, those that mean it."""
        newest = aliased(
            Promotion, select(Promotion).ext(distinct_on(*_NAME)).order_by(*_NAME, Promotion.id.desc()).subquery()
        )
        query = select(newest).where(newest.withdrawn_at.is_(None)).order_by(newest.project, newest.name)
        if project is not None:
            query = query.where(newest.project == project)
        if model is not None:
            query = query.where(newest.model_name == model)
        async with self.database() as tx:
            return (await tx.execute(query)).scalars().all()


_NAME = (Promotion.project, Promotion.name)


def _of(project: str, name: str) -> Select[Promotion]:
    return select(Promotion).where(Promotion.project == project, Promotion.name == name).order_by(Promotion.id.desc())
