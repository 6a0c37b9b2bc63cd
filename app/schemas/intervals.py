"""An interval, as in many responses."""

from typing import Self

from learnloop_service.app.schemas.base import ResponseModel


class IntervalOut(ResponseModel):
    """A mean and its 95% interval."""

    mean: float
    """The mean over the scenarios."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @classmethod
    def points(cls, mean: float, low: float, high: float) -> Self:
        """Return the interval of a share in percentage points."""
        return cls(mean=round(100 * mean, 1), low=round(100 * low, 1), high=round(100 * high, 1))
