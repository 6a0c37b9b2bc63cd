"""Check that every iteration trains exactly one step despite interruptions: 12 faults on each of the 3 backends.

`python -m benchmarks.durability.train_once [--backend NAME]`. In each of the 36 runs, real processes are killed with
SIGKILL, or a proxy loses their replies, during the second of two iterations; they are restarted until the run has
ended. The engine is real; `serverless` is a server that speaks W&B's protocol (tests/fakes/hosted_server.py); `local`
is ART's LocalBackend over a scripted service. Exits with 1 if a run did not train as many steps as it has iterations.
The exception is a request that was sent but returned no id, because it may or may not have trained: such a run has to
be flagged.
"""

import argparse
import asyncio
import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.loop.train_step import UNSURE
from tests.fakes.lossy_proxy import LossyProxy, Moment, lossy_proxy, nothing

if TYPE_CHECKING:
    from learnloop_service.training.types import Group

POST, EVENTS = "POST /v1/preview/training-jobs", "GET /v1/preview/training-jobs/"
_ITERATIONS = 2
_LIVES = 12
_LIFE_S = 120.0
_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Fault:
    """A kill at a point of the journal or at a request, or a request whose reply is lost `times` times."""

    name: str
    dies_at: str = ""
    moment: Moment = "request"
    request: str = ""
    what: Literal["kill", "lose"] = "kill"
    times: int = 1
    unknown: bool = False
    """Whether the request can have arrived although no id came back."""


FAULTS = (
    Fault("killed before the intent", "before train.intent"),
    Fault("killed after the intent", "after train.intent", unknown=True),
    Fault("killed with the request on its way", request=POST, unknown=True),
    Fault("killed with the reply on its way", moment="reply", request=POST, unknown=True),
    Fault("killed before the id is kept", "before train.job", unknown=True),
    Fault("killed after the id is kept", "after train.job"),
    Fault("killed as it asks for events", request=EVENTS),
    Fault("killed with events on their way", moment="reply", request=EVENTS),
    Fault("killed before the outcome is kept", "before train"),
    Fault("killed after the outcome is kept", "after train"),
    Fault("reply lost", moment="reply", request=POST, what="lose", unknown=True),
    Fault("events lost four times", moment="reply", request=EVENTS, what="lose", times=4),
)


@dataclass(frozen=True)
class Place:
    """A backend under test; `trained` returns how many steps the model was trained."""

    url: str
    key: str
    base_model: str
    groups: "list[Group]"
    trained: Callable[[ModelSpec], Any]


def _choice(*tokens: int) -> Any:
    from openai.types.chat.chat_completion import Choice

    content: Any = [
        {"token": f"token_id:{token}", "bytes": None, "logprob": -0.5, "top_logprobs": []} for token in tokens
    ]
    message = {"role": "assistant", "content": "At noon."}
    return Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
    )


def _groups() -> "list[Group]":
    """Return one group with two replies, the second one with the higher reward."""
    from learnloop_service.environment.base import Scenario
    from learnloop_service.judges.base import Score
    from learnloop_service.training.backends.art_import import import_art
    from learnloop_service.training.types import Group, Rollout, ScoredRollout

    art, scenario = import_art(), Scenario("train.0", "train", {})
    rollouts = []
    for number in range(2):
        items: Any = [{"role": "user", "content": "When?"}, _choice(number + 70, 75)]
        trajectory = art.Trajectory(messages_and_choices=items, reward=float(number))
        rollout = Rollout(str(number), scenario, trajectory, {})
        rollouts.append(ScoredRollout(rollout, Score(0.5, ""), trajectory.reward, {}, success=False))
    return [Group(scenario, tuple(rollouts))]


@asynccontextmanager
async def _engine(directory: Path, base: Path) -> AsyncIterator[Place]:
    from learnloop_service.training.backends import embedded
    from tests.fakes.engine_process import EngineProcess

    with EngineProcess(directory / "engine", "--base-model", f"random={base}") as engine:

        async def trained(model: ModelSpec) -> int:
            backend = await embedded.connect(engine.base_url, "none")
            try:
                return await (await backend.register(model)).step()
            finally:
                await backend.close()

        yield Place(engine.base_url, "none", "random", _groups(), trained)


@asynccontextmanager
async def _hosted(directory: Path, base: Path) -> AsyncIterator[Place]:
    from tests.fakes.hosted_server import KEY, hosted_server

    async with hosted_server(job_s=0.1) as server:

        async def trained(model: ModelSpec) -> int:
            return len(server.model(model.name).trained)

        yield Place(server.url, KEY, "OpenPipe/Qwen3-14B-Instruct", _groups(), trained)


@asynccontextmanager
async def _local(directory: Path, base: Path) -> AsyncIterator[Place]:
    from tests.fakes.local_process import KEY, LocalProcess

    with LocalProcess(directory / "local", "--idle-s", "0") as process:
        before = 0

        async def trained(model: ModelSpec) -> int:
            nonlocal before
            total, earlier = len(process.trained), before
            before = total
            return total - earlier

        yield Place(process.base_url, KEY, str(base), _groups(), trained)


PLACES = {"embedded": _engine, "serverless": _hosted, "local": _local}


class _Run:
    """One run with one fault."""

    def __init__(self, backend: str, service: Place, proxy: LossyProxy, fault: Fault, directory: Path) -> None:
        from benchmarks.durability.train_once_child import Order

        self._fault = fault
        self._remaining = fault.times
        self._proxy = proxy
        self._directory = directory
        directory.mkdir()
        self.model = ModelSpec("once", directory.name, service.base_model)
        self._order = Order(
            backend,
            proxy.url,
            service.key,
            self.model,
            service.groups,
            directory,
            _ITERATIONS,
            _ITERATIONS,
            fault.dies_at,
        )
        self._process: Any = None

    async def to_its_end(self) -> int:
        """Start processes until one of them finishes the run; return how many were started."""
        from benchmarks.durability.train_once_child import main

        self._proxy.loses = self._loses if self._fault.request else nothing
        for lives in range(1, _LIVES + 1):
            self._process = _context.Process(target=main, args=(self._order,))
            self._process.start()
            await asyncio.to_thread(self._process.join, _LIFE_S)
            if self._process.exitcode == 0:
                return lives
            if self._process.exitcode is None:
                self._process.kill()
        raise RuntimeError(f"{self._fault.name}: the run has not ended after {_LIVES} processes")

    async def _loses(self, moment: Moment, request: str) -> bool:
        begun = (self._directory / f"{_ITERATIONS - 1}:train").exists()
        if not begun or not self._remaining or moment != self._fault.moment or not self._matches(request):
            return False
        self._remaining -= 1
        if self._fault.what == "kill":
            self._process.kill()
        return True

    def _matches(self, request: str) -> bool:
        return request == POST if self._fault.request == POST else request.startswith(EVENTS)

    @property
    def happened(self) -> bool:
        return self._remaining < self._fault.times if self._fault.request else (self._directory / "died").exists()

    @property
    def flagged(self) -> bool:
        return UNSURE in json.loads((self._directory / f"{_ITERATIONS}:train").read_text())["metrics"]


async def _all(names: list[str]) -> int:
    from tests.fakes.tiny_model import make_tiny_model

    _context.set_forkserver_preload(["benchmarks.durability.train_once_child"])
    violations, begun = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="train-once-") as temporary:
        root = Path(temporary)
        base = make_tiny_model(root / "base", overrides={"max_position_embeddings": 2048})
        print(f"{'backend':<11} {'fault':<36} {'lives':>5} {'trained':>8} {'flagged':>8}")
        for name in names:
            async with AsyncExitStack() as stack:
                service = await stack.enter_async_context(PLACES[name](root, base))
                proxy = await stack.enter_async_context(lossy_proxy(service.url))
                for number, fault in enumerate(FAULTS):
                    run = _Run(name, service, proxy, fault, root / f"{name}-{number}")
                    lives = await run.to_its_end()
                    trained = await service.trained(run.model)
                    right = run.happened and (trained == _ITERATIONS or (fault.unknown and run.flagged))
                    violations += not right
                    mark = "" if right else "  WRONG" if run.happened else "  NEVER HAPPENED"
                    print(
                        f"{name:<11} {fault.name:<36} {lives:>5} {trained:>4} of {_ITERATIONS}"
                        f" {'yes' if run.flagged else '-':>8}{mark}",
                        flush=True,
                    )
    print(f"{len(names) * len(FAULTS)} runs, {violations} violations, {time.monotonic() - begun:.0f} s")
    return violations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", choices=sorted(PLACES), action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(1 if asyncio.run(_all(arguments.backend or list(PLACES))) else 0)


if __name__ == "__main__":
    main()
