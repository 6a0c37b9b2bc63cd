"""Every command and snippet of the README and the documentation.

Each block is of a kind that is checked: commands with curl are run by the real curl against a real service with the
tiny base model, Python is executed, commands of `learnloop` and `make` are parsed, JSON is parsed. What
cannot be checked stands in ILLUSTRATIONS or ELSEWHERE with its reason; a block of no kind fails.
"""

import asyncio
import inspect
import io
import json
import re
import shlex
import subprocess
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main

from learnloop.agent_command import parser as agent_parser
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.main import app
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.app.cli.watching import follow
from learnloop_service.environment.email_search.synthetic import make_world, parse_address
from learnloop_service.environment.json_type import Json
from tests.acceptance.documented_blocks import BLOCKS, ILLUSTRATIONS, PAGES, PROGRAMS, TINY, Block
from tests.fakes.engine_process import ROOT
from tests.fakes.forked_learnloop import services

COMMANDS = [(block.where, command) for block in BLOCKS for command in block.commands]
PYTHON = [block for block in BLOCKS if block.is_python]


def _named(*programs: str) -> pytest.MarkDecorator:
    matching = [(where, command) for where, command in COMMANDS if command.split()[0] in programs]
    return pytest.mark.parametrize(("where", "command"), matching, ids=[where for where, _ in matching])


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert len(BLOCKS) > 40
    unknown = [
        block.where
        for block in BLOCKS
        if not (block.commands or block.is_python or block.documents is not None)
        and not block.text.startswith(tuple(ILLUSTRATIONS))
    ]
    assert unknown == []
    used = [begin for begin in ILLUSTRATIONS if any(block.text.startswith(begin) for block in BLOCKS)]
    assert used == list(ILLUSTRATIONS)
    assert {command.split()[0] for _, command in COMMANDS} == PROGRAMS


def test_questions_are_answered_by_their_inbox() -> None:
    questions = [
        (question, address)
        for _, command in COMMANDS
        for question in re.findall(r'"((?:When|On which|Who|What|Which|How)[^"]*\?)"', command)
        for address in re.findall(r"[a-z]+\.\d+\.\d+@inbox\.example", command)
    ]
    assert len(questions) >= 4
    for question, address in questions:
        key = parse_address(address)
        assert key is not None
        assert make_world(*key).question == question


@_named("make")
def test_targets_of_make_exist(where: str, command: str) -> None:
    target = shlex.split(command, comments=True)[1]
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_modules_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"python -m ([\w.]+)", page.read_text(encoding="utf-8"))}
    assert len(named) > 10
    assert [name for name in sorted(named) if find_spec(name) is None] == []


@_named("learnloop")
def test_the_command_line_takes_it(where: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "material").mkdir()
    (tmp_path / "graph.json").write_text("[]")
    (tmp_path / "run.yaml").write_text("iterations: 1")
    for name in ("careful", "short", "desk", "served"):
        (tmp_path / f"{name}.yaml").write_text("system: Be careful.")
    (tmp_path / "orders.json").write_text("{}")
    (tmp_path / "orders.jsonl").touch()
    (tmp_path / "calls.jsonl").touch()
    (tmp_path / "chats.jsonl").touch()
    (tmp_path / "tickets.csv").touch()
    (tmp_path / "report-RUN_ID.html").touch()
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(command.replace("PLACEHOLDER", "x"), comments=True)
    parsed: Any = typer.main.get_command(app)
    context = parsed.make_context("learnloop", [], resilient_parsing=True)
    while getattr(parsed, "commands", None):
        name, parsed, arguments = parsed.resolve_command(context, arguments)
        context = parsed.make_context(name, [], parent=context, resilient_parsing=True) if arguments else context
    parsed.make_context(name, arguments, parent=context)


@_named("learnloop-agent")
def test_the_clients_command_takes_it(where: str, command: str) -> None:
    options = agent_parser("learnloop-agent").parse_args(shlex.split(command)[1:])
    assert options.command[:1] == ["--"]


@dataclass(frozen=True, slots=True)
class Trained:
    """A running service with a run of each environment that has ended."""

    service: Service
    mail: Json
    sales: Json

    def filled(self, text: str) -> str:
        """The text with what exists here in place of addresses, ids and names."""
        is_sales = re.search(r"/results|node-scores|/feedback|prospect", text)
        run = self.sales if is_sales else self.mail
        model = f"{run['model']['project']}/{run['model']['name']}"
        text = text.replace("http://127.0.0.1:8000", self.service.url).replace("PROJECT/NAME", model)
        if '"session_id"' in text:
            text = text.replace("01K...", self.session())
        text = re.sub(r"01[KM][0-9A-Z]*\.\.\.|RUN_ID", run["run_id"], text)
        return text.replace('"step": 12', '"step": 0').replace("step=12", "step=0")

    def session(self) -> str:
        """The id of a session in which nothing was asked."""
        opened = httpx.post(f"{self.service.url}/sessions", json={"model": "learnloop/tiny"}, trust_env=False)
        return str(opened.raise_for_status().json()["id"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    (nodes,) = next(b.documents or [] for b in BLOCKS if b.text.startswith('[{"id": "customer-job-close"'))
    with services(), own_service(tmp_path_factory.mktemp("snippets"), waiting=lambda _: None) as service:
        runs = []
        for more in ({"environment": {"name": "email_search"}}, {"graph": nodes}):
            run_id = service.start_run({**TINY, **more})["run_id"]
            runs.append(follow(service, run_id, lambda _: None))
        assert [run["status"] for run in runs] == ["completed", "completed"]
        written = io.StringIO()
        with redirect_stdout(written):
            exec(next(block.text for block in PYTHON if "customer-" in block.text and "hours" in block.text), {})
        imported = service.import_file(written.getvalue().encode(), name="chats")
        assert imported["conversations"]["liked"] == 365
        assert imported["tasks"]["count"] == 135
        yield Trained(service, *runs)


@pytest.mark.long
@_named("curl")
def test_curl_gets_an_answer(where: str, command: str, trained: Trained, tmp_path: Path) -> None:
    if "[...]" in command:
        pytest.skip("an outline; docs/api.md has it in full")
    if '"graph": "test.0.17"' in command:
        pytest.skip("for a run on synthetic graphs, of which none is trained here")
    if "@desk-tasks.json" in command:
        tasks = [{"task": {"question": f"{split}?"}, "split": split} for split in ("train", "validation", "test")]
        stored = {"environment": "agent", "name": "desk-tasks", "scenarios": tasks}
        (tmp_path / "desk-tasks.json").write_text(json.dumps(stored))
    with _subject(command, trained) as text:
        _, *arguments = shlex.split(text.replace("\\\n", " "), comments=True)
        ran = subprocess.run(
            ["curl", "--fail-with-body", "--max-time", "60", *arguments],
            check=False, capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
    if "/feedback" in command and "has no email" in ran.stdout:
        pytest.skip("the request is understood, but the tiny base finished no email in its single iteration")
    if "/feedback" in command and "was ever promoted" in ran.stdout:
        pytest.skip("the request is understood, but nothing is promoted here")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    if "/learn-loop" in text:
        trained.service.cancel(json.loads(ran.stdout)["run_id"])
    if "-sOJ" in arguments:
        assert len(list(tmp_path.iterdir())) == 1


@contextmanager
def _subject(command: str, trained: Trained) -> Iterator[str]:
    """The command about a run that it can be about: pausing needs one that has not ended."""
    if "/pause" not in command:
        yield trained.filled(command)
        return
    run_id = trained.service.start_run({"environment": {"name": "email_search"}})["run_id"]
    yield trained.filled(command.replace("01K...", run_id))
    trained.service.cancel(run_id)


@pytest.mark.long
@pytest.mark.parametrize("block", PYTHON, ids=[block.where for block in PYTHON])
def test_python_runs(block: Block, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNLOOP_TASK", '{"question": "Who are you?"}')
    monkeypatch.setattr("sys.stdin", io.StringIO('{"LEARNLOOP_ATTEMPT": "1"}\n'))
    monkeypatch.setenv("OPENAI_BASE_URL", f"{trained.service.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none is needed on loopback")
    monkeypatch.setenv("OPENAI_MODEL", "learnloop/tiny")
    code = compile(trained.filled(block.text), block.where, "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {}
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)
