import pytest

from learnloop_service.environment.wording import counted, in_words, signed


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 held-out tasks"), (1, "1 held-out task"), (1200, "1,200 held-out tasks")]
)
def test_only_one_is_singular(count: int, text: str) -> None:
    assert counted(count, "held-out task") == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (12.4, 0, "+12"),
        (-3.0, 0, "\N{MINUS SIGN}3"),
        (-0.4, 0, "0"),
        (0.0, 2, "0.00"),
        (10.0, 0, "+10"),
        (-1234.5, 1, "\N{MINUS SIGN}1,234.5"),
    ],
)
def test_signs_are_plus_and_minus_and_nothing_has_none(value: float, digits: int, text: str) -> None:
    assert signed(value, digits) == text


def test_names_become_words() -> None:
    assert in_words("out_of_turns") == "out of turns"
