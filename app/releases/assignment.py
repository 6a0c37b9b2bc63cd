"""Decides which checkpoint a unit of a release meets: a function of the release's salt and the unit alone.

Two hashes decide. The first one enrols a unit while it is below twice the share; the second one is a fair coin between
the arms. As the share rises more units are enrolled, and none that is enrolled changes sides. One hash for both would
make later units weigh more in one arm, and move counted units to the other (docs/releases.md).
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from learnloop_service.app.domain.release_state import Arm

ENROLLED_PROBABILITY = 0.5
"""Probability of either arm for an enrolled unit."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a unit meets at a share of the release."""

    is_enrolled: bool
    """Whether it counts for the release's evidence; a unit that is not enrolled meets the stable checkpoint."""
    arm: Arm


def fraction(salt: bytes, label: str, unit: str) -> float:
    """Return a number in [0, 1) that is uniform over units: the first 8 bytes of an HMAC-SHA-256 under the salt."""
    digest = hmac.digest(salt, f"{label}\0{unit}".encode(), "sha256")
    return int.from_bytes(digest[:8], "big") / 2.0**64


def assignment(salt: bytes, unit: str, share: float) -> Assignment:
    """Return what the unit meets while the candidate has that share, in (0, 0.5]."""
    if not enrolled(salt, unit, share):
        return Assignment(False, Arm.STABLE)
    return Assignment(True, Arm.CANDIDATE if fraction(salt, "arm", unit) < ENROLLED_PROBABILITY else Arm.STABLE)


def enrolled(salt: bytes, unit: str, share: float) -> bool:
    """Return whether the unit is enrolled at that share."""
    return fraction(salt, "enrol", unit) < 2 * share


def probabilities_after(ramp: Sequence[float], share: float) -> list[float]:
    """Return, for each earlier share, the probability of the candidate at `share` for a unit that it passed over.

    Of the units that were not enrolled at the enrolment e0 = 2 * earlier, (e - e0) / (1 - e0) are enrolled at
    e = 2 * share, half of them with the candidate.
    """
    return [(share - earlier) / (1 - 2 * earlier) for earlier in ramp]
