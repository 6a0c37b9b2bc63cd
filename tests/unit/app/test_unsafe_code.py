"""No code of ours loads what could run, runs a text, or builds SQL of values: found in the syntax tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("app", "training", "environment", "judges", "learnloop", "plugins")
_LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen"),
    *(f"yaml.{name}" for name in ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all")),
}
_SQL = {"execute", "executemany", "executescript", "exec_driver_sql", "text", "scalar", "scalars", "stream", "copy"}
_SWITCHES = {"shell": True, "trust_remote_code": True, "allow_pickle": True, "weights_only": False}


def unsafe_places(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and reason of what must not be there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _modules(node):
                if name.partition(".")[0] in _LOADERS:
                    yield node.lineno, f"imports {name}"
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, reason) for reason in _calls(node))


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]


def _calls(node: ast.Call) -> Iterator[str]:
    name = ast.unparse(node.func)
    if name in _CALLS:
        yield f"calls {name}"
    if name == "torch.load" and not _switch(node, "weights_only", True):
        yield "torch.load without weights_only=True"
    for switch, value in _SWITCHES.items():
        if _switch(node, switch, value):
            yield f"{switch}={value}"
    if name.rpartition(".")[2] in _SQL and node.args and _is_built(node.args[0]):
        yield f"SQL built of values: {ast.unparse(node.args[0])}"


def _switch(node: ast.Call, name: str, value: bool) -> bool:
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is value
        for keyword in node.keywords
    )


def _is_built(node: ast.expr) -> bool:
    """Whether a text is put together of what is no constant of a module; constants have capital names."""
    if isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return not all(isinstance(value, ast.Name) and value.id.isupper() for value in values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return _has_text(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        made_of = node.func.value
        return node.func.attr in ("format", "join", "replace", "encode") and (_has_text(made_of) or _is_built(made_of))
    return False


def _has_text(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant | ast.JoinedStr) for part in ast.walk(node))


@pytest.mark.parametrize("package", PACKAGES)
def test_our_code_is_free_of_it(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    hits = [
        f"{path.relative_to(ROOT)}:{line}: {reason}"
        for path in files
        for line, reason in unsafe_places(ast.parse(path.read_text()))
    ]
    assert hits == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from dill import loads",
        "yaml.load(text)",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "os.system('ls')",
        "subprocess.run(command, shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
        "numpy.load(path, allow_pickle=True)",
        "session.execute(text(f'SELECT * FROM run WHERE id = {id}'))",
        "session.execute('SELECT ' + column)",
        "connection.execute('SELECT %s' % column)",
        "connection.execute('SELECT {}'.format(column))",
        "connection.execute(f'DROP DATABASE {name}'.encode())",
        "connection.execute(f'{column} = 1')",
    ],
)
def test_the_gate_finds(code: str) -> None:
    assert [*unsafe_places(ast.parse(code))]


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "re.compile(pattern)",
        "yaml.safe_load(text)",
        "torch.load(path, weights_only=True)",
        "session.execute(select(Run))",
        "connection.execute(f'LISTEN {CHANNEL}')",
        "connection.execute('SELECT 1 WHERE id = %s', [id])",
    ],
)
def test_the_gate_lets_through(code: str) -> None:
    assert [*unsafe_places(ast.parse(code))] == []
