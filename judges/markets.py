"""Market simulators, from the entry-point group `learnloop.markets`: they answer emails in place of customers.

A package registers one with a callable that takes a seed and returns a Market.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from learnloop_service.environment import plugins
from learnloop_service.environment.base import Json, Outcome

GROUP = "learnloop.markets"


class UnknownMarket(ValueError):
    """No installed package has a market simulator."""


class Market(Protocol):
    """An invented market."""

    def events(self, task: Mapping[str, Json], outcome: Outcome) -> Sequence[str]:
        """Return the outcomes that the email of a rollout reaches, from `sent` on; none without an email."""


def market(seed: int) -> Market:
    """Return the market of that seed. Raises UnknownMarket or PluginFault."""
    points = plugins.registered(GROUP)
    if not points:
        raise UnknownMarket(f"There is no market simulator. {plugins.where_to_find(GROUP, 'market')}")
    return cast(Market, plugins.build("market simulator", points[min(points)], seed))
