"""The service asks what a backend can do, never which one it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from learnloop_service.training.backends import registry
from tests.fakes.engine_process import ROOT

_CORE = ("app", "environment", "judges", "training")
_OWN = ROOT / "training" / "backends"
_NAMES = frozenset(registry.names())
_IN_JAVASCRIPT = re.compile(r"""backend\s*[!=]==?\s*["'`]""")


def _compared(source: Path) -> Iterator[str]:
    """Yield the texts that something is compared with, also as the cases of a match."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        for part in parts:
            yield from (
                constant.value
                for constant in ast.walk(part)
                if isinstance(constant, ast.Constant) and constant.value in _NAMES
            )


def test_no_code_compares_with_the_name_of_one() -> None:
    sources = [path for folder in _CORE for path in (ROOT / folder).rglob("*.py") if _OWN not in path.parents]
    assert len(sources) > 500
    comparisons = {f"{path.relative_to(ROOT)}: {name}" for path in sources for name in _compared(path)}
    # An extra of the installation bears the name of the backend that it is for.
    assert comparisons == {"environment/installation.py: embedded"}


def test_no_page_compares_with_the_name_of_one() -> None:
    pages = [path for path in (ROOT / "app/dashboard/static").rglob("*.js") if "vendor" not in path.parts]
    assert len(pages) > 20
    assert [path.name for path in pages if _IN_JAVASCRIPT.search(path.read_text(encoding="utf-8"))] == []
