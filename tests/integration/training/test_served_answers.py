"""Learning from served answers on the real engine: each is trained once, whatever dies, and only those still there."""

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.backends.embedded import EmbeddedBackend
from learnloop_service.training.budget import Usage
from learnloop_service.training.journal import SERVED_USED
from learnloop_service.training.loop import served_answers
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.loop.served_answers import ANSWER_KL, OPTIONS, AnswerRow, AnswersRecord
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.model_calls import AnsweredCall
from learnloop_service.training.types import EvaluationConfig, IterationResult, RunConfig
from tests.integration.training.killed_steps import Entries, outlived

TOKENS, ANSWERS = 8, 24
START = "served/start@0"
"""Its weights are random, so that no token is likely."""
GO_ON = {"role": "user", "content": "Go on."}
CONFIG = RunConfig(
    iterations=0,
    served_iterations=2,
    learning_rate=7e-4,
    warmup_iterations=1,
    train_options={**OPTIONS, "max_kl": ANSWER_KL / 2 / TOKENS, "min_probability": 0},
    evaluation=EvaluationConfig(scenarios=0, test_scenarios=0),
)
_names = count()


@pytest.fixture(scope="module")
def served() -> dict[str, list[AnsweredCall]]:
    return {}


@pytest.fixture
async def calls(backend: EmbeddedBackend, served: dict[str, list[AnsweredCall]]) -> dict[str, list[AnsweredCall]]:
    """Sessions of two calls that the start has answered, where the second one continues the first."""
    if not served:
        policy = await backend.register(ModelSpec("served", "start", "random"))
        async with open_chat(policy.endpoint(), 8) as chat:
            for number in range(ANSWERS):
                messages: list[dict[str, Any]] = [{"role": "user", "content": f"Question {number}?"}]
                for _ in range(2):
                    body = {"model": chat.model, "messages": messages, "max_tokens": TOKENS // 2, "seed": number}
                    completion = await chat.complete({**body, "return_token_ids": True})
                    served.setdefault(f"{number:02}", []).append(
                        AnsweredCall(tuple(messages), (), completion, Usage(0, 0))
                    )
                    said = completion.choices[0].message.content
                    messages = [
                        *messages,
                        {"role": "assistant", "content": said},
                        {"role": "user", "content": "Go on."},
                    ]
    return served


def rows() -> list[AnswerRow]:
    """A third is held out, and each iteration has a third. Every other answer went well."""
    return [
        AnswerRow(f"{number:02}", START, "", TOKENS, float(number % 2), 0.5, number // 2 % 3)
        for number in range(ANSWERS)
    ]


async def lives(
    backend: EmbeddedBackend,
    calls: dict[str, list[AnsweredCall]],
    journal: Entries,
    without: Sequence[str] = (),
) -> tuple[list[IterationResult], str | None]:
    """The results of a run that continues after each of its deaths, and the hash of its last weights. `without` are
    sessions that vanish once the first iteration is done."""
    policy = await backend.register(ModelSpec("served", f"answers-{next(_names)}", START))
    saved = list[IterationResult]()

    async def read(some: Sequence[AnswerRow]) -> Mapping[str, Sequence[AnsweredCall]]:
        gone = without if len(saved) > 1 else ()
        return {row.id: calls[row.id] for row in some if row.id not in gone}

    await outlived(CONFIG, policy, journal, saved, lambda: AnswersRecord(CONFIG, START, rows(), read))
    return saved, await policy.weights_sha256(saved[-1].step)


@pytest.fixture(scope="module")
def undisturbed() -> list[Any]:
    return []


@pytest.fixture
async def calm(backend: EmbeddedBackend, calls: dict[str, list[AnsweredCall]], undisturbed: list[Any]) -> Any:
    """The results and the weights of an undisturbed run."""
    if not undisturbed:
        undisturbed.append(await lives(backend, calls, Entries()))
    return undisturbed[0]


async def test_a_step_moves_the_policy_by_what_it_may(calm: tuple[list[IterationResult], str]) -> None:
    results, _ = calm
    assert [(result.iteration, result.step, result.best_step) for result in results] == [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 2),
    ]
    for result in results[1:]:
        assert result.train_metrics["served_answers"] == 8
        assert result.train_metrics["served_held_out"] == 8
        assert 0 < result.train_metrics["step_kl"] <= CONFIG.train_options["max_kl"]
    assert abs(results[-1].train_metrics["served_kl"]) < ANSWER_KL


@pytest.mark.parametrize("entry", [SERVED_USED, "train.intent", "train.job", "train"])
@pytest.mark.parametrize("side", ["before", "after"])
async def test_a_killed_run_has_the_same_weights(
    backend: EmbeddedBackend,
    calls: dict[str, list[AnsweredCall]],
    calm: tuple[list[IterationResult], str],
    entry: str,
    side: str,
) -> None:
    """It dies in both iterations, at each entry of the journal."""

    class Twice(Entries):
        async def keep(self, iteration: int, name: str, value: str) -> None:
            if iteration == 2 and self.deaths == 1:
                self.arm(**{side: entry})
                self.deaths += 1
            await super().keep(iteration, name, value)

    journal = Twice(**{side: entry})
    results, weights = await lives(backend, calls, journal)
    assert journal.deaths == 3  # one of which is the arming
    assert weights == calm[1]
    assert [dict(result.train_metrics).keys() for result in results] == [
        dict(result.train_metrics).keys() for result in calm[0]
    ]


async def test_a_run_that_lacks_sessions_has_the_weights_of_one_that_never_had_them(
    backend: EmbeddedBackend, calls: dict[str, list[AnsweredCall]], calm: tuple[list[IterationResult], str]
) -> None:
    gone = [row.id for row in rows() if row.iteration == 2][:3]
    results, weights = await lives(backend, calls, Entries(), gone)
    assert results[2].train_metrics["served_withdrawn"] == 3
    assert weights != calm[1]

    fewer = {id: answered for id, answered in calls.items() if id not in gone}
    policy = await backend.register(ModelSpec("served", f"answers-{next(_names)}", START))

    async def read(some: Sequence[AnswerRow]) -> Mapping[str, Sequence[AnsweredCall]]:
        return {row.id: fewer[row.id] for row in some}

    kept = [row for row in rows() if row.id not in gone]
    record = AnswersRecord(CONFIG, START, kept, read)
    loop = learn_loop(CONFIG, SyntheticEmailSearch(), ReferenceJudge(), policy, demonstrations=record)
    async with aclosing(loop):
        never = [result async for result in loop]
    assert await policy.weights_sha256(never[-1].step) == weights


async def test_the_start_gives_its_answers_their_recorded_probabilities(
    backend: EmbeddedBackend, calls: dict[str, list[AnsweredCall]]
) -> None:
    policy = await backend.register(ModelSpec("served", f"answers-{next(_names)}", START))

    async def read(some: Sequence[AnswerRow]) -> Mapping[str, Sequence[AnsweredCall]]:
        return {row.id: calls[row.id] for row in some}

    record = AnswersRecord(CONFIG, START, rows(), read)
    ratios = await record._log_ratios(policy, 0, rows())
    assert len(ratios) == ANSWERS
    assert max(map(abs, ratios.values())) < 1e-4


async def test_a_step_that_moved_answers_too_far_is_not_used_and_is_the_last(
    backend: EmbeddedBackend,
    calls: dict[str, list[AnsweredCall]],
    calm: tuple[list[IterationResult], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that takes over scores the answers again, and a step that was begun before is finished."""
    policy = await backend.register(ModelSpec("served", f"answers-{next(_names)}", START))

    async def read(some: Sequence[AnswerRow]) -> Mapping[str, Sequence[AnsweredCall]]:
        return {row.id: calls[row.id] for row in some}

    monkeypatch.setattr(served_answers, "MOST_MOVED", -1.0)
    journal, saved = Entries(after="train.intent"), list[IterationResult]()
    await outlived(CONFIG, policy, journal, saved, lambda: AnswersRecord(CONFIG, START, rows(), read))
    assert journal.deaths == 1
    assert [(result.step, result.best_step) for result in saved] == [(0, 0), (1, 0), (1, 0)]
    first, last = saved[1].train_metrics, saved[2].train_metrics
    assert (first["served_answers"], last["served_answers"]) == (8, 0)
    moved = calm[0][1].train_metrics["served_kl"]
    assert last["served_moved_too_far"] == first["served_moved_too_far"] == moved
    assert last["served_kl"] == first["served_kl"] == pytest.approx(0, abs=1e-4)

    again = saved[:2]
    await outlived(CONFIG, policy, Entries(), again, lambda: AnswersRecord(CONFIG, START, rows(), read))
    assert dict(again[2].train_metrics) == dict(last)

    begun = Entries()
    begun.saved[2][SERVED_USED] = json.dumps([row.id for row in rows() if row.iteration == 2])
    finished = saved[:2]
    await outlived(CONFIG, policy, begun, finished, lambda: AnswersRecord(CONFIG, START, rows(), read))
    assert (finished[2].step, finished[2].train_metrics["served_answers"]) == (2, 8)
    assert await policy.weights_sha256(2) == calm[1]


async def test_what_was_hardly_sampled_moves_nothing(
    backend: EmbeddedBackend, calls: dict[str, list[AnsweredCall]]
) -> None:
    policy = await backend.register(ModelSpec("served", f"answers-{next(_names)}", START))
    config = replace(CONFIG, train_options={**CONFIG.train_options, "min_probability": 0.5})

    async def read(some: Sequence[AnswerRow]) -> Mapping[str, Sequence[AnsweredCall]]:
        return {row.id: calls[row.id] for row in some}

    saved = list[IterationResult]()
    await outlived(config, policy, Entries(), saved, lambda: AnswersRecord(config, START, rows(), read))
    assert [result.train_metrics["step_kl"] for result in saved[1:]] == [0.0, 0.0]
