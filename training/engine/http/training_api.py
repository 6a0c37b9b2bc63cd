"""The hosted training protocol used by `art.serverless.client`: models, checkpoints, training jobs and events."""

import asyncio
import json
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from learnloop_service.environment.json_type import Json
from learnloop_service.training.call_sequences import TokenSequence
from learnloop_service.training.engine.computing import Computing, PolicyStep, RestoredStep, Steps, SupervisedSteps
from learnloop_service.training.engine.engine import StepConflict
from learnloop_service.training.engine.http.base_checks import BaseChecks
from learnloop_service.training.engine.http.chat_request import MAX_TOP_LOGPROBS
from learnloop_service.training.engine.http.errors import ApiError, read_body
from learnloop_service.training.engine.http.jobs import Job, Jobs, new_job
from learnloop_service.training.engine.http.sampled_turns import SampledTurns
from learnloop_service.training.engine.http.training_data import TrainingData
from learnloop_service.training.engine.registry.base_models import context_length, parameter_count
from learnloop_service.training.engine.registry.checkpoints import CorruptCheckpoint, StoredCheckpoint
from learnloop_service.training.engine.registry.export import export
from learnloop_service.training.engine.registry.model_record import ModelRecord, NewModel, Target, UnknownModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.sft import SftOptions, read_examples, token_count
from learnloop_service.training.engine.trainer.trajectories import (
    BadTrajectory,
    Group,
    counts,
    read_groups,
    replies,
)
from learnloop_service.training.tuning import Tuning

MAX_WAIT_S = 30.0
MAX_PAGE = 1000

ONLY_MODEL = "x-only-model"
"""Header set by the service when it forwards its tenants' jobs: the only model that the job may train."""

Step = Annotated[int, Field(ge=0)]


class _Body(BaseModel):
    """Base class of bodies. Unknown fields are refused, because a misspelt option would otherwise be silently
    ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _TuningBody(_Body):
    mode: Literal["full", "lora"]
    rank: int = Field(default=8, ge=1, le=1024)
    alpha: int = Field(default=16, ge=1)
    target_modules: tuple[str, ...] = ()

    def tuning(self) -> Tuning:
        return Tuning(self.mode, self.rank, self.alpha, self.target_modules)


class _CreateModel(_Body):
    entity: str | None = None
    project: str | None = None
    name: str | None = None
    base_model: str
    return_existing: bool = False
    tuning: _TuningBody | None = None
    enable_thinking: bool | None = None


class _DeleteCheckpoints(_Body):
    steps: list[Step]


class _ScoreTokens(_Body):
    model: str
    token_ids: Annotated[list[Annotated[list[Step], Field(min_length=2)]], Field(max_length=64)]


class _ScoreReplies(_Body):
    model: str
    messages_and_choices: list[dict[str, Json]]
    tools: list[dict[str, Json]] | None = None
    replies: list[Step]


class _Sequence(_Body):
    ids: Annotated[list[Step], Field(min_length=2)]
    sampled: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    """Positions in `ids` of the tokens to score."""


class _ScoreSequences(_Body):
    model: str
    sequences: list[_Sequence]


class _CountTokens(_Body):
    model: str
    conversations: Annotated[list[dict[str, Json]], Field(min_length=1, max_length=1_000)]


class _LogTrajectories(_Body):
    model_id: str | None = None
    trajectory_groups: list[dict[str, Json]]
    split: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")


class _CreateTrainingJob(_Body):
    model_id: str
    trajectory_groups: list[dict[str, Json]]
    experimental_config: dict[str, Json] | None = None
    expected_step: Step | None = None


class _CreateSftJob(_Body):
    model_id: str
    training_data: list[dict[str, Json]] | None = None
    training_data_url: str | None = None
    held_out_data: list[dict[str, Json]] | None = None
    config: dict[str, Json] | None = None
    expected_step: Step | None = None


class _CreateRestoreJob(_Body):
    model_id: str
    step: Step
    expected_step: Step | None = None


@dataclass(frozen=True, slots=True)
class TrainingApi:
    """Handlers of `/v1/preview`. Bodies are read completely before anything happens, so clients may disconnect after
    that."""

    registry: Registry
    compute: Computing
    tokenizer: Callable[[Target], ChatTokenizer]
    jobs: Jobs
    turns: SampledTurns
    data: TrainingData
    checks: BaseChecks
    max_body_bytes: int

    def routes(self) -> list[Route]:
        """Return all routes, without prefix."""
        return [
            Route("/models", self.create_model, methods=["POST"]),
            Route("/models", self.list_models, methods=["GET"]),
            Route("/disk", self.get_disk, methods=["GET"]),
            Route("/models/{model_id}", self.get_model, methods=["GET"]),
            Route("/models/{model_id}", self.delete_model, methods=["DELETE"]),
            Route("/models/{model_id}/reproducibility", self.get_reproducibility, methods=["GET"]),
            Route("/models/{model_id}/log", self.log_trajectories, methods=["POST"]),
            Route("/models/{model_id}/checkpoints", self.list_checkpoints, methods=["GET"]),
            Route("/models/{model_id}/checkpoints", self.delete_checkpoints, methods=["DELETE"]),
            Route("/models/{model_id}/checkpoints/{step:int}/export", self.export_checkpoint, methods=["GET"]),
            Route("/models/{model_id}/checkpoints/{step:int}/measured", self.get_measured, methods=["GET"]),
            Route("/logprobs", self.score_tokens, methods=["POST"]),
            Route("/logprobs/replies", self.score_replies, methods=["POST"]),
            Route("/logprobs/sequences", self.score_sequences, methods=["POST"]),
            Route("/sft-tokens", self.count_tokens, methods=["POST"]),
            Route("/training-jobs", self.create_training_job, methods=["POST"]),
            Route("/sft-training-jobs", self.create_sft_job, methods=["POST"]),
            Route("/restore-jobs", self.create_restore_job, methods=["POST"]),
            Route("/training-jobs/{job_id}", self.get_job, methods=["GET"]),
            Route("/sft-training-jobs/{job_id}", self.get_job, methods=["GET"]),
            Route("/training-jobs/{job_id}/events", self.list_events, methods=["GET"]),
            Route("/sft-training-jobs/{job_id}/events", self.list_events, methods=["GET"]),
        ]

    async def create_model(self, request: Request) -> Response:
        """Create a model, or return the existing one with `return_existing`. A `base_model` of the form
        `project/name@step` makes a fork."""
        body = await read_body(request, _CreateModel, self.max_body_bytes)
        tuning = body.tuning.tuning() if body.tuning else None
        await self.checks.admit(body.base_model)
        named = (body.project, body.name, body.base_model, body.entity, body.return_existing)
        record = await self.compute.create_model(NewModel(*named, tuning, body.enable_thinking))
        return JSONResponse(_model_json(record))

    async def list_models(self, request: Request) -> Response:
        """List all trainable models."""
        await asyncio.to_thread(self.registry.refresh)
        return JSONResponse({"data": [_model_json(record) for record in self.registry.models()], "has_more": False})

    async def get_disk(self, request: Request) -> Response:
        """Return how many bytes are free where checkpoints are written."""
        usage = await asyncio.to_thread(shutil.disk_usage, self.registry.root)
        return JSONResponse({"free_bytes": usage.free})

    async def get_model(self, request: Request) -> Response:
        """Return one model with its newest step and its number of parameters (null if its base's files are lost)."""
        record = await self._up_to_date(request)
        more = {"step": self.registry.newest(record.id).step, "parameters": self._parameters(record)}
        return JSONResponse({**_model_json(record), **more})

    def _parameters(self, record: ModelRecord) -> int | None:
        try:
            return parameter_count(self.registry.base_directory(record.base_model))
        except UnknownModel:
            return None

    async def _up_to_date(self, request: Request) -> ModelRecord:
        """Return the model of the path after picking up other engines' changes to it."""
        model_id = request.path_params["model_id"]
        await asyncio.to_thread(self.registry.refresh, model_id)
        return self.registry.get(model_id)

    def _fetch_newest(self, model_id: str) -> None:
        """Fetch the newest checkpoint's files to this machine, so that the compute thread does not wait for them."""
        self.registry.refresh(model_id)
        self.registry.resolve(self.registry.get(model_id).full_name)

    async def get_reproducibility(self, request: Request) -> Response:
        """Report whether the same seed gives bit-identical samples and weights of this model, and why, with a
        `fingerprint` of its newest checkpoint. Equal fingerprints mean equal samples. `tool_format` is how it writes
        tool calls."""
        model_id = request.path_params["model_id"]
        await asyncio.to_thread(self._fetch_newest, model_id)
        reproducibility = await self.compute.check(model_id)
        target = self.registry.resolve(self.registry.get(model_id).full_name)
        tokenizer = await asyncio.to_thread(self.tokenizer, target)
        return JSONResponse({**asdict(reproducibility), "tool_format": tokenizer.tool_format.name})

    async def delete_model(self, request: Request) -> Response:
        """Delete a model. Its training jobs fail."""
        await self._up_to_date(request)
        await self.compute.delete_model(request.path_params["model_id"])
        return Response(status_code=204)

    async def log_trajectories(self, request: Request) -> Response:
        """Store logged trajectories in a file in the model's directory."""
        body = await read_body(request, _LogTrajectories, self.max_body_bytes)
        record = self.registry.get(request.path_params["model_id"])
        read_groups(body.trajectory_groups)
        step = self.registry.newest(record.id).step
        await asyncio.to_thread(
            _write_log, record.directory / "trajectories" / body.split, step, body.trajectory_groups
        )
        return Response(status_code=204)

    async def list_checkpoints(self, request: Request) -> Response:
        """Return a cursor page of checkpoints. `order` is asc (default) or desc."""
        record = await self._up_to_date(request)
        items = [_checkpoint_json(record, checkpoint) for checkpoint in self.registry.steps(record.id)]
        order = request.query_params.get("order", "asc")
        if order not in ("asc", "desc"):
            raise ApiError(400, "order must be asc or desc", code="invalid_value", param="order")
        return _page(request, items if order == "asc" else items[::-1], MAX_PAGE)

    async def delete_checkpoints(self, request: Request) -> Response:
        """Delete checkpoints by step, except for the newest one."""
        body = await read_body(request, _DeleteCheckpoints, self.max_body_bytes)
        model_id = request.path_params["model_id"]
        await self._up_to_date(request)
        deleted, missing = await self.compute.delete_checkpoints(model_id, body.steps)
        return JSONResponse({"deleted_count": len(deleted), "not_found_steps": missing})

    async def export_checkpoint(self, request: Request) -> Response:
        """Export a checkpoint as a tar after verifying its files against their hashes."""
        record = await self._up_to_date(request)
        checkpoint = await asyncio.to_thread(self.registry.checkpoint, record.id, request.path_params["step"])
        folder = f"{record.name}-step{checkpoint.step}"
        try:
            archive = await asyncio.to_thread(export, checkpoint, folder)
        except CorruptCheckpoint:
            await asyncio.to_thread(self.registry.recheck, record.id, checkpoint.step)
            raise
        headers = {
            "Content-Length": str(archive.size),
            "Content-Disposition": f'attachment; filename="{folder}.tar"',
        }
        return StreamingResponse(archive.pieces(), media_type="application/x-tar", headers=headers)

    async def get_measured(self, request: Request) -> Response:
        """Return the tokens at which the training of a step was measured, with their log-probabilities before and after
        it; none if this engine did not train the step."""
        record = await self._up_to_date(request)
        return JSONResponse({"data": list(map(asdict, self.jobs.measured(record.id, request.path_params["step"])))})

    async def score_tokens(self, request: Request) -> Response:
        """Return the log-probability that the sampler gives to the last token of each sequence; null for tokens that
        are not among the 20 likeliest."""
        body = await read_body(request, _ScoreTokens, self.max_body_bytes)
        target = await asyncio.to_thread(self.registry.sampled, body.model)
        scores = await asyncio.gather(*(self._score(target, ids) for ids in body.token_ids))
        return JSONResponse({"model": target.key, "logprobs": scores})

    async def score_replies(self, request: Request) -> Response:
        """Return the exact log-probabilities of the sampled tokens of a conversation's replies, each given everything
        before it. `replies` are message indices."""
        body = await read_body(request, _ScoreReplies, self.max_body_bytes)
        target = await asyncio.to_thread(self.registry.sampled, body.model)
        sequence = await asyncio.to_thread(lambda: replies(body.model_dump(), self.tokenizer(target)))
        [scores] = await self.jobs.score(target, [sequence])
        return JSONResponse({"model": target.key, "logprobs": scores})

    async def score_sequences(self, request: Request) -> Response:
        """Return the exact log-probabilities of the tokens at the positions `sampled` of each sequence of token ids."""
        body = await read_body(request, _ScoreSequences, self.max_body_bytes)
        target = await asyncio.to_thread(self.registry.sampled, body.model)
        size = (await asyncio.to_thread(self.tokenizer, target)).vocab_size
        for number, part in enumerate(body.sequences):
            if max(part.ids) >= size or sorted({*part.sampled, len(part.ids)}) != [*part.sampled, len(part.ids)]:
                raise BadTrajectory(f"sequence {number} must hold ids below {size}, and `sampled` rising positions")
        sequences = [TokenSequence(tuple(part.ids), tuple(part.sampled), ()) for part in body.sequences]
        return JSONResponse({"model": target.key, "logprobs": await self.jobs.score(target, sequences)})

    async def _score(self, target: Target, ids: Sequence[int]) -> float | None:
        request = SampleRequest(
            tuple(ids[:-1]), target.key, max_tokens=1, temperature=0.0, seed=0, top_logprobs=MAX_TOP_LOGPROBS
        )
        sample = await self.compute.sample(target, request)
        return dict([*sample.top[0], (sample.ids[0], sample.logprobs[0])]).get(ids[-1]) if sample.top else None

    async def create_training_job(self, request: Request) -> Response:
        """Queue one GRPO step on groups of trajectories. The reply warns of groups that teach nothing."""
        body = await read_body(request, _CreateTrainingJob, self.max_body_bytes)
        _require_only(request, body.model_id)
        options = TrainOptions.from_config(body.experimental_config)
        groups = await asyncio.to_thread(self._groups, body)
        warning = counts(groups).warning
        steps = PolicyStep(body.model_id, groups, options, body.expected_step)
        return await self._submit(steps, gradient_steps=1, warnings=[] if warning is None else [warning])

    async def create_sft_job(self, request: Request) -> Response:
        """Queue supervised steps on conversations, given inline or as a JSONL file that TrainingData can read."""
        body = await read_body(request, _CreateSftJob, self.max_body_bytes)
        _require_only(request, body.model_id)
        options = SftOptions.from_config(body.config)
        if (body.training_data is None) == (body.training_data_url is None):
            raise ApiError(400, "give either training_data or training_data_url", code="invalid_value")
        data = (
            body.training_data
            if body.training_data_url is None
            else await self._data_at(request, body.training_data_url)
        )
        examples = read_examples(data)
        held_out = read_examples(body.held_out_data, "held_out_data") if body.held_out_data else []
        return await self._submit(
            SupervisedSteps(body.model_id, examples, options, held_out, body.expected_step),
            gradient_steps=-(-len(examples) // options.batch_size),
        )

    async def create_restore_job(self, request: Request) -> Response:
        """Queue a return to an earlier checkpoint, whose weights become the next one."""
        body = await read_body(request, _CreateRestoreJob, self.max_body_bytes)
        _require_only(request, body.model_id)
        await asyncio.to_thread(self.registry.refresh, body.model_id)
        if body.step not in (steps := [checkpoint.step for checkpoint in self.registry.steps(body.model_id)]):
            raise ApiError(400, f"checkpoint {body.step} is not among {steps}", code="invalid_value", param="step")
        return await self._submit(RestoredStep(body.model_id, body.step, body.expected_step), gradient_steps=1)

    async def count_tokens(self, request: Request) -> Response:
        """Return the model's context, and how many tokens each conversation would have in supervised training: null for
        those that the chat template refuses."""
        body = await read_body(request, _CountTokens, self.max_body_bytes)
        examples = read_examples(body.conversations, "conversations")
        await self.checks.admit(body.model)

        def count() -> dict[str, Json]:
            target = self.registry.resolve(body.model)
            tokenizer = self.tokenizer(target)
            return {
                "context": context_length(target.base_directory),
                "tokens": [token_count(example, tokenizer) for example in examples],
            }

        return JSONResponse(await asyncio.to_thread(count))

    async def get_job(self, request: Request) -> Response:
        """Return a job with its status and events."""
        return JSONResponse(_job_json(self.jobs.get(request.path_params["job_id"])))

    async def list_events(self, request: Request) -> Response:
        """Return a cursor page of events. With `wait_s`, wait for an event, so that clients need not poll."""
        job = self.jobs.get(request.path_params["job_id"])
        wait_s = _number(request, "wait_s", 0.0, MAX_WAIT_S)
        events = await job.wait(request.query_params.get("after"), wait_s)
        return _page(request, list(map(asdict, events)), MAX_PAGE, cut=True)

    async def _data_at(self, request: Request, url: str) -> list[Json]:
        """Read the conversations behind a URL. Senders restricted to one model cannot read files, which may belong to
        others."""
        if ONLY_MODEL in request.headers and urlsplit(url).scheme not in ("http", "https"):
            raise ApiError(
                400, "send the conversations as training_data", code="invalid_value", param="training_data_url"
            )
        return await self.data.read(url)

    def _groups(self, body: _CreateTrainingJob) -> list[Group]:
        """Parse the groups and add remembered tokens to replies that lost their log-probabilities. Raises
        BadTrajectory."""
        return self.turns.completed(body.model_id, read_groups(body.trajectory_groups))

    async def _submit(self, steps: Steps, *, gradient_steps: int, warnings: Sequence[str] = ()) -> Response:
        await asyncio.to_thread(self._fetch_newest, steps.model_id)
        # Nothing is awaited from here on, so that of two requests for the same step, one is refused.
        newest = self.registry.newest(steps.model_id)
        if steps.expected_step is not None:
            if steps.expected_step != newest.step:
                raise StepConflict(steps.expected_step, newest.step)
            if pending := self.jobs.pending(steps.model_id):
                raise ApiError(409, f"job {pending.id} is training step {newest.step}", code="step_conflict")
        job = new_job(steps.model_id, gradient_steps, steps.expected_step, warnings)
        self.jobs.submit(job, steps)
        return JSONResponse({"id": job.id, "warnings": list(warnings)})


def _require_only(request: Request, model_id: str) -> None:
    """Raise ApiError if the body names a different model from the one that the sender may train."""
    if request.headers.get(ONLY_MODEL, model_id) != model_id:
        raise ApiError(400, "the body names more than one model", code="invalid_value", param="model_id")


def _write_log(directory: Path, step: int, groups: Json) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / f".unfinished-{secrets.token_hex(4)}"
    unfinished.write_text(json.dumps(groups))
    unfinished.rename(directory / f"{step:06d}-{secrets.token_hex(4)}.json")


def _model_json(record: ModelRecord) -> dict[str, Json]:
    return {
        "id": record.id,
        "entity": record.entity,
        "project": record.project,
        "name": record.name,
        "base_model": record.base_model,
        "run_id": None,
        "origin": record.origin,
        "tuning": record.tuning.mode,
        "tuning_settings": record.tuning.as_json(),
        "created": record.created,
    }


def _checkpoint_json(record: ModelRecord, checkpoint: StoredCheckpoint) -> dict[str, Json]:
    return {
        "id": f"{record.id}-step{checkpoint.step}",
        "step": checkpoint.step,
        "weights_sha256": checkpoint.manifest.weights_sha256,
        "metrics": dict(checkpoint.manifest.metrics),
        "created": checkpoint.manifest.created,
    }


def _job_json(job: Job) -> dict[str, Json]:
    return {
        "id": job.id,
        "model_id": job.model_id,
        "status": job.status,
        "expected_step": job.expected_step,
        "warnings": list(job.warnings),
        "events": list(map(asdict, job.events)),
    }


def _page(request: Request, items: list[dict[str, Json]], default: int, *, cut: bool = False) -> JSONResponse:
    """Return a cursor page of `items` after the one with the id `after`. `cut` means that those items are removed
    already."""
    after = request.query_params.get("after")
    if after is not None and not cut:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(404, f"there is nothing with id {after!r} to go on from", param="after")
        items = items[ids.index(after) + 1 :]
    limit = int(_number(request, "limit", default, MAX_PAGE))
    return JSONResponse({"object": "list", "data": items[:limit], "has_more": len(items) > limit})


def _number(request: Request, name: str, default: float, highest: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise ApiError(400, f"{name} must be a number from 0 up", code="invalid_value", param=name)
    return min(value, highest)
