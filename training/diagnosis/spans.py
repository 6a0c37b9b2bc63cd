"""When a condition held, from whether it held in each iteration."""

from collections.abc import Iterable

from learnloop_service.training.diagnosis.diagnosis import CausePeriod


def spans_while(holds: Iterable[tuple[int, bool | None]], *, lasts: int = 1, clear_after: int = 1) -> list[CausePeriod]:
    """Return the spans in which a condition held. `holds` has each iteration and whether the condition held there, or
    None where that is unknown: such an iteration is skipped.

    A span is named once it has held in `lasts` iterations in a row, and is cleared after `clear_after` in a row in
    which it did not.
    """
    spans: list[CausePeriod] = []
    current: CausePeriod | None = None
    streak: list[int] = []
    without = 0
    for iteration, is_held in holds:
        if is_held is None:
            continue
        streak, without = ([*streak, iteration][-lasts:], 0) if is_held else ([], without + 1)
        if current is None and len(streak) == lasts:
            current = CausePeriod(streak[0], iteration)
        elif current is not None and without >= clear_after:
            spans.append(CausePeriod(current.first, current.named, iteration))
            current = None
    return [*spans, current] if current is not None else spans
