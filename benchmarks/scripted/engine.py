"""A stand-in for the engine, in a process of its own: it answers as the worlds have it, and only counts trainings.

What it was trained on is in a file, so that it can be killed. A training takes effect once, from the expected step.
"""

import argparse
import asyncio
import re
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks import processes
from benchmarks.scripted.worlds import MARK, Agent, Trained
from learnloop_service.environment.email_search.synthetic import make_world, parse_address
from learnloop_service.environment.json_type import Json
from tests.fakes.scripted_chat import Reply, ScriptedChat, call
from tests.integration.training.scripted_runs import address_of

_TABLES = """
CREATE TABLE IF NOT EXISTS model (name TEXT PRIMARY KEY, base TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trained (model TEXT, step INTEGER, kind TEXT NOT NULL, PRIMARY KEY (model, step));
"""
_MARK = re.compile(re.escape(MARK).replace(r"\{\}", r"(\d+)"))
_TOKENS = (7, 8, 9)


class Models:
    """The models and their trainings."""

    def __init__(self, path: Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.executescript(_TABLES)

    def add(self, name: str, base: str) -> None:
        """Add a model, unless there is one with that name."""
        self._file.execute("INSERT OR IGNORE INTO model VALUES (?, ?)", (name, base))

    def step(self, name: str) -> int | None:
        """Return the newest step of a model; None if there is no such model."""
        query = "SELECT (SELECT count(*) FROM trained WHERE model = name) FROM model WHERE name = ?"
        row = self._file.execute(query, (name,)).fetchone()
        return None if row is None else int(row[0])

    def listed(self) -> list[Json]:
        """Return the models as the engine lists them."""
        named = [(name, *name.split("/")) for (name,) in self._file.execute("SELECT name FROM model").fetchall()]
        steps = {name: list(range((self.step(name) or 0) + 1)) for name, _, _ in named}
        return [{"id": name, "project": project, "name": short, "steps": steps[name]} for name, project, short in named]

    def train(self, name: str, kind: str, expected_step: int) -> bool:
        """Take a step; return False if the model is at another one."""
        if self.step(name) != expected_step:
            return False
        self._file.execute("INSERT INTO trained VALUES (?, ?, ?)", (name, expected_step + 1, kind))
        return True

    def agent(self, name: str, prompt: int | None) -> Agent:
        """Return the agent that a model or checkpoint is with a prompt."""
        trained: list[Trained] = []
        while "/" in name:
            model, _, step = name.partition("@")
            query = "SELECT kind, count(*) FROM trained WHERE model = ? AND step <= ? GROUP BY kind"
            trained = [*self._file.execute(query, (model, int(step or self.step(model) or 0))), *trained]
            [name] = self._file.execute("SELECT base FROM model WHERE name = ?", (model,)).fetchone()
        return Agent(name, trained, prompt)


@dataclass
class Engine:
    """Answers requests, whatever their path: those with messages as a model, the others by their `do`."""

    models: Models
    wrong: Sequence[str] = ("no idea",)
    """What agents answer that do not solve their task."""

    async def __call__(self, request: Mapping[str, Json]) -> Reply:
        match request.get("do"):
            case "add":
                self.models.add(request["name"], request["base"])
            case "train" if not self.models.train(request["name"], request["kind"], request["expected_step"]):
                return Reply(status=409)
        if "messages" in request:
            return self._answer(request)
        name = request.get("name")
        step = None if name is None else self.models.step(name)
        return Reply(body={"status": "ok", "step": step, "data": self.models.listed(), "has_more": False})

    def _answer(self, request: Mapping[str, Json]) -> Reply:
        marked = _MARK.search(request["messages"][0]["content"])
        agent = self.models.agent(request["model"], None if marked is None else int(marked[1]))
        address = address_of(request)
        solves = agent.solves(address, request["seed"] if request.get("temperature") else None)
        key = parse_address(address)
        assert key is not None
        world = make_world(*key)
        answer = world.answer if solves else self.wrong[key[2] % len(self.wrong)]
        answered = call("return_final_answer", answer=answer, sources=[world.source_id])
        return Reply(answered.calls, tokens=_TOKENS)


async def _serve(port: int, path: Path, wrong: Sequence[str]) -> None:
    chat = ScriptedChat(Engine(Models(path), wrong))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chat.requests.clear()
        await chat.handle(reader, writer)

    async with await asyncio.start_server(handle, "127.0.0.1", port) as server:
        await server.serve_forever()


@contextmanager
def scripted_engine(port: int, path: Path, wrong: Sequence[str] = ()) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the stand-in with its file at `path`, and yield its process when it answers. `wrong` are answers of agents
    that do not solve their task."""

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).is_success
        except httpx.TransportError:
            return False

    answers_wrong = [part for answer in wrong for part in ("--wrong", answer)]
    with processes.module(__name__, "--port", str(port), "--file", str(path), *answers_wrong) as child:
        processes.wait_for(child, answers)
        yield child


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--wrong", action="append", help="answer of agents that do not solve their task")
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.file, options.wrong or Engine.wrong))


if __name__ == "__main__":
    main()
