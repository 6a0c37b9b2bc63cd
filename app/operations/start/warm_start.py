"""Adds the demonstrations that a request names to the plan of its run."""

import asyncio
import json
from dataclasses import replace

import structlog

from learnloop_service.app.datasets.documents import stored_text
from learnloop_service.app.datasets.references import UnknownDataset, demonstrations
from learnloop_service.app.errors import InvalidRequest, Unavailable
from learnloop_service.app.operations.start.backend_checks import reached
from learnloop_service.app.operations.start.run_plan import RunPlan, WarmStartPlan
from learnloop_service.app.resources import Resources
from learnloop_service.app.schemas.run_request import WarmStartChoice
from learnloop_service.environment.base import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.backends.base import CountingBackend, Overlong
from learnloop_service.training.loop.warm_start import AllOverlong, iterations_of

MAX_SUPERVISED_ITERATIONS = 10_000
_COUNTED_WHEN_POSTED = 2_000
"""Number of stored demonstrations up to which their tokens are counted before the run is accepted."""
_WHERE = ("body", "warm_start", "demonstrations")

log = structlog.get_logger(__name__)


async def with_warm_start(resources: Resources, plan: RunPlan, start: WarmStartChoice) -> RunPlan:
    """Add the version of the demonstrations, the number of iterations that train on them, and a warning that names
    those that the model's context has no room for. Raises InvalidRequest, also if no other is left."""
    source = start.demonstrations.model_dump()
    if "dataset" in source:
        source = await _stored(resources, source["dataset"], plan.model.project)
    count = source.get("count") or source["oracle"]
    iterations = iterations_of(count, start.epochs, start.held_out, start.demonstrations_per_iteration)
    if iterations > MAX_SUPERVISED_ITERATIONS:
        raise InvalidRequest(
            ("body", "warm_start", "demonstrations_per_iteration"),
            f"{counted(count, 'demonstration')} in {counted(start.epochs, 'epoch')} make {iterations:,} iterations, "
            f"and {MAX_SUPERVISED_ITERATIONS:,} are possible.",
        )
    plan = replace(plan, warm_start=WarmStartPlan(source, iterations))
    if "sha256" not in source or source["count"] > _COUNTED_WHEN_POSTED:
        return plan
    overlong = await _overlong(resources, plan, source["sha256"])
    if overlong is None or not overlong.tokens:
        return plan
    if len(overlong.tokens) == overlong.total:
        raise InvalidRequest(_WHERE, str(AllOverlong(overlong)))
    return replace(plan, warnings=(*plan.warnings, str(overlong)))


async def _stored(resources: Resources, name: str, project: str) -> dict[str, Json]:
    """Return the version of the demonstrations that the name currently means."""
    try:
        version = await demonstrations(resources.database, resources.settings.data_dir, name, project)
    except UnknownDataset as error:
        raise InvalidRequest((*_WHERE, "dataset"), str(error)) from error
    return {"sha256": version.sha256, "name": version.name, "version": version.version, "count": version.size}


async def _overlong(resources: Resources, plan: RunPlan, hash: str) -> Overlong | None:
    """Return which of the demonstrations are too long for the model, or None if that cannot be found out now: then they
    are counted when the run starts."""
    text = await stored_text(resources.database, plan.model.project, "demonstrations", hash)
    try:
        async with reached(resources, plan.backend, plan.model_name) as there:
            if not isinstance(there, CountingBackend):
                return None
            return await there.overlong(plan.model.base_model, await asyncio.to_thread(json.loads, text))
    except (Unavailable, ValueError) as error:
        log.warning("demonstrations not counted", run_id=plan.run_id, error=str(error))
        return None
