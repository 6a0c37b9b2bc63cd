"""Judges by name, from the entry-point group `learnloop.judges` (as environments are)."""

from collections.abc import Mapping

from learnloop_service.environment import plugins
from learnloop_service.environment.base import Json
from learnloop_service.judges.base import Judge, JudgeServices

GROUP = "learnloop.judges"


class UnknownJudge(Exception):
    """No judge of that name is registered."""


def names() -> list[str]:
    """Registered names, sorted."""
    return sorted(plugins.registered(GROUP))


def build(name: str, config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """The judge of that name. Raises UnknownJudge, ValueError for a bad config, or PluginFault."""
    if (point := plugins.registered(GROUP).get(name)) is not None:
        judge: Judge = plugins.build("judge", point, config, services)
        return judge
    raise UnknownJudge(f"Unknown judge {name!r}. Available: {', '.join(names())}.")
