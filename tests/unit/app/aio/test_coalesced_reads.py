"""Shared reads: no request gets what was read before it came, and none fails because another one does."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from learnloop_service.app.aio.coalesced_reads import CoalescedReads
from tests.conditions import until


@dataclass
class _Store:
    """Values by key; each read waits for its gate, then gives what was there when it began."""

    values: dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 1})
    begun: list[list[str]] = field(default_factory=list)
    gates: list[asyncio.Event] = field(default_factory=list)

    async def read(self, keys: Sequence[str]) -> dict[str, int]:
        snapshot, gate = dict(self.values), asyncio.Event()
        self.begun.append(sorted(keys))
        self.gates.append(gate)
        await gate.wait()
        if "bad" in keys:
            raise ValueError("a bad key")
        return {key: snapshot[key] for key in keys if key in snapshot}

    async def begins(self, reads: int) -> None:
        """Wait until this number of reads have begun."""
        await until(lambda: len(self.begun) >= reads)


async def _both_busy(store: _Store, reads: CoalescedReads[int]) -> list[asyncio.Task[int | None]]:
    """Two reads under way, as many as there may be."""
    asking = []
    for number in (1, 2):
        asking.append(asyncio.create_task(reads.get("a")))
        await store.begins(number)
    return asking


async def test_requests_during_a_read_share_the_next_one_and_its_later_values() -> None:
    store = _Store()
    reads = CoalescedReads(store.read)
    early = await _both_busy(store, reads)
    store.values["a"] = 2
    late = [asyncio.create_task(reads.get(key)) for key in ("a", "b", "a", "none", "a")]
    await asyncio.sleep(0)
    assert len(store.begun) == 2  # they wait
    store.gates[0].set()
    await store.begins(3)
    store.gates[1].set()
    store.gates[2].set()
    assert await asyncio.gather(*early) == [1, 1]
    assert await asyncio.gather(*late) == [2, 1, 2, None, 2]
    assert store.begun == [["a"], ["a"], ["a", "b", "none"]]


async def test_a_failed_read_fails_only_for_those_who_share_it() -> None:
    store = _Store()
    reads = CoalescedReads(store.read)
    asking = [asyncio.create_task(reads.get(key)) for key in ("bad", "a")]
    await store.begins(1)
    later = asyncio.create_task(reads.get("a"))
    await store.begins(2)
    for gate in store.gates:
        gate.set()
    assert [type(outcome) for outcome in await asyncio.gather(*asking, return_exceptions=True)] == [
        ValueError,
        ValueError,
    ]
    assert await later == 1


async def test_who_goes_away_takes_nobody_along() -> None:
    store = _Store()
    reads = CoalescedReads(store.read)
    leaves, stays = (asyncio.create_task(reads.get("a")) for _ in range(2))
    await store.begins(1)
    leaves.cancel()
    store.gates[0].set()
    assert await stays == 1
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_a_crowd_of_keys_is_read_in_portions() -> None:
    store = _Store(values={str(number): number for number in range(120)})
    reads = CoalescedReads(store.read)
    asking = [asyncio.create_task(reads.get(key)) for key in store.values]
    for number in range(3):
        await store.begins(number + 1)
        store.gates[number].set()
    assert await asyncio.gather(*asking) == list(range(120))
    assert max(map(len, store.begun)) == 50


async def test_closing_cancels_all_that_wait() -> None:
    store = _Store()
    reads = CoalescedReads(store.read)
    asking = [*await _both_busy(store, reads), asyncio.create_task(reads.get("b"))]
    await asyncio.sleep(0)
    await reads.close()
    await until(lambda: all(task.done() for task in asking))
    assert all(task.cancelled() for task in asking)
