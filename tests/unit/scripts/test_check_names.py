"""Names that say nothing, docstrings that are fragments, and faults of tests are counted."""

import ast
from collections.abc import Callable, Iterator

import pytest

from scripts.check_names import LONGEST_TEST_NAME, counted, helper_imports, long_test_names, tuple_asserts

CODE = """
from a import b as told

class Row:
    "Of a table."
    kept: int

def read(given, *, size=0):
    "Read it."
    for each in given:
        seen, rest = each, size
    return [found for found in rest if (mine := found)]
"""


def test_fillers_are_counted_wherever_a_name_is_bound() -> None:
    names = counted(iter([("app/rows.py", ast.parse(CODE))]))
    assert sorted(place.text for place in names.fillers) == ["each", "found", "given", "kept", "mine", "seen", "told"]
    assert names.bindings == {"app": 11}
    assert [str(place) for place in names.fragments] == ["app/rows.py:5: Of a table."]
    assert names.docstrings == {"app": 2}


def test_a_public_class_is_shared_only_within_the_product() -> None:
    trees = [(path, ast.parse("class Row: ...")) for path in ("app/a.py", "app/b.py", "tests/c.py")]
    assert [place.path for place in counted(iter(trees)).shared_classes["Row"]] == ["app/a.py", "app/b.py"]


Faults = Callable[[ast.AST], Iterator[tuple[str, int]]]


@pytest.mark.parametrize(
    ("faults", "fault", "sound"),
    [
        (tuple_asserts, "assert (a, b) == (1, 2)", "assert a == (1, 2)"),
        (tuple_asserts, "assert (a.b, c()) == (d, None), e", "assert (a, b) != (c, d)"),
        (helper_imports, "from tests.unit.test_rows import row", "from tests.unit.rows import row"),
        (helper_imports, "from tests.unit.test_rows.more import row", "from aiohttp.test_utils import row"),
        (
            long_test_names,
            f"def test_{'x' * (LONGEST_TEST_NAME - 4)}(): ...",
            f"async def test_{'x' * (LONGEST_TEST_NAME - 5)}(): ...",
        ),
    ],
)
def test_a_fault_of_tests_is_found_with_its_line(faults: Faults, fault: str, sound: str) -> None:
    assert [line for _, line in faults(ast.parse(f"x = 1\n{fault}"))] == [2]
    assert list(faults(ast.parse(sound))) == []
