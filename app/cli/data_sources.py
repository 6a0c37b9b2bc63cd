"""What prepares data of a user's own for an environment: `learnloop demo` and `learnloop pipeline` use it.

A package adds one with an entry point in the group `learnloop.data_sources` that names a `DataSource`. The entry
point's own name is ENVIRONMENT.OPTION: `email_search.mailbox` prepares data for the environment `email_search`, which
`learnloop demo` takes from its option `--mailbox`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learnloop_service.app.cli.terminal import Failure, failing_on
from learnloop_service.environment import plugins

if TYPE_CHECKING:  # importing pydantic is slow
    from pydantic import BaseModel

    from learnloop_service.app.datasets.store import Prepared
    from learnloop_service.app.settings import Settings

GROUP = "learnloop.data_sources"


@dataclass(frozen=True, slots=True)
class DataSource:
    """How data of one kind is prepared."""

    help: str
    """What the option of `learnloop demo` takes."""
    recipe: Callable[[], "type[BaseModel]"]
    """Returns the model of the settings, which a pipeline has in its section `data`."""
    demo_recipe: Callable[[Sequence[str]], Any]
    """Returns the settings of the demo, for the values that its option was given. Raises Failure."""
    prepare: "Callable[[Any, Settings], Prepared]"
    """Prepares what the settings describe, with a progress bar. Raises Failure."""


def options() -> dict[str, str]:
    """Return the options of the demo that take data, `--mailbox` for instance, each with its environment."""
    names = (*plugins.missing(GROUP), *plugins.registered(GROUP))
    return {f"--{option}": environment for environment, _, option in (name.partition(".") for name in names)}


def helps() -> list[str]:
    """Return the help of each option of the demo whose package can be loaded."""
    texts = []
    for name in plugins.registered(GROUP):
        with suppress(Failure):  # `data_source` says what is wrong with it
            texts.append(_loaded(name).help)
    return texts


def data_source(environment: str) -> DataSource:
    """Return what prepares data for the environment. Raises Failure if no installed package does."""
    prefix = f"{environment}."
    for name in plugins.registered(GROUP):
        if name.startswith(prefix):
            return _loaded(name)
    where = (plugins.where_to_find(GROUP, name) for name in plugins.missing(GROUP) if name.startswith(prefix))
    raise Failure(" ".join((f"Nothing prepares data for the environment {environment} here.", *where)))


def _loaded(name: str) -> DataSource:
    """Return the data source of that entry point. Raises Failure."""
    point = plugins.registered(GROUP)[name]
    with failing_on(plugins.PluginFault):
        source = plugins.load("data source", point)
    if not isinstance(source, DataSource):
        raise Failure(f"{point.value} of {name!r} is no DataSource: {source!r}")
    return source
