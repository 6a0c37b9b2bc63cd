"""The report of a rejudging whose judge scored only some rollouts."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.stored_evaluation import Rejudge
from learnloop_service.app.evaluations.rejudge_report import rejudge_report
from learnloop_service.app.evaluations.rejudgings import StoredGroup
from learnloop_service.training.advantages import advantages

REJUDGE = Rejudge(run_id="R", kinds=("train", "evaluation"), first=0, last=1, repeats=1, rollouts=16, code="0" * 64)


def _rows(kind: str, start: int) -> list[Any]:
    """Eight rollouts of which every other one succeeded."""
    rewards = [float(number % 2) for number in range(8)]
    shared = {"kind": kind, "iteration": 1, "split": "validation", "mode": "sampled", "step": 1, "scenario_id": kind}
    return [
        SimpleNamespace(
            id=f"{start + at:03}",
            error=None,
            score=reward,
            reward=reward,
            success=reward == 1,
            advantage=advantage,
            **shared,
        )
        for at, (reward, advantage) in enumerate(zip(rewards, advantages(rewards), strict=True))
    ]


@given(st.integers(0, 16))
def test_a_missing_score_is_no_zero(scored: int) -> None:
    groups: list[Any] = [StoredGroup(_rows("train", 0)), StoredGroup(_rows("evaluation", 8))]
    rows = [row for group in groups for row in group.rows]
    none = SimpleNamespace(score=None, reward=None, success=False, advantage=None)
    verdicts = {(row.id, 0): row if index < scored else none for index, row in enumerate(rows)}
    report: Any = rejudge_report(REJUDGE, groups, verdicts, {})
    assert report["rollouts"] == 16
    assert report["scored"] == scored
    assert report["conclusive"] == (scored >= 8)
    successes = [row.success for row in rows[: min(scored, 8)]]
    assert report["all"]["success"] == {"before": 0.5, "now": sum(successes) / len(successes) if successes else None}
    if scored < 8:
        assert report["text"] == (
            f"No finding: {scored} of 16 rollouts were scored, which is too few to say what would have changed."
        )
        assert report["first_changed"] is None
        assert report["first_mattering"] is None
        assert report["best_step"] is None
    else:
        assert report["text"].startswith("No change that matters")
        assert ("rollouts were scored" in report["text"]) == (scored < 16)
