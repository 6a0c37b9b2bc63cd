"""Small environments to check: a sound one, and one for each possible fault."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Self

from learnloop_service.environment.base import EpisodeFailed, Scenario, Tool, ToolCall, ToolResult
from learnloop_service.environment.tool_calls import check_call

COLOURS = ("red", "green", "blue", "black", "white", "brown")
TEXT = {"type": "string"}


def tool(name: str, argument: str) -> Tool:
    return Tool(name, f"To {name}.", {"type": "object", "properties": {argument: TEXT}, "required": [argument]})


class Boxes:
    """A sound environment that asks for the colour of a box. `open` reveals it, and `answer` ends the episode."""

    name, default_max_turns, default_judge, rubric = "boxes", 4, "reference", "The right colour."

    @classmethod
    def build(cls, config: Mapping[str, Any], data_dir: Path) -> Self:
        return cls()

    def scenarios(self, split: str, count: int, seed: int, start: int = 0) -> list[Scenario]:
        return [self.scenario(split, f"{split}-{seed}-{number}") for number in range(start, start + count)]

    def scenario(self, split: Any, box: str) -> Scenario:
        return Scenario(box, split, {"box": box}, {"answer": self.colour(box)})

    def colour(self, box: str) -> str:
        rng = Random(box)
        return f"{rng.choice(COLOURS)} {rng.randint(100, 999)}"

    def ask(self, task: Mapping[str, Any]) -> Scenario:
        return Scenario("ask", "test", task)

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        return Box(self, scenario)

    def question(self, scenario: Scenario) -> str:
        return f"Which colour has the box {scenario.task['box']}?"

    def opened(self, scenario: Scenario) -> str:
        return self.colour(str(scenario.task["box"]))

    def reward(self, outcome: Mapping[str, Any], score: float) -> dict[str, float]:
        return {"right": score, "opened": 0.2 * outcome["opened"]}

    def success(self, outcome: Mapping[str, Any], score: float) -> bool:
        return score == 1.0

    def answer(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        return {"answer": outcome["answer"], "source_ids": [], "success": True}

    def solution(self, scenario: Scenario) -> list[ToolCall | str]:
        right = scenario.reference["answer"]
        return [ToolCall("open", {"box": scenario.id}), ToolCall("answer", {"answer": right})]

    def close(self) -> None:
        pass


class Box:
    tools: tuple[Tool, ...] = (tool("open", "box"), tool("answer", "answer"))
    max_turns = 4

    def __init__(self, boxes: Boxes, scenario: Scenario) -> None:
        self.boxes, self.scenario = boxes, scenario
        self.facts: dict[str, Any] = {"finish": "open", "answer": None, "opened": False}

    def messages(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.boxes.question(self.scenario)}]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        check_call(self.tools, name, arguments)
        if name == "answer":
            self.facts |= {"finish": "answered", "answer": arguments["answer"]}
            return ToolResult("", final=True)
        is_it = arguments["box"] == self.scenario.task["box"]
        self.facts["opened"] |= is_it
        return ToolResult(self.boxes.opened(self.scenario) if is_it else "There is no such box.")

    def end(self, reason: str, detail: str) -> None:
        self.facts["finish"] = reason

    def outcome(self) -> dict[str, Any]:
        return self.facts


class Overlapping(Boxes):
    """Its test scenarios are also training scenarios."""

    def scenarios(self, split: str, count: int, seed: int, start: int = 0) -> list[Scenario]:
        return [self.scenario(split, f"any-{seed}-{number}") for number in range(start, start + count)]


class Drifting(Boxes):
    """A scenario is different each time that it is requested."""

    numbers = itertools.count()

    def scenario(self, split: Any, box: str) -> Scenario:
        return super().scenario(split, f"{box}-{next(self.numbers)}")


class Leaking(Boxes):
    """The question contains the answer."""

    def question(self, scenario: Scenario) -> str:
        return f"{super().question(scenario)} It is a secret: {scenario.reference['answer'].upper()}."


class Listing(Boxes):
    """The question lists all colours, including the right one, which reveals nothing."""

    def colour(self, box: str) -> str:
        return Random(box).choice(COLOURS)

    def question(self, scenario: Scenario) -> str:
        return f"{super().question(scenario)} One of: {', '.join(COLOURS)}."


class Counting(Boxes):
    """Its episodes share a counter."""

    calls = itertools.count()

    def opened(self, scenario: Scenario) -> str:
        return f"{super().opened(scenario)} (box number {next(self.calls)})"


class Hashing(Boxes):
    """Its observations depend on the process's hash seed."""

    def opened(self, scenario: Scenario) -> str:
        return f"{super().opened(scenario)}, not {' or '.join({*COLOURS, scenario.id})}"


class Doubled(Boxes):
    """One reward part is the sum of the others."""

    def reward(self, outcome: Mapping[str, Any], score: float) -> dict[str, float]:
        parts = super().reward(outcome, score)
        return {**parts, "total": sum(parts.values())}


class Infinite(Boxes):
    def reward(self, outcome: Mapping[str, Any], score: float) -> dict[str, float]:
        return {"right": score, "bonus": float("inf")}


class Unsolvable(Boxes):
    def solution(self, scenario: Scenario) -> list[ToolCall | str]:
        return [ToolCall("answer", {"answer": "I do not know"})]


class Generous(Boxes):
    """Any answer is rewarded like the right one."""

    def reward(self, outcome: Mapping[str, Any], score: float) -> dict[str, float]:
        return {"answered": float(outcome["answer"] is not None)}

    def success(self, outcome: Mapping[str, Any], score: float) -> bool:
        return outcome["answer"] is not None


class Priced(Boxes):
    """Its judge needs a model."""

    default_judge = "ruler"


class Unsolved(Boxes):
    """It has no oracle."""

    solution: Any = None


class Served(Boxes):
    """Its episodes hold a resource, and know their tools only once they are open."""

    open = 0

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        return ServedBox(self, scenario)


class ServedBox(Box):
    tools: tuple[Tool, ...] = ()

    async def open(self) -> None:
        Served.open += 1
        self.tools = Box.tools

    async def close(self) -> None:
        Served.open -= 1


class Away(Served):
    """The server that its episodes need is unavailable."""

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Any:
        return AwayBox(self, scenario)


class AwayBox(ServedBox):
    async def open(self) -> None:
        raise EpisodeFailed("there is no server at box.example")

    async def close(self) -> None:
        pass
