"""Iterations without rollouts: each trains once on what a record of served answers gives, wherever the run dies."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import ModelSpec, Policy, ScoringPolicy, TrainRequest
from learnloop_service.training.backends.embedded import EmbeddedBackend
from learnloop_service.training.call_sequences import SampledCall, TokenSequence, joined
from learnloop_service.training.journal import SERVED_USED, IterationJournal, repair
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.loop.run_record import Lesson
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.types import EvaluationConfig, IterationResult, RunConfig
from tests.fakes.engine_process import EngineProcess
from tests.integration.training.killed_steps import Entries, outlived

OPTIONS = {
    "scale_rewards": False,
    "token_weighting": "token",
    "mask_prob_ratio": True,
    "epsilon": 1.0,
    "epsilon_high": 3.0,
    "max_kl": 1e-3,
}
SERVED = RunConfig(
    iterations=0, served_iterations=2, seed=3, evaluation=EvaluationConfig(scenarios=0, test_scenarios=0)
)
ANSWERS, HELD_OUT = 20, 4
"""Answers that are trained on, half of them in each iteration, and answers that are only scored."""
_names = count()


class Answers:
    """The record of served answers, whose advantages were frozen with them."""

    left_out = ()

    def __init__(self, answers: Sequence[tuple[Any, TokenSequence]]) -> None:
        self.deleted: set[int] = set()
        self.best: dict[int, int] = {}
        self.sent: list[list[int]] = []
        self._answers = answers

    async def lesson(self, journal: IterationJournal, policy: Policy, step: int) -> Lesson:
        size = ANSWERS // 2
        first = (journal.iteration - 1) * size
        used = [n for n in self._journaled(journal, range(first, first + size)) if n not in self.deleted]
        if not used:
            return Lesson(None, {"served": 0.0}, ["all of them"])
        await journal.keep(SERVED_USED, json.dumps(used))
        self.sent.append(used)
        group = import_art().TrajectoryGroup([self._answers[number][0] for number in used])
        return Lesson(TrainRequest([group], 1e-3, step, OPTIONS), {"served": float(len(used))})

    async def measured(self, journal: IterationJournal, policy: Policy, step: int) -> Mapping[str, float]:
        assert isinstance(policy, ScoringPolicy)
        scores = await policy.score_sequences(step, [sequence for _, sequence in self._answers[ANSWERS:]])
        return {"held_out_logprob": sum(map(sum, scores))}

    def best_step(self, step: int) -> int:
        return self.best.get(step, step)

    def _journaled(self, journal: IterationJournal, otherwise: Sequence[int]) -> Sequence[int]:
        used: Sequence[int] = json.loads(journal.kept.get(SERVED_USED, json.dumps(list(otherwise))))
        return used


async def answers(policy: Policy) -> list[tuple[Any, TokenSequence]]:
    """Replies with advantages for rewards, and their tokens."""
    served, exact = [], {"max_tokens": 12, "logprobs": True, "extra_body": {"return_token_ids": True}}
    async with open_chat(policy.endpoint(0)) as chat:
        for number in range(ANSWERS + HELD_OUT):
            message = {"role": "user", "content": f"When, {number}?"}
            asked: Any = {"messages": [message], "seed": number, **exact}
            completion: Any = await chat.client.chat.completions.create(model=chat.model, **asked)
            [choice] = completion.choices
            logprobs = tuple(token.logprob for token in choice.logprobs.content)
            call = SampledCall(tuple(completion.prompt_token_ids), tuple(choice.token_ids), logprobs)
            advantage = sum(token % 2 for token in choice.token_ids) / len(choice.token_ids) - 0.5
            trajectory = import_art().Trajectory(messages_and_choices=[message, choice], reward=advantage)
            served.append((trajectory, joined([call])))
    return served


def spec() -> ModelSpec:
    return ModelSpec("served", f"agent-{next(_names)}", "random")


def weights(engine: EngineProcess, model: ModelSpec) -> list[str]:
    """The hash of each checkpoint's weights."""
    checkpoints = engine.data_dir / "models" / model.project / model.name / "checkpoints"
    return [
        hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest() for path in sorted(checkpoints.iterdir())
    ]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    return {}


@pytest.fixture
async def calm(engine: EngineProcess, backend: EmbeddedBackend, undisturbed: dict[str, Any]) -> dict[str, Any]:
    """An undisturbed run: its answers, journal, results and weights."""
    if not undisturbed:
        model, journal = spec(), Entries()
        policy = await backend.register(model)
        served = await answers(policy)
        record = Answers(served)
        results = await outlived(SERVED, policy, journal, [], lambda: record)
        undisturbed |= {"answers": served, "journal": journal, "results": results, "weights": weights(engine, model)}
    return undisturbed


async def test_each_iteration_trains_on_its_answers_and_measures(calm: dict[str, Any]) -> None:
    results: list[IterationResult] = calm["results"]
    assert [result.step for result in results] == [0, 1, 2]
    assert results[-1].best_step == 2
    assert len(set(calm["weights"])) == 3
    for result in results[1:]:
        metrics = result.train_metrics
        assert metrics["served"] == ANSWERS // 2 == metrics["num_trajectories"]
        assert 0 < metrics["step_kl"] <= 1e-3
        assert metrics["clipped_share"] == 0
        entries = list(calm["journal"].saved[result.iteration])
        assert entries == [SERVED_USED, "train.intent", "train.job", "train"]
    logprobs = [result.train_metrics["held_out_logprob"] for result in results[1:]]
    sampled = sum(sum(sequence.logprobs) for _, sequence in calm["answers"][ANSWERS:])
    assert logprobs[0] != logprobs[1]
    assert logprobs == pytest.approx([sampled] * 2, abs=5)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("entry", [SERVED_USED, "train.intent", "train.job", "train"])
async def test_a_killed_run_ends_with_the_same_weights(
    engine: EngineProcess, backend: EmbeddedBackend, calm: dict[str, Any], moment: str, entry: str
) -> None:
    model, journal = spec(), Entries(**{moment: entry})
    policy, record = await backend.register(model), Answers(calm["answers"])
    results = await outlived(SERVED, policy, journal, [], lambda: record)
    assert journal.deaths == 1
    assert weights(engine, model) == calm["weights"]
    assert [result.step for result in results] == [0, 1, 2]
    for result, expected in zip(results[1:], calm["results"][1:], strict=True):
        assert {**result.train_metrics, "seconds": 0} == {**expected.train_metrics, "seconds": 0}


async def test_answers_that_go_are_in_no_later_request(
    engine: EngineProcess, backend: EmbeddedBackend, calm: dict[str, Any]
) -> None:
    """A run whose user goes after the first step has the weights of one that never had the user's later answers."""
    hashes = []
    for gone in ({12, 15}, set[int]()):
        model, record = spec(), Answers(calm["answers"])
        record.deleted |= gone
        policy = await backend.register(model)
        loop = learn_loop(SERVED, SyntheticEmailSearch(), ReferenceJudge(), policy, demonstrations=record)
        async with aclosing(loop):
            async for result in loop:
                if result.iteration == 1:
                    record.deleted |= {3, 12, 15}
        assert record.sent == [list(range(10)), [10, 11, 13, 14, 16, 17, 18, 19]]
        hashes.append(weights(engine, model))
    assert hashes[0] == hashes[1] != calm["weights"]


async def test_an_iteration_of_which_nothing_is_left_keeps_the_step(
    backend: EmbeddedBackend, calm: dict[str, Any]
) -> None:
    record = Answers(calm["answers"])
    record.deleted |= set(range(10, 20))
    results = await outlived(SERVED, await backend.register(spec()), Entries(), [], lambda: record)
    assert [result.step for result in results] == [0, 1, 1]
    assert results[-1].train_metrics == {
        "served": 0.0,
        "held_out_logprob": results[1].train_metrics["held_out_logprob"],
    }
    assert results[-1].left_out == ("all of them",)


async def test_a_record_decides_which_checkpoint_is_the_best(backend: EmbeddedBackend, calm: dict[str, Any]) -> None:
    record = Answers(calm["answers"])
    record.best = {2: 0}
    results = await outlived(SERVED, await backend.register(spec()), Entries(), [], lambda: record)
    assert [result.best_step for result in results] == [0, 1, 0]


def test_a_damaged_list_of_used_answers_is_dropped_and_no_intent_is_invented() -> None:
    assert repair([], [SERVED_USED]).put == {}
    assert repair(["train.intent"], [SERVED_USED]).drop == {SERVED_USED}
