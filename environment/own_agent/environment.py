"""The environment `agent`: an agent that runs elsewhere does the tasks with its own tools, in its own loop.

Config: `scenarios`, a list of `{"task": {...}, "id"?, "split"?, "reference"?}`; `runner`, how a task reaches the agent
(`runner.py`); `prompt`, whether the agent reads its prompt (`read`), or it replaces texts of the agent's requests on
their way (`replace`); and `success_from`, the lowest score of a successful rollout.

Learnloop shows the agent a task and receives an outcome: a reward, or an output for the judge to score.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from learnloop.outcome import AgentOutcome, ordered, read_report
from learnloop_service.environment.base import (
    CUT_OFF,
    REPORTED_REWARD,
    Ending,
    Json,
    Outcome,
    Scenario,
    Split,
    Tool,
    ToolError,
    ToolResult,
)
from learnloop_service.environment.explained import ending, shortened, too_low
from learnloop_service.environment.given_scenarios import SPLITS, check_apart, check_keys, check_rows
from learnloop_service.environment.own_agent.runner import PythonFunction, Runner, parse_runner
from learnloop_service.environment.scenario_order import draw, splits_of
from learnloop_service.environment.traits import Traits

NAME = "agent"
DEFAULT_MAX_TURNS = 20
MAX_SCENARIOS = 100_000
_RUBRIC = (
    files("learnloop_service.environment.own_agent").joinpath("prompts/rubric.txt").read_text(encoding="utf-8").strip()
)
_SETTINGS = ("scenarios", "runner", "prompt", "success_from")
REPLACE = "replace"
_KEYS = ("task", "id", "split", "reference")
_MAX_ID = 200


def build(config: Mapping[str, Json], data_dir: Path) -> "AgentEnvironment":
    """Build the environment for a request's config. Raises ValueError."""
    if unknown := set(config) - set(_SETTINGS):
        raise ValueError(f"{NAME} knows no config {', '.join(sorted(unknown))}; it has: {', '.join(_SETTINGS)}")
    success_from = config.get("success_from", 0.5)
    if not isinstance(success_from, int | float) or isinstance(success_from, bool) or not 0 < success_from <= 1:
        raise ValueError(f"success_from must be a number above 0 and at most 1, not {success_from!r}")
    runner = parse_runner(config["runner"]) if "runner" in config else None
    if (prompt := config.get("prompt", "read")) not in ("read", REPLACE):
        raise ValueError(f"prompt must be read or {REPLACE}, not {prompt!r}")
    if prompt == REPLACE and isinstance(runner, PythonFunction):
        raise ValueError("a Python function reads `model.prompt`; texts are replaced only in requests of sessions")
    rows = config.get("scenarios")
    return AgentEnvironment(() if rows is None else given_scenarios(rows), runner, float(success_from))


class AgentEnvironment:
    """Tasks for an agent that runs elsewhere."""

    name = NAME
    default_max_turns = DEFAULT_MAX_TURNS
    default_judge = "ruler"
    rubric = _RUBRIC

    def __init__(self, scenarios: Sequence[Scenario], runner: Runner | None, success_from: float) -> None:
        """Without a runner or without scenarios, nothing can be rolled out."""
        self._scenarios = {split: [scenario for scenario in scenarios if scenario.split == split] for split in SPLITS}
        self._runner = runner
        self._success_from = success_from

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        if self._runner is None:
            raise ValueError('there is no runner: say how tasks reach the agent, such as {"runner": {"pull": {}}}')
        if not self._scenarios[split]:
            raise ValueError("there are no scenarios: give a list of them, or the name or hash of stored ones")
        return list(draw(self._scenarios[split], count, seed, start))

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario for the task, if the agent is a function that runs here."""
        if not isinstance(self._runner, PythonFunction):
            raise ValueError(
                "this agent lives elsewhere, and cannot be asked from here: open a session for it (POST /sessions "
                '{"model": ...}) and let the agent work with the base URL and key that it returns'
            )
        return Scenario("ask", "test", dict(task))

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "AgentEpisode":
        return AgentEpisode(scenario, max_turns or DEFAULT_MAX_TURNS)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the reward that the agent reported, or otherwise the score."""
        if outcome.get(REPORTED_REWARD) is None:
            return {"score": score}
        return dict(outcome["parts"]) or {"reported": outcome[REPORTED_REWARD]}

    def success(self, outcome: Outcome, score: float) -> bool:
        return score >= self._success_from

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        low = too_low("score" if outcome[REPORTED_REWARD] is None else "reward", score, self._success_from)
        return low if outcome["finish"] == "reported" else shortened(outcome["detail"], 300) or ending(outcome)

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        output = outcome["answer"] if outcome["answer"] is not None else outcome["output"]
        result = output if output is not None else outcome[REPORTED_REWARD]
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return {
            "answer": None if result is None else text,
            "source_ids": [],
            "success": outcome["finish"] == "reported",
        }

    def close(self) -> None:
        return None


class AgentEpisode:
    """One attempt at a task; `outcome` holds the agent's report.

    `finish` is `reported`, or how the attempt ended otherwise. An output that is a text is the `answer`, which judges
    compare; any other JSON is the `output`. `facts` are pairs of a milestone's name and whether it was reached, in the
    order of the agent; there are none if it reported none.
    """

    tools: Sequence[Tool] = ()

    def __init__(self, scenario: Scenario, max_turns: int) -> None:
        self.scenario = scenario
        self.max_turns = max_turns
        self._finish, self._detail = "unfinished", ""
        self._reported = AgentOutcome()

    def messages(self) -> list[dict[str, Json]]:
        """Return the task as one message; the agent decides how to use it."""
        return [{"role": "user", "content": json.dumps(dict(self.scenario.task), ensure_ascii=False)}]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        raise ToolError(f"there is no tool {name!r} here: the agent has its own")

    def end(self, reason: Ending, detail: str) -> None:
        """Record that no outcome can be reported because of what the model did, for which the reward is 0."""
        self._finish, self._detail, self._reported = reason, detail, AgentOutcome(reward=0.0)

    def report(self, text: str) -> None:
        self._reported, self._finish, self._detail = read_report(text), "reported", ""

    def outcome(self) -> Outcome:
        reported = self._reported
        is_text = isinstance(reported.output, str)
        added: dict[str, Json] = {CUT_OFF: True} if self._finish in ("malformed", "full_context") else {}
        if reported.facts:
            added["facts"] = ordered(reported.facts)
        return added | {
            "finish": self._finish,
            "detail": self._detail,
            "output": None if is_text else reported.output,
            "answer": reported.output if is_text else None,
            REPORTED_REWARD: reported.reward,
            "parts": dict(reported.parts),
        }


def given_scenarios(rows: Json) -> list[Scenario]:
    """Return the tasks of a request as scenarios, in order. Raises ValueError naming the invalid one.

    Either each names its `split`, or none does: then a fifth of them, at least one, goes to each held-out split.
    """
    check_rows(rows, "tasks", MAX_SCENARIOS)
    named = [isinstance(row, Mapping) and "split" in row for row in rows]
    drawn = splits_of(len(rows), "agent:split")
    scenarios = [_scenario(row, position, drawn[position]) for position, row in enumerate(rows)]
    if any(named) and not (all(named) and {scenario.split for scenario in scenarios} == set(SPLITS)):
        raise ValueError(f"either no scenario names its split, or each does and all three occur: {', '.join(SPLITS)}")
    check_apart(scenarios, lambda scenario: json.dumps(scenario.task, sort_keys=True), "has the task of {}")
    return scenarios


def _scenario(row: Json, position: int, drawn: Split) -> Scenario:
    where = f"scenario number {position}"
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} is not an object")
    check_keys(row, where, _KEYS)
    task, reference, id = row.get("task"), row.get("reference", {}), row.get("id", f"given.{position}")
    if not isinstance(task, Mapping) or not task:
        raise ValueError(f"{where} needs a task: the object that the agent is given")
    if not isinstance(reference, Mapping):
        raise ValueError(f"{where}: reference must be an object")
    if not isinstance(id, str) or not 0 < len(id) <= _MAX_ID:
        raise ValueError(f"{where}: id must be a text of 1 to {_MAX_ID} characters")
    if (split := row.get("split", drawn)) not in SPLITS:
        raise ValueError(f"{where} has the split {split!r}; there are: {', '.join(SPLITS)}")
    return Scenario(id, split, dict(task), dict(reference))


TRAITS = Traits(
    description="Your own agent, in any language: it keeps its loop, prompts, tools and memory, and works with a model "
    "of this service.",
    datasets={"scenarios": ()},
    asked_without=frozenset({"scenarios"}),
)
