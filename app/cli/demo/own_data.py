"""Prepares the data of a user's own that `learnloop demo` was given."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from learnloop_service.app.cli.data_sources import data_source
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.training.types import RunConfig

if TYPE_CHECKING:
    from learnloop_service.app.datasets.store import Version
    from learnloop_service.app.settings import Settings


@dataclass(frozen=True, slots=True)
class OwnData:
    """Prepared data, or the environment's own inboxes if there is no name."""

    name: str | None
    emails: int | None
    test_questions: int


def own_data(environment: str, paths: Sequence[str], settings: "Settings") -> OwnData:
    """Prepare data for the environment as `learnloop data prepare` does, or use what was prepared from the same files
    before.

    Without paths, the environment's own inboxes are used. Raises Failure.
    """
    if not paths:
        return OwnData(None, None, RunConfig().evaluation.test_scenarios)
    source = data_source(environment)
    return _of_version(source.prepare(source.demo_recipe(paths), settings).version)


def prepared_data(name: str, data_dir: Path) -> OwnData:
    """Return the newest version of data that `learnloop data prepare` prepared. Raises Failure."""
    from learnloop_service.app.datasets.store import DatasetStore

    versions = DatasetStore(data_dir).versions(name)
    if not versions:
        raise Failure(f"no prepared data {name!r} in {data_dir}: learnloop data prepare {name} --emails PATH")
    return _of_version(versions[-1])


def _of_version(version: "Version") -> OwnData:
    if not version.scenarios or not version.scenarios["test"] or not version.scenarios["train"]:
        raise Failure(f"{version.name} has no questions for training or none for the test: it has too few emails")
    return OwnData(f"{version.name}@{version.version}", version.inbox["emails"], version.scenarios["test"])
