"""The texts of a champion, and the tasks of its improvement: what every new prompt is made from and checked against."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from learnloop_service.app.improvements.guard import Quotation, check
from learnloop_service.app.runs.stored_prompts import require_fit
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.environment.base import Environment, Episode, EpisodeWithFields, ReportedEpisode, Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import (
    ORIGINAL,
    SYSTEM,
    InvalidPrompt,
    Prompt,
    descriptions,
    literal,
    opening,
    read_prompt,
)

_SHOWN_TASKS = 3
"""Training tasks that show which texts differ from task to task."""


@dataclass(frozen=True, slots=True)
class Champion:
    """What a new prompt is made from."""

    prompt: Prompt | None
    """None if all its texts are the environment's."""
    parts: Mapping[str, str]
    """The texts of its prompt, and those that the environment has written, with placeholders for what differs from task
    to task."""
    placeholders: Sequence[str]
    """The names of the placeholders that texts can have."""

    def proposed(self, parts: Mapping[str, str]) -> Prompt:
        """Return the prompt of these parts, without unchanged ones of the environment. Raises
        InvalidPrompt."""
        theirs = {} if self.prompt is None else self.prompt.parts
        changed = {part: text for part, text in parts.items() if part in theirs or self.parts.get(part) != text}
        prompt = read_prompt({"parts": changed})
        return prompt if self.prompt is None else replace(self.prompt, parts=prompt.parts)


def champion_of(
    environment: Environment, scenarios: Sequence[Scenario], prompt: Prompt | None, tools: Sequence[Json] = ()
) -> Champion:
    """Return the texts of a champion with this prompt. Call it in a thread.

    `scenarios` are a few training tasks, which show what differs from task to task. `tools` are those of a recorded
    rollout, in OpenAI's form, for environments that know theirs only once an episode is open.
    """
    episodes = [environment.episode(scenario) for scenario in scenarios]
    fields = episodes[0].fields() if isinstance(episodes[0], EpisodeWithFields) else {}
    own = {} if prompt is None else prompt.parts
    if isinstance(episodes[0], ReportedEpisode):  # its agent has texts of its own
        return Champion(prompt, own, [*fields, ORIGINAL] if prompt is not None and prompt.replaces else [*fields])
    texts = {part: _template(part, text, fields, episodes) for part, text in _texts(episodes[0]).items()}
    recorded = {part: literal(text) for part, text in descriptions(tools).items()}
    return Champion(prompt, {**recorded, **texts, **own}, [*fields, ORIGINAL])


def _texts(episode: Episode) -> dict[str, str]:
    """Return the texts that the environment has written, by part."""
    first = next(iter(episode.messages()), {})
    system = str(first.get("content") or "") if first.get("role") == "system" else ""
    return ({SYSTEM: system} if system.strip() else {}) | descriptions([tool.openai() for tool in episode.tools])


def _template(part: str, text: str, fields: Mapping[str, str], episodes: Sequence[Episode]) -> str:
    """Return a text that stands for the environment's in all episodes: `{original}` if there is no better one."""
    template = literal(text)
    for name, value in sorted(fields.items(), key=lambda field: -len(field[1])):
        if value.strip():
            template = re.sub(rf"(?<!\w){re.escape(literal(value))}(?!\w)", f"{{{name}}}", template)
    return next((one for one in (literal(text), template) if _fits(part, one, episodes)), f"{{{ORIGINAL}}}")


def _fits(part: str, template: str, episodes: Sequence[Episode]) -> bool:
    """Return whether all episodes open with the template as they do without it."""
    try:
        return all(
            opening(episode, Prompt({part: template})).texts[part] == _texts(episode)[part] for episode in episodes
        )
    except (InvalidPrompt, KeyError):
        return False


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
        against: Any = {name: getattr(self, name) for name in ("held_out", "training", "allow")}
        return check(prompt, self.champion.parts, rollouts=rollouts, **against)
