"""Memory that is no longer used goes back to the operating system."""

import gc

import psutil

from learnloop_service.app.aio.freed_memory import give_back


class _Cycle:
    def __init__(self, pieces: list[bytes]) -> None:
        self.held = pieces
        self.itself = self


def test_what_a_cycle_held_is_given_back() -> None:
    """Also pieces that something small after them keeps in the middle of the heap."""
    process = psutil.Process()
    gc.disable()
    try:
        pieces = [bytes([number % 256]) * 2_000 for number in range(100_000)]
        last = pieces.pop()
        _Cycle(pieces)
        del pieces
        before = process.memory_info().rss
        give_back()
        assert before - process.memory_info().rss > 100_000_000
    finally:
        gc.enable()
    assert len(last) == 2_000
