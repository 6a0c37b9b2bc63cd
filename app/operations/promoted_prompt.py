"""Chooses the prompt that a checkpoint is promoted or released with."""

from pathlib import Path

from learnloop_service.app.db.tables import Promotion, Release
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.runs.stored_prompts import pinned_prompt
from learnloop_service.app.schemas.prompts import PromptChoice


async def promoted_prompt(
    checkpoints: Checkpoints, data_dir: Path, name: str, step: int, request: PromptChoice
) -> PromptReference | None:
    """Return the prompt that the request names; without one, the usual prompt of the step under the name. Raises
    InvalidRequest."""
    if "prompt" not in request.model_fields_set:
        return await checkpoints.usual_prompt(name, step)
    project = checkpoints.model.project
    return await pinned_prompt(checkpoints.database, data_dir, request.prompt, project, ("body", "prompt"))


async def untried(checkpoints: Checkpoints, served: Promotion | Release) -> list[str]:
    """Return a warning if the checkpoint was neither trained nor evaluated with its prompt."""
    step, prompt = served.step, served.prompt
    trained = await checkpoints.trained_prompt(step)
    same = (trained and trained.sha256) == (prompt and prompt.sha256)
    if same or await checkpoints.was_compared(step, prompt):
        return []
    this, other = (f"the prompt {one}" if one else "the environment's own texts" for one in (prompt, trained))
    checkpoint = checkpoints.model.at(step)
    prompts = " ".join(f"--prompt {one or '-'}" for one in (trained, prompt))
    return [
        f"{checkpoint} was never evaluated with {this}, and was trained with {other}. Compare them: "
        f"learnloop eval --model {checkpoint} {prompts}"
    ]
