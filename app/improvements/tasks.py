"""The tasks of an improvement and the texts of its champion, which every new prompt is checked against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learnloop_service.app.improvements.champion import Champion, champion_of
from learnloop_service.app.improvements.guard import Quotation, check
from learnloop_service.app.runs.stored_prompts import require_fit
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.environment.base import Environment, Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import Prompt

_SHOWN_TASKS = 3
"""Training tasks that show which texts differ from task to task."""


@dataclass(frozen=True, slots=True)
class ImprovementTasks:
    """What a new prompt is checked against."""

    environment: Environment
    champion: Champion
    held_out: Sequence[Scenario]
    training: Sequence[Scenario]
    allow: Sequence[str]

    @classmethod
    def of(
        cls, environment: Environment, request: ImprovementRequest, prompt: Prompt | None, tools: Sequence[Json] = ()
    ) -> "ImprovementTasks":
        """Draw the tasks. `request` has their numbers, `prompt` is the champion's, and `tools` are those of a recorded
        rollout. Call it in a thread."""
        validation, test, seed = request.validation or 0, request.test or 0, request.held_out_seed
        training = environment.scenarios("train", validation, request.seed)
        held_out = [
            *environment.scenarios("validation", validation, seed),
            *(environment.scenarios("test", test, seed) if test else ()),
        ]
        champion = champion_of(environment, training[:_SHOWN_TASKS], prompt, tools)
        return cls(environment, champion, held_out, training, request.allow)

    def quotations(self, prompt: Prompt, rollouts: Mapping[str, Sequence[str]]) -> list[Quotation]:
        """Return what a prompt quotes of training rollouts, whose texts are given by id. Raises InvalidPrompt if it
        cannot be tried. Call it in a thread."""
        require_fit(self.environment, self.training[0], prompt)
        return check(
            prompt,
            self.champion.parts,
            held_out=self.held_out,
            training=self.training,
            rollouts=rollouts,
            allow=self.allow,
        )
