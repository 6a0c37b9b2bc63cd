"""Records the inputs and the result of each step of a pipeline, in a file in the data directory."""

import json
from pathlib import Path

from learnloop_service.app.cli.terminal import Failure
from learnloop_service.environment.json_type import Json


class StepHistory:
    """The latest inputs and result of each step."""

    def __init__(self, data_dir: Path, name: str) -> None:
        """Raises Failure if the file cannot be read."""
        self._path = data_dir / "pipelines" / f"{name}.json"
        try:
            self._steps: dict[str, Json] = dict(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            self._steps = {}
        except (OSError, ValueError, TypeError) as error:
            raise Failure(f"cannot read {self._path}: {error}. Delete it, and all steps are done again.") from error

    def begun(self, step: str, inputs: str) -> str | None:
        """Return the id of what the step last started, if it had these inputs, otherwise None."""
        entry = self._steps.get(step)
        return entry["id"] if entry is not None and entry["inputs"] == inputs else None

    def result(self, step: str, inputs: str) -> Json | None:
        """Return the last result of the step, if it was made from these inputs, otherwise None."""
        entry = self._steps.get(step)
        return entry["result"] if entry is not None and entry["inputs"] == inputs else None

    def save(self, step: str, inputs: str, id: str, result: Json | None = None) -> None:
        """Save what the step has started or, with a result, finished. Raises Failure."""
        self._steps[step] = {"inputs": inputs, "id": id, "result": result}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self._steps, indent=2), encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            raise Failure(f"cannot write {self._path}: {error.strerror}") from error
