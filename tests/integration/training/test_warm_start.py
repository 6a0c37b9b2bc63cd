"""Supervised iterations: what they learn, and that each is trained once, whatever dies."""

import asyncio
import hashlib
import json
import re
import signal
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import learnloop_service.training.engine
from learnloop_service.app.datasets.demonstrations import read_demonstrations
from learnloop_service.app.operations.rejection_sampling import conversations_of
from learnloop_service.app.worker.save_iteration import rollout_row
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    ModelSpec,
    Policy,
    SupervisedRequest,
    TrainingFailed,
)
from learnloop_service.training.backends.embedded import EmbeddedBackend, connect
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.loop.warm_start import LEFT_OUT, AllOverlong, iterations_of
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.types import (
    EvaluationConfig,
    IterationProgress,
    IterationResult,
    Resume,
    RunConfig,
    Snapshot,
    WarmStartConfig,
)
from tests.best_of import best_of
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import Moment, lossy_proxy
from tests.fakes.scripted_learning import ScriptedPolicy
from tests.integration.training.killed_steps import Entries, Killed

TINY = Path(learnloop_service.training.engine.__path__[0]) / "tiny_base" / "model"
JOBS = "POST /v1/preview/sft-training-jobs"
NO_EVALUATION = EvaluationConfig(scenarios=0, test_scenarios=0)
TOOL = {"type": "function", "function": {"name": "search_inbox", "parameters": {"type": "object", "properties": {}}}}
ASKED = {"role": "user", "content": "find it"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "search_inbox", "arguments": '{"keywords": ["it"]}'}}
DEMONSTRATION = {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}], "tools": [TOOL]}
SMALL = RunConfig(
    iterations=0,
    seed=3,
    warm_start=WarmStartConfig(3, epochs=2, batch_size=2, held_out=0.25, demonstrations_per_iteration=7),
    evaluation=NO_EVALUATION,
)
"""18 trainings of 9 demonstrations, 7 in an iteration."""
_names = count()


def config(demonstrations: int, **warm_start: Any) -> RunConfig:
    """A run of supervised iterations only."""
    options = {"epochs": 1, "held_out": 0.1, "demonstrations_per_iteration": None} | warm_start
    total = iterations_of(
        demonstrations, options["epochs"], options["held_out"], options["demonstrations_per_iteration"]
    )
    return RunConfig(iterations=0, seed=5, warm_start=WarmStartConfig(total, **options), evaluation=NO_EVALUATION)


async def run(policy: Policy, config: RunConfig, demonstrations: Any, **options: Any) -> list[IterationResult]:
    loop = learn_loop(
        config, SyntheticEmailSearch(), ReferenceJudge(), policy, demonstrations=demonstrations, **options
    )
    async with aclosing(loop):
        return [result async for result in loop]


def spec(base_model: str = "learnloop/tiny") -> ModelSpec:
    return ModelSpec("warm", f"agent-{next(_names)}", base_model)


def weights(engine: EngineProcess, model: ModelSpec) -> dict[str, str]:
    """The hash of each checkpoint's weights, by step."""
    checkpoints = engine.data_dir / "models" / model.project / model.name / "checkpoints"
    return {
        path.name: hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        for path in sorted(checkpoints.iterdir())
    }


async def test_a_model_that_calls_no_tools_learns_to(backend: EmbeddedBackend) -> None:
    reports: list[IterationProgress] = []
    model = spec("random")
    results = await run(
        await backend.register(model),
        config(60, epochs=2, batch_size=2, learning_rate=2e-2),
        [DEMONSTRATION] * 60,
        progress=reports.append,
    )
    assert [(result.iteration, result.step, result.best_step) for result in results] == [
        (0, 0, 0),
        (1, 1, 1),
        (2, 2, 2),
    ]
    first, second = results[1].train_metrics, results[2].train_metrics
    assert first["held_out_loss"] < first["held_out_loss_before"] / 2
    assert second["held_out_loss_before"] == pytest.approx(first["held_out_loss"])
    assert second["loss"] < first["loss"]
    assert first["num_trajectories"] == 54
    assert first["num_gradient_steps"] == 27
    assert [(report.done, report.total) for report in reports if report.iteration == 1][-1] == (27, 27)
    endpoint = (await backend.register(model)).endpoint()
    async with open_chat(endpoint, 1) as chat:
        reply = await chat.complete({"model": chat.model, "messages": [ASKED], "tools": [TOOL], "seed": 1})
    [called] = reply.choices[0].message.model_dump()["tool_calls"]
    assert called["function"]["name"] == "search_inbox"
    assert json.loads(called["function"]["arguments"]) == {"keywords": ["it"]}


class Deadly(Entries):
    """A journal that kills its writer once in each iteration: around another entry each time."""

    async def keep(self, iteration: int, name: str, value: str) -> None:
        moments = {1: {"before": "train.job"}, 2: {"after": "train.job"}, 3: {"before": "train"}}
        if name == "train.intent" and "train.intent" not in self.saved[iteration]:
            self.arm(**moments[iteration])
        await super().keep(iteration, name, value)


async def lives(backend: EmbeddedBackend, model: ModelSpec, journal: Entries) -> list[IterationResult]:
    """The results of a run that continues after each of its deaths."""
    saved: list[IterationResult] = []
    policy = await backend.register(model)
    for _ in range(4):
        resume = Resume(saved[-1].iteration + 1, Snapshot(saved[-1].step), best_of(saved)) if saved else None
        loop = learn_loop(
            SMALL, SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal, resume=resume, demonstrations=12
        )
        try:
            async with aclosing(loop):
                async for result in loop:
                    saved.append(result)
            return saved
        except (Killed, BackendUnavailable):
            continue
    raise AssertionError("it never came to its end")


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    return {}


@pytest.fixture
async def calm(engine: EngineProcess, backend: EmbeddedBackend, undisturbed: dict[str, str]) -> dict[str, str]:
    """The weights of an undisturbed run."""
    if not undisturbed:
        model = spec()
        assert len(await lives(backend, model, Entries())) == 4
        undisturbed |= weights(engine, model)
        assert len(set(undisturbed.values())) == 4
    return undisturbed


@pytest.mark.long
async def test_each_iteration_is_trained_once_wherever_the_run_dies(
    engine: EngineProcess, backend: EmbeddedBackend, calm: dict[str, str]
) -> None:
    model, journal = spec(), Deadly()
    results = await lives(backend, model, journal)
    assert journal.deaths == 3
    assert [result.step for result in results] == [0, 1, 2, 3]
    assert weights(engine, model) == calm


@pytest.mark.long
async def test_an_engine_that_is_killed_while_it_trains(calm: dict[str, str], tmp_path: Path) -> None:
    """The step that was lost with it is trained again, and ends with the same weights."""
    running = EngineProcess(tmp_path).__enter__()
    remaining = [2]

    async def loses(moment: Moment, request: str) -> bool:
        nonlocal running
        if (moment, request) != ("reply", JOBS):
            return False
        remaining[0] -= 1
        if remaining[0] != 0:
            return False
        running.stop(signal.SIGKILL)
        running = await asyncio.to_thread(EngineProcess(tmp_path).__enter__)
        proxy.target = running.base_url
        return True

    try:
        async with lossy_proxy(running.base_url) as proxy:
            proxy.loses = loses
            backend = await connect(proxy.url, "none")
            model = spec()
            await lives(backend, model, Entries())
            await backend.close()
        assert remaining[0] <= 0, "it was never killed"
        assert weights(running, model) == calm
    finally:
        running.stop()


@pytest.mark.long
async def test_reinforcement_learning_continues_from_the_demonstrations(backend: EmbeddedBackend) -> None:
    """Its first iteration draws the scenarios after those that were demonstrated, and warms up."""
    both = replace(
        SMALL, iterations=1, groups_per_iteration=2, rollouts_per_group=3, max_turns=3, learning_rate=3e-4,
        first_scenario=12,
    )  # fmt: skip
    results = await run(await backend.register(spec()), both, 12)
    assert [result.iteration for result in results] == [0, 1, 2, 3, 4]
    assert [len(result.groups) for result in results] == [0, 0, 0, 0, 2]
    drawn = SyntheticEmailSearch().scenarios("train", 2, both.seed, start=12)
    assert [group.scenario.id for group in results[4].groups] == [scenario.id for scenario in drawn]
    assert results[4].step == 4
    assert results[4].train_metrics["learning_rate"] == pytest.approx(1e-4)
    _assert_trained_as_sampled(results[4])


def _assert_trained_as_sampled(result: IterationResult) -> None:
    """Rollouts that become demonstrations are trained with the tokens that were sampled, and no others."""
    tokenizer = ChatTokenizer(TINY)
    compared = 0
    rollouts = [scored.rollout for group in result.groups for scored in group.rollouts]
    for rollout in (candidate for candidate in rollouts if candidate.outcome["finish"] != "malformed"):
        row = SimpleNamespace(**rollout_row(rollout))
        [demonstration] = conversations_of(row)
        [read] = read_demonstrations(json.dumps(demonstration).encode())
        ids, owner = tokenizer.supervised_sequence(read["messages"], read["tools"])
        for turn in row.tokens:
            trained = [id for id, message in zip(ids, owner, strict=True) if message == turn["message"]]
            assert "".join(turn["texts"]) == tokenizer.fast.decode(trained)
            compared += 1
        assert len({message for message in owner if message is not None}) == len(row.tokens)
    assert compared


LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "why? " * 3_000}, {"role": "assistant", "content": "so"}]
}


async def test_a_conversation_that_is_too_long_is_named_and_left_out(backend: EmbeddedBackend) -> None:
    one_each = config(4, held_out=0.0, batch_size=2, demonstrations_per_iteration=1)
    results = await run(await backend.register(spec()), one_each, [DEMONSTRATION, LONG, DEMONSTRATION, DEMONSTRATION])
    [name] = results[0].left_out
    assert re.fullmatch(r"demonstration 2 \(\d+,\d+ tokens\)", name)
    [missing] = [result for result in results[1:] if result.left_out]
    assert missing.left_out == (name,)
    assert missing.train_metrics == {LEFT_OUT: 1.0}
    assert [result.step for result in results[1:]] == [
        sum(trained is not missing for trained in results[1 : number + 1]) for number in range(1, 5)
    ]
    assert all(LEFT_OUT not in result.train_metrics for result in results[1:] if result is not missing)


async def test_a_batch_is_trained_without_what_is_too_long(backend: EmbeddedBackend) -> None:
    """Also where the trainer is the first to count."""
    model = await backend.register(spec())
    demonstrated: list[dict[str, Any]] = [DEMONSTRATION, LONG, LONG]
    named: list[dict[str, Any]] = [
        {**demonstration, "id": f"demonstration {number}"} for number, demonstration in enumerate(demonstrated, 1)
    ]
    request = SupervisedRequest(named, [{**LONG, "id": "held out"}], 2, [1e-4, 1e-4], expected_step=0)
    outcome = await model.follow(await model.submit_supervised(request), 0)
    figures = outcome.metrics
    assert outcome.step == 1
    assert figures["num_overlong"] == 3.0
    assert figures["num_trajectories"] == 1.0
    assert figures["num_gradient_steps"] == 1.0
    assert "held_out_loss" not in figures
    request = replace(request, demonstrations=named[1:], learning_rates=[1e-4], expected_step=1)
    with pytest.raises(TrainingFailed, match=r"demonstration 2 has \d+ tokens; the model's context is \d+"):
        await model.follow(await model.submit_supervised(request), 1)


async def test_a_run_that_no_demonstration_fits_is_refused_before_its_baseline(backend: EmbeddedBackend) -> None:
    loop = learn_loop(
        config(2, held_out=0.0), SyntheticEmailSearch(), ReferenceJudge(), await backend.register(spec()),
        demonstrations=[LONG, LONG],
    )  # fmt: skip
    async with aclosing(loop):
        with pytest.raises(AllOverlong, match="2 of 2 demonstrations are longer than the model's context"):
            await anext(loop)


async def test_the_lengths_of_demonstrations_are_counted_for_a_base(backend: EmbeddedBackend) -> None:
    many: list[dict[str, Any]] = [DEMONSTRATION] * 100
    many[70] = LONG
    overlong = await backend.overlong("learnloop/tiny", many)
    assert overlong.total == 100
    assert list(overlong.tokens) == [70]
    model = await backend.register(spec())
    assert await model.overlong(many) == overlong
    ids, _ = ChatTokenizer(TINY).supervised_sequence(LONG["messages"], None)
    assert overlong.tokens[70] == len(ids) > overlong.context
    assert not (await backend.overlong("learnloop/tiny", [DEMONSTRATION])).tokens
    with pytest.raises(ValueError, match="no model"):
        await backend.overlong("learnloop/huge", many)


async def test_a_policy_that_takes_no_demonstrations() -> None:
    policy = ScriptedPolicy(spec(), "http://127.0.0.1:9/v1")
    with pytest.raises(ValueError, match="does not train on demonstrations"):
        await run(policy, config(1), 1)
