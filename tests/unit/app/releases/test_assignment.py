"""Which users meet which arm of a release: two independent coins that no user can turn."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.releases.assignment import assignment, enrolled, fraction, probabilities_after
from learnloop_service.app.security.user_hash import UserHasher

SALTS = st.binary(min_size=16, max_size=16)
UNITS = st.text(min_size=1, max_size=64)
SHARES = st.floats(0.001, 0.5)
MANY = [f"user {number}" for number in range(20_000)]
SALT, OTHER_SALT = bytes(range(16)), bytes(range(1, 17))


@given(SALTS, UNITS, SHARES, SHARES)
def test_an_enrolled_unit_keeps_its_arm_as_the_share_grows(salt: bytes, unit: str, one: float, other: float) -> None:
    before, after = (assignment(salt, unit, share) for share in sorted((one, other)))
    if before.is_enrolled:
        assert after == before
    else:
        assert before.arm == Arm.STABLE


@given(SALTS, UNITS)
def test_at_one_half_every_unit_is_enrolled(salt: bytes, unit: str) -> None:
    assert assignment(salt, unit, 0.5).is_enrolled


@pytest.mark.parametrize("label", ["enrol", "arm"])
def test_a_hash_is_uniform_over_units(label: str) -> None:
    fractions = sorted(fraction(SALT, label, unit) for unit in MANY)
    distance = max(abs(value - (rank + 0.5) / len(fractions)) for rank, value in enumerate(fractions))
    assert distance * math.sqrt(len(fractions)) < 1.63  # Kolmogorov-Smirnov, 1%


@pytest.mark.parametrize(
    ("one", "other"),
    [((SALT, "enrol"), (SALT, "arm")), ((SALT, "enrol"), (OTHER_SALT, "enrol")), ((SALT, "arm"), (OTHER_SALT, "arm"))],
)
def test_the_coins_and_the_salts_are_independent(one: tuple[bytes, str], other: tuple[bytes, str]) -> None:
    first, second = ([fraction(*which, unit) for unit in MANY] for which in (one, other))
    assert abs(statistics.correlation(first, second)) < 0.03


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_candidate_has_its_share_of_the_users_and_half_of_the_enrolled(share: float) -> None:
    met = [assignment(SALT, unit, share) for unit in MANY]
    candidates = sum(met_arm.arm == Arm.CANDIDATE for met_arm in met)
    assert candidates / len(MANY) == pytest.approx(share, abs=0.015)
    assert candidates / sum(met_arm.is_enrolled for met_arm in met) == pytest.approx(0.5, abs=0.02)


def test_units_that_earlier_stages_passed_over_have_their_own_probability() -> None:
    earlier, share = 0.05, 0.2
    passed_over = [unit for unit in MANY if not enrolled(SALT, unit, earlier)]
    met = sum(assignment(SALT, unit, share).arm == Arm.CANDIDATE for unit in passed_over)
    [expected] = probabilities_after([earlier], share)
    assert expected == pytest.approx((0.4 - 0.1) / (2 * (1 - 0.1)))
    assert met / len(passed_over) == pytest.approx(expected, abs=0.015)


def test_a_hash_of_a_user_needs_the_services_key() -> None:
    ours, theirs = UserHasher(b"one" * 11), UserHasher(b"two" * 11)
    assert ours.hash_of("ada@example.com") == UserHasher(b"one" * 11).hash_of("ada@example.com")
    assert ours.hash_of("ada@example.com") != theirs.hash_of("ada@example.com")
    assert len(ours.hash_of("ada")) == 64
