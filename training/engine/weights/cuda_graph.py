"""Capturing a computation as one CUDA graph, which replaces hundreds of launches by one."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from learnloop_service.training.engine.memory import release_reserved

CAPTURE_BYTES = 1 << 30
"""Free memory in bytes that the driver gets for capturing a graph, because it cannot use what torch keeps in
reserve."""

T = TypeVar("T")


def captured(run: Callable[[], T], device: torch.device, pool: Any) -> tuple[torch.cuda.CUDAGraph, T]:
    """Return a graph of `run` on the current device, and what it returned, which each replay overwrites.

    `run` must write the same when it runs again, and must not wait for the GPU. `pool` is the memory of another graph,
    or None: graphs that run one after another can share memory as long as any of them exists.
    """
    if torch.cuda.mem_get_info(device)[0] < CAPTURE_BYTES:
        release_reserved()
    # The first run is outside a graph, so that kernels are compiled and libraries allocate their workspace.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # The stream is passed explicitly, because torch's default capture stream is on whichever GPU captured first.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        outputs = run()
    return graph, outputs
