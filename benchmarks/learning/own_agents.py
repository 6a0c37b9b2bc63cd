"""Test that unmodified third-party agents learn as well as the built-in one; only their base URL and key are ours.

    python -m benchmarks.learning.own_agents

Each agent (`benchmarks/agents/`: a LangGraph graph, the OpenAI Agents SDK, the `anthropic` SDK, a shell script, a Node
program) does the mail job with tools behind HTTP; `learnloop agent run` starts it for each rollout. The built-in agent
does the same scenarios in the same order. The figures are sampled held-out mean rewards before and after training the
included base model through `POST /learn-loop`. An agent that sends its model the same requests gets the same answers
and ends with the built-in agent's weights, bit for bit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import mean
from typing import get_args

import uvicorn
from rich.console import Console

from benchmarks.agents.mail_desk import ENVIRONMENT, MailDesk, tasks
from benchmarks.durability.harness import weights
from learnloop_service.app.cli.service_process import free_port, own_service
from learnloop_service.environment.base import Scenario, Split
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.scenario_order import draw
from learnloop_service.training.types import EvaluationConfig, RunConfig
from tests.fakes.forked_module import ForkedModule

_HERE = Path(__file__).parents[1] / "agents"
BUILT_IN = "built-in"
COMMANDS: Mapping[str, Sequence[str]] = {
    "shell": (str(_HERE / "shell_agent.sh"),),
    "node": ("node", str(_HERE / "node_agent.mjs")),
}
"""Commands that start an agent for a rollout."""
PYTHON_AGENTS: Mapping[str, str] = {
    "langgraph": "benchmarks.agents.langgraph_agent",
    "openai-agents": "benchmarks.agents.openai_agents_sdk",
    "anthropic": "benchmarks.agents.anthropic_agent",
}
"""Agent modules, each imported once and forked for every rollout because imports take longer than the work."""
AGENTS = (BUILT_IN, *PYTHON_AGENTS, *COMMANDS)
MARGIN = 0.05
"""How far an agent's gain in mean held-out reward can fall below the built-in agent's."""
_POLL_S = 1.0


@contextmanager
def desk(
    counts: Mapping[Split, int], seed: int, make: Callable[[Sequence[Scenario]], MailDesk] = MailDesk
) -> Iterator[tuple[str, MailDesk]]:
    """Serve the mailboxes over HTTP; yield the URL and the mail desk."""
    scenarios = [
        scenario for split in get_args(Split) for scenario in ENVIRONMENT.scenarios(split, counts[split], seed)
    ]
    port = free_port()
    mail_desk = make(scenarios)
    server = uvicorn.Server(uvicorn.Config(mail_desk.app(), port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}", mail_desk
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def claiming(agent: str, service_url: str, desk_url: str, concurrency: int, *variables: str) -> Iterator[None]:
    """Run `learnloop agent run` with that agent, which gets the `variables`, such as `NAME=VALUE`; the built-in agent
    needs nothing."""
    if agent == BUILT_IN:
        yield
        return
    worker = [
        sys.executable,
        "-m",
        "learnloop_service.app.cli",
        "agent",
        "run",
        "--url",
        service_url,
        "--concurrency",
        str(concurrency),
    ]
    environment = {**os.environ, "MAIL_DESK_URL": desk_url, "PYTHONPATH": str(_HERE.parents[1])}
    with ExitStack() as stack:
        if agent in PYTHON_AGENTS:
            command = stack.enter_context(ForkedModule(PYTHON_AGENTS[agent])).command()
        else:
            command = [*COMMANDS[agent]]
        passed_on = [f"--env={name}" for name in ("MAIL_DESK_URL", "PYTHONPATH", *variables)]
        stack.enter_context(_process([*worker, *passed_on, "--", *command], environment))
        yield


@contextmanager
def _process(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def request(agent: str, counts: Mapping[Split, int], seed: int, config: RunConfig) -> dict[str, Json]:
    """Build the learn-loop request for that agent."""
    evaluation = config.evaluation
    same = {
        "iterations": config.iterations,
        "groups_per_iteration": config.groups_per_iteration,
        "rollouts_per_group": config.rollouts_per_group,
        "seed": seed,
        "max_turns": 8,
        "evaluation": {
            "every": 1_000,
            "scenarios": evaluation.scenarios,
            "test_scenarios": evaluation.test_scenarios,
            "samples": evaluation.samples,
        },
    }
    if agent == BUILT_IN:
        return same
    scenarios = [task for split in get_args(Split) for task in _arranged(split, counts[split], seed)]
    environment = {"name": "agent", "config": {"scenarios": scenarios, "runner": {"pull": {}}}}
    return same | {"environment": environment, "judge": {"name": "reported"}, "rollout_timeout_s": 600}


def _arranged(split: Split, count: int, seed: int) -> list[dict[str, Json]]:
    """Arrange tasks so that the shuffle of given scenarios restores the built-in environment's order."""
    scenarios = ENVIRONMENT.scenarios(split, count, seed)
    positions = {scenario.id: number for number, scenario in enumerate(draw(scenarios, count, seed, 0))}
    ordered = tasks(split, count, seed)
    return [ordered[positions[scenario.id]] for scenario in scenarios]


def run(agent: str, seed: int, config: RunConfig, concurrency: int) -> dict[str, Json]:
    """Do a run and return its figures. Raises RuntimeError if it failed."""
    clock = time.monotonic()
    train = config.iterations * config.groups_per_iteration
    counts: dict[Split, int] = {
        "train": train,
        "validation": config.evaluation.scenarios,
        "test": config.evaluation.test_scenarios,
    }
    with (
        tempfile.TemporaryDirectory(prefix="learnloop-") as data_dir,
        own_service(Path(data_dir), waiting=lambda _: None) as service,
        desk(counts, seed) as (desk_url, _),
        claiming(agent, service.url, desk_url, concurrency),
    ):
        run_id = service.start_run(request(agent, counts, seed, config))["run_id"]
        while (current := service.run(run_id))["status"] in ("queued", "running"):
            time.sleep(_POLL_S)
        if current["status"] != "completed":
            raise RuntimeError(f"the run of {agent} is {current['status']}: {current['error']}")
        rows = service.run(run_id)["evaluations"]
        rollouts = list(service.trajectories(run_id))
        iterations = list(service.iterations(run_id))
        trained = weights(Path(data_dir))
    test = sorted(
        (evaluation for evaluation in rows if (evaluation["split"], evaluation["mode"]) == ("test", "sampled")),
        key=lambda e: e["iteration"],
    )
    return {
        "reward": [evaluation["mean_reward"] for evaluation in test],
        "training": [iteration["rewards"]["mean"] for iteration in iterations if iteration["iteration"]],
        "weights": trained,
        "failed": sum(rollout["error"] is not None for rollout in rollouts),
        "rollouts": len(rollouts),
        "seconds": round(time.monotonic() - clock),
    }


def gains(runs: Mapping[str, Sequence[Mapping[str, Json]]]) -> dict[str, float]:
    """Return the mean gain in held-out reward by agent."""
    return {
        agent: mean(figures["reward"][-1] - figures["reward"][0] for figures in runs_of_agent)
        for agent, runs_of_agent in runs.items()
    }


def equal_weights(runs: Mapping[str, Sequence[Mapping[str, Json]]]) -> dict[str, bool]:
    """Return, by agent, whether all its runs ended with the built-in agent's weights; empty without that agent."""
    ended = {agent: [figures["weights"] for figures in weights_of_runs] for agent, weights_of_runs in runs.items()}
    return {agent: weights_of_runs == ended[BUILT_IN] for agent, weights_of_runs in ended.items() if BUILT_IN in ended}


def main() -> None:
    """Run each agent with each seed in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=14)
    parser.add_argument("--concurrency", type=int, default=8, help="agents at the same time")
    parser.add_argument("--small", action="store_true", help="few rollouts: whether each agent works at all")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    arguments = parser.parse_args()
    config = RunConfig(iterations=arguments.iterations)
    if arguments.small:
        small = EvaluationConfig(scenarios=2, samples=1, test_scenarios=2)
        config = RunConfig(arguments.iterations, groups_per_iteration=2, rollouts_per_group=4, evaluation=small)
    runs: dict[str, list[dict[str, Json]]] = {agent: [] for agent in arguments.agents}
    console = Console(highlight=False, stderr=arguments.json)
    for seed, agent in product(arguments.seeds, arguments.agents):
        figures = run(agent, seed, config, arguments.concurrency)
        runs[agent].append(figures)
        before, after = figures["reward"][0], figures["reward"][-1]
        console.print(
            f"seed {seed} {agent:14} held-out reward {before:.2f} -> {after:.2f}; {figures['rollouts']} rollouts, "
            f"{figures['failed']} failed; weights at {figures['weights'][:16]}; {figures['seconds']} s"
        )
    gained = gains(runs)
    equal = equal_weights(runs)
    within = {agent: gain >= gained[BUILT_IN] - MARGIN for agent, gain in gained.items() if BUILT_IN in gained}
    if arguments.json:
        print(json.dumps({"gains": gained, "within": within, "equal_weights": equal, "runs": runs}, indent=2))
    else:
        console.print({agent: round(gain, 3) for agent, gain in gained.items()})
        console.print(f"the weights of the built-in agent, bit for bit: {[agent for agent in equal if equal[agent]]}")
    if not all(within.values()):
        sys.exit(f"not within {MARGIN} of the built-in agent: {[agent for agent, good in within.items() if not good]}")


if __name__ == "__main__":
    main()
