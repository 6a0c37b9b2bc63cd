"""The code that decides verdicts is that of the judge's package, too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from learnloop_service.app.evaluations.judging_code import judging_code
from learnloop_service.judges import registry
from learnloop_service.judges.traits import JudgeTraits
from tests.fakes.installed import installed

_JUDGE = """
from learnloop_service.judges.traits import JudgeTraits

TRAITS = JudgeTraits(repeatable=True)

def build(config, services): ...
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "strict_judges").mkdir()
    (tmp_path / "strict_judges" / "__init__.py").touch()
    (tmp_path / "strict_judges" / "judge.py").write_text(_JUDGE)
    with installed(tmp_path, registry.GROUP, {"strict": "strict_judges.judge:build", "broken": "nowhere:build"}):
        yield


def test_a_judge_says_whether_its_verdicts_are_the_same_again() -> None:
    assert registry.traits("strict") == JudgeTraits(repeatable=True)
    assert [registry.traits(name) for name in ("broken", "unknown", "ruler")] == [JudgeTraits()] * 3
    assert registry.traits("reference") == JudgeTraits(repeatable=True, checks=True)


def test_another_package_has_another_code() -> None:
    assert judging_code("reference") == judging_code("reported") != judging_code("strict")
