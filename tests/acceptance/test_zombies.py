"""A process that was frozen past its lease writes nothing and trains nothing.

The long form is `python -m benchmarks.durability.zombies`.
"""

from pathlib import Path

import pytest

from benchmarks.durability.chaos_worker import POINTS
from benchmarks.durability.zombies import zombies


@pytest.mark.long
async def test_a_worker_that_comes_back_changes_nothing(data_dir: Path) -> None:
    result = await zombies(data_dir, rounds=1, ttl_s=3.0)
    assert result["violations"] == []
    assert result["freezes"] == len(POINTS)
