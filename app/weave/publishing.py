"""Publishes evaluations to W&B Weave, each in a separate process (`child.py`)."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import Slot, parse_evaluation
from learnloop_service.app.processes.child import last_words, run_in
from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.redaction import Redactor, secrets_of
from learnloop_service.app.weave.project import ProjectUnavailable, open_project
from learnloop_service.app.worker.evaluations.publisher import TIMEOUT_S, NotPublished
from learnloop_service.environment.installation import needs_extra
from learnloop_service.environment.json_type import Json

_SCORES = ("success", "score", "reward")
_FIGURES = ("turns", "prompt_tokens", "completion_tokens", "seconds")


def publisher(settings: Settings) -> "WeavePublisher | None":
    """Return what publishes to the project of the settings; None if they have none."""
    if settings.weave_project is None or settings.wandb_api_key is None:
        return None
    key = settings.wandb_api_key.get_secret_value()
    return WeavePublisher(settings, settings.weave_project, key, str(settings.wandb_base_url).rstrip("/"))


class WeavePublisher:
    """Publishes to one project."""

    name = "Weave"

    def __init__(self, settings: Settings, project: str, key: str, base_url: str) -> None:
        self._settings = settings
        self._project = project
        self._key = key
        self._base_url = base_url
        self._redactor = Redactor(secrets_of(settings))

    async def publish(self, job: EvaluationJob, rows: Mapping[Slot, Any]) -> dict[str, str]:
        """See `Publisher`."""
        if find_spec("weave") is None:
            raise NotPublished(f"publishing to Weave needs {needs_extra('weave')}")
        try:
            # Opened first, so that a wrong key or name is reported without starting a process.
            project = await asyncio.to_thread(open_project, self._project, self._key, self._base_url)
        except (ProjectUnavailable, httpx.HTTPError) as error:
            raise NotPublished(str(error) or type(error).__name__) from error
        with tempfile.TemporaryDirectory(prefix="learnloop-weave-") as folder:
            path = Path(folder) / "evaluation.json"
            await asyncio.to_thread(self._write, path, job, rows, project)
            await self._run(path, self._environment(folder))
            try:
                urls: dict[str, str] = json.loads(path.with_name("result.json").read_text())
            except (OSError, ValueError):
                raise NotPublished(last_words(path.parent) or "the process that publishes ended early") from None
        return urls

    def _write(self, path: Path, job: EvaluationJob, rows: Mapping[Slot, Any], project: str) -> None:
        request = parse_evaluation(job.request)
        assert job.report is not None
        weave_rows = {slot: self._row(row) for slot, row in sorted(rows.items())}
        whole = {
            "project": project,
            "name": job.id,
            # The same for all models, because Weave compares evaluations of the same data.
            "dataset": [weave_rows[slot]["inputs"] for slot in weave_rows if slot.model == 0 and slot.sample == 0],
            "scorers": list(_SCORES),
            "attributes": {
                "evaluation_id": job.id, "environment": request.environment.name, "judge": request.judge.name,
                "split": request.split, "seed": request.seed, "samples": request.samples,
            },
            "models": [
                {
                    "label": contestant.label,
                    "described": {"name": contestant.label, "model": contestant.model, "step": contestant.step},
                    "rows": [row for slot, row in weave_rows.items() if slot.model == number],
                    "summary": job.report["models"][number],
                }
                for number, contestant in enumerate(request.models)
            ],
        }  # fmt: skip
        path.write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")

    def _row(self, row: Any) -> dict[str, Json]:
        inputs = {"scenario_id": row.scenario_id, "task": self._redactor.value(row.scenario.get("task", {}))}
        output = {
            "outcome": self._redactor.value(row.outcome),
            "error": None if row.error is None else self._redactor.clean_text(row.error),
            "trajectory_id": row.id,
            **{name: getattr(row, name) for name in _FIGURES},
        }
        scores = {name: getattr(row, name) for name in _SCORES if getattr(row, name) is not None}
        return {"inputs": inputs, "output": output, "scores": scores}

    async def _run(self, path: Path, environment: Mapping[str, str]) -> None:
        argv = (sys.executable, "-m", f"{__package__}.child", str(path))
        try:
            await run_in(path.parent, argv, TIMEOUT_S, environment)
        except TimeoutError:
            raise NotPublished(f"it took longer than {TIMEOUT_S:g} s and was stopped") from None

    def _environment(self, folder: str) -> dict[str, str]:
        """Return our environment variables, with explicit settings for W&B in place of the user's files."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "WEAVE_", "WF_"))}
        server = self._settings.wf_trace_server_url
        return {
            **ours,
            "HOME": folder,
            "WANDB_API_KEY": self._key,
            "WANDB_BASE_URL": self._base_url,
            **({} if server is None else {"WF_TRACE_SERVER_URL": str(server).rstrip("/")}),
        }
