"""An ART script as its users write them: nothing in it knows of our engine but the base URL in the environment."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import art
from art.rewards import ruler_score_group
from art.serverless.backend import ServerlessBackend
from art.utils import iterate_dataset

JUDGE = {"api_base": os.environ["JUDGE_URL"], "api_key": os.environ["JUDGE_KEY"]}


@dataclass(frozen=True)
class Question:
    """A scenario."""

    text: str


QUESTIONS = [Question(f"When is kickoff {number}?") for number in range(4)]


async def rollout(model: Any, question: Question) -> art.Trajectory:
    """One answer."""
    messages: Any = [{"role": "system", "content": "Answer."}, {"role": "user", "content": question.text}]
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_completion_tokens=12
    )
    choice: Any = completion.choices[0]
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=0.0)


async def judged(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
    """The group with RULER's rewards."""
    return await ruler_score_group(group, "openai/scripted", extra_litellm_params=dict(JUDGE))


async def main() -> None:
    """Train on each batch of questions, and say what came out."""
    model: Any = art.TrainableModel(name="agent", project="script", base_model="tiny", base_path=sys.argv[1])
    backend = ServerlessBackend(base_url=os.environ["ENGINE_URL"], api_key=os.environ["ENGINE_KEY"])
    await model.register(backend)
    trained = []
    batches = iterate_dataset(QUESTIONS, groups_per_step=2, num_epochs=1, initial_step=await model.get_step())
    for batch in batches:
        waiting: Any = [art.TrajectoryGroup(rollout(model, question) for _ in range(4)) for question in batch.items]
        groups = await art.gather_trajectory_groups(waiting, after_each=judged, pbar_desc="gather")
        result = await backend.train(model, groups, learning_rate=1e-3)
        await model.log(groups, split="train", step=result.step, metrics=result.metrics)
        rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
        trained.append({"batch": batch.step, "step": result.step, "metrics": result.metrics, "rewards": rewards})
    await model.delete_checkpoints(best_checkpoint_metric="train/reward")
    answer = await rollout(model, QUESTIONS[0])
    print("RESULT", json.dumps({"trained": trained, "step": await model.get_step(), "answer": answer.messages()}))  # noqa: T201
    await backend.close()


asyncio.run(main())
