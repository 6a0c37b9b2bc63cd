"""Intervals of shares."""

import pytest

from learnloop_service.training.statistics.shares import wilson


def test_wilsons_interval() -> None:
    assert wilson(0.5, 20) == pytest.approx((0.299, 0.701), abs=1e-3)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.161), abs=1e-3)
    assert wilson(1.0, 20)[1] == pytest.approx(1.0)
    assert wilson(0.5, 0) == (0.0, 1.0)
