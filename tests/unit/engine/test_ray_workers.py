"""Workers on Ray, with a scripted Ray: what is asked of it, and what becomes of what it says."""

import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from learnloop_service.training.engine.computing import BusySeconds
from learnloop_service.training.engine.sampling.figures import SamplingFigures
from learnloop_service.training.engine.workers import ray_workers
from learnloop_service.training.engine.workers.link import Cancel, LinkClosed, WorkerFigures, WorkerReport, WorkerSpec
from learnloop_service.training.engine.workers.ray_workers import ClusterUnavailable, RayWorkers

REPORT = WorkerReport([], WorkerFigures(SamplingFigures(*[0] * 9), BusySeconds(), [], None))


class ActorDied(Exception):
    pass


class ScriptedRay(ModuleType):
    """A cluster whose actors are objects of this process. What they are asked is answered on a thread of each group."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.asked: list[dict[str, Any]] = []
        self.groups: list[tuple[Any, str]] = []
        self.actors: list[Any] = []
        self.lost = False
        self.stopped = False

    def init(self, address: str, **_: Any) -> None:
        if address == "nobody:1":
            raise ConnectionError("no head\nand a long trace")

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.asked.append(options)
        return lambda kind: SimpleNamespace(remote=lambda *arguments: self._start_actor(kind, *arguments))

    def _start_actor(self, kind: type, *arguments: Any) -> Any:
        actor = _ActorHandle(self, kind(*arguments))
        self.actors.append(actor)
        return actor

    def get(self, reference: "Future[Any]", timeout: float | None = None) -> Any:
        return reference.result(timeout)

    def kill(self, actor: "_ActorHandle", no_restart: bool) -> None:
        assert no_restart
        actor.die()

    def shutdown(self) -> None:
        self.stopped = True

    def grouped(self, bundles: Any, strategy: str) -> str:
        self.groups.append((bundles, strategy))
        return "group"


class _ActorHandle:
    def __init__(self, ray: ScriptedRay, actor: Any) -> None:
        self.object = actor
        self.dead = threading.Event()
        self._waiting: list[Future[Any]] = []

    def die(self) -> None:
        self.dead.set()
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ActorDied("killed\nat length"))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> "Future[Any]":
            answer: Future[Any] = Future()
            self._waiting.append(answer)
            if self.dead.is_set():
                self.die()
            else:
                threading.Thread(target=work, args=(answer, arguments), daemon=True).start()
            return answer

        def work(answer: "Future[Any]", arguments: tuple[Any, ...]) -> None:
            outcome = getattr(self.object, name)(*arguments)
            if not answer.done():
                answer.set_result(outcome)

        method = SimpleNamespace(remote=call)
        method.options = lambda concurrency_group: method
        return method


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> ScriptedRay:
    scripted = ScriptedRay()
    groups, strategies = ModuleType("ray.util.placement_group"), ModuleType("ray.util.scheduling_strategies")
    util = ModuleType("ray.util")
    vars(util)["get_node_ip_address"] = lambda: "10.0.0.7"
    vars(scripted)["util"] = util
    vars(groups)["placement_group"] = lambda bundles, strategy: scripted.grouped(bundles, strategy)
    vars(strategies)["PlacementGroupSchedulingStrategy"] = lambda group, placement_group_bundle_index: (
        group,
        placement_group_bundle_index,
    )
    for module in (scripted, util, groups, strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ray_workers._Actor, "_serve", lambda self, spec: None)
    monkeypatch.setattr(ray_workers, "_REPORTS_S", 0.01)
    return scripted


def _spec(number: int, *, samples: bool, trains: bool, device: str = "cpu") -> WorkerSpec:
    return WorkerSpec(number, samples, trains, device, Path("/data"), {}, (), 8, None, None, 2, 3)


def test_trainers_are_placed_together_and_samplers_apart(ray: ScriptedRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2,STRICT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    specs = [_spec(0, samples=True, trains=False)]
    specs += [_spec(number, samples=False, trains=True, device="cuda") for number in (1, 2)]
    workers = RayWorkers("head:6379", specs)
    for spec in specs:
        workers.start(spec)
    assert [options["scheduling_strategy"] for options in ray.asked] == ["SPREAD", ("group", 0), ("group", 1)]
    assert ray.groups == [([{"CPU": 1, "GPU": 1}] * 2, "PACK")]
    assert [(options["num_cpus"], options["num_gpus"]) for options in ray.asked] == [(2, 0), (1, 1), (1, 1)]
    for options in ray.asked:
        assert options["max_restarts"] == 0
        assert options["runtime_env"]["env_vars"]["MKL_CBWR"] == "AVX2,STRICT"
        assert "a secret" not in str(options)
    workers.close()
    assert ray.stopped


def test_messages_and_reports_arrive_in_order_until_the_worker_dies(ray: ScriptedRay) -> None:
    spec = _spec(0, samples=True, trains=True)
    workers = RayWorkers("head:6379", [spec])
    link = workers.start(spec)
    assert link.location == "not placed yet"
    actor = ray.actors[0].object
    reports = [WorkerReport([], REPORT.figures) for _ in range(3)]
    for report in reports:
        actor.send(report)
    assert [link.receive() for _ in reports] == reports
    assert link.host == "10.0.0.7"
    link.send(Cancel(4))
    assert actor.receive() == Cancel(4)
    url = workers.rendezvous([link])
    assert url.startswith("tcp://10.0.0.7:")

    ended: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def receive() -> None:
        try:
            link.receive()
        except LinkClosed as error:
            ended.put(error)

    waiting = threading.Thread(target=receive)
    waiting.start()
    link.end()
    waiting.join()
    assert str(ended.get()) == "the worker has ended: killed"
    link.end()


def test_a_cluster_that_is_not_there(ray: ScriptedRay) -> None:
    with pytest.raises(ClusterUnavailable, match=r"^the Ray cluster at nobody:1: no head$"):
        RayWorkers("nobody:1", [])


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterUnavailable, match="need the extra `ray`"):
        RayWorkers("head:6379", [])
