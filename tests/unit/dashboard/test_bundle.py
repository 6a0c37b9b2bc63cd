"""Modules are joined into scripts, and a form of import or export that is not known is refused."""

import re

import pytest

from learnloop_service.app.dashboard.bundle import CORE, UnknownForm, joined
from learnloop_service.app.dashboard.files import dashboard


def test_a_module_comes_after_those_that_it_imports_and_only_once() -> None:
    modules = {
        "main.js": 'import { one, two as deux } from "./parts/a.js";\nimport b from "./b.js";\none(deux, b);\n',
        "parts/a.js": 'import b from "../b.js";\nexport const one = b;\nexport async function two() {}\n',
        "b.js": "/*\nexport function none() {}\n*/\nvar n=1;export default function(s){return s+n}",
        "unused.js": "export const unused = 1;",
    }
    script = joined(modules, "main.js")
    assert [line for line in script.split("\n") if line.startswith("// ")] == ["// b.js", "// parts/a.js", "// main.js"]
    assert "const { one, two: deux } = $parts_a_js;" in script
    assert "return { one: one, two: two };" in script
    assert "const { default: b } = $b_js;" in script
    assert "const $default = function(s){return s+n};" in script


def test_minified_modules_are_joined() -> None:
    modules = {
        "signals.js": 'import{a as t,b}from"./core.js";export{c,d as e}from"./core.js";let x=t(b);export{x as y};',
        "core.js": "const r=1,c=2,d=3;export{r as a,r as b,c,d};",
    }
    script = joined(modules, "signals.js")
    assert "const { a: t, b } = $core_js" in script
    assert "return { c: $core_js.c, e: $core_js.d, y: x };" in script


@pytest.mark.parametrize(
    "source",
    [
        'import * as all from "./b.js";',
        'import "./b.js";',
        "import { a } from './b.js';",
        'const b = await import("./b.js");',
        "export let changing = 1;",
        'export * from "./b.js";',
        "export default 1;",
        "const here = import.meta.url;",
        'import { a } from "./missing.js";',
        'import { a } from "./main.js";',
    ],
)
def test_other_forms_are_refused(source: str) -> None:
    with pytest.raises(UnknownForm):
        joined({"main.js": source, "b.js": "export const a = 1;"}, "main.js")


def test_the_shipped_modules_are_joined_to_two() -> None:
    files = dashboard().files
    names = {name for name in files if not name.startswith("environments/")}
    assert names == {"main.js", "others.js", "style.css", "theme.js", "icon.svg"}
    scripts = [files[name].content.decode() for name in ("main.js", "others.js")]
    parts = [re.findall(r"^// (\S+)$", script, re.MULTILINE) for script in scripts]
    assert not set(parts[0]) & {name.removeprefix(f"{CORE}/") for name in parts[1]}
    assert "parts/html.js" in parts[0]
    assert f"{CORE}/pages/settings.js" in parts[1]
