"""Checks whether both arms of a release fit into the engine's memory at the same time."""

from collections.abc import Mapping, Sequence
from typing import Any

from learnloop_service.app.errors import Conflict
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName

WEIGHTS_SHARE = 0.6
"""Share of a GPU's memory that weights can have, so that caches and training have room. The engine has the same."""
_PARAMETER_BYTES = 2
"""Bytes of a parameter of weights that are sampled on a GPU."""


class NoRoom(Conflict):
    """The engine cannot keep both checkpoints in memory."""

    title = "Not enough memory"

    def __init__(self, missing_bytes: int) -> None:
        super().__init__(
            f"The two checkpoints do not fit into the engine's memory together: {missing_bytes:,} bytes are missing. "
            "Adapters (LoRA) of one base model share its weights; otherwise use a GPU with more memory."
        )
        self.missing_bytes = missing_bytes

    def members(self) -> Mapping[str, Any]:
        return {"missing_bytes": self.missing_bytes}


async def check_room(engine: EngineClient, candidate: ModelName, stable: ModelName) -> list[str]:
    """Return warnings about how checkpoints of both models, which can be the same, are sampled. Raises NoRoom."""
    devices = engine.engine.health.get("devices", [])
    if not devices:
        return []
    if all(device["name"].startswith("CPU") for device in devices):
        return ["The engine samples on a CPU, where the two checkpoints take turns: requests to both arms wait longer."]
    models = [
        await engine.described(f"/preview/models/{await engine.model_id(model)}") for model in (candidate, stable)
    ]
    missing = missing_bytes(devices, *models)
    if missing is None:
        return ["The engine does not say whether both checkpoints fit into its memory."]
    if missing:
        raise NoRoom(missing)
    return []


def missing_bytes(devices: Sequence[Json], candidate: Json, stable: Json) -> int | None:
    """Return how many bytes the weights of both models lack on the first GPU; 0 if they fit, None if it is not known.

    Takes the engine's descriptions of its devices and of both models.
    """
    total: int | None = devices[0]["memory_total_bytes"]
    parameters: list[int] = [
        model["parameters"] for model in (candidate, stable) if model.get("parameters") is not None
    ]
    if total is None or len(parameters) < 2:
        return None
    adapters = all(model["tuning"] == "lora" for model in (candidate, stable))
    if adapters and candidate["base_model"] == stable["base_model"]:
        parameters = parameters[:1]  # sampled in one batch over the same base
    return max(0, _PARAMETER_BYTES * sum(parameters) - int(WEIGHTS_SHARE * total))
