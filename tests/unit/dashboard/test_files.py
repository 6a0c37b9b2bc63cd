"""What the dashboard is made of: libraries as published, types as the API is, and nothing from elsewhere."""

import hashlib
import json
import re
from collections.abc import Iterable

from learnloop_service.app.dashboard.files import dashboard
from scripts import dashboard_types, vendor_dashboard
from tests.integration.app.api_file import current_api

STATIC = dashboard_types.FOLDER
_IMPORTED = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"']+)["']""")
_COMMENT = re.compile(r"/\*.*?\*/|(?m:^\s*//.*$)", re.DOTALL)


def test_every_vendored_file_is_what_its_package_gave() -> None:
    listed = json.loads((vendor_dashboard.FOLDER / "vendor.json").read_text())
    digests = {name: digest for package in listed for name, digest in package["sha256"].items()}
    there = {file.name: file.read_bytes() for file in vendor_dashboard.FOLDER.iterdir() if file.name != "vendor.json"}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in there.items()} == digests


def test_every_library_is_listed_with_its_version_and_licence() -> None:
    listed = json.loads((vendor_dashboard.FOLDER / "vendor.json").read_text())
    stated = {(package["name"], package["version"], package["licence"]) for package in listed}
    assert stated == {(package.name, package.version, package.licence) for package in vendor_dashboard.PACKAGES}
    for package in vendor_dashboard.PACKAGES:
        assert "copyright" in (vendor_dashboard.FOLDER / vendor_dashboard.licence_file(package)).read_text().lower()


def test_modules_import_files_of_the_dashboard_only() -> None:
    for file in STATIC.rglob("*.js"):
        for imported in _IMPORTED.findall(_COMMENT.sub("", file.read_text(encoding="utf-8"))):
            assert imported.startswith("."), f"{file.name} imports {imported}"
            assert (file.parent / imported).resolve().is_relative_to(STATIC)
            assert (file.parent / imported).is_file(), f"{file.name} imports {imported}"


def test_the_page_and_the_styles_name_nothing_from_elsewhere() -> None:
    for file in (*STATIC.rglob("*.css"), *STATIC.rglob("*.html")):
        assert not re.findall(r"(?:https?:)?//[a-z]", file.read_text(encoding="utf-8")), file.name


def test_what_it_knows_of_the_api_is_current() -> None:
    fields = dashboard_types.files(current_api())["api_fields.js"]
    assert (STATIC / "api_fields.js").read_text(encoding="utf-8") == fields, "python -m scripts.dashboard_types"


def _without_added_pages(names: Iterable[str]) -> list[str]:
    """The files without those of pages that environments add, which are loaded when they are shown."""
    return [name for name in names if not name.startswith("environments/")]


def test_the_page_loads_every_file_but_the_second_script() -> None:
    built = dashboard()
    loaded = sorted(re.findall(r'(?:href|src)="assets/\w+/([^"]+)"', built.page))
    assert sorted([*loaded, "others.js"]) == sorted(_without_added_pages(built.files))


def test_bold_has_one_level() -> None:
    files = [*(STATIC / "style").glob("*.css"), STATIC.parents[1] / "reports" / "page.css"]
    styles = "".join(file.read_text() for file in files)
    assert set(re.findall(r"font-weight: ([^;]+);", styles)) == {"400", "600"}
