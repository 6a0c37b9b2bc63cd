"""The models of ART's local backend in one directory, one of which is loaded on the GPU at a time.

Additions to ART: torn checkpoints are set aside before the step is read, and a train request names the step that it
expects. A model's directory is `ROOT/PROJECT/models/NAME`, with its checkpoints in `checkpoints/STEP`.
"""

import asyncio
import inspect
import shutil
import time
from pathlib import Path
from typing import Any

from learnloop_service.training.backends.local.jobs import LocalJobs
from learnloop_service.training.backends.local.torn_checkpoints import quarantine
from learnloop_service.training.protocol.model_name import ModelName

_RESERVED_OPTIONS = {"kl_ref_adapter_path", "plot_tensors", "save_checkpoint", "verbose", "learning_rate"}
"""Options of ART's `train` that requests cannot set, because they touch files or because we set them."""
IDLE_S = 300.0
"""Seconds without a request after which a model can be replaced by another."""


class ErrorReply(Exception):
    """Raised to answer a request with an error in OpenAI's format."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class LocalModels:
    """The models in a directory, of which one is loaded. `backend` is ART's backend for that directory."""

    def __init__(self, backend: Any, root: Path, config: Any, idle_s: float = IDLE_S) -> None:
        self.jobs = LocalJobs()
        self._backend = backend
        self._root = root
        self._config = config
        self._idle_s = idle_s
        self._loading = asyncio.Lock()
        self._loaded: Any = None
        self._used = 0.0

    async def register(self, project: str, name: str, base_model: str) -> dict[str, Any]:
        """Load the model, unless it is loaded. Raises ErrorReply."""
        import art

        async with self._loading:
            loaded = self._loaded
            if loaded is None or (loaded.project, loaded.name) != (project, name):
                await self._evict_loaded()
                self._directory(f"{project}~{name}")  # rejects invalid names
                await self._repair(project, name)
                model: Any = art.TrainableModel(
                    project=project, name=name, base_model=base_model, _internal_config=self._config
                )
                await model.register(self._backend)
                self._loaded = model
            elif loaded.base_model != base_model:
                raise ErrorReply(409, f"{project}/{name} exists with base model {loaded.base_model!r}")
            self._used = time.monotonic()
        about = {"id": f"{project}~{name}", "entity": "local", "project": project, "name": name}
        return about | {"base_model": base_model, "run_id": None}

    async def _evict_loaded(self) -> None:
        if self._loaded is None:
            return
        if self.jobs.pending() or time.monotonic() - self._used < self._idle_s:
            raise ErrorReply(503, f"the GPU serves {self._loaded.project}/{self._loaded.name} now")
        self._loaded = None
        await self._backend.close()

    async def _repair(self, project: str, name: str) -> None:
        async with self.jobs.idle():
            quarantine(self._directory(f"{project}~{name}") / "checkpoints")

    def model(self, model_id: str) -> Any:
        """Return the loaded model if it has this id. Raises ErrorReply otherwise."""
        loaded = self._loaded
        if loaded is None or f"{loaded.project}~{loaded.name}" != model_id:
            raise ErrorReply(503, f"the model {model_id} is not loaded")
        self._used = time.monotonic()
        return loaded

    async def steps(self, model_id: str) -> list[int]:
        """Return the steps of the model's checkpoints. An untrained model has step 0, the base model."""
        self.model(model_id)
        directory = self._directory(model_id) / "checkpoints"
        steps = [int(path.name) for path in directory.glob("*") if path.name.isdigit()] if directory.is_dir() else []
        return sorted(steps) or [0]

    async def submit(self, model_id: str, body: dict[str, Any]) -> str:
        """Start a training from the expected step, and return the job's id. Raises ErrorReply."""
        model, config = self.model(model_id), dict(body.get("experimental_config") or {})
        learning_rate, expected = config.pop("learning_rate"), body["expected_step"]
        if unknown := set(config) - self._options():
            raise ErrorReply(400, f"local takes no option {', '.join(sorted(unknown))}")
        now = (await self.steps(model_id))[-1]
        if now != expected or self.jobs.pending(model_id):
            raise ErrorReply(409, f"the model is at step {now}, not {expected}, or is being trained", "step_conflict")
        groups = [_group(dumped) for dumped in body["trajectory_groups"]]

        async def work() -> dict[str, Any]:
            try:
                result = await self._backend.train(model, groups, learning_rate=learning_rate, **config)
            finally:
                quarantine(self._directory(model_id) / "checkpoints")
            step = (await self.steps(model_id))[-1]
            metrics = {name: float(value) for name, value in result.metrics.items()}
            return {"step": step, "trained": step > expected, "metrics": metrics}

        return self.jobs.submit(model_id, work)

    def _options(self) -> set[str]:
        parameters = inspect.signature(self._backend.train).parameters
        return set(parameters) - {"model", "trajectory_groups", *_RESERVED_OPTIONS}

    async def delete_checkpoints(self, model_id: str, steps: list[int]) -> dict[str, Any]:
        """Delete checkpoints, but never the newest."""
        there = (await self.steps(model_id))[:-1]
        gone = [step for step in steps if step in there]
        for step in gone:
            shutil.rmtree(self._directory(model_id) / "checkpoints" / f"{step:04d}", ignore_errors=True)
        return {"deleted_count": len(gone), "not_found_steps": [step for step in steps if step not in gone]}

    async def delete(self, model_id: str) -> None:
        """Delete a model and all its checkpoints. Raises ErrorReply during training."""
        async with self._loading:
            if self.jobs.pending(model_id):
                raise ErrorReply(409, f"{model_id} is being trained")
            if self._loaded is not None and f"{self._loaded.project}~{self._loaded.name}" == model_id:
                self._loaded = None
                await self._backend.close()
            shutil.rmtree(self._directory(model_id), ignore_errors=True)

    def _directory(self, model_id: str) -> Path:
        project, _, name = model_id.partition("~")
        if not all(part and part.strip(".") and Path(part).name == part for part in (project, name)):
            raise ErrorReply(400, f"{model_id!r} names no model")
        return self._root / project / "models" / name

    def sampled_at(self, name: str) -> tuple[str, str, str]:
        """Return where `PROJECT/NAME[@STEP]` is sampled: base URL, key, and the model's name there.

        Raises ErrorReply.
        """
        try:
            named = ModelName.parse(name)
        except ValueError as error:
            raise ErrorReply(404, str(error)) from error
        model = self.model(f"{named.project}~{named.name}")
        inner = self._backend._model_inference_name(model, named.step)
        return model.inference_base_url, model.inference_api_key, inner

    async def close(self) -> None:
        """Stop vLLM and the trainer."""
        await self._backend.close()


def _group(dumped: dict[str, Any]) -> Any:
    """Restore ART's group. ART's own validation would turn replies into plain messages, without log-probabilities."""
    import art
    from art.trajectories import History

    trajectories = []
    for dumped_trajectory in dumped["trajectories"]:
        trajectory = art.Trajectory(reward=dumped_trajectory["reward"])
        _restore(trajectory, dumped_trajectory)
        for history in dumped_trajectory.get("additional_histories") or ():
            trajectory.additional_histories.append(History(messages_and_choices=[]))
            _restore(trajectory.additional_histories[-1], history)
        trajectories.append(trajectory)
    return art.TrajectoryGroup(trajectories)


def _restore(history: Any, dumped: dict[str, Any]) -> None:
    from openai.types.chat.chat_completion import Choice

    history.messages_and_choices = [
        Choice.model_validate(item) if "finish_reason" in item else item for item in dumped["messages_and_choices"]
    ]
    history.tools = dumped["tools"]
