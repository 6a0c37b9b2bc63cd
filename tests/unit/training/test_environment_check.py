"""`learnloop check environment`: each thing that can be wrong with an environment is found, and nothing else."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from learnloop_service.environment.registry import GROUP
from learnloop_service.training.environment_check.check import check
from learnloop_service.training.environment_check.report import FindingState, Report
from tests.fakes import boxes
from tests.fakes.installed import installed

Examine = Callable[[type[boxes.Boxes]], Awaitable[Report]]


@pytest.fixture
def examine(tmp_path: Path) -> Iterator[Examine]:
    """Examines one of those environments."""
    kinds = {
        name: kind for name, kind in vars(boxes).items() if isinstance(kind, type) and issubclass(kind, boxes.Boxes)
    }
    points = {name.lower(): f"{boxes.__name__}:{name}.build" for name in kinds}

    async def examined(kind: type[boxes.Boxes]) -> Report:
        return await check(kind.__name__.lower(), {}, tmp_path, scenarios=8, seed=0)

    with installed(tmp_path / "site", GROUP, points):
        yield examined


def wrong(report: Report, state: FindingState = FindingState.FAILED) -> list[str]:
    return [finding.name for finding in report.findings if finding.state is state]


@pytest.mark.parametrize(
    ("task", "state", "words"),
    [
        ("None", None, None),
        ("{'properties': {'box': {}}}", FindingState.OK, "they have the fields box"),
        (
            "{'properties': {}, 'required': ['colour']}",
            FindingState.WARNING,
            "requires colour, which its scenarios lack",
        ),
        ("{'box': 'a box'}", FindingState.FAILED, "not a JSON schema of an object with `properties`"),
        ("{'properties': {'box': None}}", FindingState.FAILED, "not a JSON schema of an object with `properties`"),
        ("{'properties': {}, 'required': 5}", FindingState.FAILED, "not a JSON schema of an object with `properties`"),
        ("['box']", FindingState.FAILED, "not a JSON schema of an object with `properties`"),
    ],
)
async def test_what_an_environment_says_of_its_tasks(
    tmp_path: Path, task: str, state: FindingState | None, words: str | None
) -> None:
    lines = (
        f"from {boxes.__name__} import Boxes",
        "from learnloop_service.environment.traits import Traits",
        "build = Boxes.build",
        f"TRAITS = Traits(task={task})",
    )
    site, module = tmp_path / "site", tmp_path.name  # what a module says is remembered
    with installed(site, GROUP, {"boxes": f"{module}:build"}):
        (site / f"{module}.py").write_text("\n".join(lines))
        report = await check("boxes", {}, tmp_path, scenarios=8, seed=0)
    verdicts = [(finding.state, finding.said) for finding in report.findings if finding.name == "tasks"]
    assert [verdict[0] for verdict in verdicts] == ([] if state is None else [state])
    assert words is None or words in verdicts[0][1]


@pytest.mark.parametrize("kind", [boxes.Boxes, boxes.Listing, boxes.Served])
async def test_a_sound_environment(examine: Examine, kind: type[boxes.Boxes]) -> None:
    report = await examine(kind)
    assert wrong(report) == []
    by_name = {agent.agent: agent for agent in report.agents}
    assert by_name["oracle"].mean_reward == pytest.approx(1.2)
    assert by_name["no-op"].mean_reward == 0.0
    assert by_name["random"].rollouts == 64
    assert by_name["copies the task"].rollouts == 8
    assert report.solvable == 1.0
    assert report.headroom is not None
    assert 0 < report.headroom < 1.2
    assert report.seconds_per_rollout is not None
    assert report.groups_without_signal is not None
    assert report.as_json()["broken"] is False
    assert boxes.Served.open == 0


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (boxes.Overlapping, "held-out scenarios", "256 tasks of train are in test"),
        (boxes.Drifting, "same scenarios", "number 1 is another when it is asked for alone"),
        (boxes.Leaking, "leaks", "the reference's answer stands in the opening messages, in 8 of 8 scenarios"),
        (boxes.Counting, "determinism", "the same calls gave something else"),
        (boxes.Hashing, "determinism", "in another process: rollout"),
        (boxes.Doubled, "rewards", "the part 'total' is the sum of the others"),
        (boxes.Infinite, "protocol", "reward() returned"),
        (boxes.Unsolvable, "solvable", "the oracle solves 0%"),
        (boxes.Generous, "cheating", "the agent that makes empty calls solves 100% and earns "),
        (boxes.Away, "episodes", "there is no server at box.example"),
    ],
)
async def test_what_is_wrong_is_found(examine: Examine, kind: type[boxes.Boxes], name: str, words: str) -> None:
    report = await examine(kind)
    assert report.broken
    [finding, *_] = [
        failed for failed in report.findings if failed.name == name and failed.state is FindingState.FAILED
    ]
    assert words in finding.said


async def test_without_an_oracle_headroom_is_not_known(examine: Examine) -> None:
    report = await examine(boxes.Unsolved)
    assert report.headroom is None
    assert report.solvable is None
    assert "headroom" in wrong(report, FindingState.WARNING)
    assert wrong(report) == []


async def test_without_a_judge_no_reward_is_examined(examine: Examine) -> None:
    report = await examine(boxes.Priced)
    assert wrong(report) == []
    assert wrong(report, FindingState.WARNING) == ["judge"]
    assert report.agents == ()
    assert "'ruler' cannot be used without settings" in report.findings[-1].said
