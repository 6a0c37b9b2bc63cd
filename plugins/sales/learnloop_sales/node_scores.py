"""Node scores: how much of the reward each node of a graph earned. They rank what the agent is shown first.

Every node starts at 1.0 and stays in [0, 1]. After an iteration each score moves a tenth of the way to its target. Our
rule `visits` considers, for every node that attempts read or cited, the results of these visits:

- the weight of an attempt is the amount by which its reward (clamped to [0, 1]) exceeds the mean of its scenario's
  attempts, so that a node is not blamed for failures that merely began the same way;
- a visit earns the attempt's reward if the email cites the node, it was read, and a Product Feature can be reached
  from it, otherwise 0; the node's value is the weighted mean over its visits, its target that value divided by the
  best node's;
- the target of a node without evidence (not visited, or by no attempt above its mean) is the mean target of the
  others, which treats the unknown as average; but a visited node that leads to no product has the target 0.

So the score of a popular but useless node falls with every visit, and nodes that carry rewarded emails stay on top. An
iteration without rewards changes nothing.

The rule `top_half` is CoDreamer's: for the better half of the attempts, each cited node moves toward the attempt's
reward, attempt by attempt, best first. It cannot distinguish a useful node from one cited along with it, and cited
nodes fall below those that were never tried.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import fmean

from learnloop_sales.graph import Graph
from learnloop_service.environment.base import Json, Rewarded

_STEP = 0.1
_START = 1.0


class ScoreRule(StrEnum):
    """How node scores follow rewards."""

    VISITS = "visits"
    TOP_HALF = "top_half"


class GraphScores:
    """The scores of one graph. They depend only on the sequence of rollouts passed to `reflect`."""

    def __init__(self, graph: Graph, rule: ScoreRule) -> None:
        self._graph = graph
        self._rule = rule
        self._scores = dict.fromkeys(graph.nodes, _START)

    @property
    def scores(self) -> Mapping[str, float]:
        """Scores by node id, in [0, 1]."""
        return self._scores

    def reflect(self, rewarded: Sequence[Rewarded]) -> None:
        """Learn from the attempts that an iteration made on this graph."""
        if self._rule is ScoreRule.VISITS:
            self._by_visits(rewarded)
        else:
            self._by_top_half(rewarded)

    def restore(self, scores: Mapping[str, Json]) -> None:
        """Continue from these scores. Raises ValueError if they are not scores of this graph."""
        if scores.keys() != self._scores.keys():
            raise ValueError("the node scores are those of another graph")
        if not all(isinstance(score, int | float) and 0.0 <= score <= 1.0 for score in scores.values()):
            raise ValueError("a node score lies in [0, 1]")
        self._scores = {id: float(scores[id]) for id in self._scores}

    def _by_visits(self, rewarded: Sequence[Rewarded]) -> None:
        weights: defaultdict[str, float] = defaultdict(float)
        earned: defaultdict[str, float] = defaultdict(float)
        for attempt, weight in _weighted(rewarded):
            credited = set(self._credited(attempt))
            for id in {*attempt.outcome["read"], *self._cited(attempt)}:
                weights[id] += weight
                earned[id] += weight * _clamped(attempt.reward) * (id in credited)
        values = {id: earned[id] / weight for id, weight in weights.items() if weight > 0}
        best = max(values.values(), default=0.0)
        if best == 0.0:
            return
        targets = {id: value / best for id, value in values.items()}
        targets |= {id: 0.0 for id in weights.keys() - targets.keys() if id not in self._graph.distance}
        average = fmean(targets.values())
        for id in self._scores:
            self._move(id, targets.get(id, average))

    def _by_top_half(self, rewarded: Sequence[Rewarded]) -> None:
        best_first = sorted(rewarded, key=lambda attempt: -attempt.reward)
        for attempt in best_first[: (len(best_first) + 1) // 2]:
            for id in self._cited(attempt):
                self._move(id, _clamped(attempt.reward))

    def _cited(self, attempt: Rewarded) -> Iterator[str]:
        """Yield the nodes that the email cites, each once; unknown ids are skipped."""
        email = attempt.outcome["email"]
        return (id for id in (email["citations"] if email else ()) if id in self._graph.nodes)

    def _credited(self, attempt: Rewarded) -> Iterator[str]:
        read = set(attempt.outcome["read"])
        return (id for id in self._cited(attempt) if id in read and id in self._graph.distance)

    def _move(self, id: str, target: float) -> None:
        self._scores[id] = _clamped(self._scores[id] + _STEP * (target - self._scores[id]))


def _weighted(rewarded: Sequence[Rewarded]) -> Iterator[tuple[Rewarded, float]]:
    """Yield each attempt with the amount by which it exceeds the mean of its scenario's attempts."""
    by_scenario: defaultdict[str, list[float]] = defaultdict(list)
    for attempt in rewarded:
        by_scenario[attempt.scenario.id].append(_clamped(attempt.reward))
    for attempt in rewarded:
        yield attempt, max(0.0, _clamped(attempt.reward) - fmean(by_scenario[attempt.scenario.id]))


def _clamped(value: float) -> float:
    return min(1.0, max(0.0, value))
