"""Scenarios of a film."""

HELD_OUT = {
    0: [True, False, False, False, True, False, False],
    1: [True, False, True, True, True, False, False],
    2: [True, False, True, False, False, True, False],
}
