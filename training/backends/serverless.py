"""The backend `serverless`: W&B's hosted training, with what its client lacks.

The protocol has no compare-and-set and cannot list a model's jobs. A request can take effect although its reply is
lost, nothing can be cancelled, and the list of checkpoints can lag behind the end of a job. See docs/backends.md.
"""

import asyncio
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import Field, HttpUrl, SecretStr
from pydantic_settings import SettingsConfigDict

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
from learnloop_service.training.backends.traits import BackendSettings, BackendTraits, Check, Host, State

if TYPE_CHECKING:
    from art.serverless.client import Client, Model

NAME = "serverless"
BASE_URL = "https://api.training.wandb.ai/v1"
KEY_SETTING = "WANDB_API_KEY"
_POLL_S = 1.0
_REQUEST_TIMEOUT_S = 120.0
_PREFLIGHT_TIMEOUT_S = 10.0


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


class ServerlessSettings(BackendSettings):
    """The account, and how long a silent server is waited for."""

    model_config = SettingsConfigDict(env_prefix="LEARNLOOP_")

    wandb_api_key: SecretStr | None = Field(default=None, validation_alias=KEY_SETTING)
    """Key of the W&B account."""
    serverless_url: HttpUrl = HttpUrl(BASE_URL)
    """URL of W&B Training or of a server with the same protocol."""
    serverless_quiet_s: float = Field(default=300.0, ge=0.0, le=86_400.0)
    """Time to wait before repeating a training request whose reply was lost."""
    serverless_silence_s: float = Field(default=1800.0, gt=0.0, le=86_400.0)
    """A training job without any event for this long counts as failed."""

    @property
    def url(self) -> str:
        """The server's URL without a trailing slash."""
        return str(self.serverless_url).rstrip("/")

    def access(self) -> ServerlessAccess:
        """Return what these settings give access to. The key must be set."""
        assert self.wandb_api_key is not None
        return ServerlessAccess(
            self.wandb_api_key.get_secret_value(),
            self.url,
            settle_timeout_s=self.serverless_quiet_s,
            stall_timeout_s=self.serverless_silence_s,
        )


def _missing(settings: ServerlessSettings) -> str | None:
    return None if settings.wandb_api_key else f"W&B Training needs the setting {KEY_SETTING}."


def _reached(settings: ServerlessSettings) -> Iterator[Check]:
    """Yield whether the server answers. The key is not sent: only a training request shows whether it is taken."""
    import httpx  # imported late: the settings are read by commands that never connect

    try:
        httpx.get(settings.url, timeout=_PREFLIGHT_TIMEOUT_S)
    except httpx.TransportError as error:
        text = f"{settings.url} cannot be reached: {error}"
        yield Check("W&B Training", State.FAILED, text, "start it, or correct LEARNLOOP_SERVERLESS_URL")
    else:
        yield Check("W&B Training", State.OK, f"{settings.url} answers")


TRAITS = BackendTraits(train_options=SERVERLESS, settings=ServerlessSettings, refusal=_missing, preflight=_reached)


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


async def connect_here(_: Host, settings: ServerlessSettings) -> ServerlessBackend:
    """Return a backend for the account of the settings."""
    return await connect(settings.access())


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
    names = {name for step in figures for name in step}
    values_of = {name: [float(step[name]) for step in figures if name in step] for name in sorted(names)}
    return {name: math.fsum(values) / len(values) for name, values in values_of.items()}
