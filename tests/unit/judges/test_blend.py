"""The mix of judges: weights, judges without a verdict, labels, configs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_sales.environment import SalesEmail
from learnloop_service.environment.base import Scenario
from learnloop_service.judges import registry
from learnloop_service.judges.base import Candidate, JudgeCall, Judgement, JudgeServices, Score
from learnloop_service.judges.blend import BlendedJudge, BlendJudge, build
from learnloop_service.judges.registry import UnknownJudge
from tests.fakes.scripted_judge import OnlyModel

SCENARIO = Scenario("s1", "train", {}, {"answer": "14 March"})
CANDIDATES = [Candidate("a", {"answer": "14 March"}, ()), Candidate("b", {"answer": "15 March"}, ())]
SERVICES = JudgeServices(rubric="rubric", models=OnlyModel())
CALL = JudgeCall("fixed", "m", 10, 5, None, 1, 0.1)


@dataclass
class Fixed:
    """A judge from outside that always says the same."""

    scores: Sequence[float | None]
    name: str = "fixed"
    calls: Sequence[JudgeCall] = field(default_factory=tuple)

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        return Judgement([Score(value, "as told") for value in self.scores], self.calls)


class Failing:
    name = "failing"

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        raise RuntimeError("out of order")


async def blended(*parts: tuple[Any, float]) -> Judgement:
    labelled = [BlendedJudge(f"{judge.name}{number}", judge, weight) for number, (judge, weight) in enumerate(parts, 1)]
    return await BlendJudge(labelled).judge(SCENARIO, CANDIDATES)


async def test_it_asks_what_its_judges_ask() -> None:
    config = {"judges": [{"name": "correctness", "weight": 1}, {"name": "reference", "weight": 1}]}
    [question] = cast(BlendJudge, build(config, SERVICES)).questions(SCENARIO, CANDIDATES)
    assert question.judge == "correctness"
    assert "15 March" in question.messages[1]["content"]


async def test_the_value_is_the_weighted_mean() -> None:
    judgement = await blended((Fixed([1.0, 0.0]), 0.6), (Fixed([0.5, 1.0]), 0.2), (Fixed([0.0, 0.5]), 0.2))
    assert [score.value for score in judgement.scores] == pytest.approx([0.7, 0.3])
    assert judgement.scores[0].parts == {"fixed1": 1.0, "fixed2": 0.5, "fixed3": 0.0}
    assert "fixed1 1.00: as told" in judgement.scores[0].explanation


async def test_a_missing_part_leaves_its_weight_to_the_others_and_it_is_said() -> None:
    judgement = await blended((Fixed([1.0, 0.5]), 0.6), (Fixed([None, 1.0]), 0.2), (Fixed([0.2, 0.5]), 0.2))
    assert [score.value for score in judgement.scores] == pytest.approx([0.8, 0.6])
    assert "fixed2 had none (as told): its weight 0.2 went to the others" in judgement.scores[0].explanation
    assert "fixed2" not in judgement.scores[0].parts
    assert "had none" not in judgement.scores[1].explanation


async def test_without_any_verdict_there_is_none() -> None:
    judgement = await blended((Fixed([None, 0.5]), 0.6), (Fixed([None, None]), 0.4))
    assert [score.value for score in judgement.scores] == [None, 0.5]
    assert "fixed1 had none (as told); fixed2 had none (as told)" in judgement.scores[0].explanation


@pytest.mark.parametrize("broken", [Failing(), Fixed([1.0])])
async def test_a_judge_that_fails_counts_as_missing(broken: Any) -> None:
    judgement = await blended((Fixed([1.0, 0.5]), 0.5), (broken, 0.5))
    assert [score.value for score in judgement.scores] == [1.0, 0.5]
    assert "had none (it failed: " in judgement.scores[0].explanation


async def test_what_all_of_them_cost_is_told() -> None:
    judgement = await blended((Fixed([1.0, 0.5], calls=[CALL]), 0.5), (Fixed([1.0, 0.5], calls=[CALL, CALL]), 0.5))
    assert len(judgement.calls) == 3


async def test_the_judges_work_at_the_same_time() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    class Waiting(Fixed):
        async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
            started, other = (first, second) if self.name == "a" else (second, first)
            started.set()
            await other.wait()
            return await super().judge(scenario, candidates)

    async with asyncio.timeout(60):
        await blended((Waiting([1.0, 1.0], name="a"), 1), (Waiting([1.0, 1.0], name="b"), 1))


@given(pairs=st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 1e6)), min_size=2, max_size=8))
async def test_the_mean_lies_between_the_parts(pairs: list[tuple[float, float]]) -> None:
    judgement = await blended(*((Fixed([value, value]), weight) for value, weight in pairs))
    value = judgement.scores[0].value
    assert value is not None
    assert min(v for v, _ in pairs) - 1e-9 <= value <= max(v for v, _ in pairs) + 1e-9


async def test_members_come_from_the_registry_with_their_configs() -> None:
    entries = [{"name": "reference", "weight": 3}, {"name": "reference", "config": {}, "weight": 1}]
    judgement = await build({"judges": entries}, SERVICES).judge(SCENARIO, CANDIDATES)
    assert [score.value for score in judgement.scores] == [1.0, 0.0]
    assert judgement.scores[0].parts == {"reference.1": 1.0, "reference.2": 1.0}


def test_without_a_config_it_is_the_mix_of_codreamer() -> None:
    judge = registry.build("blend", {}, SERVICES)
    assert isinstance(judge, BlendJudge)
    labels = {part.label: part.weight for part in judge._parts}
    assert labels == {"ruler": 0.6, "feedback.human": 0.2, "feedback.online": 0.2}


def test_without_a_judge_model_that_mix_is_refused() -> None:
    with pytest.raises(ValueError, match="ruler needs a language model: there is no model to ask"):
        build({}, JudgeServices())


REFERENCE = {"name": "reference", "weight": 1}


@pytest.mark.parametrize(
    "config",
    [
        {"weights": []},
        {"judges": []},
        {"judges": "reference"},
        {"judges": [REFERENCE]},
        {"judges": [REFERENCE] * 9},
        {"judges": [REFERENCE, {"name": "reference"}]},
        {"judges": [REFERENCE, {**REFERENCE, "share": 1}]},
        {"judges": [REFERENCE, {**REFERENCE, "name": "blend"}]},
        {"judges": [REFERENCE, {**REFERENCE, "name": 7}]},
        {"judges": [REFERENCE, {**REFERENCE, "config": []}]},
        {"judges": [REFERENCE, {**REFERENCE, "config": {"strict": True}}]},
        *(
            {"judges": [REFERENCE, {**REFERENCE, "weight": weight}]}
            for weight in (0, -1, True, "1", 1e400, float("nan"))
        ),
    ],
)
def test_a_bad_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"blend|reference"):
        build(config, SERVICES)


def test_an_unknown_member_is_refused() -> None:
    with pytest.raises(UnknownJudge, match="nobody"):
        build({"judges": [REFERENCE, {**REFERENCE, "name": "nobody"}]}, SERVICES)


async def test_the_part_of_a_market_simulator_is_named_so() -> None:
    market = {"name": "feedback", "config": {"market": {"seed": 1}}, "weight": 1}
    judge = build({"judges": [market, {"name": "grounding", "weight": 1}]}, JudgeServices())
    environment = SalesEmail()
    [scenario] = environment.scenarios("test", 1, seed=0)
    episode = environment.episode(scenario)
    await episode.call("finalize_email", {"subject": "A question", "body": "Shall we talk?", "citations": []})
    judgement = await judge.judge(scenario, [Candidate("a", episode.outcome(), [])])
    assert "feedback (market simulator)" in judgement.scores[0].parts
