"""The market simulator: an invented market that answers sales emails in place of real customers.

Nothing in it was measured; it exists so that feedback can be shown and tested before there are customers. Whatever
shows its figures calls them "market simulator".

A market has hidden tastes, drawn from its seed: how much each of TASTES weighs, which lengths it likes, which nodes
attract it, and how well each goal goes down. They make an email's interest in [0, 1]. An email that was sent passes
each stage of the funnel with the probability interest ** hardness of the stage, and falls out at the first that it
fails. Chance is drawn from the email itself: the same email always fares the same.

The hardness is set so that an email that cites nothing and addresses no one is mostly not even opened, while a
grounded and short one that names prospect and company gets somewhat more than half of what there is to get.
"""

import json
from collections.abc import Mapping
from random import Random

from learnloop_service.environment.base import Json, Outcome

TASTES = ("citations_read", "cited_product", "named_prospect", "named_company", "one_question", "length", "topic")
"""Qualities of an email that the market likes; the first four are keys of the outcome."""
_FACTS = TASTES[:4]
_HARDNESS = {"opened": 1, "replied": 2, "call_booked": 2, "opportunity": 3, "closed_won": 4}
"""Stages after `sent`, in order."""


class Market:
    """One invented market. It never changes: an email's fate does not depend on what was sent before."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"sales_email:market:{seed}")
        self._seed = seed
        self._shortest, self._longest = rng.randint(10, 20), rng.randint(45, 90)
        weights = {taste: rng.uniform(1.0, 3.0) for taste in TASTES}
        self._weights = {taste: weight / sum(weights.values()) for taste, weight in weights.items()}

    def events(self, task: Mapping[str, Json], outcome: Outcome) -> list[str]:
        """Return the stages that the email in a SalesEpisode's outcome reaches, from `sent` on; none without one."""
        email = outcome.get("email")
        if email is None:
            return []
        interest = self.interest(task, outcome)
        luck = self._rng("luck", json.dumps(email, sort_keys=True))
        reached = ["sent"]
        for stage, hardness in _HARDNESS.items():
            if luck.random() >= interest**hardness:
                break
            reached.append(stage)
        return reached

    def interest(self, task: Mapping[str, Json], outcome: Outcome) -> float:
        """Return how much the market likes a final email, in [0, 1]."""
        email = outcome["email"]
        pleases = {fact: float(outcome[fact]) for fact in _FACTS} | {
            "one_question": float(email["body"].count("?") == 1),
            "length": self._length(len(email["body"].split())),
            "topic": self._topic(email["citations"]),
        }
        liked = sum(self._weights[taste] * pleases[taste] for taste in TASTES)
        return min(1.0, liked * (0.9 + 0.1 * self._rng("goal", task["goal"]).random()))

    def _length(self, words: int) -> float:
        """Return 1 for a length that the market likes, and less the further the length is from that."""
        if words < self._shortest:
            return words / self._shortest
        return min(1.0, self._longest / words)

    def _topic(self, citations: list[str]) -> float:
        """Return the mean attraction of the cited nodes; a node's attraction is uniform in [0, 1]."""
        if not citations:
            return 0.0
        return sum(self._rng("node", id).random() for id in citations) / len(citations)

    def _rng(self, what: str, of: str) -> Random:
        # In ASCII: a model may write half a surrogate pair, which is no seed.
        return Random(f"sales_email:market:{self._seed}:{what}:{of!a}")
