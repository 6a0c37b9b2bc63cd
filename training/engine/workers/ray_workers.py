"""Workers as Ray actors, on whichever nodes of a cluster have room for them.

Ray places them and reports when one has died. As with local workers, the front restarts them, so Ray itself never
restarts an actor. Unanswered commands are repeated by their callers, who know whether the answer is still needed.
"""

import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from learnloop_service.environment.installation import install_command
from learnloop_service.training.engine.workers.link import FrontEnd, LinkClosed, ToWorker, WorkerReport, WorkerSpec

_LOOK_S = 0.5
_REPORTS_S = 5.0
_DEAD_S = 30.0
"""Longest wait for Ray to report that a killed actor is dead, in seconds."""
_HEAD_LOST_S = 15
"""A front that loses contact with the cluster's head for this long, in seconds, ends and is restarted like any
engine."""
_PASSED_PREFIXES = ("MKL_", "ATEN_", "OMP_WAIT_", "PYTORCH_", "NCCL_", "GLOO_")
"""Prefixes of the front's environment variables that are passed on to workers. API keys are excluded because the
cluster's head would store them."""
_GROUPS = {"messages": 1, "reports": 1}
"""The actor's concurrency groups. Calls within a group run in the order in which they were made."""


class ClusterUnavailable(Exception):
    """There is no Ray cluster at that address, or it denies access."""


class RayWorkers:
    """A Placement on a Ray cluster. Trainers are packed onto as few nodes as possible (a placement group, PACK) because
    they wait for one another. Samplers are spread over the nodes (SPREAD); one without room waits for a node to join
    while the others work."""

    def __init__(self, address: str, specs: Sequence[WorkerSpec]) -> None:
        """Connect to the cluster; must be called from the main thread. Raises ClusterUnavailable."""
        try:
            import ray
        except ImportError:
            raise ClusterUnavailable(f"workers on Ray need the extra `ray`: {install_command('ray')}") from None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_HEAD_LOST_S))
        try:
            ray.init(address=address, namespace="learnloop", log_to_driver=False, configure_logging=False)
        except Exception as error:  # anything: no answer, a different version, a missing token
            raise ClusterUnavailable(f"the Ray cluster at {address}: {str(error).partition(chr(10))[0]}") from error
        self._ray: Any = ray
        self._trainers = [spec for spec in specs if spec.trains]
        self._group: Any = None
        self._grouping = threading.Lock()

    def start(self, spec: WorkerSpec) -> FrontEnd:
        actor = self._ray.remote(
            num_cpus=_bundle(spec)["CPU"],
            num_gpus=_bundle(spec).get("GPU", 0),
            scheduling_strategy=self._trainer_placement(spec) if spec.trains else "SPREAD",
            concurrency_groups=_GROUPS,
            runtime_env={"env_vars": {k: v for k, v in os.environ.items() if k.startswith(_PASSED_PREFIXES)}},
            max_restarts=0,
            max_task_retries=0,
        )
        # The actor is not awaited. One that has no room yet is silent, just like one that is starting.
        return _RayLink(self._ray, actor(_Actor).remote(spec))

    def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
        first = trainers[0]
        assert isinstance(first, _RayLink)
        return f"tcp://{first.host}:{first.free_port()}"

    def close(self) -> None:
        self._ray.shutdown()

    def _trainer_placement(self, spec: WorkerSpec) -> Any:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        with self._grouping:
            if self._group is None:
                self._group = placement_group([_bundle(trainer) for trainer in self._trainers], strategy="PACK")
        number = [trainer.number for trainer in self._trainers].index(spec.number)
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)


class _RayLink:
    """The front's end of a link. It requests reports one call at a time, and the actor answers when it has some."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.host: str | None = None
        self.location = "not placed yet"
        self._ray = ray
        self._actor = actor
        self._reports: deque[WorkerReport] = deque()

    def receive(self) -> WorkerReport:
        if self.host is None:
            self.host, self.location = self._result(self._actor.where.remote())
        while not self._reports:
            self._reports.extend(self._result(self._actor.reports.options(concurrency_group="reports").remote()))
        return self._reports.popleft()

    def send(self, message: ToWorker) -> None:
        try:
            self._actor.take.options(concurrency_group="messages").remote(message)
        except Exception as error:
            raise LinkClosed("the worker has ended") from error

    def free_port(self) -> int:
        """Return a free port on the worker's machine. Raises LinkClosed."""
        return int(self._result(self._actor.free_port.remote()))

    def end(self) -> None:
        with suppress(Exception):  # the cluster is lost, and the actor with it
            self._ray.kill(self._actor, no_restart=True)
            deadline = time.monotonic() + _DEAD_S
            while time.monotonic() < deadline:
                self._ray.get(self._actor.where.remote(), timeout=_LOOK_S)  # raises once the actor is dead
                time.sleep(_LOOK_S / 10)

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except Exception as error:  # it died, its node is unreachable, or we have left the cluster
            raise LinkClosed(f"the worker has ended: {str(error).partition(chr(10))[0]}") from error


class _Actor:
    """The worker's process, which Ray ends together with the front."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._messages: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._reports: queue.Queue[WorkerReport] = queue.Queue(maxsize=100)
        threading.Thread(target=self._serve, args=(spec,), daemon=True).start()

    def where(self) -> tuple[str, str]:
        """Return the address of its machine and a readable description of the place."""
        from ray import util

        network: Any = util
        return network.get_node_ip_address(), f"{socket.gethostname()}, process {os.getpid()}"

    def free_port(self) -> int:
        """Return an unused port."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def take(self, message: ToWorker) -> None:
        """Accept the front's next message."""
        self._messages.put(message)

    def reports(self) -> list[WorkerReport]:
        """Return the pending reports in order, waiting a while for the first one."""
        pending: list[WorkerReport] = []
        with suppress(queue.Empty):
            pending.append(self._reports.get(timeout=_REPORTS_S))
            while True:
                pending.append(self._reports.get_nowait())
        return pending

    def receive(self) -> ToWorker:
        """Receive as the WorkerEnd of this link."""
        return self._messages.get()

    def send(self, report: WorkerReport) -> None:
        """Send as the WorkerEnd of this link."""
        self._reports.put(report)

    def _serve(self, spec: WorkerSpec) -> None:
        # A process whose engine has failed is useless, so it exits.
        try:
            from learnloop_service.training.engine.logs import configure_logs
            from learnloop_service.training.garbage import freeze_gc

            configure_logs()
            with freeze_gc():
                import learnloop_service.training.engine.trainer.pretrained  # noqa: F401  # it takes seconds, which no request should wait for
                from learnloop_service.training.engine.workers.worker import serve
            serve(spec, self)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(1)


def _bundle(spec: WorkerSpec) -> dict[str, float]:
    if spec.device == "cuda":
        return {"CPU": 1, "GPU": 1}
    return {"CPU": max(spec.threads, spec.train_threads) if spec.trains else spec.threads}
