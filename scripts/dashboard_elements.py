"""Checks the properties that the dashboard's templates give to components against the types in their comments.

Templates are strings, which the TypeScript compiler does not look into. A property that a component does not declare, a
required one that is missing, and an optional one that no template ever gives are faults.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from posixpath import dirname, join, normpath

from learnloop_service.app.dashboard.bundle import CORE

_USE = re.compile(r"<\$\{([A-Z]\w*)\}")
_ATTRIBUTE = re.compile(r"[\w:-]+")
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";', re.MULTILINE)
_COMPONENT = re.compile(
    r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?^(?:export )?"
    r"(?:function (?P<function>[A-Z]\w*)\((?P<params>[^)]*)\)|const (?P<const>[A-Z]\w*) = \((?P<args>[^)]*)\) =>)",
    re.DOTALL | re.MULTILINE,
)
_TYPEDEF = (
    r"@typedef \{{object\}} {name}\n(?P<listed>(?: \* @property .*\n(?: \*   .*\n)*)+)"
    r"|@typedef \{{(?P<type>.*)\}} {name}\b"
)
_PROPERTY = re.compile(r"@property \{.*?\} (\[?)(\w+)")
_FOREIGN = re.compile(r'import\("([^"]+)"\)\.(\w+)')
_ALWAYS = frozenset({"key", "ref", "children"})
_OPEN, _CLOSE = "{([<", "})]>"


@dataclass
class _Component:
    """A component, as its comment and the templates that use it describe it."""

    declared: dict[str, bool] | None
    """Whether each property is required; None without a type."""
    passed: set[str] = field(default_factory=set)
    """Properties that some template gives it."""
    is_open: bool = False
    """Whether some use spreads an object or is not in a template, so that what it gives is not known."""


def faults(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong in these modules, given by path."""
    components = {path: dict(_components(sources, path)) for path in sources}
    for path, source in sources.items():
        visible = components[path] | _imported(components, path, source)
        for name, names, spreads, line in _uses(source):
            if (component := visible.get(name)) is None:
                continue
            component.passed |= names
            component.is_open |= spreads
            declared = component.declared
            if declared is None:
                yield f"{path}:{line}: <{name}> has properties, and no type of them in its comment"
                continue
            yield from (
                f"{path}:{line}: <{name}> has no property `{property}`" for property in names - set(declared) - _ALWAYS
            )
            missing = {property for property, required in declared.items() if required} - names - _ALWAYS
            yield from (
                f"{path}:{line}: <{name}> needs the property `{property}`" for property in missing if not spreads
            )
    yield from _never_passed(sources, components)


def _never_passed(sources: Mapping[str, str], components: Mapping[str, Mapping[str, _Component]]) -> Iterator[str]:
    values: defaultdict[str, int] = defaultdict(int)
    for source in sources.values():
        code = re.sub(r"/\*.*?\*/|^import .*$", "", source, flags=re.DOTALL | re.MULTILINE)
        for name in re.findall(r"(?<!<\$\{)\b[A-Z]\w*\b", code):
            values[name] += 1
    for path, declared in components.items():
        for name, component in declared.items():
            if component.is_open or not component.passed or values[name] > 1:  # one is its declaration
                continue
            optional = {property for property, required in (component.declared or {}).items() if not required}
            for property in optional - component.passed - _ALWAYS:
                yield f"{path}: no template gives <{name}> its property `{property}`"


def _imported(components: Mapping[str, Mapping[str, _Component]], path: str, source: str) -> dict[str, _Component]:
    imported: dict[str, _Component] = {}
    for names, module in _IMPORT.findall(source):
        exported = components.get(_path_of(path, module), {})
        imported |= {name: exported[name] for name in map(str.strip, names.split(",")) if name in exported}
    return imported


def _path_of(path: str, module: str) -> str:
    """Return the path of a module that another one imports."""
    return module if module.startswith(f"{CORE}/") else normpath(join(dirname(path), module))


def _components(sources: Mapping[str, str], path: str) -> Iterator[tuple[str, _Component]]:
    for match in _COMPONENT.finditer(sources[path]):
        name, params = match["function"] or match["const"], match["params"] or match["args"] or ""
        if not params.strip():
            yield name, _Component({})
            continue
        comment = match["comment"] or ""
        begin = comment.find("@param {")
        declared = None if begin < 0 else _properties(sources, path, _braced(comment, begin + len("@param ")))
        yield name, _Component(declared)


def _properties(sources: Mapping[str, str], path: str, kind: str) -> dict[str, bool] | None:
    """Return the properties of a type in braces, and whether each is required. None if the type is not known."""
    inner = kind[1:-1].strip()
    parts = [_properties(sources, path, f"{{{part}}}") for part in _split(inner, "&")] if "&" in inner else []
    if len(parts) > 1:
        return (
            None
            if None in parts
            else {name: is_required for part in parts for name, is_required in (part or {}).items()}
        )
    if inner.startswith("{"):
        named = (re.match(r"\s*(?:\*\s*)?(\w+)(\??):", part) for part in _split(inner[1:-1], ","))
        return {match[1]: not match[2] for match in named if match}
    if foreign := _FOREIGN.fullmatch(inner):
        return _typedef(sources, _path_of(path, foreign[1]), foreign[2])
    return _typedef(sources, path, inner)


def _typedef(sources: Mapping[str, str], path: str, name: str) -> dict[str, bool] | None:
    match = re.search(_TYPEDEF.format(name=re.escape(name)), sources.get(path, ""))
    if match is None:
        return None
    if match["listed"]:
        return {property: not optional for optional, property in _PROPERTY.findall(match["listed"])}
    return _properties(sources, path, "{" + match["type"] + "}")


def _split(text: str, between: str) -> Iterator[str]:
    """Yield the parts between commas, or another character, outside of all brackets."""
    depth, start = 0, 0
    for index, character in enumerate(text):
        if text[index - 1 : index + 1] == "=>":
            continue
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == between and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def _uses(source: str) -> Iterator[tuple[str, set[str], bool, int]]:
    """Yield each use of a component: its name, the properties that it gives, whether it spreads, and its line."""
    for use in _USE.finditer(source):
        names, spreads, at = set(), False, use.end()
        while not re.match(r"\s*/?>", source[at:]):
            at += len(source[at:]) - len(source[at:].lstrip())
            if source.startswith("...${", at):
                spreads = True
                at = at + 4 + len(_braced(source, at + 4))
            elif attribute := _ATTRIBUTE.match(source, at):
                names.add(attribute[0])
                at = _after_value(source, attribute.end())
            else:
                raise ValueError(f"cannot read the template at {source[use.start() : at + 60]!r}")
        yield use[1], names, spreads, source.count("\n", 0, use.start()) + 1


def _after_value(source: str, at: int) -> int:
    """Return the place after an attribute's value, if it has one."""
    if not source.startswith("=", at):
        return at
    if source.startswith("${", at + 1):
        return at + 2 + len(_braced(source, at + 2))
    if source[at + 1] in "\"'":
        return source.index(source[at + 1], at + 2) + 1
    return at + len(re.match(r"[^\s/>]*", source[at:])[0])  # type: ignore[index]  # it matches everything


def _braced(text: str, begin: int) -> str:
    """Return the text in braces that begins at a place, with the braces. Braces in strings and templates count for
    nothing, other than those of what a template inserts."""
    ends = ["}"]
    at = begin + 1
    while ends:
        character = text[at]
        if ends[-1] != "}":  # in a string or template
            if character == "\\":
                at += 1
            elif character == ends[-1]:
                ends.pop()
            elif ends[-1] == "`" and text.startswith("${", at):
                ends.append("}")
                at += 1
        elif character in "\"'`":
            ends.append(character)
        elif character == "{":
            ends.append("}")
        elif character == "}":
            ends.pop()
        at += 1
    return text[begin:at]
