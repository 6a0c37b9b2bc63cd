"""A model's checkpoints: which ones exist, what they are promoted to, and which ones can be deleted."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import func, select, update

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.backends import Connect, connected
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, EvaluationJob, Promotion, Release, Run
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import LIVE
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Conflict, InvalidRequest, NotFound
from learnloop_service.app.events.log import append
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.promotions import Promotions, SaveMore
from learnloop_service.app.model_registry.pushes.push import PushDestination, Pushed, Source, push
from learnloop_service.app.model_registry.resolver import UnknownModelName
from learnloop_service.app.releases.live import needed_checkpoints
from learnloop_service.app.runs.resume_point import sampled_steps
from learnloop_service.app.settings import Settings
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.protocol.model_name import ModelName

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one model. Methods raise UnknownModelName or Unavailable."""

    database: Database
    engine: EngineClient
    connect: Connect
    model: ModelName
    backend: str
    """Name of the backend that has the model."""

    async def steps(self) -> frozenset[int]:
        """Return the steps of the usable checkpoints."""
        if is_on_engine(self.backend):
            return await self._steps_on_engine()
        async with connected(self.connect, self.backend) as backend:
            return await backend.checkpoints(self.model.project, self.model.name)

    async def listed(self) -> list[dict[str, Json]]:
        """Return each checkpoint with its metrics (if the backend keeps them), runs' figures, and promoted names."""
        if is_on_engine(self.backend):
            by_step = {
                checkpoint["step"]: checkpoint for checkpoint in await self.engine.checkpoints(await self._model_id())
            }
        else:
            by_step = {step: {} for step in await self.steps()}
        runs = await self._of_runs()
        promoted = await self._promoted()
        return [
            {
                "step": step,
                "created_at": runs[step].created_at if step in runs else checkpoint.get("created"),
                "metrics": checkpoint.get("metrics", {}),
                "run_id": runs[step].run_id if step in runs else None,
                "iteration": runs[step].iteration if step in runs else None,
                "success": runs[step].success if step in runs else None,
                "is_best": runs[step].is_best if step in runs else False,
                "promoted_as": [name for name, at in promoted.items() if at == step],
            }
            for step, checkpoint in sorted(by_step.items())
        ]

    async def promote(
        self,
        name: str,
        step: int,
        prompt: PromptReference | None,
        caller: Caller,
        *,
        end_release: bool = False,
        save: SaveMore | None = None,
    ) -> tuple[Promotion, Release | None]:
        """Promote the step with the prompt to PROJECT/`name`, and return the promotion and the release that it ended,
        if any. `save` saves more in the same transaction.

        Raises NotFound, Conflict if a model has that name, or LiveRelease if the name has a live release and
        `end_release` is false.
        """
        await self.require_promotable(name, step)
        target = ModelName(self.model.project, name)
        promotion = Promotion(
            project=target.project,
            name=target.name,
            backend=self.backend,
            model_name=self.model.name,
            step=step,
            prompt=prompt,
            actor=caller.actor,
        )
        return await Promotions(self.database).promote(promotion, end_release=end_release, save=save)

    async def create(self, base_model: str, base_models: Collection[str]) -> None:
        """Create the model, with checkpoint 0, from one of the base models, unless it exists. Raises InvalidRequest, or
        Conflict if it has another base model."""
        if base_model not in base_models:
            raise InvalidRequest(("body", "base_model"), f"There is no base model {base_model!r}.")
        self._require_engine()
        await self.engine.create(self.model, base_model)

    async def require_promotable(self, name: str, step: int) -> None:
        """Check that the step can be promoted to the name. Raises NotFound, or Conflict if a model has that name."""
        if step not in await self.steps():
            raise NotFound(f"{self.model} has no checkpoint {step}.")
        target = ModelName(self.model.project, name)
        if await self._is_model(target):
            raise Conflict(f"{target} is a model. Promote to a name that no model has.")

    async def usual_prompt(self, name: str, step: int) -> PromptReference | None:
        """Return the prompt that the promoted name had with the step last, so that promoting it again brings both back.
        Without any, return that of the run which made the step."""
        same = (Promotion.project == self.model.project, Promotion.name == name, Promotion.step == step)
        before = select(Promotion).where(*same, Promotion.model_name == self.model.name)
        async with self.database() as tx:
            promotion = (await tx.execute(before.order_by(Promotion.id.desc()).limit(1))).scalar_one_or_none()
        return await self.trained_prompt(step) if promotion is None else promotion.prompt

    async def trained_prompt(self, step: int) -> PromptReference | None:
        """Return the prompt of the newest run that made the step."""
        origin = (await self._of_runs()).get(step)
        async with self.database() as tx:
            run = None if origin is None else await tx.get(Run, origin.run_id)
        return None if run is None else run.stored_request.prompt

    async def was_compared(self, step: int, prompt: PromptReference | None) -> bool:
        """Return whether an evaluation has figures of the step with the prompt."""
        contestant = {"model": str(self.model.at(step)), "prompt": prompt and {"sha256": prompt.sha256}}
        among = EvaluationJob.request.contains({"models": [contestant]})
        query = select(EvaluationJob.id).where(among, EvaluationJob.status == EvaluationStatus.COMPLETED).limit(1)
        async with self.database() as tx:
            return (await tx.execute(query)).first() is not None

    async def delete(self, steps: Sequence[int]) -> None:
        """Delete checkpoints permanently. Raises NotFound, or Conflict if one is in use."""
        self._require_engine()
        model_id = await self._model_id()
        if missing := sorted(set(steps) - await self.steps()):
            raise NotFound(f"{self.model} has no checkpoint {missing[0]}.")
        for step, why in (await self.in_use()).items():
            if step in steps:
                raise Conflict(f"Checkpoint {step} of {self.model} {why}.")
        await self.engine.delete_checkpoints(model_id, list(steps))
        await self.note_deleted(steps)

    async def in_use(self) -> Mapping[int, str]:
        """Return the steps that must be kept and why. The newest one must also be kept, but is not included."""
        promoted = {
            step: f"is promoted as {self.model.project}/{name}" for name, step in (await self._promoted()).items()
        }
        released = {
            checkpoint.step: checkpoint.why for checkpoint in await needed_checkpoints(self.database, self.model)
        }
        best = select(Run.best_step, Run.id).where(*self._run_conditions())
        forks = select(Run.parent_step, Run.id).where(
            Run.parent_run_id.in_(select(Run.id).where(*self._run_conditions())), Run.status.in_(LIVE)
        )
        live = select(Run.id).where(*self._run_conditions(), Run.status.in_(LIVE))
        async with self.database() as tx:
            sampled = [
                (step, f"is what rollouts of run {id} are sampled from")
                for id in (await tx.execute(live)).scalars().all()
                for step in await sampled_steps(tx, id)
            ]
            reasons = [
                *sampled,
                *((step, f"is what run {id} starts from") for step, id in await tx.execute(forks)),
                *((step, f"is the best of run {id}") for step, id in await tx.execute(best)),
            ]
        return {step: why for step, why in reasons if step is not None} | promoted | released

    async def note_deleted(self, steps: Sequence[int]) -> None:
        """Mark the checkpoints as deleted in the records of runs."""
        runs = select(Run.id).where(*self._run_conditions()).scalar_subquery()
        gone = update(Checkpoint).where(Checkpoint.run_id.in_(runs), Checkpoint.step.in_(steps))
        async with self.database.begin() as tx:
            await tx.execute(gone.where(Checkpoint.deleted_at.is_(None)).values(deleted_at=func.now()))

    async def _model_id(self) -> str:
        """Return the model's id on the engine."""
        try:
            return await self.engine.model_id(self.model)
        except NotFound:
            raise UnknownModelName(str(self.model)) from None

    async def _steps_on_engine(self) -> frozenset[int]:
        steps = (await self.engine.steps()).get(str(self.model))
        if steps is None:
            raise UnknownModelName(str(self.model))
        return steps

    async def exported_step(self, step: int | None) -> int:
        """Return `step`, or the newest one for None. Raises NotFound, or Conflict if the engine lacks the files."""
        self._require_engine()
        steps = await self.steps()
        if not steps or (step is not None and step not in steps):
            raise NotFound(f"{self.model} has no checkpoint {step}.")
        return max(steps) if step is None else step

    async def export_path(self, step: int) -> str:
        """Return the engine's path for downloading a checkpoint that `exported_step` returned."""
        return f"/preview/models/{await self._model_id()}/checkpoints/{step}/export"

    async def push(self, step: int, destination: PushDestination, caller: Caller, settings: Settings) -> Pushed:
        """Push a checkpoint that `exported_step` returned, and log an event for the run that produced it.

        Raises NotFound or the errors of `pushes.push`.
        """
        path = await self.export_path(step)
        address = await self.engine.engine.address()
        source = Source(str(self.model.at(step)), f"{address.url}/v1{path}", address.key)
        pushed = await push(settings, source, destination)
        log.info("checkpoint pushed", checkpoint=source.checkpoint, url=pushed.url, actor=caller.actor)
        await self._note_pushed(step, pushed, caller)
        return pushed

    async def _note_pushed(self, step: int, pushed: Pushed, caller: Caller) -> None:
        origin = (await self._of_runs()).get(step)
        data = {"step": step, "url": pushed.url, "revision": pushed.revision}
        async with self.database.begin() as tx:
            if origin is not None and await tx.get(Run, origin.run_id, with_for_update=True) is not None:
                await append(tx, origin.run_id, EventType.CHECKPOINT_PUSHED, caller.actor, data)

    def _require_engine(self) -> None:
        if not is_on_engine(self.backend):
            raise Conflict(f"{self.model} is on the backend {self.backend}, which manages its checkpoints itself.")

    async def _of_runs(self) -> dict[int, Checkpoint]:
        """Return each step's record from the newest run that produced it."""
        query = select(Checkpoint).join(Run, Run.id == Checkpoint.run_id).where(*self._run_conditions())
        async with self.database() as tx:
            rows = (await tx.execute(query.order_by(Run.id))).scalars().all()
        return {row.step: row for row in rows}

    async def _promoted(self) -> dict[str, int]:
        current = await Promotions(self.database).all(self.model.project, model=self.model.name)
        return {promotion.name: promotion.step for promotion in current}

    async def _is_model(self, name: ModelName) -> bool:
        query = select(Run.id).where(*_trained(name)).limit(1)
        async with self.database() as tx:
            if (await tx.execute(query)).scalar_one_or_none() is not None:
                return True
        return str(name) in await self.engine.steps()

    def _run_conditions(self) -> tuple[Any, ...]:
        return _trained(self.model)


def _trained(model: ModelName) -> tuple[Any, ...]:
    """Return the conditions that select runs that train the model."""
    return Run.model_project == model.project, Run.model_name == model.name
