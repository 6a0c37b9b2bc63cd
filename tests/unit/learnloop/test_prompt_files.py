"""How a command of one's own finds the prompt of its rollout."""

import json
from pathlib import Path

import pytest

from learnloop.agent_worker import CommandFailed, prompt_files


def test_the_parts_are_files_until_the_command_has_ended() -> None:
    parts = {"system": "Be kind.", "tool:search": "Søk.", "skill:refunds": "Pay.", "file:docs/AGENTS.md": "Build."}
    with prompt_files(parts) as variables:
        folder = Path(variables["LEARNLOOP_PROMPT_DIR"])
        texts = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.*")}
        assert json.loads(variables["LEARNLOOP_PROMPT"]) == parts
    assert texts == {
        "system.txt": "Be kind.",
        "tool/search.txt": "Søk.",
        "skill/refunds.txt": "Pay.",
        "docs/AGENTS.md": "Build.",
    }
    assert not folder.exists()


def test_a_rollout_without_a_prompt_has_no_variables() -> None:
    with prompt_files({}) as variables:
        assert variables == {}


@pytest.mark.parametrize("name", ["file:../a", "file:/etc/passwd", "skill:../../a"])
def test_no_part_is_written_outside_of_its_folder(name: str) -> None:
    with pytest.raises(CommandFailed, match="leads out of its folder"), prompt_files({name: "a"}):
        pass
