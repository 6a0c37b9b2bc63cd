"""Joins the dashboard's ES modules into one script, so that a browser makes one request for all of them.

Each module becomes a function whose result holds what the module exports, after the modules that it imports. Only the
forms of `import` and `export` that appear in the dashboard are known; `joined` refuses all others, and the tests join
what is shipped.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import dirname, join, normpath

_START = r"(?P<before>^|(?<=[;}]))"
"""Where a statement can begin. Minified modules have several statements in a line."""
_NAMES = r"\{(?P<names>[^{}]*)\}"
_FROM = r'\s*from\s*"(?P<from>[^"]+)"'
_IMPORT = re.compile(rf"{_START}import\s*(?:(?P<default>[\w$]+)|{_NAMES}){_FROM}", re.MULTILINE)
_REEXPORT = re.compile(rf"{_START}export\s*{_NAMES}{_FROM}", re.MULTILINE)
_LIST = re.compile(rf"{_START}export\s*{_NAMES}", re.MULTILINE)
_DECLARED = re.compile(
    rf"{_START}export\s+(?P<kept>(?:const|class|(?:async\s+)?function)\s+(?P<name>[\w$]+))", re.MULTILINE
)
_DEFAULT = re.compile(rf"{_START}export\s+default\s+function\s*\(", re.MULTILINE)
_BLOCK_COMMENT = re.compile(r"^[ \t]*/\*.*?\*/", re.DOTALL | re.MULTILINE)
"""A comment that begins a line. It can contain code, which counts for nothing."""
_CAST = re.compile(r"/\*\* @(?:type|param|returns)[^`\n]*?\*/ ?")
"""A type within a line. Only type checkers need it, and all of them are a fortieth of the compressed script."""
_COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*$", re.DOTALL | re.MULTILINE)
_UNKNOWN = re.compile(r"(?:^|[;}])\s*(?:import|export)\b.*|\bimport\s*(?:\.|\(\s*[\"'`]).*", re.MULTILINE)
_DEFAULT_NAME = "$default"
CORE = "learnloop"
"""Folder under which added modules import those of the dashboard."""


class UnknownForm(Exception):
    """A module imports or exports something in a form that cannot be joined."""


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    imported: tuple[str, ...]
    """Names of the modules that it imports, in order."""
    exported: frozenset[str]
    script: str
    """A statement that defines the module's variable."""


def joined(modules: Mapping[str, str], first: str) -> str:
    """Return one module that behaves as the module `first` of these, given by path, with all that it imports. It
    exports all of them, for modules that are added to it.

    Raises UnknownForm if an import or export has a form that is not known, if a module is missing, or if modules import
    each other.
    """
    parts = list(_ordered(modules, first, [], {}))
    return f"{_scripts(parts)}export {{ {', '.join(_variable(part.name) for part in parts)} }};\n"


def added(modules: Mapping[str, str], first: str, name: str, to: str, script: str) -> str:
    """Return a module that exports `name` of the module `first`, and takes the modules that another script has
    from there.

    `to` is the path of that script from the new one. Its modules are imported under the folder CORE. Raises UnknownForm
    as `joined` does, and if `first` has no such export.
    """
    core_variables = {_in_core(path): _variable(path) for path in re.findall(r"^// (\S+)$", script, re.MULTILINE)}
    parts = list(_ordered(modules, first, [], dict.fromkeys(core_variables)))
    if name not in parts[-1].exported:
        raise UnknownForm(f"{first} does not export {name}.")
    shared = dict.fromkeys(path for part in parts for path in part.imported if path in core_variables)
    names = ", ".join(f"{core_variables[path]} as {_variable(path)}" for path in shared)
    import_line = f'import {{ {names} }} from "{to}";\n' if names else ""
    return f"{import_line}{_scripts(parts)}export const {name} = {_variable(first)}.{name};\n"


def in_core(modules: Mapping[str, str]) -> dict[str, str]:
    """Return modules under the names by which added modules import them."""
    return {_in_core(name): source for name, source in modules.items()}


def _in_core(name: str) -> str:
    return f"{CORE}/{name}"


def _scripts(parts: Iterable[_Module]) -> str:
    return "".join(f"// {part.name}\n{part.script}\n" for part in parts)


def _ordered(
    modules: Mapping[str, str], name: str, importers: list[str], ordered: dict[str, None]
) -> Iterator[_Module]:
    """Yield the module after those that it imports, leaving out those in `ordered`."""
    if name in importers:
        raise UnknownForm(f"These modules import each other: {', '.join([*importers, name])}.")
    if name in ordered:
        return
    if name not in modules:
        raise UnknownForm(f"{importers[-1] if importers else 'The page'} imports {name}, which does not exist.")
    module = _wrapped(name, modules[name])
    for path in module.imported:
        yield from _ordered(modules, path, [*importers, name], ordered)
    ordered[name] = None
    yield module


def _wrapped(name: str, source: str) -> _Module:
    """Turn a module into a function that is called once. Line numbers within the module stay as they are."""
    imported: dict[str, None] = {}
    exports: dict[str, str] = {}

    def variable(match: re.Match[str]) -> str:
        path = match["from"]
        if not path.startswith(f"{CORE}/"):
            path = normpath(join(dirname(name), path))
        imported[path] = None
        return _variable(path)

    def take(match: re.Match[str]) -> str:
        names = f"default: {match['default']}" if match["default"] else ", ".join(_pairs(match["names"], ": "))
        return f"const {{ {names} }} = {variable(match)}"

    def pass_on(match: re.Match[str]) -> str:
        module = variable(match)
        exports.update({public: f"{module}.{local}" for local, public in _renamed(match["names"])})
        return ""

    def listed(match: re.Match[str]) -> str:
        exports.update({public: local for local, public in _renamed(match["names"])})
        return ""

    def declared(match: re.Match[str]) -> str:
        exports[match["name"]] = match["name"]
        return match["kept"]

    def default(_: re.Match[str]) -> str:
        exports["default"] = _DEFAULT_NAME
        return f"const {_DEFAULT_NAME} = function("

    body = _BLOCK_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), source)
    body = _CAST.sub("", body)
    for form, replace in (
        (_IMPORT, take),
        (_REEXPORT, pass_on),
        (_LIST, listed),
        (_DECLARED, declared),
        (_DEFAULT, default),
    ):
        body = form.sub(replace, body)
    if (unknown := _UNKNOWN.search(_COMMENT.sub("", body))) is not None:
        raise UnknownForm(f"{name} has a form of import or export that cannot be joined: {unknown[0].strip()[:120]}")
    result = ", ".join(f"{public}: {expression}" for public, expression in exports.items())
    script = f"const {_variable(name)} = (() => {{{body};\nreturn {{ {result} }};\n}})();"
    return _Module(name, tuple(imported), frozenset(exports), script)


def _variable(name: str) -> str:
    """Return the variable of a module, such as `$parts_html_js`."""
    return "$" + re.sub(r"\W", "_", name)


def _renamed(names: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of `a, b as c`, each as the name before and after."""
    for clause in filter(None, map(str.strip, names.split(","))):
        before, _, after = clause.partition(" as ")
        yield before.strip(), (after or before).strip()


def _pairs(names: str, between: str) -> Iterator[str]:
    return (before if before == after else f"{before}{between}{after}" for before, after in _renamed(names))
