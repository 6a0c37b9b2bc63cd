"""Environments by name."""

from pathlib import Path

import pytest

from environment import registry


def test_the_shipped_environments_are_registered(tmp_path: Path) -> None:
    assert registry.names() == ["agent", "email_search", "mcp", "sales_email"]
    for name in registry.names():
        environment = registry.build(name, {}, tmp_path)
        assert environment.name == name
        environment.close()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_tells_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(registry.UnknownEnvironment, match=r"'chess'.*email_search"):
        registry.build("chess", {}, tmp_path)


def test_a_bad_config_is_a_value_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="colour"):
        registry.build("email_search", {"colour": "red"}, tmp_path)
