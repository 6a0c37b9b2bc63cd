"""Users of simulated releases: who they are, when they come, and what each arm's answer to them would be like."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from learnloop_service.app.domain.release_rules import KINDS, OUTCOME, RAMP, Guardrail, ReleaseRules

_PORTION = 20
"""Number of users between two looks while few have come, which is every 50 minutes at 600 users a day."""
_MANY = 3_000
_LARGE_PORTION = 200
"""The same after `_MANY` users."""
_DRIFT_USERS = 5_000


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of candidate."""

    name: str
    malformed: float = 0.0
    """What the candidate adds to the share of malformed replies, which is 2%."""
    drift: float = 0.0
    """What is added to it for everybody over 5,000 users, while the candidate's share rises."""
    same: bool = False
    """Whether the candidate is the stable checkpoint itself: each user gets the same answer from both."""


KINDS_OF_CANDIDATE = (
    Kind("equal", drift=0.06),
    Kind("malformed +10 points", malformed=0.10),
    Kind("A/A", same=True),
)


def simulation_rules() -> ReleaseRules:
    """Return the default rules."""
    tolerances = {name: kind.tolerance for name, kind in KINDS.items()}
    return ReleaseRules(
        ramp=RAMP,
        guardrails=tolerances,
        outcome=OUTCOME,
        window_hours=168,
        max_days=60,
        at_end="return",
        skip_trial=True,
    )


@dataclass(frozen=True, slots=True)
class User:
    """A new user, and the values of each arm's first answer."""

    unit: str
    stable: Mapping[str, float]
    candidate: Mapping[str, float]


def users(kind: Kind, number: int, most: int) -> Iterator[list[User]]:
    """Yield the users of one release in the portions between two looks."""
    chance, came = Random(f"{kind.name} {number}"), 0
    while came < most:
        size = _PORTION if came < _MANY else _LARGE_PORTION
        yield [_user(kind, chance, f"{kind.name} {number} {came + offset}", came + offset) for offset in range(size)]
        came += size


def salt(kind: Kind, number: int) -> bytes:
    """Return the salt of one release."""
    return Random(f"salt of {kind.name} {number}").randbytes(16)


def _user(kind: Kind, chance: Random, unit: str, position: int) -> User:
    usual = 0.02 + kind.drift * min(1.0, position / _DRIFT_USERS)
    stable = _answer(chance, usual)
    return User(unit, stable, stable if kind.same else _answer(chance, usual + kind.malformed))


def _answer(chance: Random, malformed: float) -> Mapping[str, float]:
    return {
        Guardrail.MALFORMED: float(chance.random() < malformed),
        Guardrail.ERROR: float(chance.random() < 0.01),
        Guardrail.SLOW: float(chance.random() < 0.05),
        Guardrail.COST: chance.choice((0.1, 0.2, 0.25, 0.3, 0.4)),
        Guardrail.THUMBS_DOWN_1H: float(chance.random() < 0.05),
        Guardrail.ASKS_BACK: float(chance.random() < 0.05),
    }
