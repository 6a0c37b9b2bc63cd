"""Whatever dies, every run continues, and nothing that matters is done twice.

The long form is `python -m benchmarks.durability.chaos`.
"""

from pathlib import Path

import pytest

from benchmarks.durability.chaos import Plan, chaos
from benchmarks.durability.chaos_faults import FAULTS


@pytest.mark.long
async def test_nothing_is_lost_or_done_twice_whatever_dies(data_dir: Path) -> None:
    plan = Plan(seed=1, runs=3, iterations=8, faults_s=14, pause_s=1.2, pace_s=0.06)
    result = await chaos(plan, data_dir)
    assert result["violations"] == [], result
    assert set(result["faults"]) == set(FAULTS)
    assert result["iterations_saved"] == plan.runs * (plan.iterations + 1)
    assert result["claims"] > plan.runs  # somebody took over
