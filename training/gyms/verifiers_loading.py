"""Loads environments of the package `verifiers`, each once per process.

They use the package's classic interface: a module with `load_environment`, rollouts against a client of OpenAI's API,
and a rubric. Version 0.4 of the package has a different one.
"""

import importlib
import json
import signal
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from learnloop_service.environment.base import Json
from learnloop_service.environment.installation import needs_extra
from learnloop_service.training.import_lock import IMPORTING

NAME = "verifiers"
FROM_DATASET, FROM_EVAL_DATASET = "dataset", "eval_dataset"
"""Data sets of a verifiers environment, as a scenario's task names the one that has its row."""
_SETTINGS = ("args", "env", "success_from")


class Gym:
    """A reference to an environment of verifiers, from the config of a request."""

    def __init__(self, config: Mapping[str, Json]) -> None:
        """Raises ValueError for a bad config."""
        if unknown := sorted(set(config) - set(_SETTINGS)):
            raise ValueError(f"{NAME} has no setting {', '.join(unknown)}; it takes: {', '.join(_SETTINGS)}")
        env, args, success_from = config.get("env"), config.get("args", {}), config.get("success_from", 0.5)
        if not isinstance(env, str | None) or env == "":
            raise ValueError('env must be a module with load_environment, such as "wordle", or "module:callable"')
        if not isinstance(args, dict):
            raise ValueError("args must be an object: the arguments of load_environment, or of the callable")
        if not isinstance(success_from, int | float) or isinstance(success_from, bool):
            raise ValueError("success_from must be a number: the reward from which a rollout counts as a success")
        self.env, self.success_from = env, float(success_from)
        self._args = json.dumps(args, sort_keys=True)

    @property
    def module(self) -> str:
        """The module that the operator must allow. Raises ValueError if the config names none."""
        if self.env is None:
            raise ValueError(f'{NAME} needs an env: a module with load_environment, such as "wordle"')
        return self.env.partition(":")[0]

    def load(self) -> Any:
        """Return the environment, an instance of the package's `Environment`. Raises ValueError."""
        if find_spec("verifiers") is None:
            raise ValueError(f"{NAME} needs {needs_extra('verifiers')}")
        return _load_environment(self.module, (self.env or "").partition(":")[2], self._args)


@lru_cache(maxsize=8)
def _load_environment(module: str, function: str, args: str) -> Any:
    try:
        with IMPORTING:  # ART's concurrent imports would deadlock with these, or hide modules from them
            vf: Any = importlib.import_module("verifiers")
            _disable_signal_handlers()
            importlib.import_module(_module_name(module))
        if function:
            environment = getattr(importlib.import_module(module), function)(**json.loads(args))
        else:
            environment = vf.load_environment(module, **json.loads(args))
    except Exception as error:
        raise ValueError(f"{module} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(environment, vf.Environment):
        raise ValueError(f"{module} gave a {type(environment).__name__}, and no environment of verifiers")
    if environment.message_type != "chat":
        raise ValueError(f"{module} is for models that complete texts; only those that chat can be trained here")
    if environment.rubric.has_group_rewards:
        raise ValueError(f"the rubric of {module} scores groups of rollouts; here each is scored alone")
    return environment


def _module_name(env: str) -> str:
    """Return the module name by verifiers' rule: `primeintellect/gsm8k` is the module `gsm8k`."""
    return env.rpartition("/")[2].replace("-", "_")


def _disable_signal_handlers() -> None:
    """Keep environments from setting handlers of SIGINT and SIGTERM, which belong to the service here. This also allows
    environments to be created outside the main thread."""
    module: Any = importlib.import_module("verifiers.envs.environment")
    signals = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "default_int_handler": signal.default_int_handler}
    module.signal = SimpleNamespace(**signals, signal=lambda *_: None)


def row_of(loaded: Any, task: Mapping[str, Json]) -> dict[str, Any]:
    """Return the dataset row of a scenario's task."""
    dataset = loaded.get_dataset() if task["from"] == FROM_DATASET else loaded.get_eval_dataset()
    return dict(dataset[task["row"]])
