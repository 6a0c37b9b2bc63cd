"""Publishes completed evaluations to W&B Weave, one at a time, each in a separate process.

The database records which ones are due (app/evaluations/publications.py), so if a worker dies, another one publishes
the rest. Publishing starts after an evaluation has completed, and does not change it.
"""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import structlog

from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.stored_evaluation import Slot, parse_evaluation
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.evaluations.publications import Publications
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.processes.child import last_words, run_in
from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.redaction import Redactor, secrets_of
from learnloop_service.app.tracing.wandb_project import ProjectUnavailable, open_project
from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.json_type import Json

_POLL_S = 30.0
_TIMEOUT_S = 600.0
_RETRY_S = 60.0
_SCORES = ("success", "score", "reward")
_FIGURES = ("turns", "prompt_tokens", "completion_tokens", "seconds")

log = structlog.get_logger(__name__)


class NotPublished(Exception):
    """Raised when an evaluation did not reach Weave completely. The message says why."""


class EvaluationPublisher:
    """Publishes for one worker, if a project is configured."""

    def __init__(self, store: EvaluationStore, publications: Publications, settings: Settings) -> None:
        self._store = store
        self._publications = publications
        self._settings = settings
        self._redactor = Redactor(secrets_of(settings))
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def configured(self) -> bool:
        """Whether there is a project to publish to."""
        return self._settings.weave_project is not None and self._settings.wandb_api_key is not None

    def start(self) -> None:
        """Start publishing what is due."""
        if self.configured:
            self._task = asyncio.create_task(self._publish_forever(), name="evaluation-publisher")

    def wake(self) -> None:
        """Look for evaluations to publish now."""
        self._wake.set()

    async def close(self) -> None:
        """Stop. The next worker publishes what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _publish_forever(self) -> None:
        repeated = RepeatedLog(log)
        while True:
            self._wake.clear()
            try:
                if (job := await self._publications.claim(2 * _TIMEOUT_S)) is not None:
                    await self._attempt(job)
                    continue
            except DATABASE_DOWN as error:
                repeated.warning("database unavailable, nothing is published", error=first_line(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _attempt(self, job: EvaluationJob) -> None:
        try:
            urls = await self._publish(job)
        except (NotPublished, ProjectUnavailable, httpx.HTTPError, OSError) as error:
            why = self._redactor.clean_text(str(error) or type(error).__name__)
            log.warning("evaluation not published to Weave", evaluation_id=job.id, error=why)
            await self._publications.failed(job, why, _RETRY_S)
            return
        log.info("evaluation published to Weave", evaluation_id=job.id)
        await self._publications.succeeded(job.id, urls)

    async def _publish(self, job: EvaluationJob) -> dict[str, str]:
        """Publish the evaluation, and return the URL for each model.

        Raises NotPublished, ProjectUnavailable, httpx.HTTPError, OSError.
        """
        settings = self._settings
        assert settings.weave_project is not None
        assert settings.wandb_api_key is not None
        key, base_url = settings.wandb_api_key.get_secret_value(), str(settings.wandb_base_url).rstrip("/")
        # Opened first, so that a wrong key or name is reported without starting a process.
        project = await asyncio.to_thread(open_project, settings.weave_project, key, base_url)
        rows = await self._store.rows(job.id)
        with tempfile.TemporaryDirectory(prefix="learnloop-weave-") as folder:
            path = Path(folder) / "evaluation.json"
            await asyncio.to_thread(self._write, path, job, rows, project)
            await self._run(path, _environment(settings, key, base_url, folder))
            try:
                urls: dict[str, str] = json.loads(path.with_name("result.json").read_text())
            except (OSError, ValueError):
                raise NotPublished(last_words(path.parent) or "the process that publishes ended early") from None
        return urls

    def _write(self, path: Path, job: EvaluationJob, rows: Mapping[Slot, Any], project: str) -> None:
        request = parse_evaluation(job.request)
        assert job.report is not None
        shown = {slot: self._row(row) for slot, row in sorted(rows.items())}
        whole = {
            "project": project,
            "name": job.id,
            # The same for all models, because Weave compares evaluations of the same data.
            "dataset": [shown[slot]["inputs"] for slot in shown if slot.model == 0 and slot.sample == 0],
            "scorers": list(_SCORES),
            "attributes": {
                "evaluation_id": job.id, "environment": request.environment.name, "judge": request.judge.name,
                "split": request.split, "seed": request.seed, "samples": request.samples,
            },
            "models": [
                {
                    "label": contestant.label,
                    "described": {"name": contestant.label, "model": contestant.model, "step": contestant.step},
                    "rows": [row for slot, row in shown.items() if slot.model == number],
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
        argv = (sys.executable, "-m", "learnloop_service.app.evaluations.weave_child", str(path))
        try:
            await run_in(path.parent, argv, _TIMEOUT_S, environment)
        except TimeoutError:
            raise NotPublished(f"it took longer than {_TIMEOUT_S:g} s and was stopped") from None


def _environment(settings: Settings, key: str, base_url: str, folder: str) -> dict[str, str]:
    """Return our environment variables, with explicit settings for W&B in place of the user's files."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "WEAVE_", "WF_"))}
    server = settings.wf_trace_server_url
    return {
        **ours,
        "HOME": folder,
        "WANDB_API_KEY": key,
        "WANDB_BASE_URL": base_url,
        **({} if server is None else {"WF_TRACE_SERVER_URL": str(server).rstrip("/")}),
    }
