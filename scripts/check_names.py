"""Checks names and docstrings: filler words, class names that several modules share, docstrings that are fragments.

    python -m scripts.check_names [--by-folder] [--tests] [--list FOLDER...]

A *binding* is a place where a name is bound: an assignment, a parameter, a loop variable, a function, a class, a field
or an import under another name. Filler words say nothing of what they are bound to. `--by-folder` prints the counts of
each folder, and `--list` names the places in the folders given. `--tests` also counts asserts that compare tuples, and
so hide which value is wrong, imports from a `test_*` module, and names of tests that are too long to be read.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
FILLERS = frozenset(
    {
        "each",
        "found",
        "place",
        "known",
        "made",
        "given",
        "mine",
        "asked",
        "kept",
        "shown",
        "said",
        "own",
        "wanted",
        "told",
        "put",
        "taken",
        "left",
        "seen",
        "held",
        "sent",
        "meant",
        "done",
    }
)
_FRAGMENT = re.compile(
    r"(?:Of|So|As|For|What (?:no|of|there)|That which|That of|Those|Else|Mostly|Whose|Until|Not|Only)\b(?!-)"
)
"""How a docstring begins that does not make sense alone. "For example" and the like stand further on."""
MOST_FILLERS = 0.01
MOST_SHARED_CLASSES = 30
MOST_FRAGMENTS = 0.02
LONGEST_TEST_NAME = 70


@dataclass(frozen=True, slots=True)
class Place:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The bound names of a module, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname, node.lineno) for alias in aliases if alias.asname)


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The docstrings of modules, classes, functions and fields, each with its line."""
    for node in ast.walk(tree):
        for statement, following in _pairs(node):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))) if _documents(node, statement):
                    yield text, following.lineno


def _pairs(node: ast.AST) -> Iterator[tuple[ast.stmt | None, ast.stmt]]:
    body = getattr(node, "body", None)
    if isinstance(body, list):
        yield from zip([None, *body], body, strict=False)


def _documents(node: ast.AST, before: ast.stmt | None) -> bool:
    if before is None:
        return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return isinstance(before, ast.Assign | ast.AnnAssign)


def tuple_asserts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The asserts that compare a tuple with a tuple, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=ast.Compare(left=ast.Tuple(), ops=[ast.Eq()], comparators=[ast.Tuple()])):
                yield ast.unparse(node), node.lineno


def helper_imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The imports from modules of tests, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("tests.") and ".test_" in module:
                yield ast.unparse(node), node.lineno


def long_test_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The names of tests with more than LONGEST_TEST_NAME characters, each with its line."""
    for name, line in bindings(tree):
        if name.startswith("test_") and len(name) > LONGEST_TEST_NAME:
            yield name, line


TEST_FAULTS = {
    "asserts that compare tuples": tuple_asserts,
    "imports from modules of tests": helper_imports,
    f"names of tests with more than {LONGEST_TEST_NAME} characters": long_test_names,
}


def sources(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The Python files that git has, parsed."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=root, capture_output=True, text=True, check=True)
    for path in filter(None, listed.stdout.split("\0")):
        yield path, ast.parse((root / path).read_text(encoding="utf-8"))


@dataclass(slots=True)
class NameCounts:
    """What `check_names` counts."""

    bindings: Counter[str]
    """Number of bindings, by folder."""
    fillers: list[Place]
    classes: dict[str, list[Place]]
    """Public classes of the product by name."""
    docstrings: Counter[str]
    fragments: list[Place]

    @property
    def shared_classes(self) -> dict[str, list[Place]]:
        return {name: places for name, places in self.classes.items() if len(places) > 1}


def folder(path: str) -> str:
    """The folder that a path counts for: two levels, so that app/ and training/ are told apart by their packages."""
    return "/".join(path.split("/")[:-1][:2]) or "."


def counted(files: Iterator[tuple[str, ast.Module]]) -> NameCounts:
    names = NameCounts(Counter(), [], defaultdict(list), Counter(), [])
    for path, tree in files:
        for name, line in bindings(tree):
            names.bindings[folder(path)] += 1
            if name.lstrip("_") in FILLERS:
                names.fillers.append(Place(path, line, name))
        for text, line in docstrings(tree):
            names.docstrings[folder(path)] += 1
            if _FRAGMENT.match(text.strip()):
                names.fragments.append(Place(path, line, text.strip().splitlines()[0]))
        if not path.startswith(("tests/", "alembic/", "benchmarks/")) and "/tests/" not in path:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    names.classes[node.name].append(Place(path, node.lineno, node.name))
    return names


def _print_folders(names: NameCounts) -> None:
    fillers = Counter(folder(place.path) for place in names.fillers)
    fragments = Counter(folder(place.path) for place in names.fragments)
    for name, total in sorted(names.bindings.items()):
        documented = names.docstrings[name]
        print(f"{name:40} {fillers[name]:5} of {total:6} bindings {fragments[name]:5} of {documented:5} docstrings")


def _print_test_faults(root: Path, folders: list[str]) -> None:
    trees = [(path, tree) for path, tree in sources(root) if path.startswith("tests/") or "/tests/" in path]
    for kind, faults in TEST_FAULTS.items():
        places = [Place(path, line, text) for path, tree in trees for text, line in faults(tree)]
        for place in places:
            if place.path.startswith(tuple(folders)):
                print(place)
        print(f"{kind}: {len(places)}")


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.2%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by-folder", action="store_true")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--list", nargs="+", default=[], metavar="FOLDER")
    options = parser.parse_args()
    names = counted(sources(_ROOT))
    if options.by_folder:
        _print_folders(names)
    if options.tests:
        _print_test_faults(_ROOT, options.list)
    for place in (*names.fillers, *names.fragments):
        if any(place.path.startswith(prefix) for prefix in options.list):
            print(place)
    shared = names.shared_classes
    if options.list:
        for places in shared.values():
            print(*places, sep="\n")
    bound, documented = names.bindings.total(), names.docstrings.total()
    print(f"bindings that are filler words: {_share(len(names.fillers), bound)}, limit {MOST_FILLERS:.0%}")
    print(f"public class names that modules share: {len(shared)}, limit {MOST_SHARED_CLASSES}")
    print(f"docstrings that are fragments: {_share(len(names.fragments), documented)}, limit {MOST_FRAGMENTS:.0%}")
    too_many = len(names.fillers) > MOST_FILLERS * bound or len(names.fragments) > MOST_FRAGMENTS * documented
    sys.exit(too_many or len(shared) > MOST_SHARED_CLASSES)


if __name__ == "__main__":
    main()
