"""The steps of a pipeline. A step is skipped if its inputs have not changed and its result still exists.

An interrupted step continues. Its requests carry an Idempotency-Key derived from their inputs, so that a request whose
reply was lost does not start anything twice.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.evaluations import trial_decision, watch_evaluation
from learnloop_service.app.cli.pipeline.config import LoadedPipeline, digest
from learnloop_service.app.cli.run_request import overlay
from learnloop_service.app.cli.serve import settings_with
from learnloop_service.app.cli.service_process import service_at
from learnloop_service.app.cli.terminal import Failure, progress
from learnloop_service.app.cli.watching import ENDED, RunDisplay, follow
from learnloop_service.environment.json_type import Json

STEPS = ("data", "train", "eval", "promote")
_NOT_FOUND = 404
_INBOX = "environment.config.inbox"


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step."""

    step: str
    result: Json
    skipped: bool
    seconds: float


class StepHistory:
    """The latest inputs and result of each step."""

    def __init__(self, data_dir: Path, name: str) -> None:
        """Raises Failure if the file cannot be read."""
        self._path = data_dir / "pipelines" / f"{name}.json"
        try:
            self._steps: dict[str, Json] = dict(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            self._steps = {}
        except (OSError, ValueError, TypeError) as error:
            raise Failure(f"cannot read {self._path}: {error}. Delete it, and all steps are done again.") from error

    def last(self, step: str, inputs: str) -> Mapping[str, Json]:
        """Return the `id` of what the step last started and its `result`, if it had these inputs; otherwise nothing."""
        entry = self._steps.get(step, {})
        return entry if entry.get("inputs") == inputs else {}

    def save(self, step: str, inputs: str, id: str, result: Json | None = None) -> None:
        """Save what the step has started or, with a result, finished. Raises Failure."""
        self._steps[step] = {"inputs": inputs, "id": id, "result": result}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self._steps, indent=2), encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            raise Failure(f"cannot write {self._path}: {error.strerror}") from error


class PipelineRunner:
    """Runs the steps of one pipeline in one data directory."""

    def __init__(
        self, pipeline: LoadedPipeline, data_dir: Path, url: str | None, report: Callable[[StepOutcome], None]
    ) -> None:
        """`url` is that of a running service. With None, a service is started when a step needs it."""
        self._pipeline = pipeline
        self._data_dir = data_dir
        self._url = url
        self._report = report
        self._history = StepHistory(data_dir, pipeline.name)
        self._service: Service | None = None
        self._exit = ExitStack()

    def __enter__(self) -> "PipelineRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def run(self, name: str) -> None:
        """Run one step, or with `all` every step that has a section in the file. Raises Failure."""
        steps = {"data": self._data, "train": self._train, "eval": self._evaluate, "promote": self._promote}
        if name != "all" and self._pipeline.section(name) is None:
            raise Failure(f"the pipeline {self._pipeline.name} has no section `{name}`")
        for step in STEPS if name == "all" else (name,):
            if self._pipeline.section(step) is not None:
                started = time.monotonic()
                result, skipped = steps[step]()
                self._report(StepOutcome(step, result, skipped, time.monotonic() - started))

    def _data(self) -> tuple[Json, bool]:
        recipe, source = self._pipeline.file.data, self._pipeline.source
        assert recipe is not None
        assert source is not None
        prepared = source.prepare(recipe, settings_with(data_dir=self._data_dir))
        result = {"data": f"{prepared.version.name}@{prepared.version.version}"}
        self._history.save("data", self._data_inputs(), result["data"], result)
        return result, not prepared.stages

    def _data_inputs(self) -> str:
        return digest(self._pipeline.section("data"))

    def _train(self) -> tuple[Json, bool]:
        inputs, request = self._training()
        run = self._begun("train", inputs, "/runs")
        if run is not None and run["status"] == "cancelled":
            run = None  # start a new run instead
        if run is not None and run["status"] == "completed":
            return self._finished("train", inputs, run["run_id"], _trained(run)), True
        run_id: str = run["run_id"] if run else self._started("/learn-loop", "train", inputs, request, "run_id")
        with RunDisplay(progress) as display:
            if run is not None and run["status"] in ("failed", "paused"):
                self._live.ask_of(run_id, "retry" if run["status"] == "failed" else "resume")
            run = follow(self._live, run_id, display.show, until={*ENDED, "paused"})
        if run["status"] != "completed":
            raise Failure(f"run {run_id} is {run['status']}: {run['error'] or run['wait_reason']}")
        return self._finished("train", inputs, run_id, _trained(run)), False

    def _training(self) -> tuple[str, dict[str, Json]]:
        """Return a digest that identifies the training, and the request for it."""
        request = self._pipeline.section("train") or {}
        if self._pipeline.section("data") is not None and not _has(request, _INBOX):
            prepared = self._result("data", self._data_inputs())
            request = overlay(request, {_INBOX: prepared["data"]})
        inputs = digest(request)
        if not _has(request, "model.name"):  # different settings train different models
            request = overlay(request, {"model.name": f"{self._pipeline.name}-{inputs[:8]}"})
        return inputs, request

    def _evaluate(self) -> tuple[Json, bool]:
        trained = self._result("train", self._training()[0])
        request = {"run_id": trained["run_id"], **(self._pipeline.section("eval") or {})}
        inputs = digest(request)
        evaluation = self._begun("eval", inputs, "/evaluations")
        if evaluation is not None and evaluation["status"] == "completed":
            return self._finished("eval", inputs, evaluation["evaluation_id"], _evaluated(evaluation)), True
        if evaluation is None:
            id = self._started("/evaluations", "eval", inputs, request, "evaluation_id")
        elif (id := evaluation["evaluation_id"]) and evaluation["status"] in ("failed", "cancelled"):
            self._live.call("POST", f"/evaluations/{id}/resume")
        ended = watch_evaluation(self._live, id)
        if ended["status"] != "completed":
            raise Failure(f"evaluation {id} is {ended['status']}: {ended['error']}")
        return self._finished("eval", inputs, id, _evaluated(ended)), False

    def _promote(self) -> tuple[Json, bool]:
        promotion = self._pipeline.file.promote
        assert promotion is not None
        trained = self._result("train", self._training()[0])
        project, _, name = trained["model"].partition("/")
        result = {"name": f"{project}/{promotion.name}", "model": trained["model"], "step": trained["step"]}
        history = self._existing(f"/promotions/{project}/{promotion.name}")
        now = history["items"][0] if history and history["items"] else None
        if now is not None and (now["model"], now["step"]) == (result["model"], result["step"]):
            return result, True
        path = f"/models/{project}/{name}/promote"
        if promotion.if_better and now is not None:
            trial = self._live.call("POST", path, json={"step": trained["step"], "if_better_than": promotion.name})
            decided = watch_evaluation(self._live, trial["evaluation_id"])
            decision = trial_decision(decided)
            if decision != "promote":
                failed = f"{decided['status']}: {decided['error']}"
                raise Failure(
                    f"{result['name']} stays {now['model']}@{now['step']}: the trial of "
                    f"{result['model']}@{result['step']} ended with {decision or failed}"
                )
        else:
            self._live.call("POST", path, json={"step": trained["step"], "as": promotion.name})
        return result, False

    def _result(self, step: str, inputs: str) -> Json:
        """Return the result of an earlier step with these inputs. Raises Failure."""
        if (result := self._history.last(step, inputs).get("result")) is None:
            raise Failure(f"`learnloop pipeline {step}` comes first: it has not been run with these settings")
        return result

    def _finished(self, step: str, inputs: str, id: str, result: Json) -> Json:
        self._history.save(step, inputs, id, result)
        return result

    def _started(self, path: str, step: str, inputs: str, request: Json, id: str) -> str:
        """Start a run or an evaluation, and return its id, which is saved first so that it can be found again."""
        key = f"pipeline-{step}-{digest(self._pipeline.name, inputs)[:32]}"
        reply = self._live.call("POST", path, json=request, key=key)
        started = self._existing(f"{'/runs' if step == 'train' else path}/{reply[id]}")
        if started is None or started["status"] == "cancelled":  # what this key started was cancelled or deleted
            reply = self._live.call("POST", path, json=request)
        self._history.save(step, inputs, reply[id])
        return str(reply[id])

    def _begun(self, step: str, inputs: str, path: str) -> Json | None:
        """Return what the step last started with these inputs, if it still exists."""
        id = self._history.last(step, inputs).get("id")
        return None if id is None else self._existing(f"{path}/{id}")

    def _existing(self, path: str) -> Json | None:
        found = self._live.call("GET", path, accept=(_NOT_FOUND,))
        return None if found.get("status") == _NOT_FOUND else found

    @property
    def _live(self) -> Service:
        """The service, opened on first use."""
        if self._service is None:
            self._service = self._exit.enter_context(service_at(self._url, self._data_dir))
        return self._service


def _has(request: Json, path: str) -> bool:
    for part in path.split("."):
        request = request.get(part) if isinstance(request, dict) else None
    return request is not None


def _trained(run: Json) -> Json:
    model = run["model"]
    return {
        "run_id": run["run_id"],
        "model": f"{model['project']}/{model['name']}",
        "step": run["best_checkpoint"]["step"],
        "success": run["best_checkpoint"]["success"],
    }


def _evaluated(evaluation: Json) -> Json:
    models = [
        {
            "model": contestant["label"],
            "success": contestant["success"],
            "difference": contestant["difference"]["success"],
        }
        for contestant in evaluation["report"]["models"]
    ]
    return {"evaluation_id": evaluation["evaluation_id"], "models": models}
