"""Without the packages of an extra, what needs them says so; the wheels' tests try others in an empty environment."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.datasets.tables import BadTable, read_table
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.results import documents
from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import load_settings
from learnloop_service.app.tracing import tracer
from learnloop_service.app.tracing.tracer import TracingUnavailable, open_tracing
from learnloop_service.app.weave import publishing
from learnloop_service.app.worker.evaluations.publisher import NotPublished, publishers
from learnloop_service.environment.openenv import environment as openenv
from learnloop_service.environment.registry import build
from learnloop_service.judges.prices import listed_price

WEAVE = {"weave_project": "team/mail", "wandb_api_key": "k" * 40}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Modules that are not installed."""
    for name in request.param:
        monkeypatch.setitem(sys.modules, name, None)

    def find(name: str) -> Any:
        return None if name in request.param else find_spec(name)

    for module in (documents, openenv, publishing, tracer):
        monkeypatch.setattr(module, "find_spec", find)


@pytest.mark.parametrize("absent", [("openpyxl", "charset_normalizer")], indirect=True)
@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(("content", "what"), [(b"PK\x03\x04", "XLSX files need"), (b"a,b\nM\xfcnchen,1\n", "UTF-8")])
def test_tables(content: bytes, what: str) -> None:
    with pytest.raises(BadTable, match=f"{what}.*the extra `tables`, which is not installed here"):
        read_table(content)


@pytest.mark.parametrize("absent", [("genai_prices.data_snapshot",)], indirect=True)
@pytest.mark.usefixtures("absent")
def test_prices_are_unknown() -> None:
    listed_price.cache_clear()
    try:
        assert listed_price("openai/gpt-4.1-mini") is None
    finally:
        listed_price.cache_clear()


@pytest.mark.parametrize("absent", [("opentelemetry.exporter", "weave")], indirect=True)
@pytest.mark.usefixtures("absent")
async def test_traces_and_weave(tmp_path: Path) -> None:
    settings = load_settings(_env_file=None, data_dir=tmp_path, **WEAVE)
    with pytest.raises(TracingUnavailable, match=r"traces need opentelemetry.exporter \(the extra `tracing`\)"):
        open_tracing(settings)
    [weave] = publishers(settings)
    with pytest.raises(NotPublished, match="publishing to Weave needs the extra `weave`"):
        await weave.publish(EvaluationJob(), {})


def test_nothing_is_published_without_a_project(tmp_path: Path) -> None:
    assert list(publishers(load_settings(_env_file=None, data_dir=tmp_path, weave_project=None))) == []


@pytest.mark.parametrize("absent", [("websockets",)], indirect=True)
@pytest.mark.usefixtures("absent")
def test_openenv(tmp_path: Path) -> None:
    access = EnvironmentAccess(load_settings(_env_file=None, data_dir=tmp_path))
    with pytest.raises(ValueError, match="openenv needs the extra `openenv`"):
        build("openenv", {"url": "https://wordle.example"}, tmp_path, access)
