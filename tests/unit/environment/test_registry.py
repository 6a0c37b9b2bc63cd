"""Environments by name."""

from pathlib import Path

import pytest

from learnloop_service.environment import registry
from learnloop_service.environment.traits import Traits
from tests.fakes.installed import installed


def test_the_shipped_environments_are_registered(tmp_path: Path) -> None:
    assert registry.names() == ["agent", "answers", "email_search", "mcp", "openenv", "sales_email", "verifiers"]
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


def test_what_environments_say_of_their_config(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from learnloop_service.environment.traits import Traits\nTRAITS = Traits(datasets={'scenarios': ()})\ndef build(): ..."
    )
    (tmp_path / "plain.py").write_text("def build(): ...")
    points = {"mine": "mine:build", "plain": "plain:build", "broken": "nowhere:build"}
    with installed(tmp_path, registry.GROUP, points):
        assert registry.traits("mine") == Traits(datasets={"scenarios": ()})
        assert [registry.traits(name) for name in ("plain", "broken", "unknown")] == [Traits()] * 3
        assert {setting: name for setting, (name, _) in registry.documents().items()} == {"graph": "sales_email"}


def test_a_graph_is_measured_whatever_it_is() -> None:
    _, graphs = registry.documents()["graph"]
    assert graphs.size([{"edge": [1, 2]}, {"edges": [3]}, {"edge": 4}, None]) == {"nodes": 4, "edges": 3}
    assert graphs.learned_on({}) is None
    invented = graphs.learned_on({"graph": "test.0.17"})
    assert invented is not None
    graphs.check(invented)
    with pytest.raises(ValueError, match="two nodes"):
        graphs.check([])
