"""The files around the code say what the code does."""

import re
from pathlib import Path

import pytest
import yaml

from learnloop_service.app.cli.run_request import read_run_file
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.settings import Settings, load_settings
from learnloop_service.training.backends import registry

ROOT = Path(__file__).parents[3]
_COMPOSE_ONLY = {"POSTGRES_PASSWORD", "LEARNLOOP_PUBLISHED_PORT"}


def _example() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _variables() -> set[str]:
    """Every environment variable that the service and its backends read."""
    settings_variables = {
        name.upper() if field.validation_alias else f"LEARNLOOP_{name.upper()}"
        for name, field in Settings.model_fields.items()
    }
    return settings_variables | registry.variables()


def test_the_env_example_has_every_setting_and_nothing_else() -> None:
    assert set(_example()) - _COMPOSE_ONLY == _variables()


def test_the_env_example_shows_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in _variables():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    defaults = load_settings(), list(map(registry.read_settings, registry.names()))
    (tmp_path / ".env").write_text((ROOT / ".env.example").read_text())
    assert (load_settings(), list(map(registry.read_settings, registry.names()))) == defaults


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
    links = {path.name: path.readlink() for path in (ROOT / "src" / "learnloop_service").iterdir() if path.is_symlink()}
    assert links == {name: Path("../..") / name for name in ("app", "environment", "judges", "training")}
    packages = {"alembic", "configs", "learnloop", "src", *links}
    copied = set(re.findall(r"^COPY (\w+) \./\1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    in_context = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert packages <= copied & in_context
