"""What the engine is doing."""

from learnloop_service.app.api.dependencies import CurrentService
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.processes.engine import EngineState
from learnloop_service.app.schemas.base import ResponseModel

router = keyed_router("health")


class DeviceOut(ResponseModel):
    """A processor of the engine and its memory. Null where it is not known."""

    name: str
    """Name of the GPU, or the CPU with its number of threads."""
    memory_used_bytes: int | None
    """Taken memory: a GPU's by all processes; of a CPU what the engine has in main memory."""
    memory_total_bytes: int | None
    """Size of the memory."""


class EngineOut(ResponseModel):
    """What the engine is doing, as it answered the latest health check. Figures are null without an answer, and if the
    engine does not report them. Counters begin at 0 when it starts: a rate is the difference of two divided by that of
    `uptime_s`."""

    state: EngineState
    """State of the engine."""
    uptime_s: float | None
    """Seconds since it started."""
    devices: list[DeviceOut]
    """What it computes on."""
    batch_size: int | None
    """Number of conversations that are sampled together now."""
    requests_waiting: int | None
    """Number of requests that wait for a place in the batch or for their prompt."""
    cache_tokens: int | None
    """Number of tokens whose keys and values are cached."""
    cache_capacity_tokens: int | None
    """Number of tokens that the caches have room for."""
    sampled_tokens: int | None
    """Number of tokens that were sampled."""
    prefilled_tokens: int | None
    """Number of prompt tokens that were computed."""
    reused_tokens: int | None
    """Number of prompt tokens that were in the cache."""
    train_steps: int | None
    """Number of finished training jobs."""
    sampling_s: float | None
    """Seconds that it has spent sampling."""
    training_s: float | None
    """Seconds that it has spent training."""


@router.get("/engine")
async def get_engine(service: CurrentService) -> EngineOut:
    """Get what the engine is doing: its devices, memory, batch, queue and counters."""
    engine = service.engine
    health = engine.health if engine.trouble is None else {}
    busy = health.get("busy_seconds", {})
    figures = dict.fromkeys(EngineOut.model_fields) | health.get("figures", {})
    return EngineOut.model_validate(
        figures
        | {
            "state": engine.state,
            "uptime_s": health.get("uptime_s"),
            "devices": health.get("devices", []),
            "sampling_s": busy.get("sampling"),
            "training_s": busy.get("training"),
        }
    )
