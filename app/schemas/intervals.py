"""An interval, as in many responses."""

from app.schemas.base import ResponseModel


class IntervalOut(ResponseModel):
    """A mean and its 95% interval."""

    mean: float
    """The mean over the scenarios."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
