"""The backend `serverless`: W&B's hosted training, with what its client lacks.

The protocol has no compare-and-set and cannot list a model's jobs. A request can take effect although its reply is
lost, nothing can be cancelled, and the list of checkpoints can lag behind the end of a job. See docs/backends.md.
"""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from learnloop_service.training.backends.added import BackendTraits
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    Endpoint,
    ModelSpec,
    NotAccepted,
    StepConflict,
    TrainOutcome,
    TrainRequest,
)
from learnloop_service.training.backends.hosted import HostedBackend, HostedPolicy, Server
from learnloop_service.training.backends.train_options import SERVERLESS

if TYPE_CHECKING:
    from art.serverless.client import Client, Model

NAME = "serverless"
TRAITS = BackendTraits(train_options=SERVERLESS)
BASE_URL = "https://api.training.wandb.ai/v1"
KEY_SETTING = "WANDB_API_KEY"
_POLL_S = 1.0
_REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ServerlessAccess:
    """Access to W&B's service, or to one that speaks its protocol, with timeouts in seconds."""

    api_key: str = field(repr=False)
    base_url: str = BASE_URL
    settle_timeout_s: float = 300.0
    """Time after which a training whose job id was never received, and that has not taken effect, counts as never
    begun."""
    stall_timeout_s: float = 1800.0
    """Time without an event after which a job counts as failed."""
    lag_s: float = 60.0
    """Longest time that the list of checkpoints can lag behind the end of a job."""
    request_timeout_s: float = _REQUEST_TIMEOUT_S
    poll_s: float = _POLL_S


class ServerlessBackend(HostedBackend):
    """Policies of one W&B account."""

    name = NAME

    def __init__(self, server: Server, client: "Client", access: ServerlessAccess) -> None:
        super().__init__(server, client)
        self._access = access

    async def register(self, model: ModelSpec) -> "ServerlessPolicy":
        """Create the model, or continue an existing one of that name. Raises BackendUnavailable, BackendRefused or
        ValueError."""
        return ServerlessPolicy(self.server, self.client, await self._get_or_create_model(model), self._access)

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        """Return no steps, because the protocol cannot fork models."""
        return frozenset()

    async def delete(self, model: ModelSpec) -> None:
        """Delete the model. The protocol finds a model only by creating it, so a missing one is created first."""
        registered = await self._get_or_create_model(model)
        with self.server.translated():
            await self.client.models.delete(model_id=registered.id)


async def connect(access: ServerlessAccess) -> ServerlessBackend:
    """Return a backend for the account."""
    server = Server("W&B Training", access.base_url, access.api_key, access.request_timeout_s, KEY_SETTING)
    return ServerlessBackend(server, await server.open(), access)


class ServerlessPolicy(HostedPolicy):
    """One model of the account."""

    def __init__(self, server: Server, client: "Client", model: "Model", access: ServerlessAccess) -> None:
        super().__init__(server, client, model)
        self.settle_timeout_s = access.settle_timeout_s
        self._stall_timeout_s = access.stall_timeout_s
        self._lag_s = access.lag_s
        self._poll_s = access.poll_s

    def artifact(self, step: int | None = None) -> str:
        """Return the W&B artifact with the checkpoint of a step (None for the newest)."""
        at = "" if step is None else f":step{step}"
        return f"wandb-artifact:///{self._model.entity}/{self._model.project}/{self._model.name}{at}"

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Return where the checkpoint is sampled, by the name of its artifact."""
        return Endpoint(self._server.base_url, self._server.api_key, self.artifact(step))

    async def submit(self, request: TrainRequest) -> str:
        """Return the job's id. The service would train from any step, so the step is checked beforehand, as far as
        possible.

        Raises StepConflict, NotAccepted, BackendUnavailable, BackendRefused or ValueError.
        """
        if unknown := set(request.options) - SERVERLESS:
            raise ValueError(f"serverless takes no option {', '.join(sorted(unknown))}; it takes: {sorted(SERVERLESS)}")
        try:
            await self._at(request.expected_step)
        except BackendUnavailable as error:
            raise NotAccepted(str(error)) from error
        return await self._post(request, {})

    async def _outcome(
        self, data: Mapping[str, Any], figures: Sequence[Mapping[str, float]], expected_step: int
    ) -> TrainOutcome:
        if not figures:
            return TrainOutcome(expected_step, {"num_groups_trainable": 0.0})  # there was nothing to train on
        await self._at(expected_step + 1)
        return TrainOutcome(expected_step + 1, _means(figures))

    async def _at(self, step: int) -> None:
        """Wait until the list of checkpoints reaches the step. Raises StepConflict if it is past the step, and
        BackendUnavailable if it does not reach it."""
        deadline = time.monotonic() + self._lag_s
        while (now := await self.step()) < step:
            if time.monotonic() > deadline:
                raise BackendUnavailable(f"{self._server.name} lists checkpoints up to step {now}, not {step} yet")
            await asyncio.sleep(self._poll_s)
        if now > step:
            raise StepConflict(f"the policy is at step {now}, not {step}: another client trained it")


def _means(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the gradient steps that report it."""
    names = {name for each in figures for name in each}
    of = {name: [float(each[name]) for each in figures if name in each] for name in sorted(names)}
    return {name: math.fsum(values) / len(values) for name, values in of.items()}
