"""Check whether tenants can misuse provider names to leak the operator's keys or to connect to internal addresses.

    python -m benchmarks.service.provider_keys [--json]

The service requires keys and has a judge model with a key. For each provider that litellm knows, a tenant asks to judge
stored rollouts with `PROVIDER/x` and to evaluate it. No outside host is contacted: tests/fakes/recorded_connections.py
answers for every host and resolves each name to a public address.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from sqlalchemy import URL

from app.db.database import Database, make_database, make_engine
from app.db.migration import migrate
from app.processes.postgres import EmbeddedPostgres
from tests.conditions import answered
from tests.fakes.litellm_providers import known_to_litellm
from tests.fakes.recorded_connections import Connection, recorded_connections
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import make_run
from tests.integration.app.served import served, settings_for
from tests.integration.app.test_judge_agreement import _rollouts

JUDGE, OPENAI, OPERATOR = "canary-judge-0001", "canary-openai-0002", "canary-operator-" + "k" * 32
HOME = "api.openai.com"
"""The host that both keys belong to; the judge model is OpenAI's."""
_ENDED = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers of providers with each outcome."""

    tried: int
    refused: int
    """The service answered 422 to both requests."""
    received_a_key: int
    """A host that the key does not belong to would have received it."""
    key_in_a_url: int
    connected_inside: int
    """The service connected to an address that is not public."""
    inside: Sequence[str]
    """Non-public addresses that the service connected to."""


async def _judge(client: httpx.AsyncClient, run_id: str, model: str) -> int:
    judges = [{"name": "correctness", "config": {"model": model, "timeout_s": 5}}]
    body = {"judges": judges, "trajectories": 2}
    return (await client.post(f"/runs/{run_id}/judge-agreement", json=body)).status_code


async def _evaluate(client: httpx.AsyncClient, model: str) -> int:
    body = {"models": [{"prompted": model}], "scenarios": 1, "rollout_timeout_s": 10}
    started = await client.post("/evaluations", json=body)
    if started.status_code != httpx.codes.ACCEPTED:
        return started.status_code

    async def ask() -> str:
        found = await client.get(f"/evaluations/{started.json()['evaluation_id']}")
        return str(found.raise_for_status().json()["status"])

    await answered(ask, lambda status: status in _ENDED, timeout_s=120)
    return started.status_code


def _first_line(connection: Connection) -> bytes:
    return bytes(connection.sent.partition(b"\r\n")[0])


def _has_key(text: bytes | bytearray) -> bool:
    return any(key.encode() in text for key in (JUDGE, OPENAI))


async def measure(data_dir: Path, database_url: URL, database: Database) -> Figures:
    """Try every provider."""
    keys = {"judge_model": "openai/judge", "judge_api_key": JUDGE, "openai_api_key": OPENAI, "operator_key": OPERATOR}
    url = database_url.set(drivername="postgresql").render_as_string(hide_password=False)
    settings = settings_for(data_dir, url, require_keys="always", rate_per_s=0, **keys)
    found: dict[str, list[Connection]] = {}
    refused = 0
    async with served(settings, ScriptedLoop()) as client:
        client.headers["authorization"] = f"Bearer {OPERATOR}"
        run_id = await make_run(database, environment="email_search")
        await _rollouts(database, run_id)
        for provider in known_to_litellm():
            with recorded_connections({client.base_url.port or 0}) as connections:
                model = f"{provider}/x"
                statuses = {await _judge(client, run_id, model), await _evaluate(client, model)}
            refused += statuses == {httpx.codes.UNPROCESSABLE_ENTITY}
            found[provider] = list(connections)
            print(f"{provider}: {sorted({each.host for each in connections}) or 'nothing'}", file=sys.stderr)
    inside = {name: [each for each in made if each.is_private] for name, made in found.items()}
    return Figures(
        tried=len(found),
        refused=refused,
        received_a_key=sum(any(_has_key(c.sent) and c.host != HOME for c in made) for made in found.values()),
        key_in_a_url=sum(any(_has_key(_first_line(c)) for c in made) for made in found.values()),
        connected_inside=sum(map(bool, inside.values())),
        inside=sorted({f"{each.address}:{each.port}" for made in inside.values() for each in made}),
    )


async def _on_a_database(directory: Path) -> Figures:
    postgres = EmbeddedPostgres(directory)
    await postgres.start()
    database_engine = make_engine(postgres.url)
    try:
        await migrate(database_engine)
        return await measure(directory, postgres.url, make_database(database_engine))
    finally:
        await database_engine.dispose()
        await postgres.stop()


def main() -> None:
    """Measure; fail if a key leaked or if the service connected to an internal address."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory(prefix="learnloop-keys-") as folder:
        found = asyncio.run(_on_a_database(Path(folder)))
    figures = asdict(found)
    print(json.dumps(figures) if as_json else "\n".join(f"{name}: {value}" for name, value in figures.items()))
    if found.received_a_key or found.connected_inside:
        sys.exit("a key strayed, or the service connected inside")


if __name__ == "__main__":
    main()
