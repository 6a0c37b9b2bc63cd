"""The judge `blend`: the weighted mean of other judges. A judge without a verdict leaves its weight to the others.

Without a config it mixes as CoDreamer did: 0.6 RULER, 0.2 human preferences, 0.2 online outcomes.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learnloop_service.environment.base import Json, Outcome, Scenario
from learnloop_service.judges import registry
from learnloop_service.judges.base import (
    SIMULATOR,
    AskingJudge,
    Candidate,
    Judge,
    Judgement,
    JudgeQuestion,
    JudgeServices,
    Score,
    checked,
    lacking,
)

NAME = "blend"
MAX_JUDGES = 8
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
_CODREAMER: Sequence[Mapping[str, Json]] = (
    {"name": "ruler", "config": {}, "weight": 0.6},
    {"name": "feedback", "config": {"signal": "human"}, "weight": 0.2},
    {"name": "feedback", "config": {"signal": "online"}, "weight": 0.2},
)


@dataclass(frozen=True, slots=True)
class BlendedJudge:
    """One of the judges that are mixed, under a label of its own; `weight` is positive."""

    label: str
    judge: Judge
    weight: float


def build(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """`{"judges": [{"name", "config", "weight"}, ...]}`, 2 to 8 of them; `{}` is CoDreamer's mix.

    Raises ValueError for anything else and for what a judge does not take, UnknownJudge for an unknown name.
    """
    if set(config) - {"judges"}:
        raise ValueError(f"blend has no setting {', '.join(sorted(set(config) - {'judges'}))}; it takes: judges")
    entries = config.get("judges", _CODREAMER)
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not 2 <= len(entries) <= MAX_JUDGES:
        raise ValueError(f"blend: judges is a list of 2 to {MAX_JUDGES} judges")
    for entry in entries:
        _check(entry)
    members = [registry.build(entry["name"], entry.get("config", {}), services) for entry in entries]
    return BlendJudge(
        [
            BlendedJudge(label, judge, float(entry["weight"]))
            for label, judge, entry in zip(_labels(entries), members, entries, strict=True)
        ]
    )


class BlendJudge:
    """Asks its judges concurrently. A judge that raises gives no verdict; the reason is the error."""

    name = NAME

    def __init__(self, parts: Sequence[BlendedJudge]) -> None:
        self._parts = parts

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Return one Score for each candidate, in their order; its `parts` are the judges' verdicts by label."""
        judgements = await asyncio.gather(*(_judged(part.judge, scenario, candidates) for part in self._parts))
        scores = [self._mean([judgement.scores[at] for judgement in judgements]) for at in range(len(candidates))]
        return Judgement(scores, [call for judgement in judgements for call in judgement.calls])

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        """Return what its first judge lacks if no judge can score the rollout; None if one can."""
        reasons = [lacking(part.judge, scenario, outcome) for part in self._parts]
        return reasons[0] if all(reasons) else None

    def questions(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Sequence[JudgeQuestion]:
        """Return the questions of all its judges that ask a model."""
        asking = [part.judge for part in self._parts if isinstance(part.judge, AskingJudge)]
        return [question for judge in asking for question in judge.questions(scenario, candidates)]

    def _mean(self, scores: Sequence[Score]) -> Score:
        values: dict[str, float] = {}
        total, weights, explanations, missing = 0.0, 0.0, [], []
        for part, score in zip(self._parts, scores, strict=True):
            if score.value is None:
                missing.append((part, f"{part.label} had none ({score.explanation})"))
                continue
            # A figure that a simulator had a part in says so wherever it shows.
            simulated = any(SIMULATOR in name for name in score.parts)
            values[f"{part.label} ({SIMULATOR})" if simulated else part.label] = score.value
            total, weights = total + part.weight * score.value, weights + part.weight
            explanations.append(f"{part.label} {score.value:.2f}: {score.explanation}")
        if not values:
            return Score(None, "; ".join(reason for _, reason in missing))
        gone = [f"{reason}: its weight {part.weight:g} went to the others" for part, reason in missing]
        return Score(min(1.0, total / weights), "; ".join([*explanations, *gone]), values)


async def _judged(judge: Judge, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
    try:
        return await checked(judge, scenario, candidates)
    except Exception as error:
        return Judgement([Score(None, f"it failed: {type(error).__name__}: {error}")] * len(candidates))


def _check(entry: Json) -> None:
    """Check one of `judges` in the config. Raises ValueError."""
    if not isinstance(entry, Mapping) or not {"name", "weight"} <= set(entry) <= {"name", "config", "weight"}:
        raise ValueError("blend: each of judges has a name, a weight, maybe a config, and nothing else")
    if not isinstance(entry["name"], str) or entry["name"] == NAME:
        raise ValueError("blend: the name of each is that of another judge")
    if not isinstance(entry.get("config", {}), Mapping):
        raise ValueError(f"blend: the config of {entry['name']} is not an object")
    weight = entry["weight"]
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"blend: the weight of {entry['name']} is not a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}")


def _labels(entries: Sequence[Mapping[str, Json]]) -> list[str]:
    """Return the judges' names. A name that occurs more than once gets its signal appended, or its number from 1."""
    names = [entry["name"] for entry in entries]
    labels = [
        name if names.count(name) == 1 else f"{name}.{entry.get('config', {}).get('signal', number)}"
        for number, (name, entry) in enumerate(zip(names, entries, strict=True), 1)
    ]
    count = Counter(labels)
    return [label if count[label] == 1 else f"{label}.{number}" for number, label in enumerate(labels, 1)]
