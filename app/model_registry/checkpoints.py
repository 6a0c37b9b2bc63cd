"""The checkpoints of a model: which there are, what they are promoted as, and which may go."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import func, select, update

from app.auth.caller import Caller
from app.db.tables import Checkpoint, Promotion, Run
from app.domain.event_types import EventType
from app.domain.run_state import LIVE
from app.errors import Conflict, NotFound, Unavailable
from app.events.log import append
from app.model_registry.engine_client import EngineClient
from app.model_registry.names import UnknownModelName
from app.model_registry.promotions import Promotions
from app.model_registry.pushes.push import Pushed, Source, push
from app.model_registry.pushes.targets import Target
from app.processes.engine import EngineUnavailable
from app.service import Service
from training.backends import embedded
from training.backends.base import BackendRefused, BackendUnavailable

Json = Any

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Of the model PROJECT/NAME, as its project's callers see them. Methods raise UnknownModelName or Unavailable."""

    service: Service
    engine: EngineClient
    project: str
    name: str

    @property
    def model(self) -> str:
        return f"{self.project}/{self.name}"

    async def backend(self) -> str:
        """Where the model is; one that no run trains can only be on the engine."""
        run = await self._newest_run()
        return embedded.NAME if run is None else run.backend

    async def steps(self) -> frozenset[int]:
        """Those that can be used."""
        backend = await self.backend()
        if backend == embedded.NAME:
            return frozenset(int(each["step"]) for each in await self._of_engine())
        try:
            connected = await self.service.connect(backend)
            try:
                return await connected.checkpoints(self.project, self.name)
            finally:
                await connected.close()
        except (EngineUnavailable, BackendUnavailable, BackendRefused) as error:
            raise Unavailable(str(error)) from error

    async def listed(self) -> list[dict[str, Json]]:
        """Each with its metrics where the backend keeps them, what runs found out, and its promoted names."""
        if await self.backend() == embedded.NAME:
            found = {each["step"]: each for each in await self._of_engine()}
        else:
            found = {step: {} for step in await self.steps()}
        runs = await self._of_runs()
        promoted = await self._promoted()
        return [
            {
                "step": step,
                "created_at": each.get("created") or (runs[step].created_at if step in runs else None),
                "metrics": each.get("metrics", {}),
                "run_id": runs[step].run_id if step in runs else None,
                "iteration": runs[step].iteration if step in runs else None,
                "success": runs[step].success if step in runs else None,
                "is_best": runs[step].is_best if step in runs else False,
                "promoted_as": [name for name, at in promoted.items() if at == step],
            }
            for step, each in sorted(found.items())
        ]

    async def promote(self, name: str, step: int, caller: Caller) -> Promotion:
        """Let PROJECT/`name` mean that step from now on. Raises NotFound, or Conflict where a model is called so."""
        if step not in await self.steps():
            raise NotFound(f"{self.model} has no checkpoint {step}.")
        if await self._is_model(name):
            raise Conflict(f"{self.project}/{name} is a model. Promote to a name that no model has.")
        promotion = Promotion(
            project=self.project,
            name=name,
            backend=await self.backend(),
            model_name=self.name,
            step=step,
            actor=caller.actor,
        )
        return await Promotions(self.service.sessions).promote(promotion)

    async def delete(self, steps: Sequence[int]) -> None:
        """Delete them for good. Raises NotFound, or Conflict for one that is in use."""
        await self._require_engine()
        model_id = await self.model_id()
        if missing := sorted(set(steps) - await self.steps()):
            raise NotFound(f"{self.model} has no checkpoint {missing[0]}.")
        for step, why in (await self.in_use()).items():
            if step in steps:
                raise Conflict(f"Checkpoint {step} of {self.model} {why}.")
        await self.engine.delete_checkpoints(model_id, list(steps))
        await self.note_deleted(steps)

    async def in_use(self) -> Mapping[int, str]:
        """Steps that must stay, and why, besides the newest one."""
        promoted = {step: f"is promoted as {self.project}/{name}" for name, step in (await self._promoted()).items()}
        best = select(Run.best_step, Run.id).where(*self._trained_it())
        forks = select(Run.parent_step, Run.id).where(
            Run.parent_run_id.in_(select(Run.id).where(*self._trained_it())), Run.status.in_(LIVE)
        )
        async with self.service.sessions() as session:
            found = [
                *((step, f"is what run {id} starts from") for step, id in await session.execute(forks)),
                *((step, f"is the best of run {id}") for step, id in await session.execute(best)),
            ]
        return {step: why for step, why in found if step is not None} | promoted

    async def note_deleted(self, steps: Sequence[int]) -> None:
        """Say of runs' checkpoints that they are gone."""
        runs = select(Run.id).where(*self._trained_it()).scalar_subquery()
        gone = update(Checkpoint).where(Checkpoint.run_id.in_(runs), Checkpoint.step.in_(steps))
        async with self.service.sessions.begin() as session:
            await session.execute(gone.where(Checkpoint.deleted_at.is_(None)).values(deleted_at=func.now()))

    async def model_id(self) -> str:
        """How the engine calls the model."""
        try:
            return await self.engine.model_id(self.project, self.name)
        except NotFound:
            raise UnknownModelName(self.model) from None

    async def exported_step(self, step: int | None) -> int:
        """That step, or the newest one. Raises NotFound, or Conflict where the engine does not have the files."""
        await self._require_engine()
        found = await self.steps()
        if not found or (step is not None and step not in found):
            raise NotFound(f"{self.model} has no checkpoint {step}.")
        return max(found) if step is None else step

    async def export_path(self, step: int | None) -> str:
        """Where the engine gives the checkpoint out; the newest without a step."""
        exported = await self.exported_step(step)
        return f"/preview/models/{await self.model_id()}/checkpoints/{exported}/export"

    async def push(self, step: int, target: Target, caller: Caller) -> Pushed:
        """Push that step there, and say so in the log of the run that made it. Raises NotFound, or what `pushes.push`
        raises."""
        path = await self.export_path(step)
        try:
            address = await self.engine.engine.address()
        except EngineUnavailable as error:
            raise Unavailable(str(error)) from error
        source = Source(f"{self.model}@{step}", f"{address.url}/v1{path}", address.key)
        pushed = await push(self.service.settings, source, target)
        log.info("checkpoint pushed", checkpoint=source.checkpoint, url=pushed.url, actor=caller.actor)
        await self._note_pushed(step, pushed, caller)
        return pushed

    async def _note_pushed(self, step: int, pushed: Pushed, caller: Caller) -> None:
        made = (await self._of_runs()).get(step)
        data = {"step": step, "url": pushed.url, "revision": pushed.revision}
        async with self.service.sessions.begin() as session:
            if made is not None and await session.get(Run, made.run_id, with_for_update=True) is not None:
                await append(session, made.run_id, EventType.CHECKPOINT_PUSHED, caller.actor, data)

    async def _require_engine(self) -> None:
        if (backend := await self.backend()) != embedded.NAME:
            raise Conflict(f"{self.model} is on the backend {backend}, which manages its checkpoints itself.")

    async def _of_engine(self) -> list[dict[str, Json]]:
        return await self.engine.checkpoints(await self.model_id())

    async def _of_runs(self) -> dict[int, Checkpoint]:
        """What the newest run that made each step found out about it."""
        query = select(Checkpoint).join(Run, Run.id == Checkpoint.run_id).where(*self._trained_it())
        async with self.service.sessions() as session:
            rows = (await session.execute(query.order_by(Run.id))).scalars().all()
        return {row.step: row for row in rows}

    async def _promoted(self) -> dict[str, int]:
        current = await Promotions(self.service.sessions).all(self.project, model=self.name)
        return {each.name: each.step for each in current}

    async def _newest_run(self) -> Run | None:
        query = select(Run).where(*self._trained_it()).order_by(Run.id.desc()).limit(1)
        async with self.service.sessions() as session:
            return (await session.execute(query)).scalar_one_or_none()

    async def _is_model(self, name: str) -> bool:
        same = Checkpoints(self.service, self.engine, self.project, name)
        if await same._newest_run() is not None:
            return True
        try:
            await same.model_id()
        except NotFound:
            return False
        return True

    def _trained_it(self) -> tuple[Any, ...]:
        return Run.model_project == self.project, Run.model_name == self.name
