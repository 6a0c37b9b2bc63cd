"""Judges by name."""

from typing import Any

import pytest

from judges import registry
from judges.reference import ReferenceJudge


def test_the_shipped_judge_is_registered() -> None:
    assert registry.names() == ["reference"]
    assert isinstance(registry.build("reference", {}), ReferenceJudge)


def test_an_unknown_name_tells_the_known_ones() -> None:
    with pytest.raises(registry.UnknownJudge, match=r"'nobody'.*reference"):
        registry.build("nobody", {})


@pytest.mark.parametrize("config", [{"strict": True}, {"": None}])
def test_a_setting_it_does_not_have_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no settings"):
        registry.build("reference", config)
