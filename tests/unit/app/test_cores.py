"""The cores that a process can use: those it may run on, and no more than its control groups grant."""

from pathlib import Path

import pytest

from learnloop_service.app.processes import cores
from learnloop_service.app.processes.cores import usable_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the control groups of a process in `/service/app`, which may run on eight cores."""
    own_group = tmp_path / "own"
    own_group.write_text("4:memory:/elsewhere\n0::/service/app\n")
    (tmp_path / "groups/service/app").mkdir(parents=True)
    monkeypatch.setattr(cores, "_OWN_GROUP", own_group)
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    return tmp_path / "groups"


def test_without_a_quota_they_are_those_of_the_affinity(groups: Path) -> None:
    assert usable_cores() == 8
    (groups / "service/cpu.max").write_text("max 100000\n")
    assert usable_cores() == 8


@pytest.mark.parametrize(
    ("quota", "count"), [("200000 100000", 2), ("150000 100000", 2), ("5000 100000", 1), ("1600000 100000", 8)]
)
@pytest.mark.parametrize("group", ["service/app", "service", "."])
def test_a_quota_of_any_group_around_it_limits_them(groups: Path, group: str, quota: str, count: int) -> None:
    (groups / group / "cpu.max").write_text(quota + "\n")
    assert usable_cores() == count


def test_elsewhere_than_on_linux_the_processor_says(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr(cores, "_OWN_GROUP", groups / "none")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert usable_cores() == 3
