"""Finds what an agent does differently after training, from the tool calls of its rollouts.

Every feature is generic: which tool is called first, what the first call's arguments hold, how many calls are made, and
how the rollout ends. The share of rollouts with a feature is compared between two evaluations of the same scenarios.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted, in_words
from learnloop_service.training.statistics.difference import SuccessDifference, difference

MAX_SHOWN = 5
_TESTED = 8
"""Number of features whose interval is computed, those that changed most."""
_MOST_VALUES = 4
_MOST_CALLS = 20
_MOST_FEATURES = 400
"""A broken agent can invent tools and arguments without end. The most frequent features are compared."""
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Act:
    """What an agent did in one rollout."""

    scenario_id: str
    calls: Sequence[tuple[str, str]]
    """Name and JSON arguments of its tool calls, in order."""
    end: str
    """How it ended; empty if the environment does not say."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A feature whose share of rollouts changed."""

    what: str
    """The feature in words, such as "the first call is `search_inbox`"."""
    before: float
    after: float
    """Shares of rollouts from 0 to 1, as means over the scenarios that both evaluations have."""
    change: SuccessDifference
    """The change of the share, paired by scenario."""


@dataclass(frozen=True, slots=True)
class Behaviours:
    """The features that changed most, at most MAX_SHOWN, and how many were compared."""

    shown: list[Behaviour]
    compared: int


@dataclass(frozen=True, slots=True)
class _Feature:
    family: tuple[str, ...]
    """Features of one family, such as the thresholds of one number: only the one that changed most is shown."""
    what: str


def behaviours(before: Sequence[Act], after: Sequence[Act]) -> Behaviours:
    """Return the features whose share changed most between two evaluations, the largest change first.

    A change is left out if chance could explain it (`SuccessDifference.is_shown`), or if a larger one has the same
    family or says the same of every rollout.
    """
    shared = {act.scenario_id for act in before} & {act.scenario_id for act in after}
    sides = [[act for act in acts if act.scenario_id in shared] for acts in (before, after)]
    having = _having([*sides[0], *sides[1]])
    shares = {feature: _shares(sides, had) for feature, had in having.items()}
    ranked = sorted(having, key=lambda feature: -abs(_mean(shares[feature][1]) - _mean(shares[feature][0])))
    changed = []
    for feature in _different(ranked, having, sum(map(len, sides))):
        earlier, later = shares[feature]
        change = difference(earlier, later)
        if change is not None and change.is_shown:
            changed.append(Behaviour(feature.what, _mean(earlier), _mean(later), change))
    return Behaviours(changed[:MAX_SHOWN], len(having))


def _having(acts: Sequence[Act]) -> dict[_Feature, frozenset[int]]:
    """Return the indices of the acts with each feature, for the most frequent features."""
    acts_with: defaultdict[_Feature, set[int]] = defaultdict(set)
    for index, act in enumerate(acts):
        for feature in _features(act):
            acts_with[feature].add(index)
    frequent = sorted(acts_with, key=lambda feature: -len(acts_with[feature]))[:_MOST_FEATURES]
    return {feature: frozenset(acts_with[feature]) for feature in frequent}


def _shares(sides: Sequence[Sequence[Act]], having: frozenset[int]) -> list[dict[str, float]]:
    """Return, for each side, the share of its acts with a feature by scenario. `having` counts through both sides."""
    shares, start = [], 0
    for acts in sides:
        acts_of_scenario = Counter(act.scenario_id for act in acts)
        had = Counter(act.scenario_id for index, act in enumerate(acts, start) if index in having)
        shares.append({id: had[id] / count for id, count in acts_of_scenario.items()})
        start += len(acts)
    return shares


def _mean(shares: Mapping[str, float]) -> float:
    return fmean(shares.values())


def _different(ranked: Sequence[_Feature], having: Mapping[_Feature, frozenset[int]], count: int) -> Iterator[_Feature]:
    """Yield the first features that say different things of the `count` rollouts, at most _TESTED."""
    everything = frozenset(range(count))
    families: set[tuple[str, ...]] = set()
    covered: set[frozenset[int]] = set()
    for feature in ranked:
        if feature.family not in families and having[feature] not in covered and len(families) < _TESTED:
            families.add(feature.family)
            covered |= {having[feature], everything - having[feature]}
            yield feature


def _features(act: Act) -> Iterator[_Feature]:
    for count in range(1, min(len(act.calls), _MOST_CALLS) + 1):
        yield _Feature(("calls",), f"at least {counted(count, 'tool call')}")
    if act.calls:
        yield from _first_call(*act.calls[0])
    if act.end:
        yield _Feature(("end", act.end), f"ends as {_named(in_words(act.end))}")


def _first_call(tool: str, arguments: str) -> Iterator[_Feature]:
    what = f"the first call is {_named(tool)}"
    yield _Feature(("first", tool), what)
    try:
        values = json.loads(arguments)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        yield _Feature(("unreadable",), "the first call's arguments are not a JSON object")
        return
    for name, value in values.items():
        family = ("argument", tool, name)
        if value not in (None, "", [], {}):
            yield _Feature(family, f"{what} with {_named(name)}")
        for count in range(2, min(_size(value), _MOST_VALUES) + 1):
            unit = "values" if isinstance(value, list) else "words"
            yield _Feature(family, f"{what} with at least {count} {unit} in {_named(name)}")


def _size(value: Json) -> int:
    """Return the number of a list's values or a text's words; 0 for other values."""
    return len(value) if isinstance(value, list) else len(value.split()) if isinstance(value, str) else 0


def _named(name: str) -> str:
    """Return a name that the agent or the environment chose, cut and on one line."""
    line = " ".join(name.split())
    return f"`{line[:_LONGEST_NAME]}…`" if len(line) > _LONGEST_NAME else f"`{line}`"
