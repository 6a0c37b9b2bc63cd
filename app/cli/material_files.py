"""The material for proposers as files: what a person or a coding agent edits, and how it becomes a prompt again."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePath

from learnloop.agent_worker import CommandFailed, part_path, write_parts
from learnloop_service.app.cli import prompts
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.injection import quoted

_README = (Path(__file__).parent / "templates" / "material.txt").read_text(encoding="utf-8")
_PROMPT, _CHAMPION = "prompt", "champion.json"


def write_material(material: Mapping[str, Json], improvement_id: str, folder: Path) -> None:
    """Write the material of an improvement to files in a folder, which must be new or empty. Raises Failure."""
    champion = material["prompt"]
    readme = _README.format(
        id=improvement_id,
        folder=folder,
        goal=material["goal"],
        tasks=material["tasks"],
        failed=material["tasks"] - material["solved_tasks"],
        placeholders=", ".join(f"{{{name}}}" for name in champion["placeholders"]) or "none here",
        **champion["limits"],
    )
    documents = {"champion": champion, **{name: material[name] for name in ("patterns", "solved", "earlier")}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Failure(f"{folder} is not empty; give a new folder")
        (folder / "README.md").write_text(readme, encoding="utf-8")
        for name, document in documents.items():
            text = quoted(json.dumps(document, ensure_ascii=False, indent=1))
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        (folder / _PROMPT).mkdir()
        write_parts(champion["parts"], folder / _PROMPT)
    except (OSError, CommandFailed) as error:
        raise Failure(f"the material cannot be written to {folder}: {error}") from error


def read_proposal(folder: Path) -> dict[str, str]:
    """Return the texts by part that somebody has edited in the material's folder, or in its folder `prompt`; in any
    other folder or file, the prompt that it is. Raises Failure."""
    if (folder / _CHAMPION).is_file():
        folder = folder / _PROMPT
    parts: dict[str, str] = prompts.read(folder)["parts"]
    try:
        champion = json.loads((folder.parent / _CHAMPION).read_text(encoding="utf-8"))["parts"]
    except (OSError, ValueError, KeyError):
        return parts
    names = {prompts.part_of(PurePath(part_path(name))): name for name in champion}
    # Editors end a file with a line break, also where the text has none.
    return {
        names.get(part, part): text if champion.get(names.get(part), "\n").endswith("\n") else text.rstrip("\n")
        for part, text in parts.items()
    }
