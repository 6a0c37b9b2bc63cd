"""Pages that environments add share the modules of the dashboard's script, and one that is broken is left out."""

from pathlib import Path

import pytest

from learnloop_service.app.dashboard.bundle import UnknownForm, added, in_core, joined
from learnloop_service.app.dashboard.files import dashboard
from learnloop_service.environment import registry
from learnloop_service.environment.traits import RunPage, Traits

CORE = {
    "main.js": 'import { one } from "./one.js";\none();',
    "one.js": "export const one = () => 1;",
    "unused.js": 'import { one } from "./one.js";\nexport const two = one() + 1;',
}


def _added(**sources: str) -> str:
    modules = {**in_core(CORE), **{f"{name}.js": source for name, source in sources.items()}}
    return added(modules, "page.js", "Page", "../../main.js", joined(CORE, "main.js"))


def test_what_the_dashboard_has_joined_is_imported_from_it() -> None:
    page = 'import { one } from "learnloop/one.js";\nimport { part } from "./part.js";\nexport const Page = () => part;'
    script = _added(page=page, part='import { one } from "learnloop/one.js";\nexport const part = one();')
    assert script.startswith('import { $one_js as $learnloop_one_js } from "../../main.js";\n// part.js\n')
    assert script.endswith("export const Page = $page_js.Page;\n")
    assert joined(CORE, "main.js").endswith("export { $one_js, $main_js };\n")


def test_what_it_has_not_joined_comes_with_the_page() -> None:
    script = _added(page='import { two } from "learnloop/unused.js";\nexport function Page() { return two; }')
    assert [line for line in script.split("\n") if line.startswith("// ")] == ["// learnloop/unused.js", "// page.js"]
    assert "const { one } = $learnloop_one_js;" in script


@pytest.mark.parametrize(
    "source", ["export const Other = 1;", 'import { a } from "learnloop/missing.js";\nexport const Page = a;']
)
def test_a_page_that_cannot_be_joined_is_refused(source: str) -> None:
    with pytest.raises(UnknownForm):
        _added(page=source)


def test_a_broken_page_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual, folder = dashboard(), tmp_path
    (tmp_path / "good.js").write_text(
        'import { html } from "learnloop/parts/html.js";\nexport const Page = () => html``;'
    )
    (tmp_path / "bad.js").write_text("export const Other = 1;")
    pages = [RunPage(name, name.title(), folder, f"{name}.js") for name in ("good", "bad", "gone")]
    monkeypatch.setattr(registry, "names", lambda: ["chess"])
    monkeypatch.setattr(registry, "traits", lambda name: Traits(pages=pages))
    with_pages = dashboard.__wrapped__()
    assert {name for name in with_pages.files if "/" in name} == {"environments/chess/good.js"}
    assert "environments/chess/good.js" in with_pages.page
    assert with_pages.version != usual.version
