"""Functions of more than 50 lines are found, unless they are excepted by name."""

from pathlib import Path

import pytest

from scripts.check_functions import MAX_LINES, too_long


def _module(directory: Path, lines: int, begin: str = "def") -> Path:
    """Return a module with a function of this many lines, inside a class, under a decorator."""
    file = directory / "module.py"
    file.write_text(f"class A:\n    @staticmethod\n    {begin} long(x):\n" + "        x += 1\n" * (lines - 1))
    return file


@pytest.mark.parametrize("begin", ["def", "async def"])
def test_a_function_over_the_limit_is_found(tmp_path: Path, begin: str) -> None:
    file = _module(tmp_path, MAX_LINES + 1, begin)
    assert list(too_long([file])) == [f"{file}:long has 51 lines, more than 50"]


def test_a_function_at_the_limit_is_not_found(tmp_path: Path) -> None:
    assert list(too_long([_module(tmp_path, MAX_LINES)])) == []


def test_a_named_function_can_be_longer_but_must_need_the_exception(tmp_path: Path) -> None:
    name = f"{tmp_path}/module.py:long"
    assert list(too_long([_module(tmp_path, MAX_LINES + 1)], [name])) == []
    assert list(too_long([_module(tmp_path, MAX_LINES)], [name])) == [
        f"{name} is not longer than 50 lines: it needs no exception"
    ]
