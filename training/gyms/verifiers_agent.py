"""Runs the rollouts of an environment of verifiers: the environment's own loop, against the model of each rollout."""

from collections.abc import Mapping

from environment.base import Json
from training.gyms.verifiers_environment import row_of
from training.gyms.verifiers_loading import NAME, Gym
from training.gyms.verifiers_report import report_of
from training.rollout.agents.base import AgentTask


class GymFailed(Exception):
    """The environment ended a rollout with an error, and scored nothing."""


class VerifiersAgent:
    """An agent whose loop is the environment's.

    Each rollout runs on an event loop of its own, while the environment is one object: one that keeps something of an
    event loop (a lock, a client) between rollouts does not work here.
    """

    name = NAME

    def __init__(self, gym: Gym) -> None:
        self._gym = gym

    async def run(self, task: AgentTask) -> str:
        """The environment's report. Raises GymFailed."""
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
            raise GymFailed(_told(error))
        return report_of(loaded, output).text()


def _told(error: Mapping[str, Json]) -> str:
    return f"{error.get('error')}: {error.get('message')}" if error.get("message") else str(error)
