"""The tasks of an improvement and the texts of its champion, which every new prompt is checked against."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learnloop_service.app.errors import InvalidRequest, Location
from learnloop_service.app.improvements.champion import Champion, champion_of
from learnloop_service.app.improvements.guard import Quotation, TaskTexts, check
from learnloop_service.app.runs.stored_prompts import require_fit
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.environment.base import Environment, Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import InvalidPrompt, Prompt

_SHOWN_TASKS = 3
"""Training tasks that show which texts differ from task to task."""


@dataclass(frozen=True, slots=True)
class ImprovementTasks:
    """What a new prompt is checked against."""

    environment: Environment
    champion: Champion
    held_out: Sequence[TaskTexts]
    training: Sequence[TaskTexts]
    first: Scenario
    """A training task."""
    allow: Sequence[str]
    rollouts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Texts of the training rollouts that proposers have read, by id."""

    @classmethod
    def of(
        cls,
        environment: Environment,
        request: ImprovementRequest,
        validation: int,
        test: int,
        prompt: Prompt | None,
        tools: Sequence[Json] = (),
    ) -> "ImprovementTasks":
        """Draw the tasks. `validation` and `test` are their numbers, `prompt` is the champion's, and `tools` are those
        of a recorded rollout. Call it in a thread."""
        training = environment.scenarios("train", validation, request.seed)
        held_out = [
            *environment.scenarios("validation", validation, request.held_out_seed),
            *(environment.scenarios("test", test, request.held_out_seed) if test else ()),
        ]
        champion = champion_of(environment, training[:_SHOWN_TASKS], prompt, tools)
        texts = list(map(TaskTexts.of, held_out)), list(map(TaskTexts.of, training))
        return cls(environment, champion, *texts, training[0], request.allow)

    def checked(self, prompt: Prompt, where: Location) -> list[Quotation]:
        """Return what a prompt quotes of training rollouts. Raises InvalidRequest at `where` if it cannot be tried.
        Call it in a thread."""
        try:
            require_fit(self.environment, self.first, prompt)
            return check(
                prompt,
                self.champion.parts,
                held_out=self.held_out,
                training=self.training,
                rollouts=self.rollouts,
                allow=self.allow,
            )
        except InvalidPrompt as error:
            raise InvalidRequest(where if error.part is None else (*where, error.part), error.why) from error
