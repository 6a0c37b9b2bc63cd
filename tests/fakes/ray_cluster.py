"""A Ray cluster of several nodes on this machine. Each node can be killed."""

import os
import subprocess
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from learnloop_service.app.cli.service_process import free_port

_RAY = Path(sysconfig.get_path("scripts"), "ray")
_STORE_BYTES = 80 << 20
"""Size of a node's object store in bytes, near Ray's minimum."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


class Node:
    """The processes of a node."""

    def __init__(self, *arguments: str) -> None:
        common = ("--block", "--node-ip-address=127.0.0.1", f"--object-store-memory={_STORE_BYTES}")
        self._process = subprocess.Popen(
            [_RAY, "start", *common, *arguments],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        output = b""
        for line in self._process.stdout:
            output += line
            if b"Ray runtime started" in line:
                return
        self.kill()
        raise AssertionError(f"a Ray node did not start: {output.decode()}")

    def runs(self, pid: int) -> bool:
        """Return whether a process belongs to the node."""
        with suppress(psutil.NoSuchProcess):
            return self._process.pid in [parent.pid for parent in psutil.Process(pid).parents()]
        return False

    def kill(self) -> None:
        """Kill all processes of the node, as close to simultaneously as possible."""
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            root.suspend()  # otherwise it would clean up
            for process in [*root.children(recursive=True), root]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()


class RayCluster:
    """A head node, which computes nothing by default, and other nodes; a context manager that ends them."""

    def __init__(self, head_cpus: int = 0) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")  # sockets need a short path
        self.port = free_port()
        self.head = Node(
            "--head",
            f"--port={self.port}",
            f"--num-cpus={head_cpus}",
            "--include-dashboard=false",
            f"--temp-dir={self._directory.name}",
        )
        self.nodes: list[Node] = []

    @property
    def address(self) -> str:
        """The address for `learnloop engine --ray`."""
        return f"127.0.0.1:{self.port}"

    def add(self, cpus: int) -> Node:
        """Start another node. It joins within seconds."""
        node = Node(f"--address={self.address}", f"--num-cpus={cpus}")
        self.nodes.append(node)
        return node

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *_: object) -> None:
        for node in [*self.nodes, self.head]:
            node.kill()
        self._directory.cleanup()
