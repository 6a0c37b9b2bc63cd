"""The backend `embedded`: ART's own client of the hosted training protocol, pointed at our engine.

What our engine adds to the protocol is used here: the step a train request expects (so that a lost
reply never trains twice) and events that wait, where ART's backend sleeps a second between polls.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from environment.base import Json
from training.backends.art_import import import_art
from training.backends.base import (
    BackendUnavailable,
    Endpoint,
    ModelSpec,
    StepConflict,
    TrainingFailed,
    TrainOutcome,
)

if TYPE_CHECKING:
    from art import TrajectoryGroup
    from art.serverless.client import Client, Model

NAME = "embedded"
_EVENT_WAIT_S = 20
_UNDER_WAY_PAUSE_S = 0.5
_FAILURES = {"step_conflict": StepConflict, "engine_stopped": BackendUnavailable}
"""What a failed job's code means, where it is not that the training failed."""
_REFUSED = (400, 404, 409, 413, 422)
"""Statuses of a request that would be refused again."""
_OPTIONS = {"token_weighting": "token"}
"""Every sampled token weighs the same. ART's default, every trajectory the same, learns the tiny agents more slowly."""


class EmbeddedBackend:
    """Policies on one engine."""

    name = NAME

    def __init__(self, base_url: str, api_key: str, client: "Client") -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._client = client

    async def register(self, model: ModelSpec) -> "EmbeddedPolicy":
        """Make the model, or continue the one of that name. Raises BackendUnavailable or ValueError."""
        with _translated():
            registered = await self._client.models.create(
                project=model.project, name=model.name, base_model=model.base_model, return_existing=True
            )
        return EmbeddedPolicy(self._client, self._base_url, self._api_key, registered)

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        """The steps that the engine has of the model. Raises BackendUnavailable."""
        with _translated():
            models = await self._client.get("/models", cast_to=dict[str, Any])
        return frozenset(
            step for each in models["data"] if each["id"] == f"{project}/{name}" for step in each.get("steps", ())
        )

    async def delete(self, model: ModelSpec) -> None:
        """Delete the model of that name, if there is one. Raises BackendUnavailable."""
        with _translated():
            models = await self._client.get("/preview/models", cast_to=dict[str, Any])
            for each in models["data"]:
                if (each["project"], each["name"]) == (model.project, model.name):
                    await self._client.models.delete(model_id=each["id"])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


async def connect(base_url: str, api_key: str) -> EmbeddedBackend:
    """A backend on the engine whose OpenAI base URL (ending in /v1) this is."""
    client_module = await asyncio.to_thread(import_art, "art.serverless.client")
    return EmbeddedBackend(base_url, api_key, client_module.Client(api_key=api_key, base_url=base_url))


class EmbeddedPolicy:
    """One model of the engine."""

    def __init__(self, client: "Client", base_url: str, api_key: str, model: "Model") -> None:
        self._client = client
        self._base_url = base_url
        self._api_key = api_key
        self._model = model

    async def step(self) -> int:
        """The newest checkpoint's step."""
        with _translated():
            async for checkpoint in self._client.models.checkpoints.list(
                model_id=self._model.id, limit=1, order="desc"
            ):
                return checkpoint.step
        return 0

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Where the checkpoint is sampled; the newest without a step."""
        at = "" if step is None else f"@{step}"
        return Endpoint(self._base_url, self._api_key, f"{self._model.project}/{self._model.name}{at}", remembers=True)

    async def train(
        self,
        groups: "Sequence[TrajectoryGroup]",
        *,
        learning_rate: float,
        expected_step: int,
        options: Mapping[str, Json],
    ) -> TrainOutcome:
        """One GRPO step, waited for. Raises TrainingFailed, StepConflict, BackendUnavailable or, for bad options,
        ValueError."""
        body = {
            "model_id": self._model.id,
            "trajectory_groups": [group.model_dump(mode="json") for group in groups],
            "experimental_config": {"learning_rate": learning_rate, **_OPTIONS, **options},
            "expected_step": expected_step,
        }
        with _translated():
            return await self._finish(await self._submit(body, expected_step))

    async def _submit(self, body: Mapping[str, Json], expected_step: int) -> str:
        """The job's id. A training of the same step that is still under way, perhaps ours before we were started
        again, is waited for: its end tells whether there is anything left to train."""
        while True:
            try:
                with _translated():
                    job = await self._client.post("/preview/training-jobs", cast_to=dict[str, Any], body=body)
                return str(job["id"])
            except StepConflict:
                if await self.step() != expected_step:
                    raise
            await asyncio.sleep(_UNDER_WAY_PAUSE_S)

    async def _finish(self, job_id: str) -> TrainOutcome:
        """Follow the job's events to its end."""
        after: str | None = None
        while True:
            query: dict[str, object] = {"wait_s": _EVENT_WAIT_S} | ({"after": after} if after else {})
            page = await self._client.get(
                f"/preview/training-jobs/{job_id}/events", cast_to=dict[str, Any], options={"params": query}
            )
            for event in page["data"]:
                after, data = event["id"], event["data"]
                if event["type"] == "training_ended":
                    return TrainOutcome(data["step"], data["metrics"])
                if event["type"] == "training_failed":
                    raise _FAILURES.get(data.get("code"), TrainingFailed)(data["error_message"])

    async def metrics(self, step: int) -> dict[str, float]:
        """What the checkpoint's manifest tells of its training."""
        with _translated():
            async for checkpoint in self._client.models.checkpoints.list(model_id=self._model.id, order="desc"):
                if checkpoint.step == step:
                    return dict(checkpoint.metrics)
        return {}

    async def delete_checkpoints(self, keep: set[int]) -> list[int]:
        """Delete all checkpoints but these and the newest; returns the deleted steps."""
        with _translated():
            steps = [c.step async for c in self._client.models.checkpoints.list(model_id=self._model.id)]
            doomed = sorted(set(steps) - keep - {max(steps, default=0)})
            if doomed:
                await self._client.models.checkpoints.delete(model_id=self._model.id, steps=doomed)
        return doomed


@contextmanager
def _translated() -> Iterator[None]:
    """The client's errors as ours."""
    import openai

    try:
        yield
    except openai.APIError as error:
        said = str(error.body.get("message", error)) if isinstance(error.body, dict) else str(error)
        if error.code == "step_conflict":
            raise StepConflict(said) from error
        if error.code == "job_not_found":
            raise BackendUnavailable("the engine was restarted while it trained") from error
        if getattr(error, "status_code", None) in _REFUSED:
            raise ValueError(said) from error
        raise BackendUnavailable(f"the engine does not answer as it should: {said}") from error
