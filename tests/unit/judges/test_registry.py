"""Judges by name."""

from typing import Any

import pytest

from learnloop_service.judges import registry
from learnloop_service.judges.base import JudgeServices
from tests.fakes.scripted_judge import OnlyModel

MODEL = JudgeServices(models=OnlyModel())


def test_the_shipped_judges_are_registered_under_their_names() -> None:
    assert registry.names() == ["blend", "correctness", "feedback", "grounding", "reference", "reported", "ruler"]
    for name in registry.names():
        assert registry.build(name, {}, MODEL).name == name


def test_an_unknown_name_tells_the_known_ones() -> None:
    with pytest.raises(registry.UnknownJudge, match=r"'nobody'.*reference"):
        registry.build("nobody", {}, JudgeServices())


@pytest.mark.parametrize("config", [{"strict": True}, {"": None}])
def test_a_setting_it_does_not_have_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has no setting"):
        registry.build("reference", config, JudgeServices())
