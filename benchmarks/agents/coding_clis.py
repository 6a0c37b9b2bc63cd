"""Coding agents for the command line, each with its settings for a model of ours. docs/coding_agents.md shows them.

    python -m benchmarks.agents.coding_clis codex

does a task of `learnloop agent run` with that agent, and prints the outcome. The reward is what a random model varies
in: 1 for a reply that is one word, less for longer ones.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from learnloop_service.environment.json_type import Json

CONTEXT = 32_768
"""Length of the context that the agents are configured with, in tokens."""
_REPLY = 1_024
_TIMEOUT_S = 600.0
NPM = "npm install"


@dataclass(frozen=True, slots=True)
class Model:
    """A model behind OpenAI's and Anthropic's protocols."""

    base_url: str
    api_key: str
    name: str

    @property
    def anthropic_url(self) -> str:
        """The base URL for Anthropic's clients."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, slots=True)
class Start:
    """How to start an agent: its arguments, variables, and the files of its settings, by path below its home."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    files: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """A coding agent for the command line."""

    command: str
    package: str
    installer: str
    start: Callable[[Model, str], Start]
    """Returns how to start it with a model and a prompt. It works in the current directory and asks nothing."""

    @property
    def how_to_install(self) -> str:
        """The command that installs it."""
        return f"{self.installer} {self.package}"


def _codex(model: Model, prompt: str) -> Start:
    provider = (
        f'{{name="Learnloop", base_url="{model.base_url}", env_key="OPENAI_API_KEY", wire_api="responses", '
        "request_max_retries=1, stream_max_retries=1}"
    )
    settings = {
        "model_provider": '"learnloop"',
        "model_providers.learnloop": provider,
        "model_context_window": str(CONTEXT),
    }
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    arguments = ["exec", "--skip-git-repo-check", "--sandbox", "workspace-write", *flags, "-m", model.name, prompt]
    return Start(arguments, {"OPENAI_API_KEY": model.api_key}, {})


def _claude(model: Model, prompt: str) -> Start:
    variables = {
        "ANTHROPIC_BASE_URL": model.anthropic_url,
        "ANTHROPIC_API_KEY": model.api_key,
        "ANTHROPIC_MODEL": model.name,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model.name,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(_REPLY),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Start(["-p", prompt, "--permission-mode", "acceptEdits"], variables, {})


def _opencode(model: Model, prompt: str) -> Start:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": model.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
        "models": {model.name: {"limit": {"context": CONTEXT, "output": _REPLY}}},
    }
    name = f"learnloop/{model.name}"
    config = {"model": name, "small_model": name, "autoupdate": False, "provider": {"learnloop": provider}}
    files = {".config/opencode/opencode.json": config}
    return Start(["run", prompt], {"OPENAI_API_KEY": model.api_key}, files)


def _qwen(model: Model, prompt: str) -> Start:
    variables = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": model.api_key, "OPENAI_MODEL": model.name}
    limits = {"contextWindowSize": CONTEXT, "samplingParams": {"max_tokens": _REPLY}}
    settings = {"model": {"generationConfig": limits}, "privacy": {"usageStatisticsEnabled": False}}
    return Start(["--auth-type", "openai", "-p", prompt], variables, {".qwen/settings.json": settings})


def _pi(model: Model, prompt: str) -> Start:
    provider = {
        "baseUrl": model.base_url,
        "api": "openai-completions",
        "apiKey": "OPENAI_API_KEY",
        "models": [{"id": model.name, "contextWindow": CONTEXT, "maxTokens": _REPLY}],
    }
    arguments = ["--offline", "-p", "--provider", "learnloop", "--model", model.name, prompt]
    files = {".pi/agent/models.json": {"providers": {"learnloop": provider}}}
    return Start(arguments, {"OPENAI_API_KEY": model.api_key}, files)


def _mini(model: Model, prompt: str) -> Start:
    variables = {
        "OPENAI_BASE_URL": model.base_url,
        "OPENAI_API_KEY": model.api_key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2",
    }
    return Start(["-m", f"openai/{model.name}", "-t", prompt, "--yolo", "--exit-immediately"], variables, {})


AGENTS: Mapping[str, CodingAgent] = {
    "codex": CodingAgent("codex", "@openai/codex", NPM, _codex),
    "claude": CodingAgent("claude", "@anthropic-ai/claude-code", NPM, _claude),
    "opencode": CodingAgent("opencode", "opencode-ai", NPM, _opencode),
    "qwen": CodingAgent("qwen", "@qwen-code/qwen-code", NPM, _qwen),
    "pi": CodingAgent("pi", "@earendil-works/pi-coding-agent", NPM, _pi),
    "mini": CodingAgent("mini", "mini-swe-agent", "pip install", _mini),
}
"""The agents by the names of their commands."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit status, None if it had to be killed, and what it printed."""

    status: int | None
    output: str
    errors: str


def work(agent: CodingAgent, model: Model, prompt: str, *, timeout_s: float = _TIMEOUT_S) -> Ended:
    """Let the agent work in an empty directory, with a home directory of its own and no variables but its settings."""
    start = agent.start(model, prompt)
    with tempfile.TemporaryDirectory(prefix="coding-agent-") as directory:
        home, project = Path(directory, "home"), Path(directory, "project")
        project.mkdir()
        for name, content in start.files.items():
            file = home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content))
        home.mkdir(exist_ok=True)
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **start.variables}
        return _run([agent.command, *start.arguments], project, variables, timeout_s)


def _run(command: Sequence[str], directory: Path, variables: Mapping[str, str], timeout_s: float) -> Ended:
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # some start others, which keep the pipes open
        output, errors = process.communicate()
        return Ended(None, output, errors)
    return Ended(process.returncode, output, errors)


def main() -> None:
    """Do the task with the agent that the only argument names."""
    [name] = sys.argv[1:]
    variables = os.environ
    model = Model(variables["OPENAI_BASE_URL"], variables["OPENAI_API_KEY"], variables["OPENAI_MODEL"])
    ended = work(AGENTS[name], model, json.loads(variables["LEARNLOOP_TASK"])["prompt"])
    print(ended.errors[-1_000:], file=sys.stderr)
    print(json.dumps({"reward": 1 / max(1, len(ended.output.split()))}))


if __name__ == "__main__":
    main()
