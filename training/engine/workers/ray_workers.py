"""Workers as Ray actors, on whatever nodes of a cluster have room for them.

Ray places them and says when one has died; that it is started again is the front's business, as with workers of the
own machine. So an actor is never restarted by Ray itself, and what it was asked is asked anew by who knows whether it
is still wanted.
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

from training.engine.workers.link import FrontEnd, LinkClosed, Report, ToWorker, WorkerSpec

_LOOK_S = 0.5
_REPORTS_S = 5.0
_DEAD_S = 30.0
"""For Ray to say that an actor which it was told to kill is dead."""
_HEAD_LOST_S = 15
"""A front that does not hear of the cluster's head for so long ends; it is started again, as engines are."""
_PASSED_ON = ("MKL_", "ATEN_", "OMP_WAIT_", "PYTORCH_", "NCCL_", "GLOO_")
"""What the variables begin with that a worker gets from the front's environment. Keys are not among them: the cluster's
head would keep them."""
_GROUPS = {"messages": 1, "reports": 1}
"""Of the actor's methods: what belongs to one is done in the order in which it was asked."""


class ClusterUnavailable(Exception):
    """There is no Ray cluster at that address, or it does not let us in."""


class RayWorkers:
    """A Placement. Trainers are placed together, on as few nodes as can be (a placement group, PACK), because they wait
    for one another. Each sampler is placed by itself, away from the others (SPREAD): one that has no room waits for a
    node that joins, while the others work."""

    def __init__(self, address: str, specs: Sequence[WorkerSpec]) -> None:
        """Raises ClusterUnavailable. Use from the main thread."""
        try:
            import ray
        except ImportError:
            raise ClusterUnavailable("workers on Ray need the extra `ray`: pip install 'learnloop[ray]'") from None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_HEAD_LOST_S))
        try:
            ray.init(address=address, namespace="learnloop", log_to_driver=False, configure_logging=False)
        except Exception as error:  # of many kinds: no answer, another version, no token
            raise ClusterUnavailable(f"the Ray cluster at {address}: {str(error).partition(chr(10))[0]}") from error
        self._ray: Any = ray
        self._trainers = [spec for spec in specs if spec.trains]
        self._group: Any = None
        self._grouping = threading.Lock()

    def start(self, spec: WorkerSpec) -> FrontEnd:
        made = self._ray.remote(
            num_cpus=_bundle(spec)["CPU"],
            num_gpus=_bundle(spec).get("GPU", 0),
            scheduling_strategy=self._trainers_place(spec) if spec.trains else "SPREAD",
            concurrency_groups=_GROUPS,
            runtime_env={"env_vars": {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON)}},
            max_restarts=0,
            max_task_retries=0,
        )
        # It is not waited for here: one that has no room yet is silent, as one is that starts.
        return _RayLink(self._ray, made(_Actor).remote(spec))

    def rendezvous(self, trainers: Sequence[FrontEnd]) -> str:
        first = trainers[0]
        assert isinstance(first, _RayLink)
        return f"tcp://{first.host}:{first.free_port()}"

    def close(self) -> None:
        self._ray.shutdown()

    def _trainers_place(self, spec: WorkerSpec) -> Any:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        with self._grouping:
            if self._group is None:
                self._group = placement_group([_bundle(each) for each in self._trainers], strategy="PACK")
        number = [each.number for each in self._trainers].index(spec.number)
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)


class _RayLink:
    """The front's end: reports are asked for, one call at a time, and waited for by the actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.host: str | None = None
        self.place = "not placed yet"
        self._ray = ray
        self._actor = actor
        self._reports: deque[Report] = deque()

    def receive(self) -> Report:
        if self.host is None:
            self.host, self.place = self._got(self._actor.where.remote())
        while not self._reports:
            self._reports.extend(self._got(self._actor.reports.options(concurrency_group="reports").remote()))
        return self._reports.popleft()

    def send(self, message: ToWorker) -> None:
        try:
            self._actor.take.options(concurrency_group="messages").remote(message)
        except Exception as error:
            raise LinkClosed("the worker has ended") from error

    def free_port(self) -> int:
        """One of the worker's machine. Raises LinkClosed."""
        return int(self._got(self._actor.free_port.remote()))

    def end(self) -> None:
        with suppress(Exception):  # the cluster is lost, and the actor with it
            self._ray.kill(self._actor, no_restart=True)
            deadline = time.monotonic() + _DEAD_S
            while time.monotonic() < deadline:
                self._ray.get(self._actor.where.remote(), timeout=_LOOK_S)  # raises once it is dead
                time.sleep(_LOOK_S / 10)

    def _got(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except Exception as error:  # it died, its node is unreachable, or we have left the cluster
            raise LinkClosed(f"the worker has ended: {str(error).partition(chr(10))[0]}") from error


class _Actor:
    """The worker's process. It ends with the front: Ray sees to that."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._messages: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._reports: queue.Queue[Report] = queue.Queue(maxsize=100)
        threading.Thread(target=self._serve, args=(spec,), daemon=True).start()

    def where(self) -> tuple[str, str]:
        """The address of its machine, and what people call the place."""
        from ray import util

        network: Any = util
        return network.get_node_ip_address(), f"{socket.gethostname()}, process {os.getpid()}"

    def free_port(self) -> int:
        """A port that nobody listens at."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def take(self, message: ToWorker) -> None:
        """The front's next message."""
        self._messages.put(message)

    def reports(self) -> list[Report]:
        """What there is to say, in order; waited for, for a while."""
        found: list[Report] = []
        with suppress(queue.Empty):
            found.append(self._reports.get(timeout=_REPORTS_S))
            while True:
                found.append(self._reports.get_nowait())
        return found

    def receive(self) -> ToWorker:
        """As WorkerEnd has it."""
        return self._messages.get()

    def send(self, report: Report) -> None:
        """As WorkerEnd has it."""
        self._reports.put(report)

    def _serve(self, spec: WorkerSpec) -> None:
        # A process without its engine is of no use.
        try:
            from training.engine.logs import configure_logs
            from training.garbage import kept_for_good

            configure_logs()
            with kept_for_good():
                import training.engine.trainer.pretrained  # noqa: F401  # it takes seconds, which no request should wait for
                from training.engine.workers.worker import serve
            serve(spec, self)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(1)


def _bundle(spec: WorkerSpec) -> dict[str, float]:
    if spec.device == "cuda":
        return {"CPU": 1, "GPU": 1}
    return {"CPU": max(spec.threads, spec.train_threads or 1) if spec.trains else spec.threads}
