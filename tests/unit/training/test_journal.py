"""What an unfinished iteration keeps comes back as it was."""

import json
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learnloop_service.environment.base import Scenario
from learnloop_service.judges.base import JudgeCall, Judgement, Score
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.journal import (
    EntryName,
    Repair,
    dump_judgements,
    dump_rollout,
    load_judgements,
    load_rollout,
    repair,
    unscored,
)
from learnloop_service.training.phases import Phase, Purpose
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.types import FailureKind, Rollout, RolloutFailure

SCENARIO = Scenario("train.7", "train", {"question": "when?"}, {"answer": "then"})
texts = st.text(st.characters(codec=None, exclude_categories=[]), max_size=12)  # lone surrogates too
numbers = st.floats(allow_nan=False)  # infinities too
jsons: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
TOOL = {"type": "function", "function": {"name": "search_inbox", "description": "é", "parameters": {"type": "object"}}}


@st.composite
def choices(draw: Any) -> Any:
    """A reply as the engine gives it: token ids with their log-probabilities, perhaps tool calls."""
    from openai.types.chat.chat_completion import Choice

    tokens = draw(st.lists(st.tuples(st.integers(0, 2**31), numbers), max_size=4))
    content = [
        {"token": f"token_id:{number}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for number, logprob in tokens
    ]
    calls = draw(st.lists(st.tuples(texts, texts), max_size=2))
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.none() | texts)}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    return Choice.model_validate(
        {
            "index": 0,
            "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls"])),
            "logprobs": draw(st.sampled_from([None, {"content": content, "refusal": None}])),
            "message": message,
        }
    )


@st.composite
def rollouts(draw: Any) -> Rollout:
    art = import_art()
    items = [{"role": "system", "content": draw(texts)}, {"role": "user", "content": draw(texts)}]
    for choice in draw(st.lists(choices(), max_size=3)):
        items += [choice, {"role": "tool", "tool_call_id": "call_0", "content": draw(texts)}]
    trajectory = art.Trajectory(messages_and_choices=items, tools=draw(st.sampled_from([None, [TOOL]])))
    trajectory.metrics |= {"turns": draw(st.integers(0, 9)), "sampling_s": draw(numbers)}
    trajectory.metadata |= {"rollout_id": "r1", "scenario_id": SCENARIO.id}
    return Rollout(
        draw(texts),
        SCENARIO,
        trajectory,
        draw(st.dictionaries(texts, jsons, max_size=3)),
        draw(st.none() | st.builds(RolloutFailure, st.sampled_from(FailureKind), texts)),
        draw(numbers),
        draw(numbers),
    )


def trained_on(rollout: Rollout) -> str:
    """What a train request says of it, to the last digit."""
    art = import_art()
    return json.dumps(art.TrajectoryGroup([rollout.trajectory]).model_dump(mode="json"))


def facts(rollout: Rollout) -> list[Any]:
    return [rollout.id, rollout.scenario, rollout.outcome, rollout.failure, rollout.started_at, rollout.seconds]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(rollouts())
def test_a_rollout_comes_back_as_it_was(rollout: Rollout) -> None:
    packed = zlib.compress(dump_rollout(rollout).encode(), 1)
    again = load_rollout(SCENARIO, zlib.decompress(packed).decode())
    assert facts(again) == facts(rollout)
    assert messages_of(again.trajectory) == messages_of(rollout.trajectory)
    assert trained_on(again) == trained_on(rollout)
    assert again.trajectory.metrics == rollout.trajectory.metrics
    assert [type(metric) for metric in again.trajectory.metrics.values()] == [
        type(metric) for metric in rollout.trajectory.metrics.values()
    ]
    # A takeover of a takeover has it too.
    assert dump_rollout(again) == dump_rollout(rollout)


def test_a_figure_that_is_not_a_number_stays_one() -> None:
    art = import_art()
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "?"}])
    trajectory.metrics["sampling_s"] = float("nan")
    again = load_rollout(SCENARIO, dump_rollout(Rollout("r1", SCENARIO, trajectory, {})))
    assert again.trajectory.metrics["sampling_s"] != again.trajectory.metrics["sampling_s"]
    assert again.error is None
    assert again.trajectory.tools is None


def test_a_rollout_of_another_scenario_is_refused() -> None:
    art = import_art()
    dumped = dump_rollout(Rollout("r1", SCENARIO, art.Trajectory(), {}))
    with pytest.raises(ValueError, match=r"'train\.7' in place of 'train\.8'"):
        load_rollout(Scenario("train.8", "train", {}), dumped)


def test_a_failed_rollout_of_an_earlier_version_has_its_message() -> None:
    """It was kept before failures had a kind."""
    failed = Rollout("r1", SCENARIO, import_art().Trajectory(), {}, RolloutFailure(FailureKind.TIMEOUT, "too slow"))
    entry = json.loads(dump_rollout(failed))
    assert entry["error"] == "too slow"
    assert entry.pop("failure") == "timeout"
    again = load_rollout(SCENARIO, json.dumps(entry))
    assert again.failure == RolloutFailure(FailureKind.OTHER, "too slow")


@pytest.mark.parametrize(
    ("entry", "name", "phase"),
    [
        (EntryName("rollout", Purpose.TRAIN, 3), "rollout/train/3", Phase.ROLLOUT),
        (EntryName("rollout", Purpose.SHOWCASE, 0), "rollout/showcase/0", Phase.REFLECT),
        (EntryName("rollout", Purpose.VALIDATION_SAMPLED, 12), "rollout/validation.sampled/12", Phase.EVALUATE),
        (EntryName("calls", Purpose.TRAIN, 3, 0), "calls/train/3/0", Phase.ROLLOUT),
        (EntryName("calls", Purpose.TEST_GREEDY, 1, 2), "calls/test.greedy/1/2", Phase.EVALUATE),
        (EntryName("judge", Purpose.TRAIN), "judge/train", Phase.JUDGE),
        (EntryName("judge", Purpose.TRAIN, 0), "judge/train/0", Phase.JUDGE),
        (EntryName("judge", Purpose.SHOWCASE), "judge/showcase", Phase.REFLECT),
        (EntryName("judge", Purpose.TEST_GREEDY, 1), "judge/test.greedy/1", Phase.EVALUATE),
    ],
)
def test_names_that_running_runs_have_in_their_journals(entry: EntryName, name: str, phase: Phase) -> None:
    assert str(entry) == name
    assert EntryName.parse(name) == entry
    assert entry.phase == phase


@pytest.mark.parametrize("name", ["train", "train.intent", "train.job/2", "train.withdrawn"])
def test_an_entry_of_the_training_has_no_purpose(name: str) -> None:
    assert EntryName.parse(name) is None


scores = st.builds(Score, st.none() | st.floats(0.0, 1.0), texts, st.dictionaries(texts, numbers, max_size=3))
calls = st.builds(
    JudgeCall,
    judge=texts,
    model=texts,
    prompt_tokens=st.integers(0, 10**9),
    completion_tokens=st.integers(0, 10**9),
    cost_usd=st.none() | numbers,
    requests=st.integers(0, 9),
    seconds=numbers,
    cached=st.booleans(),
    error=st.none() | texts,
)


@settings(deadline=None)
@given(st.lists(st.builds(Judgement, st.lists(scores, max_size=4), st.lists(calls, max_size=2)), max_size=3))
def test_verdicts_come_back_as_they_were(judgements: list[Judgement]) -> None:
    assert load_judgements(dump_judgements(judgements)) == judgements


def test_a_zero_and_no_verdict_are_told_apart() -> None:
    [judgement] = load_judgements(dump_judgements([Judgement([Score(0.0, "bad"), Score(None, "no reply")])]))
    assert [score.value for score in judgement.scores] == [0.0, None]


VERDICTS = {"judge/train", "judge/train/0", "judge/train/1"}


@pytest.mark.parametrize(
    ("damaged", "drop", "added"),
    [
        ({"judge/train"}, {"judge/train"}, {}),
        ({"rollout/train/1"}, {"rollout/train/1"} | VERDICTS, {}),
        ({"rollout/validation.greedy/1"}, {"rollout/validation.greedy/1"}, {}),
        ({"calls/train/1/0"}, {"calls/train/1/0"}, {}),
        ({"train"}, {"train"}, {}),
        ({"train.job"}, {"train.job"}, {}),
        ({"train.intent"}, {"train.intent"}, {"train.intent": "{}"}),
        ({"train.intent/1"}, {"train.intent/1"}, {"train.intent/1": "{}"}),
        ({"trainXintent"}, {"trainXintent"}, {"train.intent/2": "{}"}),
        ({"rollout/nothing/1"}, {"rollout/nothing/1"}, {"train.intent/2": "{}"}),
    ],
)
def test_what_becomes_of_damaged_entries(damaged: set[str], drop: set[str], added: dict[str, str]) -> None:
    whole = {"rollout/train/0", "rollout/train/1", "train.intent", "train.intent/1", "train.job", "train"} | VERDICTS
    assert repair(whole - damaged, damaged) == Repair(frozenset(drop), added)


def test_verdicts_without_a_score_are_listed_unless_training_used_them() -> None:
    whole, failed = Judgement([Score(0.5, "")]), Judgement([Score(None, "the judge failed"), Score(1.0, "")])
    entries = {
        "judge/train": dump_judgements([whole, failed]),
        "judge/train/0": dump_judgements([whole]),
        "judge/train/1": dump_judgements([failed]),
        "judge/validation.sampled": dump_judgements([failed]),
        "judge/validation.greedy": dump_judgements([whole]),
        "rollout/train/0": "{}",
    }
    assert unscored(entries) == ["judge/train", "judge/train/1", "judge/validation.sampled"]
    assert unscored(entries | {"train.intent": "{}"}) == ["judge/validation.sampled"]
