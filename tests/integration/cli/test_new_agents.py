"""`learnloop new agent`: each agent does its tasks with the real SDK, and reaches no host but its model's.

Another version of an SDK is tested in its own environment: `PYDANTIC_AI_PYTHON` names the Python of one with
pydantic-ai, whose newest versions need a newer client of OpenAI than the service; `AGENTS_PYTHON`, `LANGCHAIN_PYTHON`
and `OPENAI_PYTHON` are those of the others.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.new import Sdk
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.app.cli.watching import follow
from learnloop_service.environment.base import Split
from learnloop_service.environment.first_line import last_line
from learnloop_service.environment.own_agent.environment import build
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import learnloop as forked_learnloop
from tests.fakes.forked_learnloop import services
from tests.fakes.scripted_chat import Reply, call, scripted_chat
from tests.integration.cli.conftest import Learnloop

MODULES = {
    Sdk.OPENAI: "openai",
    Sdk.OPENAI_AGENTS: "agents",
    Sdk.LANGGRAPH: "langchain",
    Sdk.PYDANTIC_AI: "pydantic_ai",
}
COUNTS: Mapping[Split, int] = {"train": 12, "validation": 9, "test": 9}
TASK = {"question": "Who is the contact for Farugu?", "answer": "Votir Brejul", "source": "repul"}
SEARCH, READ = call("search_inbox", keywords=["Farugu", "contact"]), call("read_email", email_id="repul")
GOOD = (SEARCH, READ, call("return_final_answer", answer="votir brejul.", sources=["repul"]))
BAD: Sequence[Sequence[Reply]] = (
    [call("send_email", to="everybody")],
    [Reply((("read_email", '{"email_id"'),))],
    [call("search_inbox", keywords=7)],
    [call("return_final_answer", answer="Votir Brejul")],
    [Reply(content="Votir Brejul")],
    [Reply(content='{"answer": "Votir', cut_off=True)],
    [Reply(content="")],
    [SEARCH],
    [Reply(status=400)],
)
"""What a model that has learned nothing says, again and again."""
GUARD = """
import os, sys
def seen(event, arguments):
    if event not in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        return
    target = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
    host = str(target[0] if isinstance(target, tuple) else target)
    with open(os.environ["SEEN"], "a") as file:
        file.write(host + "\\n")
    if host != "127.0.0.1":
        raise OSError("there is no route to " + host)
sys.addaudithook(seen)
"""


@pytest.fixture(params=Sdk)
def folder(request: pytest.FixtureRequest, learnloop: Learnloop, tmp_path: Path) -> Path:
    """A new agent of each SDK."""
    sdk = request.param
    ran = learnloop("new", "agent", "office", "--sdk", sdk, "--path", str(tmp_path))
    assert ran.exit_code == 0, ran.stderr
    (tmp_path / "python").write_text(os.environ.get(f"{MODULES[sdk]}_PYTHON".upper(), sys.executable))
    return tmp_path / "office"


def command(folder: Path) -> list[str]:
    """The agent's command, with the Python of its SDK."""
    return [(folder.parent / "python").read_text(), "main.py"]


async def worked_through(folder: Path, *scripts: Sequence[Reply]) -> tuple[list[dict[str, Any]], set[str], str]:
    """Have one process do a task for each script: what the model says, the last reply for ever. Returns the outcomes,
    the hosts that it looked up or connected to, and what it wrote to stderr."""
    guard, hosts_file = folder.parent / "guard", folder.parent / "seen"
    guard.mkdir(exist_ok=True)
    (guard / "sitecustomize.py").write_text(GUARD)
    tasks = [{**TASK, "question": f"{number}. {TASK['question']}"} for number in range(len(scripts))]

    async def say(request: Mapping[str, Any]) -> Reply:
        [question] = [message["content"] for message in request["messages"] if message["role"] == "user"][:1]
        script = scripts[int(question.partition(".")[0])]
        turn: int = sum(message["role"] == "assistant" for message in request["messages"])
        return script[min(turn, len(script) - 1)]

    async with scripted_chat(say) as chat:
        variables = {"OPENAI_BASE_URL": chat.url, "OPENAI_API_KEY": "a-sessions", "OPENAI_MODEL": "office@0"}
        process = await asyncio.create_subprocess_exec(
            *command(folder), cwd=folder,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(guard), "SEEN": str(hosts_file)},
        )  # fmt: skip
        lines = [json.dumps({**variables, "LEARNLOOP_TASK": json.dumps(task)}) for task in tasks]
        stdout, stderr = await process.communicate("".join(f"{line}\n" for line in lines).encode())
    assert {request["model"] for request in chat.requests} <= {"office@0"}
    return (
        [json.loads(outcome) for outcome in stdout.splitlines()],
        set(hosts_file.read_text().split()),
        stderr.decode(),
    )


async def test_an_agent_does_its_tasks_and_reaches_no_other_host(folder: Path) -> None:
    """What a bad model says is a reward of 0 and no failure, and a task has nothing of the one before."""
    outcomes, hosts, stderr = await worked_through(folder, GOOD, *BAD, GOOD)
    rewards = [pytest.approx(sum(outcome["parts"].values())) for outcome in outcomes]
    assert rewards == [1.0, *[0.0] * len(BAD), 1.0], stderr
    assert hosts == {"127.0.0.1"}


async def test_a_bug_of_the_agent_is_no_reward(folder: Path) -> None:
    mail = folder / "mail.py"
    mail.write_text(
        mail.read_text().replace("def begin() -> None:", "def begin() -> None:\n    raise KeyError('mine')")
    )
    (folder.parent / "seen").touch()
    outcomes, _, stderr = await worked_through(folder, GOOD)
    assert outcomes == []
    assert last_line(stderr) == "KeyError: 'mine'"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the tiny base."""
    with services(), own_service(tmp_path_factory.mktemp("agents"), waiting=lambda _: None) as service:
        yield service


@pytest.mark.long
def test_a_new_agent_is_trained_on_the_tiny_base(folder: Path, tiny: Service) -> None:
    few = {"iterations": 1, "groups_per_iteration": 1, "rollouts_per_group": 4}
    few["evaluation"] = {"scenarios": 1, "test_scenarios": 0, "samples": 1}  # type: ignore[assignment]
    request = yaml.safe_load((folder / "run.yaml").read_text()) | few
    agent = subprocess.Popen(
        forked_learnloop("agent", "run", "--url", tiny.url, "--keep", "--", *command(folder)),
        cwd=folder, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        run = follow(tiny, tiny.start_run({**request, "model": {"name": folder.parent.name}})["run_id"], lambda _: None)
    finally:
        agent.terminate()
        agent.wait()
    assert (run["status"], run["progress"]["failures"]) == ("completed", None), run["error"]
    rows = list(tiny.trajectories(run["run_id"], kind="train"))
    assert len(rows) == 4
    assert all(row["turns"] > 0 and 0 <= row["reward"] <= 1 for row in rows)


@pytest.mark.parametrize("folder", [Sdk.OPENAI_AGENTS], indirect=True)
async def test_the_agents_sdk_sends_traces_unless_they_are_switched_off(folder: Path) -> None:
    """Without the template's line the test of hosts fails."""
    agent = folder / "agent.py"
    agent.write_text(agent.read_text().replace("set_tracing_disabled(True)", ""))
    _, hosts, _ = await worked_through(folder, GOOD)
    assert hosts == {"127.0.0.1", "api.openai.com"}


@pytest.mark.parametrize("sdk", Sdk)
def test_the_folder_has_thirty_tasks_that_its_inbox_answers(learnloop: Learnloop, tmp_path: Path, sdk: Sdk) -> None:
    assert learnloop("new", "agent", "office", "--sdk", sdk, "--path", str(tmp_path)).exit_code == 0
    written = {path.name: path.read_text() for path in (tmp_path / "office").iterdir()}
    assert not [name for name, text in written.items() if "$" in text]
    request = yaml.safe_load(written["run.yaml"])
    environment = build(request["environment"]["config"], tmp_path)
    mails = {mail["id"]: mail for mail in json.loads(written["inbox.json"])}
    for split, count in COUNTS.items():
        tasks = [scenario.task for scenario in environment.scenarios(split, count, seed=0)]
        assert len({task["question"] for task in tasks}) == count
        for task in tasks:
            assert task["answer"] in mails[task["source"]]["body"]
    assert all(file in written for file in re.findall(r"`(\w+\.(?:py|json|yaml))`", written["README.md"]))


def test_an_unknown_sdk_is_refused(learnloop: Learnloop, tmp_path: Path) -> None:
    ran = learnloop("new", "agent", "office", "--sdk", "crewai", "--path", str(tmp_path))
    assert ran.exit_code == 2
    assert "pydantic-ai" in ran.stderr
    assert list(tmp_path.iterdir()) == []
