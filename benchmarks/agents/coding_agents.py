"""Run the real coding agents in recorded sessions, over the engine with a base model that has a context of 32k tokens.

    npm install --prefix agents @openai/codex @anthropic-ai/claude-code opencode-ai @qwen-code/qwen-code \\
        @earendil-works/pi-coding-agent
    pip install --target agents/mini mini-swe-agent
    PATH=$PWD/agents/node_modules/.bin:$PWD/agents/mini/bin:$PATH python -m benchmarks.agents.coding_agents

Those that are not on the PATH are left out, with the command that installs them. The base model is the included one,
configured with a longer context than those it was trained on: what it writes is nonsense, but calls of tools occur in
it. Each agent has a session, whose record is printed. Then it has one with a base model of a short context, in which
its first prompt does not fit, and one whose limit of calls is reached; both must make it stop. `--train codex` trains
that agent through `learnloop agent run`. Fails if an agent's session has no answered call, or if an agent does not
stop.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.agents.coding_clis import AGENTS, CONTEXT, CodingAgent, Ended, Model, work
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import own_service
from learnloop_service.environment.json_type import Json

_TINY = Path(__file__).parents[2] / "training" / "engine" / "tiny_base" / "model"
_LONG, _SHORT = "coding-32k", "coding-512"
_SHORT_CONTEXT = 512
_MOST_CALLS = 6
_ANY_CALL: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
_PROMPT = "Write hello world in Python to hello.py and run it."
_WIDTH = 100
_POLL_S = 1.0


def add_base(data_dir: Path, name: str, context: int) -> None:
    """Add a copy of the included base model whose context has that many tokens."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(shutil.copytree(_TINY, Path(directory, name)))
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
        arguments = ["bases", "add", name, str(copy), "--prompts", "0", "--data-dir", str(data_dir)]
        subprocess.run(
            [sys.executable, "-m", "learnloop_service.app.cli", *arguments], check=True, stdout=subprocess.DEVNULL
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """A session with its calls, and how the agent in it ended."""

    session: Mapping[str, Json]
    calls: Sequence[Mapping[str, Json]]
    ended: Ended
    seconds: float

    @property
    def is_answered(self) -> bool:
        """Whether the model answered a call."""
        return any(call["completion"] for call in self.calls)


def in_session(service: Service, base: str, agent: CodingAgent, *, is_spent: bool = False) -> Recorded:
    """Let the agent work in a session. With `is_spent`, the session's limit of calls is reached before."""
    most = 1 if is_spent else _MOST_CALLS
    opened = service.call("POST", "/sessions", json={"model": base, "limits": {"max_calls": most}})
    path = f"/sessions/{opened['id']}"
    if is_spent:
        service.call("POST", f"{path}/v1/chat/completions", json=_ANY_CALL)
    clock = time.monotonic()
    ended = work(agent, Model(opened["base_url"], opened["api_key"], base), _PROMPT)
    seconds = time.monotonic() - clock
    service.call("POST", f"{path}/outcome", json={"reason": "only a check"})
    return Recorded(service.call("GET", path), service.call("GET", f"{path}/calls")["items"], ended, seconds)


def transcript(recorded: Recorded) -> Iterator[str]:
    """Yield the lines that describe a recorded session."""
    session = recorded.session
    yield f"  {session['prompt_tokens']} + {session['completion_tokens']} tokens; {summary(recorded)}"
    for call in recorded.calls:
        yield f"  {call['number']}. {call['protocol']}: {_request_text(call)}"
        yield f"     -> {_reply_text(call)}"
    for warning in session["warnings"]:
        yield f"  warning: {warning}"


def summary(recorded: Recorded) -> str:
    """Return in one line how the agent ended."""
    ended = recorded.ended
    status = "it did not stop" if ended.status is None else f"exit status {ended.status}"
    return f"{len(recorded.calls)} calls, {recorded.seconds:.0f} s, {status}: {_last_words(ended)}"


def _last_words(ended: Ended) -> str:
    """Return the last line that an agent printed, or the last one about an error if it failed."""
    lines = [line for text in (ended.errors, ended.output) for line in text.splitlines() if line.strip()]
    failed = [line for line in lines if "error" in line.lower() or "too long" in line]
    return (failed if ended.status and failed else lines or [""])[-1][:_WIDTH]


def _request_text(call: Mapping[str, Json]) -> str:
    roles = [message["role"] for message in call["messages"]]
    return f"{', '.join(roles[:8])}{', ...' if len(roles) > 8 else ''}; {len(call['tools'])} tools"


def _reply_text(recorded_call: Mapping[str, Json]) -> str:
    if recorded_call["completion"] is None:
        return "no answer"
    [choice] = recorded_call["completion"]["choices"]
    used = [call["function"]["name"] for call in choice["message"].get("tool_calls") or ()]
    text = " ".join((choice["message"]["content"] or "").split())[:_WIDTH]
    tokens = recorded_call["completion"]["usage"]
    calls = f" calls {', '.join(used)};" if used else ""
    return f"{tokens['prompt_tokens']} + {tokens['completion_tokens']} tokens;{calls} {text!r}"


def version_of(agent: CodingAgent) -> str | None:
    """Return the version of an installed agent, or None if it is not on the PATH."""
    if (command := shutil.which(agent.command)) is None:
        return None
    if agent.command == "mini":  # it has no flag for it
        help_text = subprocess.run([command, "--help"], capture_output=True, text=True, check=False).stdout
        return help_text.split("version ")[-1].split()[0].rstrip(".")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return (answer.stdout or answer.stderr).strip().splitlines()[-1]


def check(service: Service, agent: CodingAgent) -> bool:
    """Print what the agent does in its sessions; return whether it is answered and stops."""
    recorded = in_session(service, _LONG, agent)
    print(*transcript(recorded), sep="\n", flush=True)
    full, spent = in_session(service, _SHORT, agent), in_session(service, _LONG, agent, is_spent=True)
    print(f"  context of {_SHORT_CONTEXT} tokens: {summary(full)}")
    print(f"  limit of calls reached: {summary(spent)}", flush=True)
    return recorded.is_answered and all(recording.ended.status is not None for recording in (recorded, full, spent))


def train(service: Service, name: str, rollouts: int) -> str:
    """Train the agent for one step and return its figures in a line. Raises RuntimeError if the run did not complete or
    trained nothing."""
    scenarios = [{"task": {"prompt": f"Say {word}."}} for word in ("hello", "goodbye", "thanks", "please", "sorry")]
    environment = {"name": "agent", "config": {"scenarios": scenarios, "runner": {"pull": {}}}}
    request = {
        "environment": environment,
        "judge": {"name": "reported"},
        "model": {"base_model": _LONG},
        "iterations": 1,
        "groups_per_iteration": 1,
        "rollouts_per_group": rollouts,
        "max_turns": 2,
        "max_completion_tokens": 64,
        "rollout_timeout_s": 600,
        "evaluation": {"every": 1_000, "scenarios": 1, "test_scenarios": 1, "samples": 1},
    }
    run_id = service.start_run(request)["run_id"]
    with _claiming(service, name):
        while (run := service.run(run_id))["status"] in ("queued", "running"):
            time.sleep(_POLL_S)
    if run["status"] != "completed":
        raise RuntimeError(f"the run of {name} is {run['status']}: {run['error']}")
    row = list(service.iterations(run_id))[-1]
    if row["step"] != 1:
        raise RuntimeError(f"the run of {name} trained nothing: {row['no_signal'] or row['skipped_groups']}")
    rewards, metrics = row["rewards"], row["train_metrics"]
    return (
        f"{name} trained to step {row['step']}: {rewards['count']} rollouts, rewards {rewards['min']:.2f} to "
        f"{rewards['max']:.2f}, {metrics['num_trainable_tokens']:.0f} sampled tokens, {metrics['seconds']:.0f} s"
    )


@contextmanager
def _claiming(service: Service, name: str) -> Iterator[None]:
    command = [
        sys.executable,
        "-m",
        "learnloop_service.app.cli",
        "agent",
        "run",
        "--url",
        service.url,
        "--env",
        "PYTHONPATH",
    ]
    doing = [sys.executable, "-m", "benchmarks.agents.coding_clis", name]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([*command, "--", *doing], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Run the agents that are installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS)
    parser.add_argument("--train", choices=AGENTS, help="also train this agent for one step")
    parser.add_argument("--rollouts", type=int, default=4, help="rollouts of that step")
    arguments = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        data_dir = Path(directory)
        add_base(data_dir, _LONG, CONTEXT)
        add_base(data_dir, _SHORT, _SHORT_CONTEXT)
        with own_service(data_dir, waiting=lambda _: None) as service:
            for name in arguments.agents:
                version = version_of(AGENTS[name])
                if version is None:
                    print(f"{name}: not installed; {AGENTS[name].how_to_install}", flush=True)
                    continue
                print(f"{name} {version}", flush=True)
                if not check(service, AGENTS[name]):
                    failed.append(name)
            if arguments.train is not None:
                print(train(service, arguments.train, arguments.rollouts))
    if failed:
        sys.exit(f"not answered, or did not stop: {', '.join(failed)}")


if __name__ == "__main__":
    main()
