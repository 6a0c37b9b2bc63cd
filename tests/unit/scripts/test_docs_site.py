"""What the check of the documentation site finds in its pages."""

from pathlib import Path

from scripts.docs_site import faults, listed, unlisted

PAGE = """<html><head><link rel="stylesheet" href="../style.css"></head>
<body><h1 id="top">Page</h1><a href="#top">here</a> <a href="{link}">there</a><img src="{picture}"></body></html>"""


def site(folder: Path, link: str = "other.html#part", picture: str = "../picture.png") -> Path:
    """Write a site of two pages, one of which has this link and this picture."""
    (folder / "pages").mkdir()
    for name in ("style.css", "picture.png"):
        (folder / name).touch()
    (folder / "pages/one.html").write_text(PAGE.format(link=link, picture=picture))
    (folder / "pages/other.html").write_text('<h2 id="part">Part</h2><a href="https://example.com/">elsewhere</a>')
    return folder


def test_a_sound_site_has_no_faults(tmp_path: Path) -> None:
    assert list(faults(site(tmp_path))) == []


def test_a_link_to_a_page_that_does_not_exist(tmp_path: Path) -> None:
    assert list(faults(site(tmp_path, link="nowhere.html"))) == ["pages/one.html: nowhere.html leads nowhere"]


def test_a_link_to_a_place_that_does_not_exist(tmp_path: Path) -> None:
    [fault] = faults(site(tmp_path, link="other.html#parts"))
    assert fault == "pages/one.html: other.html#parts names no place on that page"


def test_a_picture_that_does_not_exist(tmp_path: Path) -> None:
    assert list(faults(site(tmp_path, picture="gone.png"))) == ["pages/one.html: gone.png leads nowhere"]


def test_a_file_of_another_host(tmp_path: Path) -> None:
    [fault] = faults(site(tmp_path, picture="https://example.com/a.png"))
    assert fault == "pages/one.html: loads https://example.com/a.png from another host"


def test_a_page_that_the_navigation_does_not_have(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.md"):
        (tmp_path / name).touch()
    assert unlisted(tmp_path, [{"First": "a.md"}, {"More": [{"Second": "b.md"}]}]) == ["c.md"]


def test_the_list_for_language_models_has_the_first_sentence_of_each_page(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "---\nname: a\n---\n\n# First\n\n    a command\n\nSee [the list](b.md):\n\n- an item\n"
    )
    (tmp_path / "b.md").write_text("# Second\n\nIt has\ntwo lines. And more.\n")
    navigation: list[dict[str, object]] = [{"One": [{"A": "a.md"}]}, {"Two": ["b.md"]}]
    assert list(listed(navigation, tmp_path)) == [
        "\n## One\n",
        "- [First](a.md): See the list",
        "\n## Two\n",
        "- [Second](b.md): It has two lines.",
    ]
