"""YAML that users write becomes what JSON can hold."""

import json
from pathlib import Path

import pytest

from learnloop_service.app.cli.run_request import parse_settings
from learnloop_service.app.domain.yaml_file import parse_yaml, read_object


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-03-01", "2026-03-01"),
        ("[2026-03-01, {day: 2026-03-01T10:00:00Z}]", ["2026-03-01", {"day": "2026-03-01T10:00:00Z"}]),
        ("[3, 0.5, true, null, ж]", [3, 0.5, True, None, "ж"]),
    ],
)
def test_dates_stay_texts_and_the_rest_is_as_usual(text: str, value: object, tmp_path: Path) -> None:
    assert parse_yaml(text) == value
    assert parse_settings([f"a.b={text}"]) == {"a.b": value}
    (tmp_path / "run.yaml").write_text(f"asked: {text}", encoding="utf-8")
    document = read_object(tmp_path / "run.yaml", "anything")
    assert json.loads(json.dumps(document)) == {"asked": value}
