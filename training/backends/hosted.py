"""Shared code of the backends that speak ART's training protocol: W&B's hosted service, our engine, and ART's local
backend behind our server.

Requests go through ART's own client. Its `ServerlessBackend` is not used, because it does not expose the job's id,
waits without a deadline, and cannot tell after a lost reply whether anything was trained.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from learnloop.http_settings import proxy_of, tls
from learnloop_service.environment.base import Json
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import (
    BackendRefused,
    BackendUnavailable,
    Endpoint,
    JobForgotten,
    ModelSpec,
    NotAccepted,
    OnTrained,
    StepConflict,
    TrainingFailed,
    TrainingInterrupted,
    TrainingStalled,
    TrainOutcome,
    TrainRequest,
)
from learnloop_service.training.backends.train_options import AS_PPO, as_sent
from learnloop_service.training.protocol.model_facts import Reproducibility

if TYPE_CHECKING:
    from art.serverless.client import Client, Model

_FAILURES = {
    "step_conflict": StepConflict,
    "engine_stopped": TrainingInterrupted,
    "trainer_lost": TrainingInterrupted,
    "worker_lost": TrainingInterrupted,
    "checkpoint_not_written": TrainingInterrupted,  # a full disk can be cleared later
    "store_unavailable": TrainingInterrupted,
}
"""Exceptions for a failed job's error codes, other than TrainingFailed."""
_KEEP_CONNECTION_S = 4.0
"""Less than the time after which servers close an idle connection."""
_PERMANENT_STATUSES = (400, 404, 409, 413, 422)
"""Statuses of a request that would be rejected again."""
_UNPROCESSED_STATUSES = (401, 403, 429)
"""Statuses of a request that the server did not process."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that speaks the protocol. `base_url` ends in /v1; `name` is for messages."""

    name: str
    base_url: str
    api_key: str = field(repr=False)
    request_timeout_s: float = 600.0
    key_setting: str | None = None
    """Setting that our key comes from. If set, a server that rejects the key is not asked again."""
    says_what_is_underway: bool = False
    """Whether it can be asked if it still works on a request, as our engine can."""

    async def open(self) -> "Client":
        """Return ART's client for the server. The first call takes seconds, because it imports ART."""
        import httpx

        from learnloop_service.training.lost_connections import WatchedTransport, kept_alive_mounts

        limits = httpx.Limits(max_connections=1_000, keepalive_expiry=_KEEP_CONNECTION_S)
        module = await asyncio.to_thread(import_art, "art.serverless.client")
        client: Client = module.Client(api_key=self.api_key, base_url=self.base_url)
        client.timeout = httpx.Timeout(self.request_timeout_s, connect=10.0)
        proxy = None if self.says_what_is_underway else proxy_of(self.base_url)  # our engine can be elsewhere
        mounts = kept_alive_mounts(self.base_url, limits, proxy)
        if self.says_what_is_underway:
            mounts = {scheme: WatchedTransport(transport) for scheme, transport in mounts.items()}
        await client._client.aclose()  # ART's client cannot be given another one
        client._client = httpx.AsyncClient(
            base_url=client.base_url,
            timeout=client.timeout,
            limits=limits,
            mounts=mounts,
            verify=tls(),
            trust_env=False,
            follow_redirects=True,
        )
        return client

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the client's exceptions to ours."""
        import openai

        try:
            yield
        except openai.APIError as error:
            raise self._translation(error, _error_message(error).replace(self.api_key, "***")) from error

    def _translation(self, error: Any, message: str) -> Exception:
        import openai

        status = getattr(error, "status_code", None)
        if error.code == "step_conflict":
            return StepConflict(message)
        if status in (401, 403) and self.key_setting:
            return BackendRefused(f"{self.name} does not take the key of {self.key_setting}: {message}")
        if status in _PERMANENT_STATUSES:
            return ValueError(message)
        unread = status in _UNPROCESSED_STATUSES or (
            isinstance(error, openai.APIConnectionError) and _is_connect_failure(error)
        )
        kind = NotAccepted if unread else BackendUnavailable
        return kind(f"{self.name} does not answer as it should: {message}")


class HostedBackend:
    """Policies on one server that speaks the protocol."""

    name: str

    def __init__(self, server: Server, client: "Client") -> None:
        self.server = server
        self.client = client

    async def _get_or_create_model(self, model: ModelSpec) -> "Model":
        """Return the model, creating it if it is new. Raises BackendUnavailable, BackendRefused or ValueError."""
        with self.server.translated():
            return await self.client.models.create(
                project=model.project, name=model.name, base_model=model.base_model, return_existing=True
            )

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


class HostedPolicy(ABC):
    """One model on such a server. Subclasses implement the differences between servers."""

    settle_timeout_s = 0.0
    reproducibility = Reproducibility(False, "The backend does not promise the same bits for the same seed.")
    _stall_timeout_s = float("inf")
    """Seconds without an event after which a job counts as failed."""
    _poll_s = 0.0
    """Pause between polls of a job's events, in seconds."""
    _event_query: Mapping[str, object] = {}
    _losses = AS_PPO

    def __init__(self, server: Server, client: "Client", model: "Model") -> None:
        self._server = server
        self._client = client
        self._model = model

    async def step(self) -> int:
        """Return the step of the newest checkpoint."""
        with self._server.translated():
            async for checkpoint in self._client.models.checkpoints.list(
                model_id=self._model.id, limit=1, order="desc"
            ):
                return checkpoint.step
        return 0

    @abstractmethod
    def endpoint(self, step: int | None = None) -> Endpoint:
        """Return where the checkpoint of a step (None for the newest) is sampled."""

    @abstractmethod
    async def submit(self, request: TrainRequest) -> str:
        """Request one GRPO step, and return the job's id."""

    async def _post(self, request: TrainRequest, defaults: Mapping[str, Json], **more: Json) -> str:
        """Create the job and return its id. The request can override the options in `defaults`."""
        options = as_sent(request.options, self._losses)
        config = {"learning_rate": request.learning_rate, **defaults, **options}
        rest = json.dumps({"model_id": self._model.id, "experimental_config": config, **more})
        # Sent as text, because dumping the groups to values that the client then serializes takes four times as long.
        # Warnings are off because ART types the tool calls of plain messages as iterators, and they are lists.
        groups = ",".join(group.model_dump_json(warnings=False) for group in request.groups)
        body = f'{{"trajectory_groups":[{groups}],{rest[1:]}'
        with self._server.translated():
            job = await self._client.post("/preview/training-jobs", cast_to=dict[str, Any], content=body.encode())
        return str(job["id"])

    async def follow(
        self,
        job_id: str,
        expected_step: int,
        report: Callable[[int, int], None] | None = None,
        trained: OnTrained | None = None,
    ) -> TrainOutcome:
        """Follow the job's events to the end; `report` is called with the finished and the total number of optimizer
        steps, and `trained` if the server says that the step can be sampled before the job ends."""
        after: str | None = None
        figures: list[Mapping[str, float]] = []
        steps = 0
        heard = time.monotonic()
        while True:
            page = await self._events(job_id, after)
            for event in page["data"]:
                after, data, heard = event["id"], event["data"], time.monotonic()
                if event["type"] == "training_started":
                    steps = data.get("num_sequences", 0)
                elif event["type"] == "gradient_step":
                    figures.append(data)
                    if report is not None:
                        report(len(figures), max(len(figures), steps))
                elif event["type"] == "trained" and trained is not None:
                    trained(TrainOutcome(data["step"], data["metrics"]))
                elif event["type"] == "training_ended":
                    return await self._outcome(data, figures, expected_step)
                elif event["type"] == "training_failed":
                    message = data.get("error_message", "it does not say why")
                    raise _FAILURES.get(data.get("code"), TrainingFailed)(message)
            if time.monotonic() - heard > self._stall_timeout_s:
                raise TrainingStalled(f"the training job {job_id} sent no event for {self._stall_timeout_s:.0f} s")
            if not page.get("has_more"):
                await asyncio.sleep(self._poll_s)

    async def _events(self, job_id: str, after: str | None) -> dict[str, Any]:
        import openai

        query = {**self._event_query} | ({"after": after} if after else {})
        with self._server.translated():
            try:
                return await self._client.get(
                    f"/preview/training-jobs/{job_id}/events", cast_to=dict[str, Any], options={"params": query}
                )
            except openai.NotFoundError as error:
                raise JobForgotten(
                    f"{self._server.name} was restarted while it trained: {_error_message(error)}"
                ) from error

    async def _outcome(
        self, data: Mapping[str, Any], figures: Sequence[Mapping[str, float]], expected_step: int
    ) -> TrainOutcome:
        """Return the outcome of a job from the data of its last event and the metrics of its gradient steps."""
        return TrainOutcome(data["step"], data["metrics"])

    async def metrics(self, step: int) -> dict[str, float]:
        """Return the training metrics that are kept with the checkpoint."""
        with self._server.translated():
            async for checkpoint in self._client.models.checkpoints.list(model_id=self._model.id, order="desc"):
                if checkpoint.step == step:
                    return dict(checkpoint.metrics)
        return {}

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        """Delete all checkpoints except those in `keep` and the newest, and return the deleted steps."""
        with self._server.translated():
            steps = [c.step async for c in self._client.models.checkpoints.list(model_id=self._model.id)]
            to_delete = sorted(set(steps) - keep - {max(steps, default=0)})
            if to_delete:
                await self._client.models.checkpoints.delete(model_id=self._model.id, steps=to_delete)
        return to_delete


def _error_message(error: Any) -> str:
    return str(error.body.get("message", error)) if isinstance(error.body, dict) else str(error)


def _is_connect_failure(error: Exception) -> bool:
    import httpx

    return isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
