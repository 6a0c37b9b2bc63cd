"""Bring prompts to agents of five kinds, by reading and by replacing texts of their requests on their way:

    python -m benchmarks.agents.prompts

The agents do the mail job over a service with the included base model (a LangGraph graph, the OpenAI Agents SDK, the
`anthropic` SDK, a Node program, a shell script). Each does the same tasks without a prompt; its texts are then found in
its requests. With these as the prompt its requests must have the same digests, and a changed prompt must be in each
rollout's first request: as it is, with streams (all but the shell script), when another worker continues, and while the
service is killed with SIGKILL. Agents that read their prompt must bring it, and those that ignore it must be
unreachable. A run with the found texts must end with the weights of a run without a prompt.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import processes
from benchmarks.agents.mail_desk import tasks
from benchmarks.durability.harness import workplace
from benchmarks.learning.own_agents import COMMANDS, PYTHON_AGENTS, claiming, desk
from learnloop_service.app.cli.client import Service, ServiceRefused, ServiceUnreachable
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.base import Split
from learnloop_service.environment.json_type import Json

_COUNTS: Mapping[Split, int] = {"train": 4, "validation": 8, "test": 2}
_SEED = 0
_CONCURRENCY = 4
_HINT = "Search before you answer."
_TOOL = "tool:search_inbox"
_READS, _STREAMS = "READS_PROMPT=1", "STREAMS=1"
_IGNORED = 2
"""Number of prompts that an agent ignores."""
_AT_REST = ("completed", "failed", "cancelled", "paused")
_POLL_S = 0.2
_DIGESTS = (
    "SELECT split_part(entry, '/', 1), split_part(entry, '/', 2), session_call.number, digest FROM session_call "
    "JOIN agent_session ON id = session_id WHERE evaluation_id = %s"
)


class Stage:
    """A service on a port of its own, which can be killed and started again."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.service = Service(f"http://127.0.0.1:{self.port}", timeout_s=30)

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Run the service, and yield its process."""
        with processes.service(self.data_dir, self.port) as child:
            processes.wait_for(child, self._is_ready)
            yield child

    def _is_ready(self) -> bool:
        with suppress(ServiceUnreachable, ServiceRefused):
            return bool(self.service.readiness()["status"] == "ready")
        return False

    def started(self, prompts: Sequence[str | None], way: str, **more: Json) -> str:
        """Start an evaluation of the agent with the prompts, and return its path."""
        models = [{"model": "learnloop/tiny", "prompt": prompt, "label": str(prompt)} for prompt in prompts]
        body = {"environment": environment(way), "models": models, "judge": {"name": "reported"}, "max_turns": 4}
        body |= {"split": "validation", "scenarios": _COUNTS["validation"], "concurrency": _CONCURRENCY}
        return f"/evaluations/{self.service.call('POST', '/evaluations', json=body | more)['evaluation_id']}"

    def stored(self, name: str, parts: Mapping[str, str], parent: str | None = None) -> Json:
        """Store a prompt, and return its version."""
        return self.service.call("POST", "/prompts", params={"name": name, "parent": parent}, json={"parts": parts})

    def find(self, name: str, path: str) -> Mapping[str, str]:
        """Store the texts in the requests of an evaluation as a prompt, and return them."""
        of_evaluation = {"name": name, "evaluation": path.rpartition("/")[2]}
        stored = self.service.call("POST", "/prompts/found", params=of_evaluation)
        texts: Mapping[str, str] = self.texts(stored["sha256"])["replaces"]
        return texts

    def texts(self, sha256: str) -> Json:
        """Return a stored prompt."""
        return self.service.call("GET", f"/prompts/{sha256}")["prompt"]

    def ended(self, path: str) -> Json:
        """Return an evaluation or a run once it has ended."""
        while (document := self.service.call("GET", path))["status"] not in _AT_REST:
            time.sleep(_POLL_S)
        return document

    def digests(self, path: str) -> dict[str, set[tuple[str, ...]]]:
        """Return scenario, number and digest of the calls of an evaluation, by model."""
        lines = (self.data_dir / "postgres" / "postmaster.pid").read_text().splitlines()
        digests: dict[str, set[tuple[str, ...]]] = {}
        with psycopg.connect(host=lines[4].strip(), user="postgres", dbname="postgres") as connection:
            for model, *call in connection.execute(_DIGESTS, [path.rpartition("/")[2]]):
                digests.setdefault(model, set()).add(tuple(map(str, call)))
        return digests

    def arrived(self, path: str, sha256: str, parts: Mapping[str, str]) -> dict[str, int]:
        """Return how many rollouts had the prompt, and how many of them have all its texts in their record."""
        rows = self.service.call("GET", f"{path}/trajectories", params={"limit": 200})["items"]
        whole = [self.service.trajectory(row["id"]) for row in rows if row["prompt_sha256"] == sha256]
        return {"rollouts": len(whole), "arrived": sum(_has(trajectory, parts) for trajectory in whole)}


def environment(way: str) -> Json:
    """Return the environment of an agent that reads its prompt, or whose texts are replaced."""
    rows = [row for split, count in _COUNTS.items() for row in tasks(split, count, _SEED)]
    return {"name": "agent", "config": {"scenarios": rows, "runner": {"pull": {}}, "prompt": way}}


def _has(trajectory: Json, parts: Mapping[str, str]) -> bool:
    described = [tool["function"]["description"] for tool in trajectory["tools"]]
    return all(text in described or text in trajectory["messages"][0]["content"] for text in parts.values())


def with_agent(stage: Stage, agent: str, claim: Any) -> dict[str, Json]:
    """Return the figures of an agent whose texts are replaced, that reads its prompt, and that ignores it."""
    both = [f"{agent}@1", f"{agent}@2"]
    with claim():
        plain = stage.started([None], "replace")
        stage.ended(plain)
        originals = stage.find(agent, plain)
        parts = dict.fromkeys(("system", _TOOL), f"{{original}} {_HINT}")
        new = stage.stored(agent, parts, parent=f"{agent}@1")["sha256"]
        changed = {part: f"{originals[part]} {_HINT}" for part in parts}
        path = stage.started(both, "replace")
        stage.ended(path)
        digests = stage.digests(path)
        figures: dict[str, Json] = {"found": sorted(originals), "replaced": stage.arrived(path, new, changed)}
        figures["same_digests_with_the_original"] = digests["0"] == stage.digests(plain)["0"]
        continued = stage.started(both, "replace")
    with claim():  # another worker continues what the first one leaves
        stage.ended(continued)
        figures["continued"] = stage.arrived(continued, new, changed)
        figures["same_digests_when_continued"] = stage.digests(continued) == digests
        for number in range(_IGNORED):
            stage.stored(f"{agent}-ignored-{number}", {"system": f"Number {number}. {_HINT}"})
        ignored = stage.started([f"{agent}-ignored-{number}" for number in range(_IGNORED)], "read", scenarios=2)
        models = stage.ended(ignored)["report"]["models"]
        figures["unreachable"] = sum("its prompt is unreachable" in str(model["error"]) for model in models)
    with claim(_READS):
        texts = {"system": f"You read mail. {_HINT}", _TOOL: f"Find mail. {_HINT}"}
        read = stage.stored(f"{agent}-read", texts)["sha256"]
        path = stage.started([f"{agent}-read"], "read")
        stage.ended(path)
        figures["read"] = stage.arrived(path, read, texts)
    if agent != "shell":
        with claim(_STREAMS):
            path = stage.started(both, "replace")
            stage.ended(path)
            figures["streamed"] = stage.arrived(path, new, changed)
            figures["same_digests_with_streams"] = stage.digests(path) == digests
    return figures


def restarted(stage: Stage, agent: str, claim: Any, kills: int) -> dict[str, Json]:
    """Return what an evaluation with replaced texts is like whose service is killed again and again."""
    prompts = [f"{agent}@1", f"{agent}@2"]
    with claim():
        with stage.running():
            undisturbed = stage.started(prompts, "replace")
            stage.ended(undisturbed)
            sha256 = next(row["sha256"] for row in stage.service.versions("prompts", agent) if row["version"] == 2)
            path = stage.started(prompts, "replace")
        for kill in range(kills):
            with stage.running() as child:
                while sum(map(len, stage.digests(path).values())) < 6 * (kill + 1):
                    time.sleep(_POLL_S)
                child.kill()
                child.wait()
        with stage.running():
            status = stage.ended(path)["status"]
            texts = stage.texts(sha256)
            arrived = stage.arrived(
                path, sha256, {part: f"{texts['replaces'][part]} {_HINT}" for part in texts["parts"]}
            )
            same = stage.digests(path) == stage.digests(undisturbed)
    return {"kills": kills, "status": status, "same_digests": same, **arrived}


def trained(stage: Stage, agent: str, claim: Any) -> list[str]:
    """Return the SHA-256 of the weights of a run without a prompt, and of one with the agent's own texts."""
    small = {"iterations": 1, "groups_per_iteration": 2, "rollouts_per_group": 4, "seed": 0, "max_turns": 4}
    held_out = {"scenarios": 1, "test_scenarios": 1, "samples": 1}
    request = {**small, "evaluation": held_out, "environment": environment("replace"), "judge": {"name": "reported"}}
    hashes = []
    with claim():
        for prompt in (None, f"{agent}@1"):
            run_id = stage.service.start_run(request | {"prompt": prompt})["run_id"]
            model = stage.ended(f"/runs/{run_id}")["model"]["name"]
            newest = max((stage.data_dir / "models").glob(f"*/{model}/checkpoints/[0-9]*"), key=lambda path: path.name)
            hashes.append(json.loads((newest / "manifest.json").read_text())["files"]["model.safetensors"]["sha256"])
    return hashes


def faults(figures: Mapping[str, Json]) -> Iterator[str]:
    """Yield what is not as it must be."""
    for agent, of_agent in figures["agents"].items():
        for what in ("replaced", "continued", "read", "streamed"):
            if (count := of_agent.get(what)) is not None and count["arrived"] != count["rollouts"]:
                yield f"{agent}: {what}"
        yield from (f"{agent}: {name}" for name, value in of_agent.items() if value is False)
        if of_agent["unreachable"] != _IGNORED:
            yield f"{agent}: unreachable"
    restart = figures["restarts"]
    if restart["status"] != "completed" or not restart["same_digests"] or restart["arrived"] != restart["rollouts"]:
        yield "restarts"
    if len(set(figures["weights"])) != 1:
        yield "weights"


def main() -> None:
    """Print the figures as JSON; fail if any is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=[*PYTHON_AGENTS, *COMMANDS], default=[*PYTHON_AGENTS, *COMMANDS])
    parser.add_argument("--kills", type=int, default=3, help="of the service during an evaluation (3)")
    options = parser.parse_args()
    last = options.agents[-1]
    with workplace() as directory, desk(_COUNTS, _SEED) as (desk_url, _):
        (directory / "data").mkdir()
        stage = Stage(directory / "data")
        claims = {
            agent: partial(claiming, agent, stage.service.url, desk_url, _CONCURRENCY) for agent in options.agents
        }
        figures: dict[str, Json] = {"agents": {}}
        with stage.running():
            for agent, claim in claims.items():
                figures["agents"][agent] = with_agent(stage, agent, claim)
                print(agent, json.dumps(figures["agents"][agent]), file=sys.stderr)
            figures["weights"] = trained(stage, last, claims[last])
        figures["restarts"] = restarted(stage, last, claims[last], options.kills)
    print(json.dumps(figures, indent=2))
    if wrong := [*faults(figures)]:
        sys.exit(f"not as they must be: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
