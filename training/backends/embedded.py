"""The backend `embedded`: ART's client of the hosted training protocol, connected to our engine.

It uses the engine's additions to the protocol: a train request states the step that it expects, so that a lost reply
never trains twice, and events are long-polled, while ART's backend sleeps for a second between polls.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from learnloop_service.environment.base import Json
from learnloop_service.training.backends.base import (
    Endpoint,
    ModelSpec,
    Overlong,
    StepConflict,
    SupervisedRequest,
    TrainRequest,
)
from learnloop_service.training.backends.hosted import HostedBackend, HostedPolicy, Server
from learnloop_service.training.backends.train_options import EMBEDDED
from learnloop_service.training.backends.traits import BackendSettings, BackendTraits, Host
from learnloop_service.training.bases.defaults import TINY_BASE
from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.protocol.model_facts import MeasuredToken, Reproducibility
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.protocol.tool_formats.formats import FORMATS, HERMES, ToolFormat
from learnloop_service.training.tuning import Tuning

if TYPE_CHECKING:  # importing art takes seconds
    from art.serverless.client import Client, Model

NAME = "embedded"
TRAITS = BackendTraits(train_options=EMBEDDED, trains_on_demonstrations=True, takes_tuning=True, on_engine=True)
_EVENT_WAIT_S = 20
_RUNNING_POLL_S = 0.5
_COUNTED, _COUNTED_BYTES = 64, 4_000_000
"""Number and size of the demonstrations whose tokens are counted in one request."""
_OPTIONS = {"token_weighting": "token", "max_kl": 0.02}
"""Every sampled token has the same weight; ART's default, the same weight for every trajectory, trains the tiny agents
more slowly. `max_kl` keeps each step small: one of Adam's first could make the policy unlearn the format of a tool call
for good."""
_MAX_ROLLOUT_KL = 0.5
"""`max_rollout_kl` for bases above the tiny one: a step within it cannot take a success rate from 85% to below 36%, as
far as the measured conversations tell. The tiny base's steps move a rollout by 1 nat and teach, and its demos keep
their figures."""


class EmbeddedBackend(HostedBackend):
    """Policies on one engine."""

    name = NAME

    async def register(self, model: ModelSpec) -> "EmbeddedPolicy":
        """Create the model, or continue an existing one of that name. Raises BackendUnavailable, or ValueError if an
        existing one has another base or tuning."""
        usual = model.tuning is None and model.enable_thinking is None
        registered = await self._get_or_create_model(model) if usual else await self._tuned(model)
        return EmbeddedPolicy(self.server, self.client, registered, *await self._reproducibility(registered.id))

    async def _tuned(self, model: ModelSpec) -> "Model":
        """Like `_get_or_create_model`, for a model with settings that ART's client cannot send."""
        from art.serverless.client import Model

        body = {
            "project": model.project,
            "name": model.name,
            "base_model": model.base_model,
            "return_existing": True,
            "tuning": None if model.tuning is None else model.tuning.as_json(),
            "enable_thinking": model.enable_thinking,
        }
        with self.server.translated():
            return await self.client.post("/preview/models", cast_to=Model, body=body)

    async def tuning(self, project: str, name: str) -> Tuning | None:
        """Return which part of a model is trained; None if there is no such model, or if the engine is of an earlier
        version. Raises BackendUnavailable."""
        with self.server.translated():
            models = await self.client.get("/preview/models", cast_to=dict[str, Any])
        settings = [
            model.get("tuning_settings")
            for model in models["data"]
            if (model["project"], model["name"]) == (project, name)
        ]
        return Tuning.of_json(settings[0]) if settings and settings[0] else None

    async def _reproducibility(self, model_id: str) -> tuple[Reproducibility, ToolFormat]:
        """Return whether samples of the model are reproducible, and how it writes tool calls."""
        import openai

        with self.server.translated():
            try:
                reported = await self.client.get(f"/preview/models/{model_id}/reproducibility", cast_to=dict[str, Any])
            except openai.NotFoundError:
                earlier = Reproducibility(False, "The engine is of an earlier version, which does not check it.")
                return earlier, HERMES
        reproducibility = Reproducibility(reported["reproducible"], reported["reason"], reported.get("fingerprint"))
        return reproducibility, FORMATS.get(reported.get("tool_format", ""), HERMES)

    async def checkpoints(self, project: str, name: str) -> frozenset[int]:
        """Return the steps of the model's checkpoints in the engine. Raises BackendUnavailable."""
        with self.server.translated():
            models = await self.client.get("/models", cast_to=dict[str, Any])
        return frozenset(
            step for model in models["data"] if model["id"] == f"{project}/{name}" for step in model.get("steps", ())
        )

    async def free_bytes(self) -> int | None:
        """Return how many bytes are free on the engine's disk; None if the engine is of an earlier version. Raises
        BackendUnavailable."""
        import openai

        with self.server.translated():
            try:
                return int((await self.client.get("/preview/disk", cast_to=dict[str, Any]))["free_bytes"])
            except openai.NotFoundError:
                return None

    async def overlong(self, model: str, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
        """Return which of the demonstrations are too long to train a model from this base or checkpoint on. Raises
        BackendUnavailable or ValueError."""
        return await _overlong(self.server, self.client, model, demonstrations)

    async def delete(self, model: ModelSpec) -> None:
        """Delete the model, if it exists. Raises BackendUnavailable."""
        with self.server.translated():
            models = await self.client.get("/preview/models", cast_to=dict[str, Any])
            for listed in models["data"]:
                if (listed["project"], listed["name"]) == (model.project, model.name):
                    await self.client.models.delete(model_id=listed["id"])


async def connect_here(host: Host, _: BackendSettings) -> EmbeddedBackend:
    """Return a backend for the service's engine. Raises BackendUnavailable."""
    address = await host.engine()
    return await connect(f"{address.url}/v1", address.key)


async def connect(base_url: str, api_key: str) -> EmbeddedBackend:
    """Return a backend for the engine at an OpenAI base URL, which ends in /v1."""
    server = Server("the engine", base_url, api_key, says_what_is_underway=True)
    return EmbeddedBackend(server, await server.open())


async def _overlong(
    server: Server, client: "Client", model: str, demonstrations: Sequence[Mapping[str, Json]]
) -> Overlong:
    """Let the engine count the tokens of demonstrations. Those whose text is shorter than half of the context are sent
    only if the context is not known yet, because a token has at least one byte."""
    import openai

    overlong = Overlong(len(demonstrations), 0)
    sizes = [len(json.dumps(demonstration)) for demonstration in demonstrations]
    waiting = sorted(range(len(sizes)), key=sizes.__getitem__)
    while waiting and (not overlong.context or 2 * sizes[waiting[-1]] > overlong.context):
        batch = [waiting.pop()]
        while waiting and len(batch) < _COUNTED and sum(sizes[index] for index in batch) < _COUNTED_BYTES:
            batch.append(waiting.pop())
        body = {"model": model, "conversations": [demonstrations[index] for index in batch]}
        with server.translated():
            try:
                counted = await client.post("/preview/sft-tokens", cast_to=dict[str, Any], body=body)
            except openai.NotFoundError as error:
                if error.code != "not_found":
                    raise
                return overlong  # the engine is of an earlier version, which does not count
        context = counted["context"] or sys.maxsize
        counts = zip(batch, counted["tokens"], strict=True)
        longer = {index: count for index, count in counts if count is not None and count > context}
        overlong = Overlong(overlong.total, context, {**overlong.tokens, **longer})
    return overlong


class FencedPolicy(HostedPolicy):
    """A model on a server of ours, which trains only from the expected step and supports long polling of events."""

    _event_query: Mapping[str, object] = {"wait_s": _EVENT_WAIT_S}
    _options: Mapping[str, Json] = {}

    async def submit(self, request: TrainRequest) -> str:
        """Return the job's id. If a training from the same step is still running, perhaps ours from before a restart,
        wait for its end, which shows whether there is anything left to train."""
        return await self._in_turn(
            lambda: self._post(request, self._options, expected_step=request.expected_step), request.expected_step
        )

    async def _in_turn(self, post: Callable[[], Awaitable[str]], expected_step: int) -> str:
        while True:
            try:
                return await post()
            except StepConflict:
                if await self.step() != expected_step:
                    raise
            await asyncio.sleep(_RUNNING_POLL_S)


class EmbeddedPolicy(FencedPolicy):
    """One model of the engine."""

    samples_early = True
    _options = _OPTIONS

    def __init__(
        self,
        server: Server,
        client: "Client",
        model: "Model",
        reproducibility: Reproducibility,
        tool_format: ToolFormat,
    ) -> None:
        super().__init__(server, client, model)
        if model.base_model != TINY_BASE:
            self._options = {**_OPTIONS, "max_rollout_kl": _MAX_ROLLOUT_KL}
        self.reproducibility = reproducibility
        self.tool_format = tool_format

    async def overlong(self, demonstrations: Sequence[Mapping[str, Json]]) -> Overlong:
        """Return which of the demonstrations are too long to train on. Raises BackendUnavailable or ValueError."""
        return await _overlong(self._server, self._client, self.endpoint().model, demonstrations)

    async def submit_supervised(self, request: SupervisedRequest) -> str:
        """Return the job's id. Like `submit`, it waits for a running training first."""
        body = {
            "model_id": self._model.id,
            "training_data": list(request.demonstrations),
            "held_out_data": list(request.held_out),
            "config": {"batch_size": request.batch_size, "learning_rate": list(request.learning_rates)},
            "expected_step": request.expected_step,
        }

        return await self._queue("sft-training-jobs", body)

    async def submit_restore(self, step: int, expected_step: int) -> str:
        """Return the job's id. Like `submit`, it waits for a running training first."""
        body = {"model_id": self._model.id, "step": step, "expected_step": expected_step}
        return await self._queue("restore-jobs", body)

    async def _queue(self, kind: str, body: Mapping[str, Any]) -> str:
        async def post() -> str:
            with self._server.translated():
                job = await self._client.post(f"/preview/{kind}", cast_to=dict[str, Any], body=body)
            return str(job["id"])

        return await self._in_turn(post, body["expected_step"])

    @property
    def base_model(self) -> str:
        """The base model that the weights were first made from."""
        return self._model.base_model

    async def weights_sha256(self, step: int) -> str | None:
        """Return the hash of the newest checkpoint's weights; None if it is not of that step, or if the engine does not
        report hashes. Raises BackendUnavailable."""
        path = f"/preview/models/{self._model.id}/checkpoints"
        query = {"order": "desc", "limit": 1}
        with self._server.translated():
            page = await self._client.get(path, cast_to=dict[str, Any], options={"params": query})
        return next(
            (checkpoint.get("weights_sha256") for checkpoint in page["data"] if checkpoint["step"] == step), None
        )

    async def measured(self, step: int) -> Sequence[MeasuredToken]:
        """Return the tokens at which the engine measured the training of a step. Raises BackendUnavailable."""
        path = f"/preview/models/{self._model.id}/checkpoints/{step}/measured"
        with self._server.translated():
            answer = await self._client.get(path, cast_to=dict[str, Any])
        return [MeasuredToken(**token) for token in answer["data"]]

    async def logprobs(self, step: int, token_ids: Sequence[Sequence[int]]) -> Sequence[float | None]:
        """Return the log-probabilities that the engine's sampler gives to the last token of each sequence. Raises
        BackendUnavailable."""
        return await self._scores("", {"model": self.endpoint(step).model, "token_ids": token_ids})

    async def reply_logprobs(
        self, step: int, conversation: Sequence[Mapping[str, Json]], tools: Sequence[Json], replies: Sequence[int]
    ) -> Sequence[float]:
        """Return the log-probabilities of the sampled tokens of replies. Raises BackendUnavailable, or ValueError if
        the engine refuses the conversation."""
        body = {
            "model": self.endpoint(step).model,
            "messages_and_choices": conversation,
            "tools": tools or None,
            "replies": replies,
        }
        return await self._scores("/replies", body)

    async def score_sequences(self, step: int, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Return the log-probabilities of the sampled tokens of each sequence. Raises BackendUnavailable, or ValueError
        if the engine refuses a sequence."""
        parts = [{"ids": sequence.ids, "sampled": sequence.trained} for sequence in sequences]
        return await self._scores("/sequences", {"model": self.endpoint(step).model, "sequences": parts})

    async def _scores(self, kind: str, body: Mapping[str, Any]) -> list[Any]:
        with self._server.translated():
            answer = await self._client.post(f"/preview/logprobs{kind}", cast_to=dict[str, list[Any]], body=body)
        return answer["logprobs"]

    def endpoint(self, step: int | None = None) -> Endpoint:
        """Return where the checkpoint of a step (None for the newest) is sampled."""
        name = ModelName(self._model.project, self._model.name, step)
        return Endpoint(self._server.base_url, self._server.api_key, str(name), remembers=True, tells_token_ids=True)
