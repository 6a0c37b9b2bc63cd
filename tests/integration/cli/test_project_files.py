"""The files around the code say what the code does."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from learnloop_service.app.cli.run_request import read_run_file
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.settings import Settings, load_settings

ROOT = Path(__file__).parents[3]
_COMPOSE_ONLY = {"POSTGRES_PASSWORD", "LEARNLOOP_PUBLISHED_PORT"}


def _example() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _variables() -> dict[str, object]:
    """Every environment variable that Settings reads, with its default."""
    return {
        name.upper() if field.validation_alias else f"LEARNLOOP_{name.upper()}": field.get_default(
            call_default_factory=True
        )
        for name, field in Settings.model_fields.items()
    }


def test_the_env_example_has_every_setting_and_nothing_else() -> None:
    assert set(_example()) - _COMPOSE_ONLY == set(_variables())


def test_the_env_example_shows_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in _variables():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    defaults = load_settings()
    (tmp_path / ".env").write_text((ROOT / ".env.example").read_text())
    assert load_settings() == defaults


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_is_a_run_that_the_service_takes(path: Path) -> None:
    LearnLoopRequest.model_validate(read_run_file(path))


def test_the_compose_file_waits_for_postgres_and_keeps_the_data() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    api, postgres = compose["services"]["api"], compose["services"]["postgres"]
    assert api["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert api["environment"]["LEARNLOOP_DATA_DIR"] in [volume.split(":")[1] for volume in api["volumes"]]
    assert "healthcheck" in postgres
    assert {volume.split(":")[0] for service in (api, postgres) for volume in service["volumes"]} == set(
        compose["volumes"]
    )
    # `up --wait` gives up where a check that the image or the file has is switched off.
    assert "HEALTHCHECK" not in (ROOT / "Dockerfile").read_text()
    for service in compose["services"].values():
        assert "test" in service.get("healthcheck", {"test": None})


def test_the_image_has_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    packages |= {"alembic", "configs", "learnloop"}
    copied = set(re.findall(r"^COPY (\w+) \./\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert len(packages) >= 5
    assert packages <= copied & sent
