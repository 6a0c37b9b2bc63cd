"""Trainers in several processes that take steps together through torch.distributed. Each has this implementation of
Peers."""

import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from learnloop_service.environment.first_line import first_line
from learnloop_service.training.engine.trainer.peers import TrainerLost, WeightsDiffer, shares
from learnloop_service.training.engine.workers.link import TrainingGroup

T = TypeVar("T")

TIMEOUT_S = 1800.0
"""Longest wait for the other trainers, in seconds; they may have weights to load first. A trainer's death is detected
in other ways."""
_LOOK_S = 0.001
_BUCKET = 1 << 26
"""Maximum number of elements sent together, except that one parameter is never split."""


class Trainers:
    """The trainers of a group. Gradients go through NCCL on GPUs; everything else is small and goes through gloo."""

    def __init__(self, group: TrainingGroup, device: torch.device) -> None:
        """Join the group and wait for the others. Raises TrainerLost."""
        self._rank, self._size = group.rank, group.size
        timeout = timedelta(seconds=TIMEOUT_S)
        try:
            self._store, _, _ = next(rendezvous(group.rendezvous, group.rank, group.size, timeout=timeout))
            self._gloo = _gloo(PrefixStore("gloo", self._store), group, timeout)
            self._nccl: Any = None
            if device.type == "cuda":
                # By default NCCL would end a process whose communicator is aborted. Here the front decides which
                # processes continue.
                os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
                options = dist.ProcessGroupNCCL.Options()
                options._timeout = timeout
                self._nccl = dist.ProcessGroupNCCL(PrefixStore("nccl", self._store), group.rank, group.size, options)
                # NCCL creates its communicator at first use. That happens here so that it does not delay sampling
                # later.
                self._nccl.allreduce([torch.zeros(1, device=device)]).wait()
                torch.cuda.synchronize(device)
        except RuntimeError as error:
            raise TrainerLost(f"the trainers did not find each other: {error}") from error

    @property
    def writes(self) -> bool:
        return self._rank == 0

    def share(self, ids: Sequence[Sequence[int]]) -> Sequence[int]:
        return shares(ids, self._size)[self._rank]

    def totals(self, values: Sequence[float], progress: T) -> Generator[T, None, list[float]]:
        sums = torch.tensor(values, dtype=torch.float64)
        yield from self._add(sums, progress)
        return [float(value) for value in sums]

    def joined(self, rows: Tensor, progress: T) -> Generator[T, None, Tensor]:
        sizes = torch.zeros(self._size, dtype=torch.int64)
        sizes[self._rank] = rows.shape[1]
        yield from self._add(sizes, progress)
        parts = torch.zeros(rows.shape[0], int(sizes.sum()))
        before = int(sizes[: self._rank].sum())
        parts[:, before : before + rows.shape[1]] = rows.cpu()
        yield from self._add(parts, progress)
        return parts.to(rows.device)

    @torch.no_grad()
    def add_gradients(self, parameters: Iterable[torch.nn.Parameter], progress: T) -> Generator[T, None, None]:
        in_order = list(parameters)
        have = torch.tensor([float(parameter.grad is not None) for parameter in in_order])
        yield from self._add(have, progress)
        for bucket in _buckets([parameter for parameter, count in zip(in_order, have.tolist(), strict=True) if count]):
            gradients = [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in bucket
            ]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            yield from self._add(flat, progress)
            for parameter, part in zip(
                bucket, torch.split(flat, [parameter.numel() for parameter in bucket]), strict=True
            ):
                parameter.grad = part.view_as(parameter)

    def compare(self, digest: int, progress: T) -> Generator[T, None, None]:
        gathered = torch.zeros(self._size, dtype=torch.int64)
        gathered[self._rank] = digest
        yield from self._add(gathered, progress)
        if len(set(gathered.tolist())) > 1:
            digests = ", ".join(f"{other:016x}" for other in gathered.tolist())
            raise WeightsDiffer(f"the trainers have different weights after the step (digests {digests})")

    def leave(self) -> None:
        """Stop waiting for the others. Anything they wait for raises TrainerLost. Can be called from any thread."""
        if self._nccl is not None:
            self._nccl.abort()

    def _add(self, tensor: Tensor, progress: T) -> Generator[T, None, None]:
        """Replace a tensor by its sum over all trainers."""
        group = self._nccl if tensor.is_cuda else self._gloo
        try:
            work = group.allreduce([tensor])
            try:
                while not work.is_completed():
                    time.sleep(_LOOK_S)
                    yield progress
                work.wait()
            except GeneratorExit:
                # Dropping a group blocks on its outstanding operations until the others have left too, so it happens in
                # a thread.
                threading.Thread(target=_finish, args=(group, work), daemon=True).start()
                raise
        except RuntimeError as error:
            raise TrainerLost(f"a trainer left the step: {first_line(error)}") from error


def join_group(group: TrainingGroup, device: torch.device, progress: T) -> Generator[T, None, Trainers]:
    """Join the group, yielding `progress` until all trainers have joined. Raises TrainerLost."""
    joined: Future[Trainers] = Future()

    def meet() -> None:
        try:
            joined.set_result(Trainers(group, device))
        except Exception as error:
            joined.set_exception(error)

    threading.Thread(target=meet, name="rendezvous", daemon=True).start()
    while not joined.done():
        time.sleep(_LOOK_S)
        yield progress
    return joined.result()


def _gloo(store: Store, group: TrainingGroup, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname=group.host) if group.host else gloo.create_default_device()]
    return gloo(store, group.rank, group.size, options)


def _finish(group: Any, work: Any) -> None:
    try:
        work.wait()
    except RuntimeError:
        return


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(member.numel() for member in bucket) + parameter.numel() > _BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
