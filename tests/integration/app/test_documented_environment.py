"""docs/environments.md alone is enough to write an environment: its code is installed, examined and trained on."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.cli.new import ENVIRONMENT, rendered
from learnloop_service.environment import registry
from learnloop_service.training.environment_check.check import check
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.engine_process import ROOT
from tests.fakes.installed import installed
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.served import run_with, served, settings_for

PAGE = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
[CODE] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[None]:
    """The document's package is installed, with the document's entry point."""
    site = tmp_path / "site"
    (site / "stock").mkdir(parents=True)
    (site / "stock/__init__.py").touch()
    (site / "stock/environment.py").write_text(CODE, encoding="utf-8")
    [lines] = re.findall(r"^    (\[project\.entry-points.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    points = tomllib.loads(lines.replace("\n    ", "\n"))["project"]["entry-points"][registry.GROUP]
    with installed(site, registry.GROUP, points):
        yield


def test_it_is_short_and_what_the_command_writes() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) < 60
    assert rendered(ENVIRONMENT, "stock")["stock/environment.py"] == CODE


@pytest.mark.usefixtures("stock")
async def test_nothing_is_broken_in_it(data_dir: Path) -> None:
    report = await check("stock", {}, data_dir, scenarios=8, seed=0)
    assert not report.broken, report.findings
    assert (report.solvable, report.judge) == (1.0, "reference")
    assert report.headroom is not None
    assert report.headroom > 0.5


async def answer(request: Mapping[str, Any]) -> Reply:
    """Looks the article up, then tells the number; in half of the rollouts another one."""
    task, *rest = request["messages"]
    if not rest:
        return call("look_up", article=re.findall(r"article (\w+)", task["content"])[0])
    return Reply(content=rest[-1]["content"] if request["seed"] % 2 else "1")


@pytest.mark.usefixtures("stock")
async def test_it_is_trained_on_and_asked(data_dir: Path, database_url: str) -> None:
    async with scripted_chat(answer) as chat:
        backend = ScriptedBackend(chat.url)
        async with served(settings_for(data_dir, database_url), learn_loop, backend) as client:  # type: ignore[arg-type]
            body = {
                "environment": {"name": "stock"},
                "iterations": 1,
                "groups_per_iteration": 2,
                "rollouts_per_group": 4,
                "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
            }
            posted = (await client.post("/learn-loop", json=body)).raise_for_status().json()
            run = await run_with(client, posted["run_id"], "completed", "failed")
            assert run["status"] == "completed", run["error"]
            listed = (await client.get(f"/runs/{run['run_id']}/trajectories?limit=200")).json()["items"]
            assert {rollout["reward"] for rollout in listed} == {0.2, 1.2}
            [policy] = backend.policies.values()
            assert policy.requests
            question = {"run_id": run["run_id"], "input": {"article": "bolt", "warehouse": "test-0-1"}}
            reply = (await client.post("/ask", json=question)).raise_for_status().json()
            assert reply["success"]
            listed = (await client.get("/environments")).json()["items"]
            [task] = [environment["task"] for environment in listed if environment["name"] == "stock"]
            assert set(task["properties"]) == set(task["required"]) == question["input"].keys()
