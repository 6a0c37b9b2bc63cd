"""Training jobs of the process that runs ART's local backend. They are kept in memory and run one at a time, and their
events can be long-polled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class LocalJob:
    """A training job. It has ended when `task` has ended."""

    model_id: str
    events: list[Event] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: asyncio.Task[None] | None = None

    async def add(self, kind: str, **data: Any) -> None:
        """Add an event, and wake those who wait for one."""
        async with self.changed:
            self.events.append({"id": f"event-{len(self.events)}", "type": kind, "data": data})
            self.changed.notify_all()

    async def after(self, start: int, wait_s: float) -> list[Event]:
        """Return the events from index `start` on, waiting up to `wait_s` seconds if there are none."""
        try:
            async with asyncio.timeout(wait_s), self.changed:
                await self.changed.wait_for(lambda: len(self.events) > start)
        except TimeoutError:
            pass
        return self.events[start:]


class LocalJobs:
    """All training jobs since the start of the process."""

    def __init__(self) -> None:
        self._jobs: dict[str, LocalJob] = {}
        self._turn = asyncio.Lock()

    def get(self, job_id: str) -> LocalJob | None:
        return self._jobs.get(job_id)

    def pending(self, model_id: str | None = None) -> bool:
        """Return whether a job of the model, or of any model if None, has not ended."""
        return any(
            job.task is not None and not job.task.done() and model_id in (None, job.model_id)
            for job in self._jobs.values()
        )

    def submit(self, model_id: str, work: Callable[[], Awaitable[Event]]) -> str:
        """Start a job and return its id; `work` trains and returns the data of the last event."""
        job = LocalJob(model_id)
        job_id = f"job-{len(self._jobs)}"
        self._jobs[job_id] = job
        job.task = asyncio.create_task(self._run(job, work), name=job_id)
        return job_id

    async def _run(self, job: LocalJob, work: Callable[[], Awaitable[Event]]) -> None:
        async with self._turn:
            await job.add("training_started")
            try:
                ended = await work()
            except Exception as error:  # any error of vLLM, Unsloth or CUDA is reported to the job's followers
                await job.add("training_failed", error_message=f"{type(error).__name__}: {error}")
            else:
                await job.add("training_ended", **ended)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[None]:
        """Prevent training while the block runs, waiting for the current job to end."""
        async with self._turn:
            yield
