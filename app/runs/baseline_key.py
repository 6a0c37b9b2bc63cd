"""What decides a run's baseline, as one hash: of runs with equal hashes the baselines are equal, to the bit."""

import platform
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version

from app.domain.stored_request import Json, StoredRequest
from app.runs.documents import canonical
from environment.registry import traits
from judges.grounding import NAME as GROUNDING
from judges.reference import NAME as REFERENCE
from training.source_code import source_hash

_JUDGES = frozenset({REFERENCE, GROUNDING})
"""Those that are no models, and look at nothing but what they judge."""
_LIBRARIES = ("openai", "openpipe-art")
_SETTINGS = ("max_turns", "max_completion_tokens", "temperature", "seed", "rollout_timeout_s")
"""Of RunConfig, besides those of the evaluation: what evaluates depends on nothing else."""


def baseline_key(
    request: StoredRequest, fingerprint: str | None, step: int, learned: Mapping[str, Json] | None
) -> str | None:
    """Hex SHA-256; None where another evaluation could come out otherwise, or there is none.

    `fingerprint` is that of the policy at its `step`; `learned` is what the environment had learned before the run.
    The first call in a process reads all code that plays a part.
    """
    config, environment, judge = request.config, request.environment, request.judge
    evaluation = config.evaluation
    if (
        fingerprint is None
        or request.agent is not None
        or judge.name not in _JUDGES
        or not traits(environment.name).repeats(environment.config)
        or evaluation.scenarios + evaluation.test_scenarios == 0
    ):
        return None
    facts = {
        "policy": fingerprint,
        "step": step,
        "environment": environment.model_dump(),
        "learned": learned,
        "judge": judge.model_dump(),
        "evaluation": {name: value for name, value in asdict(evaluation).items() if name != "every"},
        "settings": {name: getattr(config, name) for name in _SETTINGS},
        "code": source_hash("environment", "judges", "training"),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    return sha256(canonical(facts).encode()).hexdigest()
