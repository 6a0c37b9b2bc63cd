"""What a run is going to do, in one line."""

import pytest

from learnloop_service.app.cli.run_report import expected_text, losses_of
from learnloop_service.environment.json_type import Json

ROLLOUTS = {"baseline": 560, "training": 3_840, "evaluations": 1_072, "replacements": 0}


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (
            {"rollouts": ROLLOUTS, "seconds": 250.0, "disk_bytes": None},
            "rollouts: 560 before training, 3,840 in training, 1,072 afterwards; about 4:10, as the last run like it",
        ),
        (
            {"rollouts": {**ROLLOUTS, "replacements": 3_840}, "seconds": None, "disk_bytes": 0.9e9},
            "rollouts: up to 560 before training, 3,840 in training and up to 3,840 in place of groups that teach "
            "nothing, 1,072 afterwards; the first iteration shows the time; about 0.9 GB of disk",
        ),
    ],
)
def test_expected_work_says_what_is_a_bound(expected: Json, text: str) -> None:
    assert expected_text(expected) == text


def test_losses_are_held_out_ones_where_there_are_any() -> None:
    rows: list[Json] = [
        {"supervised": {"loss": 2.0, "held_out_loss": None}},
        {"supervised": {"loss": 1.5, "held_out_loss": 1.75}},
        {"supervised": {"loss": None, "held_out_loss": None}},
        {"supervised": None},
        {},
    ]
    assert losses_of(rows) == [2.0, 1.75]
