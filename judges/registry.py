"""Judges by name, from the entry-point group `learnloop.judges` (as environments are)."""

from collections.abc import Mapping

from learnloop_service.environment import plugins
from learnloop_service.environment.base import Json
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.judges.traits import JudgeTraits

GROUP = "learnloop.judges"


class UnknownJudge(Exception):
    """No judge of that name is registered."""


def names() -> list[str]:
    """Registered names, sorted."""
    return sorted(plugins.registered(GROUP))


def build(name: str, config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the judge of that name. Raises UnknownJudge, ValueError for a bad config, or PluginFault."""
    if (point := plugins.registered(GROUP).get(name)) is not None:
        judge: Judge = plugins.build("judge", point, config, services)
        return judge
    where = plugins.where_to_find(GROUP, name) or f"Available: {', '.join(names())}."
    raise UnknownJudge(f"Unknown judge {name!r}. {where}")


def traits(name: str) -> JudgeTraits:
    """What the judge of that name declares about its verdicts; nothing if it is unknown or cannot be loaded."""
    point = plugins.registered(GROUP).get(name)
    return JudgeTraits() if point is None else plugins.declared("judge", point, JudgeTraits)
