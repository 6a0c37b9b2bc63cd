"""A rollout of an agent that owns its loop: runs the agent, answers its model requests and tool calls, and ends it."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from learnloop_service.environment.base import Ending, Episode, Json, ReportedEpisode, TextEpisode, ToolError
from learnloop_service.environment.first_line import last_line
from learnloop_service.training.prompt import Opening
from learnloop_service.training.rollout.agents.base import Agent, AgentTask, NoOutcome
from learnloop_service.training.rollout.agents.gateway import Gateway, Refused, agent_model, on_loop
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.rollout.episode_tools import call_tool, full_context, out_of_turns
from learnloop_service.training.rollout.histories import record
from learnloop_service.training.rollout.model_calls import Message, ModelCalls, cut_off

if TYPE_CHECKING:
    from art import Trajectory
    from openai.types.chat import ChatCompletion

_GRACE_S = 5.0
"""How long an agent has to end after its rollout."""
_CORRECTABLE_STATUSES = (400, 413, 422)
"""HTTP statuses of requests that the agent can correct, such as a conversation that is too long."""

log = structlog.get_logger(__name__)


class AgentCancelled(Exception):
    """The agent was cancelled, by itself or because its rollout ended."""


class AgentFailed(Exception):
    """The agent raised, or did nothing that can be judged."""


async def play(agent: Agent, episode: Episode, opening: Opening, trajectory: "Trajectory", calls: ModelCalls) -> None:
    """Run the agent on the episode, which begins with `opening`, and put its calls into the trajectory.

    Raises AgentFailed, and any error of the model or a tool, even if the agent handled it.
    """
    rollout = _EpisodeBridge(episode, calls, trajectory.metrics)
    gateway = Gateway(calls.model, rollout.complete, asyncio.get_running_loop())
    async with agent_model(gateway) as model:
        task = AgentTask(
            tuple(opening.messages),
            tuple(opening.tool_list),
            rollout.call_tool,
            episode.max_turns,
            model,
            dict(episode.scenario.task),
            opening.texts,
        )
        working = _AgentThread(agent, task)
        try:
            first: set[asyncio.Future[Any]] = {working.ended, rollout.stopped}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rollout.close()
            await working.end()
            record(trajectory, calls.answered, opening.texts)
    if rollout.stopped.done():
        rollout.stopped.result()
    await rollout.finish(agent.name, working.ended)


class _EpisodeBridge:
    """Connects an agent with its episode, on the run's event loop."""

    def __init__(self, episode: Episode, calls: ModelCalls, metrics: dict[str, float | int | bool]) -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the agent can stop: the episode is over, or something other than the agent failed."""
        self.closed = False
        """Whether the rollout has ended. An agent that is still running gets no more answers."""
        self._episode = episode
        self._calls = calls
        self._metrics = metrics
        self._over = False
        self._full: str | None = None
        """Why the model's last answer is missing, if the conversation filled its context."""
        self._run_loop = asyncio.get_running_loop()
        self._tool_lock = asyncio.Lock()

    def close(self) -> None:
        """Refuse all further requests and tool calls."""
        self.closed = True
        if self.stopped.done():
            # retrieves the exception, so that asyncio does not log it if the rollout was cancelled
            self.stopped.exception()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Json], options: Mapping[str, Json], max_tokens: int | None
    ) -> "ChatCompletion":
        """Answer a request to the model. Raises Refused."""
        import openai

        if not self._over and self._calls.begun >= self._episode.max_turns:
            if isinstance(self._episode, ReportedEpisode):  # over only when the agent reports its outcome
                raise Refused(400, "out_of_turns", out_of_turns(self._episode))
            await self._end("out_of_turns", out_of_turns(self._episode))
        if self._over or self.closed:
            self._stop(None)
            raise Refused(400, "rollout_over", "the rollout is over: the model answers nothing more in it")
        try:
            exact = {"return_token_ids": True} if self._calls.tells_token_ids else {}
            completion = await self._calls.complete(messages, tools, {**options, **exact}, max_tokens)
            self._full = None
            return completion
        except openai.APIStatusError as error:
            self._full = full_context(error)
            if error.status_code not in _CORRECTABLE_STATUSES:
                self._stop(error)
            raise Refused(error.status_code, "model_refused", str(error)) from error
        except Exception as error:
            self._stop(error)
            raise Refused(503, "model_away", f"{type(error).__name__}: {error}") from error

    async def call_tool(self, name: str, arguments: str, call_id: str) -> str:
        """Answer a tool call on the agent's event loop."""
        return await asyncio.wrap_future(on_loop(self._call_tool(name, arguments, call_id), self._run_loop))

    async def _call_tool(self, name: str, arguments: str, call_id: str) -> str:
        async with self._tool_lock:  # an episode handles one call at a time
            if self._over or self.closed:
                return "The task is over."
            clock = time.monotonic()
            try:
                result = await call_tool(self._episode, name, arguments, call_id)
            except ToolError as error:
                await self._end("malformed", str(error))
                return str(error)
            except Exception as error:
                self._stop(error)
                raise
            finally:
                self._metrics["tools_s"] += time.monotonic() - clock
            self._over = result.final
            return result.content

    async def finish(self, agent: str, ended: "asyncio.Future[str]") -> None:
        """Report the agent's result to the episode. Raises AgentFailed."""
        error = ended.exception() if ended.done() else None
        full = self._full
        if full and error is not None and not self._over and not isinstance(error, NoOutcome):
            return await self._end("full_context", full)  # the agent could have shortened the conversation
        if not self._calls.answered and not full:
            how = f"raised {type(error).__name__}: {error}" if error else "ended"
            raise AgentFailed(f"the agent {agent} {how} without an answer of its model")
        if self._over:
            return
        if error is not None:
            how = f"the agent {agent} raised {type(error).__name__}: {error}"
            if not isinstance(error, NoOutcome) and (cut := cut_off(self._calls.answered)):
                return await self._end("malformed", f"{cut}; then {last_line(how)}")
            raise AgentFailed(how) from error
        output = str(ended.result())
        if isinstance(self._episode, ReportedEpisode):
            try:
                return await off_loop(self._episode, self._episode.report, output)
            except ValueError as bad:
                raise AgentFailed(f"the agent {agent} reported {bad}") from bad
        text = self._episode if isinstance(self._episode, TextEpisode) else None
        if text is None or not (await off_loop(text, text.reply, output)).final:
            why = f"the agent ended without a final tool call: {output[:200]!r}"
            await self._end("full_context" if full else "malformed", full or why)

    async def _end(self, reason: Ending, detail: str) -> None:
        self._over = True
        await off_loop(self._episode, self._episode.end, reason, detail)

    def _stop(self, error: Exception | None) -> None:
        if self.stopped.done():
            return
        if error is None:
            self.stopped.set_result(None)
        else:
            self.stopped.set_exception(error)


class _AgentThread:
    """Runs an agent on a separate thread with its own event loop. An agent that blocks delays no other work, and is
    abandoned if it does not end."""

    def __init__(self, agent: Agent, task: AgentTask) -> None:
        self._run_loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._run_loop.create_future()
        self._name = agent.name
        self._work: tuple[asyncio.AbstractEventLoop, asyncio.Task[str]] | None = None
        self._cancelled = False
        context = contextvars.copy_context()  # puts its spans into the rollout's trace
        threading.Thread(
            target=lambda: context.run(self._run, agent.run(task)), name=f"agent-{agent.name}", daemon=True
        ).start()

    def _run(self, work: Coroutine[Any, Any, str]) -> None:
        with asyncio.Runner() as runner:
            try:
                result = runner.run(self._cancellable(work))
            except asyncio.CancelledError:
                self._report(lambda: self.ended.set_exception(AgentCancelled("it was cancelled")))
            except BaseException as error:
                self._report(partial(self.ended.set_exception, error))
            else:
                self._report(partial(self.ended.set_result, result))

    async def _cancellable(self, work: Coroutine[Any, Any, str]) -> str:
        task = asyncio.ensure_future(work)
        self._work = asyncio.get_running_loop(), task
        if self._cancelled:
            task.cancel()
        return await task

    def _report(self, set_ended: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the run's event loop is closed: the agent was abandoned
            self._run_loop.call_soon_threadsafe(set_ended)

    async def end(self) -> None:
        """Cancel the agent and wait briefly for it to end."""
        self._cancelled = True
        if not self.ended.done() and self._work is not None:
            loop, task = self._work
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)
        ended, _ = await asyncio.wait({self.ended}, timeout=_GRACE_S)
        if ended:
            self.ended.exception()  # retrieves the exception, so that asyncio does not log it
        else:
            log.warning("an agent does not end and is left behind", agent=self._name)
