"""The blocks of code in README and docs."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from learnloop_service.environment.json_type import Json
from tests.fakes.engine_process import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/guides").glob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
ILLUSTRATIONS = {
    "source:": "the request of a learn-loop; tests/integration/app/test_served_answers.py has such ones",
    "system: ": "prompts; tests/integration/cli/test_prompts.py uploads some",
    "With 64 validation tasks": "what improving prints",
    "environment: {name: agent": "the request of an improvement; tests/integration/app/test_improvements.py has one",
    "parts:": "a prompt; tests/integration/cli/test_prompts.py uploads one",
    "Learned: held-out success rose": "output of a demo of minutes",
    "Turn 1 decided it:": "output of a what-if of minutes",
    "the rollout itself failed after": "output of the same what-if",
    "POST /learn-loop            the service": "a drawing",
    "POST /learn-loop            {": "an outline of requests",
    '"on_no_signal"': "one member of a request",
    '{"question": "...", "answer"': "the form of a line",
    "GET /runs/RUN_ID/events": "an outline of requests",
    '{"seq": 12': "the form of an event",
    "event: progress": "a part of a stream",
    "[project.entry-points": "a part of a pyproject.toml",
    "TRAITS = Traits(documents": "a line of an environment's module",
    'RunPage("emails"': "the same",
    "// emails.js": "a page of the dashboard; tests/unit/dashboard/test_added_pages.py joins such ones",
    'model = "MODEL"': "settings of another program",
    "weight(rollout) =": "formulas",
    '{"type": "iteration.completed"': "the form of a message",
    "#!/bin/sh": "an agent in a shell script",
    "OTEL_EXPORTER_OTLP": "settings",
    "WANDB_API_KEY": "settings",
    "CREATE ROLE": "statements for a user's own Postgres",
    "LEARNLOOP_ALLOWED": "settings",
    "LEARNLOOP_ENVIRONMENT": "settings",
    "LEARNLOOP_MODELS": "settings",
    "learn_loop                      run_id": "a drawing",
    "POST /hooks": "the form of a message",
    "learnloop: the engine needs": "what a command prints",
    "iteration  ": "what training prints",
    "MODEL           SUCCESS": "what evaluating prints",
    "29,000 euros": "what asking prints",
    "AGENT ": "what the check of an environment prints",
    "500 lines: ": "what importing conversations prints",
    "200 rows (": "what importing questions prints",
    "step 1: mean reward": "what the script above it prints",
    "server {": "lines for nginx; tests/integration/app/test_proxies.py runs them",
    "learn.example {": "lines for Caddy, which the page says were not run",
    "http:\n  routers:": "lines for Traefik, which the page says were not run",
}
"""Blocks that cannot be executed, by how they begin, with the reason."""
ELSEWHERE = {
    ".": "the environment is active here",
    "cd": "a folder of the user's",
    "cp": "a user's own file",
    "claude": "there is no coding agent here",
    "docker": "there is no docker here",
    "chmod": "a user's own file",
    "export": "a variable of the shell",
    "kubectl": "there is no cluster here; tests/unit/deploy builds and checks the files",
    "pip": "another package, or the wheels: tests/integration/install",
    "pipx": "it needs the network: scripts/install_check.py",
    "python3": "the wheels: tests/integration/install",
    "sbatch": "there is no Slurm here",
    "systemctl": "there is no systemd here",
    "uv": "it needs the network: scripts/install_check.py",
    ".ci/run": "all checks, of which this is one",
}
"""Commands that are not checked, with the reason."""
PROGRAMS = {"curl", "learnloop", "learnloop-agent", "make", *ELSEWHERE}
TINY = {
    "iterations": 1,
    "groups_per_iteration": 1,
    "rollouts_per_group": 2,
    "max_turns": 3,
    "max_completion_tokens": 60,
    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
}


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code; `where` is file and line."""

    where: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its commands without comments, continued lines joined; none if it is no shell."""
        if self.language:
            return []
        commands: list[str] = []
        for line in self.text.splitlines():
            if commands and _is_open(commands[-1]):
                commands[-1] = f"{commands[-1].removesuffix(chr(92))}\n{line}"
            elif line.strip() and not line.lstrip().startswith("#"):
                if line.split()[0] not in PROGRAMS:
                    return commands if commands and commands[0].startswith("curl") else []  # what curl printed follows
                commands.append(line)
        return commands

    @property
    def is_python(self) -> bool:
        return self.language == "python" or self.text.startswith(("from ", "import "))

    @property
    def documents(self) -> list[Json] | None:
        """Its JSON documents, one or one a line; None if it is no JSON."""
        for texts in ([self.text], self.text.splitlines()):
            try:
                return [json.loads(text) for text in texts]
            except ValueError:
                continue
        return None


def _is_open(command: str) -> bool:
    return command.endswith("\\") or command.replace("\\'", "").count("'") % 2 == 1


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        lines, number = page.read_text(encoding="utf-8").splitlines(), 0
        while number < len(lines):
            begin, where = number, f"{page.relative_to(ROOT)}:{number + 1}"
            if fence := re.match(r"( *)```(\w*)$", lines[number]):
                number = lines.index(f"{fence[1]}```", number + 1)
                text = "\n".join(line.removeprefix(fence[1]) for line in lines[begin + 1 : number])
                yield Block(where, fence[2], text)
            elif lines[number].startswith("    ") and not lines[number - 1].strip():
                while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                    number += 1
                yield Block(where, "", "\n".join(line[4:] for line in lines[begin:number]).rstrip())
            number += 1


BLOCKS = list(_blocks())
