"""Makes rollouts in an environment of the package `verifiers`: runs the environment's loop against each rollout's
model."""

from collections.abc import Mapping

from learnloop_service.environment.base import Json
from learnloop_service.training.gyms.verifiers_loading import NAME, Gym, row_of
from learnloop_service.training.gyms.verifiers_report import report_of
from learnloop_service.training.rollout.agents.base import AgentTask


class GymFailed(Exception):
    """The environment ended a rollout with an error and gave no score."""


class VerifiersAgent:
    """An agent that runs the environment's loop.

    Each rollout runs on its own event loop, but all share one environment object. An environment that keeps an object
    bound to an event loop (a lock, a client) between rollouts does not work here.
    """

    name = NAME

    def __init__(self, gym: Gym) -> None:
        self._gym = gym

    async def run(self, task: AgentTask) -> str:
        """Run the environment's loop and return its report. Raises GymFailed."""
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        loaded = self._gym.load()
        model = task.model
        client = AsyncOpenAI(
            base_url=model.base_url, api_key=model.api_key, http_client=model.http_client, max_retries=0
        )
        output = await loaded.run_rollout(
            row_of(loaded, task.task), OpenAIChatCompletionsClient(client), model.model, sampling_args={}
        )
        if error := output.get("error"):
            raise GymFailed(_text_of(error))
        return report_of(loaded, output).text()


def _text_of(error: Mapping[str, Json]) -> str:
    return f"{error.get('error')}: {error.get('message')}" if error.get("message") else str(error)
