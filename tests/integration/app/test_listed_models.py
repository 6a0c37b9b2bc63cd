"""Which language models requests can name, and where the operator's keys go. Nothing outside is reached."""

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from learnloop_service.app.db.database import make_database, make_engine, parse_url
from tests.fakes.litellm_providers import known_to_litellm
from tests.fakes.recorded_connections import Connection, recorded_connections
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import make_run
from tests.integration.app.judged_rollouts import judged_rollouts
from tests.integration.app.served import served, settings_for

JUDGE, OPENAI, OTHER, OPERATOR = "canary-judge-0001", "canary-openai-0002", "canary-listed-0003", "operator-" + "k" * 32
OURS = {"judge_model": "openai/judge", "judge_api_key": JUDGE, "openai_api_key": OPENAI}
LISTED = {"name": "second", "model": "openai/b", "base_url": "http://10.1.2.3:8000/v1", "key": OTHER}
PROVIDERS = known_to_litellm()
HOMES = {JUDGE: "api.openai.com", OPENAI: "api.openai.com", OTHER: "10.1.2.3:8000"}


@pytest.fixture(autouse=True)
def no_keys_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


@asynccontextmanager
async def _service(data_dir: Path, database_url: str, **more: Any) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client, and a run of which there are rollouts to judge."""
    engine = make_engine(parse_url(database_url))
    settings = settings_for(data_dir, database_url, operator_key=OPERATOR, rate_per_s=0, **OURS | more)
    async with served(settings, ScriptedLoop()) as client:
        client.headers["authorization"] = f"Bearer {OPERATOR}"
        run_id = await make_run(make_database(engine), environment="email_search")
        await judged_rollouts(make_database(engine), run_id)
        yield client, run_id
    await engine.dispose()


@pytest.fixture(params=["always", "auto"], ids=["keys are required", "no keys are required"])
async def here(
    request: pytest.FixtureRequest, data_dir: Path, database_url: str
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    async with _service(data_dir, database_url, require_keys=request.param) as service:
        yield service


async def _judge(client: httpx.AsyncClient, run_id: str, model: str | None) -> httpx.Response:
    config = {} if model is None else {"model": model}
    judges = [{"name": "correctness", "config": config}]
    return await client.post(f"/runs/{run_id}/judge-agreement", json={"judges": judges, "trajectories": 2})


def _strayed(connections: Sequence[Connection]) -> list[tuple[str, str]]:
    """Keys that would have arrived where they do not belong."""
    pairs = [(connection, key) for connection in connections for key in HOMES if key.encode() in connection.plaintext]
    return [(key, connection.host) for connection, key in pairs if connection.host != HOMES[key]]


@pytest.fixture
def outside(here: tuple[httpx.AsyncClient, str]) -> Iterator[Sequence[Connection]]:
    port = here[0].base_url.port
    assert port is not None
    with recorded_connections({port}) as connections:
        yield connections


async def test_no_name_of_a_provider_sends_a_key_elsewhere_or_leads_inside(
    here: tuple[httpx.AsyncClient, str], outside: Sequence[Connection]
) -> None:
    assert {"openai", "llamafile", "ollama", "sagemaker"} <= set(PROVIDERS)
    for provider in PROVIDERS:
        judged = await _judge(*here, f"{provider}/x")
        evaluated = await here[0].post("/evaluations", json={"models": [{"prompted": f"{provider}/x"}]})
        assert _strayed(outside) == [], provider
        assert [connection.address for connection in outside if connection.is_private] == [], provider
        if provider != "openai":
            assert (judged.status_code, evaluated.status_code) == (422, 422), provider
            assert "openai/judge" in judged.json()["errors"][0]["msg"]
    assert {connection.host for connection in outside} <= {"api.openai.com"}


async def test_the_first_listed_model_is_asked_with_its_key(
    here: tuple[httpx.AsyncClient, str], outside: Sequence[Connection]
) -> None:
    judged = await _judge(*here, None)
    assert judged.status_code == 200, judged.text
    assert {connection.host for connection in outside} == {"api.openai.com"}
    assert all(f"Bearer {JUDGE}".encode() in connection.plaintext for connection in outside)


async def test_a_listed_model_is_asked_at_its_private_address_with_its_own_key(
    data_dir: Path, database_url: str
) -> None:
    async with _service(data_dir, database_url, require_keys="always", models=[LISTED]) as (client, run_id):
        with recorded_connections({client.base_url.port or 0}) as outside:
            assert (await _judge(client, run_id, "second")).status_code == 200
            assert {connection.host for connection in outside} == {"10.1.2.3:8000"}
            assert all(f"Bearer {OTHER}".encode() in connection.plaintext for connection in outside)
            refused = await _judge(client, run_id, "openai/b")
        assert refused.status_code == 422
        [error] = refused.json()["errors"]
        assert error["loc"] == ["body", "judges", 0, "config"]
        assert error["msg"] == (
            "correctness needs a language model: Unknown model 'openai/b'. Available: openai/judge, second. "
            "The operator lists models in LEARNLOOP_MODELS."
        )


@pytest.mark.parametrize("judge", ["ruler", "correctness"])
async def test_runs_and_evaluations_name_listed_models_only(data_dir: Path, database_url: str, judge: str) -> None:
    async with _service(data_dir, database_url, require_keys="always", max_concurrent_runs=0) as (client, _):
        unknown = {"name": judge, "config": {"model": "openai/gpt-4.1"}}
        mixed = [{"name": "reference", "weight": 1}, {**unknown, "weight": 1}]
        blended = {"name": "blend", "config": {"judges": mixed}}
        for refused_judge in (unknown, blended, mixed):
            refused = await client.post("/learn-loop", json={"judge": refused_judge})
            assert refused.status_code == 422, refused.text
            assert "Unknown model 'openai/gpt-4.1'. Available: openai/judge." in refused.text
        refused = await client.post("/evaluations", json={"models": [{"prompted": "openai/judge"}], "judge": unknown})
        assert refused.json()["errors"][0]["loc"] == ["body", "judge", "config"]
        refused = await client.post("/evaluations", json={"models": [{"prompted": "openai/gpt-4.1"}]})
        assert refused.json()["errors"][0]["loc"] == ["body", "models", 0, "prompted"]
        listed = {"name": judge, "config": {"model": "openai/judge"}}
        accepted = await client.post("/learn-loop", json={"judge": listed})
        assert accepted.status_code == 202, accepted.text
