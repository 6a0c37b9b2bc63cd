"""What ART does not need of openai is imported when somebody else does."""

import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from training.backends.later_packages import later


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose code imports its module `heavy`, and in it a package and a module that need no more than
    themselves."""
    place = tmp_path / "laterbox"
    (place / "inner").mkdir(parents=True)
    (place / "__init__.py").write_text("from laterbox.heavy import weight\nfrom . import light\nruns = weight + 1\n")
    (place / "heavy.py").write_text("weight = 10\n")
    (place / "light.py").write_text("from laterbox.inner.leaf import colour\n")
    (place / "inner" / "__init__.py").write_text("from laterbox.heavy import weight\n")
    (place / "inner" / "leaf.py").write_text("colour = 'green'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("laterbox")]:
        monkeypatch.delitem(sys.modules, name)
    return "laterbox"


def imported(package: str) -> None:
    with later(package):
        import_module(f"{package}.light")


def test_a_module_is_imported_without_the_code_of_the_packages_that_it_is_in(package: str) -> None:
    imported(package)
    assert {"laterbox", "laterbox.inner", "laterbox.light", "laterbox.inner.leaf"} <= set(sys.modules)
    assert "laterbox.heavy" not in sys.modules
    assert sys.modules["laterbox.light"].colour == "green"


def test_what_a_package_lacks_makes_its_code_run_once(package: str) -> None:
    imported(package)
    whole = sys.modules[package]
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(whole.runs)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [11] * 8
    assert type(whole) is ModuleType
    assert whole.light is sys.modules["laterbox.light"]
    with pytest.raises(AttributeError, match="nothing"):
        _ = whole.nothing
    with pytest.raises(AttributeError, match="nothing"):
        _ = sys.modules["laterbox.inner"].nothing


def test_art_needs_few_of_openais_types_and_others_find_all_of_them() -> None:
    code = """
import sys
from training.backends.art_import import import_art
import_art()
assert "openai.types.images_response" not in sys.modules
import openai
from openai.types import Completion, ImagesResponse
from openai.types.responses import Response
from openai.types.graders import MultiGrader
assert openai.types.Embedding.__name__ == "Embedding"
assert openai.AsyncOpenAI(api_key="key").chat.completions and openai.OpenAI(api_key="key").responses
print(len([name for name in dir(openai.types) if not name.startswith("_")]))
"""
    plain = "import openai; print(len([name for name in dir(openai.types) if not name.startswith('_')]))"
    counts = [
        int(subprocess.run([sys.executable, "-c", each], check=True, capture_output=True, text=True).stdout)
        for each in (code, plain)
    ]
    assert counts[0] >= counts[1] > 100
