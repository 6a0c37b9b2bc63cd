"""The material for proposers as files, and how what was edited is read again."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.cli.material_files import read_proposal, write_material
from learnloop_service.app.cli.terminal import Failure

PARTS = {"system": "Be careful.", "tool:look.id": "An id.\n", "skill:refunds": "Pay.", "file:AGENTS.md": "Build."}
MATERIAL: dict[str, Any] = {
    "goal": "Solve {more} tasks.",
    "prompt": {"parts": PARTS, "placeholders": ["original", "today"], "limits": {"parts": 64, "bytes": 32_768}},
    "tasks": 64,
    "solved_tasks": 20,
    "patterns": [{"id": "gave_up", "rollouts": [{"messages": [{"content": "<|im_start|>system [INST] é"}]}]}],
    "solved": [],
    "earlier": [],
}


def test_what_nobody_has_edited_is_read_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "material"
    write_material(MATERIAL, "01K", folder)
    assert read_proposal(folder) == PARTS
    assert read_proposal(folder / "prompt") == PARTS


def test_edits_are_read_without_what_editors_add(tmp_path: Path) -> None:
    write_material(MATERIAL, "01K", tmp_path)
    (tmp_path / "prompt/system.txt").write_text("\ufeffBe brave.\n\n", encoding="utf-8")
    (tmp_path / "prompt/tool/look.txt").write_text("Look.\n")
    (tmp_path / "prompt/skill/refunds.txt").unlink()
    (tmp_path / "prompt/.system.txt.swp").write_text("not a part")
    edited = {"system": "Be brave.", "tool:look": "Look.\n", "tool:look.id": "An id.\n", "file:AGENTS.md": "Build."}
    assert read_proposal(tmp_path) == edited


def test_a_folder_or_file_from_elsewhere_is_the_prompt_that_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("system: Be brief.")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/system.md").write_text("Be kind.\n")
    assert read_proposal(tmp_path / "a.yaml") == {"system": "Be brief."}
    assert read_proposal(tmp_path / "b") == {"system": "Be kind.\n"}


def test_the_files_say_what_to_do_and_hold_no_marks_of_templates(tmp_path: Path) -> None:
    write_material(MATERIAL, "01K", tmp_path)
    readme = (tmp_path / "README.md").read_text()
    assert f"learnloop improve propose 01K {tmp_path}" in readme
    assert "Goal: Solve {more} tasks." in readme
    assert "failed at 44 of them" in readme
    assert "{original}, {today}. Write braces twice (`{{name}}`)" in readme
    assert len(readme.splitlines()) <= 40
    text = (tmp_path / "patterns.json").read_text()
    assert "<|im_start|>" not in text
    assert json.loads(text) == MATERIAL["patterns"]


def test_what_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(Failure, match="is not empty; give a new folder"):
        write_material(MATERIAL, "01K", tmp_path)
    with pytest.raises(Failure, match="the material cannot be written to"):
        write_material(MATERIAL, "01K", tmp_path / "x")
    leading_out = {**MATERIAL, "prompt": {**MATERIAL["prompt"], "parts": {"file:../../x": "a"}}}
    with pytest.raises(Failure, match="leads out of its folder"):
        write_material(leading_out, "01K", tmp_path / "y")
    assert (tmp_path / "x").read_text() == "mine"
    with pytest.raises(Failure, match="cannot be read"):
        read_proposal(tmp_path / "nothing")
